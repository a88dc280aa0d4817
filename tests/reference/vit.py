"""Reference fixtures for ViT, made by `transformers`.

Writes to models/tests/fixtures:
- vit/, vit_classifier/, vit_patches/: tiny random models with `config.json`, `model.safetensors` (published names;
  f16, in which every value is exact) and `expected.safetensors`: images, the last hidden state, and the gradient of a
  weighted sum of the last hidden state for every parameter.
  The `config.json` of `vit` omits default values. `vit_classifier` was saved with a head, so its names start with
  `vit.`, and its queries, keys and values have no biases. `vit_patches` has no class token, which `transformers` does
  not support: this script runs the modules on the patches and their position embeddings only.

Prints the parameter counts of the published sizes, which `models/tests/suite/vit.rs` checks. The reference runs in f64.

    python tests/reference/vit.py

Made with Python 3.11, torch 2.15.0, transformers 5.23.0, safetensors 0.8.0.
"""

import json
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import ViTConfig, ViTForImageClassification, ViTModel

FIXTURES = Path(__file__).resolve().parents[2] / "models" / "tests" / "fixtures"

VIT = {
    "model_type": "vit",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 12,
    "patch_size": 4,
}
CLASSIFIER = VIT | {
    "hidden_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "patch_size": 6,
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-3,
    "qkv_bias": False,
}
PATCHES = VIT | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-6, "class_token": False}

# Width, number of blocks, feed-forward width, heads, patch size.
SIZES = {
    "B/16": (768, 12, 3072, 12, 16),
    "L/16": (1024, 24, 4096, 16, 16),
    "g/14": (1408, 40, 6144, 16, 14),
    "G/14": (1664, 48, 8192, 16, 14),
}


def randomise(model, generator):
    """Sets every parameter to random values, also biases and norms, so that no parameter is trivially 0 or 1."""
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if "norm" in name and name.endswith("weight"):
            values = 1 + 0.2 * values
        elif name.endswith("bias"):
            values = 0.2 * values
        elif "projection" in name:
            values = 0.2 * values
        elif "embeddings" not in name:
            values = values * parameter.shape[-1] ** -0.5
        parameter.data = values.to(torch.float16).to(torch.float64)


def published(model):
    """Returns the parameters with the names that `transformers` writes to files."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def gradients(model):
    """Returns the gradients with the published names. Overwrites the parameters with the gradients."""
    for parameter in model.parameters():
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    return published(model)


def without_class_token(model, pixels):
    """Returns the last hidden state of the patches without a class token."""
    embeddings = model.embeddings
    states = embeddings.patch_embeddings(pixels) + embeddings.position_embeddings[:, 1:]
    for layer in model.layers:
        states = layer(states, None)
    return model.layernorm(states)


def write(name, config, head=False):
    """Writes the folder of one model."""
    generator = torch.Generator().manual_seed(13)
    known_settings = {key: value for key, value in config.items() if key != "class_token"}
    if head:
        model = ViTForImageClassification(ViTConfig(**known_settings)).double().eval()
    else:
        model = ViTModel(ViTConfig(**known_settings), add_pooling_layer=False).double().eval()
    randomise(model, generator)
    size = config["image_size"]
    pixels = 2 * torch.rand(3, 3, size, size, generator=generator).to(torch.float64) - 1
    class_token = config.get("class_token", True)
    encoder = model.vit if head else model
    hidden = encoder(pixels).last_hidden_state if class_token else without_class_token(encoder, pixels)
    indices = torch.arange(hidden.numel(), dtype=torch.float64).reshape(hidden.shape)
    (hidden * torch.sin(1.7 * indices + 0.3)).sum().backward()

    weights = published(model)
    gradients_by_name = gradients(model)
    if not class_token:
        for tensors in (weights, gradients_by_name):
            del tensors["embeddings.cls_token"]
            positions = tensors["embeddings.position_embeddings"]
            tensors["embeddings.position_embeddings"] = positions[:, 1:].contiguous()
    folder = FIXTURES / name
    folder.mkdir(parents=True, exist_ok=True)
    if head:
        model.config.save_pretrained(folder)
    else:
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file({n: t.half() for n, t in weights.items()}, folder / "model.safetensors")
    expected = {"pixels": pixels, "hidden": hidden.detach()}
    gradients_by_name = {n.removeprefix("vit."): t for n, t in gradients_by_name.items() if not n.startswith("classifier.")}
    expected |= {f"gradient.{n}": t for n, t in gradients_by_name.items()}
    save_file({n: t.float().contiguous() for n, t in expected.items()}, folder / "expected.safetensors")


def count(width, blocks, feed_forward, heads, patch):
    """Returns the number of parameters without a pooler; allocates no memory."""
    config = ViTConfig(
        hidden_size=width,
        num_hidden_layers=blocks,
        intermediate_size=feed_forward,
        num_attention_heads=heads,
        patch_size=patch,
    )
    with torch.device("meta"):
        model = ViTModel(config, add_pooling_layer=False)
    return sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    write("vit", VIT)
    write("vit_classifier", CLASSIFIER, head=True)
    write("vit_patches", PATCHES)
    for name, size in SIZES.items():
        print(name, f"{count(*size):,}")
