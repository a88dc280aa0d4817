"""Reference fixtures for T5 v1.1, made by `transformers`.

Writes to models/tests/fixtures:
- t5/, t5_wide/: tiny random models with `config.json`, `model.safetensors` (published names; f16, in which every
  value is exact), `expected.safetensors` (token ids of texts and of decoder inputs, the encoder's states, logits, and the
  gradient of the mean cross-entropy for every parameter) and `generated.json` (the outputs of `generate` for the texts,
  greedy and with beam search, with log-probabilities). `t5` reaches the last distance bucket within 20 tokens. The heads of
  `t5_wide` are in total wider than the model, its encoder and decoder differ in depth, and it has the published buckets.
- t5_buckets.json: the buckets of the published models (32, up to distance 128) for the distances -300 to 300.

The reference runs in f64, on a padded batch with an attention mask. `generate` runs in f64 and in f32, which must agree.

    python tests/reference/t5.py [--counts]

`--counts` prints the numbers of parameters of the published sizes and writes nothing.
Made with Python 3.11, torch 2.15.0, transformers 5.23.0, safetensors 0.8.0.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Attention

FIXTURES = Path(__file__).resolve().parents[2] / "models" / "tests" / "fixtures"

SHARED = {
    "model_type": "t5",
    "vocab_size": 40,
    "d_model": 16,
    "dropout_rate": 0.1,
    "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}
T5 = SHARED | {
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}
# Like the published v1.1 files, which omit the largest distance.
T5_WIDE = SHARED | {
    "d_kv": 6,
    "d_ff": 20,
    "num_layers": 1,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 32,
}
SIZES = {
    "small": {"d_model": 512, "d_ff": 1024, "num_layers": 8, "num_heads": 6},
    "base": {"d_model": 768, "d_ff": 2048, "num_layers": 12, "num_heads": 12},
    "large": {"d_model": 1024, "d_ff": 2816, "num_layers": 24, "num_heads": 16},
    "xl": {"d_model": 2048, "d_ff": 5120, "num_layers": 24, "num_heads": 32},
}
# num_beams, length_penalty, early_stopping, max_new_tokens
SEARCHES = [
    (1, 1.0, False, 30),
    (1, 1.0, False, 4),
    (2, 1.0, False, 30),
    (3, 0.0, False, 30),
    (4, 1.0, True, 30),
    (4, 2.0, False, 30),
    (4, -0.5, False, 12),
    (5, 0.6, True, 7),
]


def build(config):
    """Builds the model with an untied output projection; `transformers` 5 ties it unless the weights have both."""
    model = T5ForConditionalGeneration(T5Config(**config))
    model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    return model


def randomise(model, generator):
    """Sets every parameter to random values, also norms, so that no parameter is trivially 1."""
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if "layer_norm" in name:
            values = 1 + 0.2 * values
        elif name.endswith(".q.weight"):
            values = values * (parameter.shape[1] * model.config.d_kv) ** -0.5
        elif name == "lm_head.weight":
            values = values * 1.5 * parameter.shape[1] ** -0.5
        elif name not in ("shared.weight",) and "relative" not in name:
            values = values * parameter.shape[1] ** -0.5
        if name == "lm_head.weight":
            values[model.config.eos_token_id] *= 2  # So that some texts end early.
        parameter.data = values.to(torch.float16).to(torch.float64)


def padded(lengths, generator):
    """Returns random tokens and their mask, which is false for padding."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(2, 40, mask.shape, generator=generator)
    return torch.where(mask, ids, torch.tensor(0)), mask


def search(model, ids, mask, options):
    """Runs `generate`. Returns the tokens of each text up to the end, and their log-probabilities."""
    num_beams, length_penalty, early_stopping, max_new_tokens = options
    output = model.generate(
        input_ids=ids,
        attention_mask=mask.long(),
        do_sample=False,
        num_beams=num_beams,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        max_new_tokens=max_new_tokens,
        return_dict_in_generate=True,
        output_scores=True,
        use_cache=False,  # The cache has as many layers as the encoder and fails for `t5_wide`.
    )
    indices = output.beam_indices if num_beams > 1 else None
    log_probs = model.compute_transition_scores(output.sequences, output.scores, indices, normalize_logits=num_beams == 1)
    results = []
    for row, values in zip(output.sequences[:, 1:].tolist(), log_probs.tolist()):
        length = row.index(1) + 1 if 1 in row else max_new_tokens
        results.append({"tokens": row[:length], "log_probabilities": [round(v, 5) for v in values[:length]]})
    return results


def searches(model, ids, mask):
    """Runs all searches in f64. Asserts that f32 gives the same tokens."""
    results = []
    for options in SEARCHES:
        outputs = search(model.double(), ids, mask, options)
        outputs_f32 = search(model.float(), ids, mask, options)
        assert [output["tokens"] for output in outputs] == [output["tokens"] for output in outputs_f32], options
        keys = ["num_beams", "length_penalty", "early_stopping", "max_new_tokens"]
        results.append({"options": dict(zip(keys, options)), "outputs": outputs})
    model.double()
    return results


def write(name, config, seed, lengths, target_lengths):
    """Writes the folder of one model."""
    generator = torch.Generator().manual_seed(seed)
    model = build(config).double().eval()
    randomise(model, generator)
    ids, mask = padded(lengths, generator)
    target, target_mask = padded(target_lengths, generator)
    labels = torch.where(target_mask, target, torch.tensor(-100))
    output = model(input_ids=ids, attention_mask=mask.long(), labels=labels)
    output.loss.backward()

    folder = FIXTURES / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    parameters = dict(model.named_parameters())
    save_file({n: p.data.half() for n, p in parameters.items()}, folder / "model.safetensors")
    expected = {
        "ids": ids[mask],
        "lengths": torch.tensor(lengths),
        "target_ids": target[target_mask],
        "target_lengths": torch.tensor(target_lengths),
        "states": output.encoder_last_hidden_state[mask].float(),
        "logits": output.logits[target_mask].float(),
    }
    expected |= {f"gradient.{n}": p.grad.float() for n, p in parameters.items()}
    save_file({n: t.detach().contiguous() for n, t in expected.items()}, folder / "expected.safetensors")
    generated = searches(model, ids, mask)
    text = ",\n".join(json.dumps(result) for result in generated)
    (folder / "generated.json").write_text(f"[\n{text}\n]\n")
    for result in generated:
        print(name, result["options"], [len(output["tokens"]) for output in result["outputs"]])


def write_buckets():
    """Writes the table of buckets."""
    distances = torch.arange(-300, 301)
    bucket = T5Attention._relative_position_bucket
    table = {
        "bidirectional": bucket(distances, True, 32, 128).tolist(),
        "causal": bucket(distances, False, 32, 128).tolist(),
    }
    (FIXTURES / "t5_buckets.json").write_text(json.dumps(table) + "\n")


def counts():
    """Prints the numbers of parameters of the published sizes."""
    for name, size in SIZES.items():
        with torch.device("meta"):
            model = build(SHARED | {"vocab_size": 32128, "d_kv": 64} | size)
        print(name, sum(p.numel() for p in model.parameters()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--counts", action="store_true")
    if parser.parse_args().counts:
        counts()
    else:
        write("t5", T5, 23, [33, 5, 1, 18, 9], [6, 25, 1, 12, 3])
        write("t5_wide", T5_WIDE, 11, [7, 150, 40, 3], [4, 30, 9, 1])
        write_buckets()
