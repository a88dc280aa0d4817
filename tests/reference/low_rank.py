"""Reference fixtures for low-rank branches, made by `peft`, and for NF4, made by `bitsandbytes`.

Writes to models/tests/fixtures/low_rank:
- `branches.safetensors`: `A` and `B` of a LoRA of rank 2 and alpha 3 on the queries and values of the fixture `bert`,
  under our names.
- `expected.safetensors`: the last hidden state of that model on the inputs of the fixture, the gradients of `A` and `B`
  of the scalar in `models/tests/suite/parity.rs`, the weight of the first query after `merge_and_unload`; and values with
  their NF4 codes, scales and dequantised values.

    python tests/reference/low_rank.py

Made with Python 3.11, torch 2.15.0, transformers 5.24.0, peft 0.21.2, bitsandbytes 0.50.2, safetensors 0.8.0.
"""

from pathlib import Path

import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel

FIXTURES = Path(__file__).resolve().parents[2] / "models" / "tests" / "fixtures"


def build():
    """The fixture's encoder in f64, with branches of irregular values."""
    config = BertConfig.from_pretrained(FIXTURES / "bert", attn_implementation="eager")
    model = BertModel(config, add_pooling_layer=False)
    weights = load_file(FIXTURES / "bert" / "model.safetensors")
    model.load_state_dict({name.removeprefix("bert."): value.double() for name, value in weights.items()}, strict=True)
    lora = LoraConfig(r=2, lora_alpha=3, lora_dropout=0.0, target_modules=["query", "value"])
    model = get_peft_model(model, lora).double().eval()
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            step = 0.7 if "lora_A" in name else 0.9
            numbers = torch.arange(parameter.numel(), dtype=torch.float64) * step + 0.3
            parameter.data = (0.3 * numbers.sin()).float().double().view_as(parameter)
    return model


def hidden_states(model, inputs):
    """The last hidden states of all sequences, one after the other."""
    ids, types = inputs["ids"].split(inputs["lengths"].tolist()), inputs["types"].split(inputs["lengths"].tolist())
    states = [model(input_ids=i[None], token_type_ids=t[None]).last_hidden_state[0] for i, t in zip(ids, types)]
    return torch.cat(states)


def our_name(name):
    return name.removeprefix("base_model.model.").replace(".default.", ".")


def main():
    folder = FIXTURES / "low_rank"
    folder.mkdir(exist_ok=True)
    model = build()
    hidden = hidden_states(model, load_file(FIXTURES / "bert" / "expected.safetensors"))
    weights = (1.7 * torch.arange(hidden.numel(), dtype=torch.float64) + 0.3).sin().view_as(hidden)
    (hidden * weights).sum().backward()
    branches = {our_name(n): p for n, p in model.named_parameters() if p.requires_grad}
    save_file({name: p.data.float() for name, p in branches.items()}, folder / "branches.safetensors")
    expected = {"gradient." + name: p.grad.float() for name, p in branches.items()}
    expected["hidden"] = hidden.detach().float()
    merged = model.merge_and_unload()
    expected["merged"] = merged.encoder.layer[0].attention.self.query.weight.data.float()

    values = (torch.arange(64 * 9, dtype=torch.float32) ** 2 * 0.013).sin() * torch.arange(1, 64 * 9 + 1)
    codes, state = quantize_4bit(values, blocksize=64, quant_type="nf4")
    expected |= {"nf4.values": values, "nf4.codes": codes.flatten(), "nf4.scales": state.absmax.float()}
    expected["nf4.dequantised"] = dequantize_4bit(codes, state).float()
    save_file({name: value.contiguous() for name, value in expected.items()}, folder / "expected.safetensors")


if __name__ == "__main__":
    main()
