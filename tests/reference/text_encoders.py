"""Reference fixtures for the text encoders of engram-models, made by `transformers`.

Writes to models/tests/fixtures:
- bert/, deberta_v2/, deberta_v3/, distilbert/, modernbert/, modernbert_biased/, mpnet/, roberta/, xlm_roberta/: tiny
  random encoders, each with `config.json`, `model.safetensors` (published names; f16, in which every value is exact) and
  `expected.safetensors` (inputs, last hidden states `[T, D]` of the real tokens, and the gradient
  of every parameter for the loss `sum(hidden[n] * sin(1.7 n + 0.3))` over flat elements n);
- deberta_buckets.json: the position buckets of the published DeBERTa-v3 models (256 buckets, 512
  positions) for the distances 0 to 600;
- minilm.json: a few hidden states of the published MiniLM, if `--minilm` is given.

The reference runs in f64, on a padded batch with an attention mask.

    python tests/reference/text_encoders.py [--minilm FOLDER]

Made with Python 3.11, torch 2.15.0, transformers 5.24.0, safetensors 0.8.0.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertModel,
    DebertaV2Config,
    DebertaV2Model,
    DistilBertConfig,
    DistilBertModel,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    RobertaConfig,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

FIXTURES = Path(__file__).resolve().parents[2] / "models" / "tests" / "fixtures"

SHARED = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 24,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
BERT = SHARED | {
    "model_type": "bert",
    "hidden_act": "gelu",
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
# Like the published v3 models: shared projections, normalised relative embeddings, no absolute positions.
DEBERTA_V3 = SHARED | {
    "model_type": "deberta-v2",
    "hidden_act": "gelu",
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
    "relative_attention": True,
    "position_buckets": 8,
    "max_relative_positions": -1,
    "pos_att_type": "p2c|c2p",
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
}
# The opposite of each setting above.
DEBERTA_V2 = SHARED | {
    "model_type": "deberta-v2",
    "hidden_act": "gelu_new",
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-7,
    "embedding_size": 16,
    "relative_attention": True,
    "position_buckets": -1,
    "max_relative_positions": 6,
    "pos_att_type": ["c2p", "p2c"],
    "share_att_key": False,
    "norm_rel_ebd": "none",
    "position_biased_input": True,
}
# Positions begin after the padding's id, so the table has rows that no token uses.
ROBERTA = SHARED | {
    "model_type": "roberta",
    "hidden_act": "gelu",
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 26,
    "pad_token_id": 1,
}
XLM_ROBERTA = ROBERTA | {"model_type": "xlm-roberta", "pad_token_id": 3, "max_position_embeddings": 28}
MPNET = SHARED | {
    "model_type": "mpnet",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 202,
    "pad_token_id": 1,
    "relative_attention_num_buckets": 32,
}
DISTILBERT = {
    "model_type": "distilbert",
    "vocab_size": 60,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 48,
    "max_position_embeddings": 24,
    "activation": "gelu",
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "pad_token_id": 0,
}


# Like the published models, with the names of transformers 4.
MODERNBERT = {
    "model_type": "modernbert",
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "hidden_activation": "gelu",
    "norm_eps": 1e-5,
    "layer_norm_eps": 1e-3,
    "pad_token_id": 0,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "local_attention": 8,
    "local_rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "norm_bias": False,
    "attention_dropout": 0.0,
    "embedding_dropout": 0.0,
    "mlp_dropout": 0.0,
    "position_embedding_type": "absolute",
    "reference_compile": None,
    "sparse_prediction": False,
}
# The opposite of each setting above, with the names of transformers 5.
MODERNBERT_BIASED = {
    "model_type": "modernbert",
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "hidden_activation": "silu",
    "norm_eps": 1e-3,
    "pad_token_id": 0,
    "layer_types": ["sliding_attention", "full_attention"],
    "global_attn_every_n_layers": 1,
    "local_attention": 13,
    "rope_parameters": {
        "full_attention": {"rope_theta": 300.0, "rope_type": "default"},
        "sliding_attention": {"rope_theta": 20.0, "rope_type": "default"},
    },
    "attention_bias": True,
    "mlp_bias": True,
    "norm_bias": True,
}


def randomise(model, generator):
    """Sets every parameter to random values, also biases and norms, so that no parameter is trivially 0 or 1."""
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if name.lower().endswith("norm.weight"):
            values = 1 + 0.2 * values
        elif name.endswith("bias"):
            values = 0.2 * values
        elif "embeddings" not in name:
            values = values * parameter.shape[-1] ** -0.5
        parameter.data = values.to(torch.float16).to(torch.float64)


def write(name, model, config, lengths, prefix=""):
    """Writes the folder of one model. `lengths` are the sequence lengths; the batch is padded."""
    generator = torch.Generator().manual_seed(7)
    model = model.double().eval()
    randomise(model, generator)
    longest = max(lengths)
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    # `torch.nn.Embedding` gives the padding's row no gradient.
    padding = config.get("pad_token_id", 0)
    ids = torch.randint(padding + 1, config["vocab_size"], mask.shape, generator=generator)
    ids = torch.where(mask, ids, padding)
    types = (torch.arange(longest) * 2 >= torch.tensor(lengths)[:, None]).long() * mask
    has_types = config.get("type_vocab_size", 0) > 1
    if not has_types:
        types = torch.zeros_like(types)
    inputs = {"token_type_ids": types} if has_types else {}
    output = model(input_ids=ids, attention_mask=mask.long(), **inputs)
    hidden = output.last_hidden_state[mask]
    weights = torch.sin(1.7 * torch.arange(hidden.numel(), dtype=torch.float64) + 0.3)
    (hidden.flatten() * weights).sum().backward()

    folder = FIXTURES / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    parameters = dict(model.named_parameters())
    save_file({prefix + n: p.data.half() for n, p in parameters.items()}, folder / "model.safetensors")
    expected = {
        "ids": ids[mask],
        "types": types[mask],
        "lengths": torch.tensor(lengths),
        "hidden": hidden.detach().float(),
    }
    expected |= {f"gradient.{n}": p.grad.float() for n, p in parameters.items()}
    save_file(expected, folder / "expected.safetensors")


def write_minilm(folder):
    """Writes the last values of two sentences' hidden states."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BertModel.from_pretrained(folder, add_pooling_layer=False, dtype=torch.float64).eval()
    sentences = []
    for text in [
        "A retrieval memory is a list of keys and values.",
        "Was the photograph taken in winter?",
    ]:
        ids = tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            hidden = model(input_ids=ids).last_hidden_state[0]
        sentences.append(
            {
                "text": text,
                "ids": ids[0].tolist(),
                "first_token": [round(v, 7) for v in hidden[0, :8].tolist()],
                "last_token": [round(v, 7) for v in hidden[-1, -8:].tolist()],
                "mean_magnitude": round(hidden.abs().mean().item(), 7),
            }
        )
    (FIXTURES / "minilm.json").write_text(json.dumps(sentences, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minilm", help="folder of the published all-MiniLM-L6-v2")
    arguments = parser.parse_args()
    FIXTURES.mkdir(parents=True, exist_ok=True)

    bert = BertModel(BertConfig(**BERT), add_pooling_layer=False)
    write("bert", bert, BERT, [5, 1, 24, 13])
    # 30 positions: beyond the linear part of the buckets (4) and beyond the last bucket (23).
    write("deberta_v3", DebertaV2Model(DebertaV2Config(**DEBERTA_V3)), DEBERTA_V3, [3, 30, 1, 11])
    v2 = DebertaV2Model(DebertaV2Config(**DEBERTA_V2))
    write("deberta_v2", v2, DEBERTA_V2, [9, 1, 20, 4], prefix="deberta.")

    roberta = RobertaModel(RobertaConfig(**ROBERTA), add_pooling_layer=False)
    write("roberta", roberta, ROBERTA, [5, 1, 24, 13], prefix="roberta.")
    xlm_roberta = XLMRobertaModel(XLMRobertaConfig(**XLM_ROBERTA), add_pooling_layer=False)
    write("xlm_roberta", xlm_roberta, XLM_ROBERTA, [7, 24, 1])
    distilbert = DistilBertModel(DistilBertConfig(**DISTILBERT))
    write("distilbert", distilbert, DISTILBERT, [5, 1, 24, 13], prefix="distilbert.")
    # 150 positions: beyond the last bucket (128).
    mpnet = MPNetModel(MPNetConfig(**MPNET), add_pooling_layer=False)
    write("mpnet", mpnet, MPNET, [3, 150, 1, 11])
    modern = ModernBertModel(ModernBertConfig(**MODERNBERT))
    write("modernbert", modern, MODERNBERT, [5, 1, 40, 13, 4], prefix="model.")
    modern = ModernBertModel(ModernBertConfig(**MODERNBERT_BIASED))
    write("modernbert_biased", modern, MODERNBERT_BIASED, [3, 30, 7, 1])

    buckets = make_log_bucket_position(torch.arange(601), 256, 512).long().tolist()
    (FIXTURES / "deberta_buckets.json").write_text(json.dumps(buckets) + "\n")
    if arguments.minilm:
        write_minilm(arguments.minilm)


if __name__ == "__main__":
    main()
