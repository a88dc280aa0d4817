"""Reference fixtures for CLIP, made by `transformers`.

Writes to models/tests/fixtures:
- clip/, clip_old/: tiny random models with `config.json`, `model.safetensors` (published names; f16, in which every
  value is exact) and `expected.safetensors`: images and token ids, last hidden states, embeddings, logits, and the
  gradient of the contrastive loss (the mean of the cross-entropies of both directions) for every parameter.
  `clip` has quick GELU and an end-of-text token, and its `config.json` omits default values. `clip_old` has GELU, ends
  texts at the largest id like the first published models, and its towers differ in width and depth.

- clip_vision/: the same for a vision encoder, with the `config.json` that `transformers` writes; its loss is the sum of
  the embeddings times `direction`.

The reference runs in f64, on a padded batch with an attention mask.

    python tests/reference/clip.py

Made with Python 3.11, torch 2.15.0, transformers 5.23.0, safetensors 0.8.0.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import CLIPConfig, CLIPModel, CLIPVisionConfig, CLIPVisionModelWithProjection

FIXTURES = Path(__file__).resolve().parents[2] / "models" / "tests" / "fixtures"

CLIP = {
    "model_type": "clip",
    "projection_dim": 12,
    "text_config": {
        "vocab_size": 40,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 12,
        "eos_token_id": 39,
        "bos_token_id": 38,
        "pad_token_id": 39,
    },
    "vision_config": {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 12,
        "patch_size": 4,
    },
}
CLIP_OLD = {
    "model_type": "clip",
    "projection_dim": 8,
    "text_config": CLIP["text_config"]
    | {
        "hidden_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "hidden_act": "gelu",
        "eos_token_id": 2,
        "layer_norm_eps": 1e-3,
    },
    "vision_config": CLIP["vision_config"] | {"patch_size": 6, "hidden_act": "gelu"},
}


def randomise(model, generator):
    """Sets every parameter to random values, also biases and norms, so that no parameter is trivially 0 or 1."""
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if name == "logit_scale":
            values = 1 + 0.2 * values
        elif "norm" in name and name.endswith("weight"):
            values = 1 + 0.2 * values
        elif name.endswith("bias"):
            values = 0.2 * values
        elif "embedding" not in name:
            values = values * parameter.shape[-1] ** -0.5
        elif "patch_embedding" in name:
            values = 0.2 * values
        parameter.data = values.to(torch.float16).to(torch.float64)


def write(name, config):
    """Writes the folder of one model."""
    generator = torch.Generator().manual_seed(11)
    model = CLIPModel(CLIPConfig(**config)).double().eval()
    randomise(model, generator)
    size = config["vision_config"]["image_size"]
    pixels = torch.randn(3, 3, size, size, generator=generator).to(torch.float64)
    lengths = [5, 12, 2]
    longest = max(lengths)
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    ids = torch.randint(3, 38, mask.shape, generator=generator)
    ids[:, 0] = 38
    ids[torch.arange(3), torch.tensor(lengths) - 1] = 39
    ids = torch.where(mask, ids, torch.tensor(39))
    output = model(input_ids=ids, attention_mask=mask.long(), pixel_values=pixels)
    logits = output.logits_per_image
    target = torch.arange(3)
    cross_entropy = torch.nn.functional.cross_entropy
    (0.5 * (cross_entropy(logits, target) + cross_entropy(logits.T, target))).backward()

    folder = FIXTURES / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    parameters = dict(model.named_parameters())
    save_file({n: p.data.half() for n, p in parameters.items()}, folder / "model.safetensors")
    # The embeddings in `output` have unit length. These are computed from the pooled states.
    text = model.text_model(input_ids=ids, attention_mask=mask.long())
    vision = model.vision_model(pixel_values=pixels)
    expected = {
        "ids": ids[mask],
        "lengths": torch.tensor(lengths),
        "pixels": pixels.float(),
        "text_hidden": text.last_hidden_state[mask].float(),
        "text_embeddings": model.text_projection(text.pooler_output).float(),
        "image_hidden": vision.last_hidden_state.float(),
        "image_embeddings": model.visual_projection(vision.pooler_output).float(),
        "logits": logits.float(),
    }
    expected |= {f"gradient.{n}": p.grad.float() for n, p in parameters.items()}
    save_file({n: t.detach().contiguous() for n, t in expected.items()}, folder / "expected.safetensors")


def write_vision(name):
    """Writes the folder of a vision encoder."""
    generator = torch.Generator().manual_seed(12)
    config = CLIPVisionConfig(**CLIP_OLD["vision_config"], projection_dim=8)
    model = CLIPVisionModelWithProjection(config).double().eval()
    randomise(model, generator)
    pixels = torch.randn(2, 3, config.image_size, config.image_size, generator=generator).double()
    direction = torch.randn(2, config.projection_dim, generator=generator).double()
    output = model(pixel_values=pixels)
    (output.image_embeds * direction).sum().backward()

    folder = FIXTURES / name
    config.save_pretrained(folder)
    parameters = dict(model.named_parameters())
    save_file({n: p.data.half() for n, p in parameters.items()}, folder / "model.safetensors")
    expected = {
        "pixels": pixels,
        "direction": direction,
        "image_hidden": output.last_hidden_state,
        "image_embeddings": output.image_embeds,
    }
    expected |= {f"gradient.{n}": p.grad for n, p in parameters.items()}
    save_file({n: t.detach().float().contiguous() for n, t in expected.items()}, folder / "expected.safetensors")


if __name__ == "__main__":
    write("clip", CLIP)
    write("clip_old", CLIP_OLD)
    write_vision("clip_vision")
