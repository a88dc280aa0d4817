"""Reference fixtures for adapters of `peft`, on the fixtures `bert` and `whisper`.

Writes to models/tests/fixtures/adapters/NAME what `save_pretrained` of an adapter leaves, and `expected.safetensors`:
the weights that `merge_and_unload` changes, and for BERT the hidden states on the inputs of the fixture.

    python tests/reference/adapters.py

Made with Python 3.11, torch 2.15.0, transformers 5.24.0, peft 0.21.2, safetensors 0.8.0.
"""

import json
import os
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel, WhisperConfig, WhisperForConditionalGeneration

os.environ["HF_HUB_OFFLINE"] = "1"
FIXTURES = Path(__file__).resolve().parents[2] / "models" / "tests" / "fixtures"

ADAPTERS = {
    "lora": (
        "bert",
        {
            "r": 2,
            "lora_alpha": 3,
            "use_rslora": True,
            "target_modules": ["query", "value", "word_embeddings"],
            "rank_pattern": {"layer.1.attention.self.value": 3},
            "alpha_pattern": {"layer.1.attention.self.value": 5},
            "modules_to_save": ["layer.1.output"],
            "bias": "lora_only",
        },
    ),
    "dora": ("bert", {"r": 2, "lora_alpha": 3, "target_modules": ["query"], "use_dora": True}),
    "whisper": ("whisper", {"r": 2, "lora_alpha": 3, "target_modules": ["q_proj", "v_proj"]}),
}


def base_model(name):
    folder = FIXTURES / name
    weights = load_file(folder / "model.safetensors")
    if name == "bert":
        model = BertModel(BertConfig.from_pretrained(folder, attn_implementation="eager"), add_pooling_layer=False)
        model.load_state_dict({name.removeprefix("bert."): value for name, value in weights.items()})
    else:
        model = WhisperForConditionalGeneration(WhisperConfig.from_pretrained(folder))
        model.load_state_dict(weights, strict=False)
    model.name_or_path = name
    return model.float().eval()


def hidden_states(model):
    """The last hidden states of all sequences of the fixture, one after the other."""
    inputs = load_file(FIXTURES / "bert" / "expected.safetensors")
    ids, types = inputs["ids"].split(inputs["lengths"].tolist()), inputs["types"].split(inputs["lengths"].tolist())
    return torch.cat([model(input_ids=i[None], token_type_ids=t[None])[0][0] for i, t in zip(ids, types)])


def main():
    for name, (base, settings) in ADAPTERS.items():
        folder = FIXTURES / "adapters" / name
        model = base_model(base)
        before = {key: value.clone() for key, value in model.state_dict().items()}
        model = get_peft_model(model, LoraConfig(**settings)).eval()
        for key, parameter in model.named_parameters():
            if parameter.requires_grad:
                numbers = torch.arange(parameter.numel(), dtype=torch.float64) * (0.7 if "_A" in key else 0.9) + 0.3
                change = (0.3 * numbers.sin()).float().view_as(parameter)
                parameter.data = change if "lora_A" in key or "lora_B" in key else parameter.data + change
        model.save_pretrained(folder)
        (folder / "README.md").unlink()
        expected = {}
        merged = model.merge_and_unload()
        for key, value in merged.state_dict().items():
            if not torch.equal(value, before[key]):
                expected[key] = value.clone().contiguous()
        if base == "bert":
            expected["hidden"] = hidden_states(merged).detach()
        save_file(expected, folder / "expected.safetensors")
        print(name, json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"], list(expected))


if __name__ == "__main__":
    main()
