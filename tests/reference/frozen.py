"""Reference fixtures for frozen encoders, made by `transformers`.

Writes to frozen/tests/fixtures a folder for each model: `config.json`, `model.safetensors` (published names; f16, in
which every value is exact) and `expected.safetensors`. Encoders of texts have the token ids and `lengths` of a batch,
and the last hidden states without those of the padding. Encoders of images have `pixels` and the vectors of the images,
for two sizes if the model resizes its position embeddings.

- siglip/: the embeddings of both encoders, with heads of another width than the text encoder's. Its texts are those of
  `texts.json`, by the published tokenizer. `tokenizer.json` is made by the command in Engram's message for a folder
  without it. `image` is the vector of `infer/tests/fixtures/sentence_transformers/image.png`.
- dinov2/: also `image`, with the published kind of preprocessing.
- gte_sentences/: a folder of `sentence-transformers` with pooling, a dense layer and a prompt, as Stella has them:
  `default` and `query` are the vectors of `texts.json`.
- jina_bert/: `transformers` does not have this model, so this script computes it like the published code
  (jinaai/jina-bert-implementation), with BERT's parts of `transformers`.
- gte_ntk/: the frequencies of the rotary embedding are scaled like the published code of `new` (mode `ntk`) does it.
  The other settings are of the published Stella; its names start with `new.`.

The reference runs in f64, on a padded batch with an attention mask; only SigLIP has none, as published.

    python tests/reference/frozen.py

Made with Python 3.11, torch 2.15.0, transformers 5.24.0, sentence-transformers 6.2.0, safetensors 0.8.0,
sentencepiece 0.2.3.
"""

import json
import math
import shutil
import sys
from pathlib import Path

# A script beside this one has the name of the library.
sys.path = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).resolve().parent]

import sentencepiece
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer, models
from transformers.convert_slow_tokenizer import T5Converter

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "frozen" / "tests" / "fixtures"
IMAGE_FILE = ROOT / "infer" / "tests" / "fixtures" / "sentence_transformers" / "image.png"
LENGTHS = [5, 16, 1]
TEXT = dict(
    vocab_size=40,
    hidden_size=24,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=3,
    max_position_embeddings=16,
    pad_token_id=0,
)
IMAGE = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=20, patch_size=4)
NOMIC_NAMES = dict(
    hidden_size="n_embd",
    intermediate_size="n_inner",
    num_hidden_layers="n_layer",
    num_attention_heads="n_head",
    max_position_embeddings="n_positions",
    layer_norm_eps="layer_norm_epsilon",
)
SENTENCES = [
    "A photo of a cat.",
    "Two dogs, one ball; THREE cats!",
    "",
    "  the   river (of) stones  -- runs past the old mill, the new mill and the photo of the mill",
    "über Ähren \u4e2d",
]


def randomise(model, seed):
    """Sets every parameter to random values, also biases and norms, so that no parameter is trivially 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if "norm" in name.lower() and name.endswith("weight") or "lambda" in name:
            values = 1 + 0.3 * values
        elif name.endswith("bias"):
            values = 0.2 * values
        elif "embedding" not in name and "token" not in name:
            values = values * parameter.shape[-1] ** -0.5
        parameter.data = values.half().double()
    return model.double().eval()


def save(name, model, expected, config=None):
    """Writes the folder of one model; `config` replaces the saved configuration."""
    folder = FIXTURES / name
    shutil.rmtree(folder, ignore_errors=True)
    model.half().save_pretrained(folder)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = {key: t.float() if t.is_floating_point() else t for key, t in expected.items()}
    save_file({key: t.detach().contiguous() for key, t in tensors.items()}, folder / "expected.safetensors")


def batch():
    """Token ids of texts of LENGTHS, padded with 0, and their mask."""
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    ids = torch.randint(1, TEXT["vocab_size"], mask.shape, generator=torch.Generator().manual_seed(3))
    return torch.where(mask, ids, 0), mask


def save_texts(name, model, config=None):
    ids, mask = batch()
    states = model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    expected = {"ids": ids[mask], "lengths": torch.tensor(LENGTHS), "states": states[mask]}
    save(name, model, expected, config)


def pixels(size, seed=4):
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(seed)).double()


def processed(processor):
    return processor(Image.open(IMAGE_FILE).convert("RGB"), return_tensors="pt").pixel_values.double()


def save_images(name, model, *sizes, processor=None):
    expected = {}
    if processor is not None:
        expected["image"] = model(pixel_values=processed(processor)).last_hidden_state[:, 0]
    for size in sizes:
        expected[f"pixels.{size}"] = pixels(size)
        expected[f"vectors.{size}"] = model(pixel_values=pixels(size)).last_hidden_state[:, 0]
    save(name, model, expected)
    if processor is not None:
        processor.save_pretrained(FIXTURES / name)


def siglip():
    text = TEXT | dict(projection_size=16, pad_token_id=1, vocab_size=50, num_attention_heads=2)
    vision = IMAGE | dict(intermediate_size=24, image_size=12, layer_norm_eps=1e-3)
    config = transformers.SiglipConfig(text_config=text, vision_config=vision)
    model = randomise(transformers.SiglipModel(config), 1)
    folder = FIXTURES / "siglip"
    words = " ".join(SENTENCES[:4] * 30).lower().split()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(" ".join(words[i : i + 7]) for i in range(0, len(words), 7)),
        model_prefix="/tmp/spiece", vocab_size=48, minloglevel=2, normalization_rule_name="identity", character_coverage=0.99, model_type="unigram",
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
    )
    tokenizer = transformers.SiglipTokenizer("/tmp/spiece.model")
    length = config.text_config.max_position_embeddings
    ids = tokenizer(SENTENCES, padding="max_length", truncation=True, max_length=length).input_ids
    ids = torch.tensor(ids)
    processor = transformers.SiglipImageProcessorPil(size={"height": 12, "width": 12})
    expected = {
        "image": model.vision_model(pixel_values=processed(processor)).pooler_output,
        "ids": ids,
        "texts": model.text_model(input_ids=ids).pooler_output,
        "pixels.12": pixels(12),
        "vectors.12": model.vision_model(pixel_values=pixels(12)).pooler_output,
    }
    save("siglip", model, expected)
    tokenizer.save_pretrained(folder)
    (folder / "texts.json").write_text(json.dumps(SENTENCES) + "\n")
    processor.save_pretrained(folder)
    tokenizer._extra_ids = 0
    T5Converter(tokenizer).converted().save(str(folder / "tokenizer.json"))


class JinaBert(torch.nn.Module):
    """The published model: BERT with ALiBi in both directions and gated feed-forward layers."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = transformers.BertModel(config, add_pooling_layer=False)
        del self.model.embeddings.position_embeddings
        d, m = config.hidden_size, config.intermediate_size
        for layer in self.model.encoder.layer:
            del layer.intermediate, layer.output
            layer.mlp = torch.nn.Module()
            layer.mlp.gated_layers = torch.nn.Linear(d, 2 * m, bias=False)
            layer.mlp.wo = torch.nn.Linear(m, d)
            layer.mlp.layernorm = torch.nn.LayerNorm(d, eps=config.layer_norm_eps)

    def slopes(self, heads):
        if math.log2(heads).is_integer():
            return [2 ** (-8 * (i + 1) / heads) for i in range(heads)]
        closest = 2 ** math.floor(math.log2(heads))
        return self.slopes(closest) + self.slopes(2 * closest)[::2][: heads - closest]

    def forward(self, input_ids, attention_mask):
        embeddings, heads = self.model.embeddings, self.config.num_attention_heads
        x = embeddings.word_embeddings(input_ids) + embeddings.token_type_embeddings.weight[0]
        x = embeddings.LayerNorm(x)
        positions = torch.arange(x.shape[1])
        distance = (positions[None, :] - positions[:, None]).abs()
        bias = -torch.tensor(self.slopes(heads), dtype=x.dtype)[:, None, None] * distance
        bias = bias[None] + (1 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.model.encoder.layer:
            split = lambda y: y.view(*y.shape[:2], heads, -1).transpose(1, 2)
            own = layer.attention.self
            query, key, value = split(own.query(x)), split(own.key(x)), split(own.value(x))
            scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + bias
            attended = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
            x = layer.attention.output.LayerNorm(layer.attention.output.dense(attended) + x)
            gate, up = layer.mlp.gated_layers(x).chunk(2, dim=-1)
            mlp = layer.mlp.wo(torch.nn.functional.gelu(gate) * up)
            x = layer.mlp.layernorm(mlp + x)
        return transformers.modeling_outputs.BaseModelOutput(last_hidden_state=x)

    def save_pretrained(self, folder):
        folder.mkdir(parents=True)
        save_file({n: p.data for n, p in self.model.named_parameters()}, folder / "model.safetensors")


def jina_bert():
    config = TEXT | dict(hidden_act="gelu", type_vocab_size=2, initializer_range=0.02, layer_norm_eps=1e-3)
    model = randomise(JinaBert(transformers.BertConfig(**config)), 5)
    published = dict(
        model_type="bert", position_embedding_type="alibi", feed_forward_type="geglu", emb_pooler="mean",
        auto_map={"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"},
    )
    save_texts("jina_bert", model, config | published)


def nomic_bert():
    sizes = TEXT | dict(layer_norm_eps=1e-3)
    rope = {"rope_type": "default", "rope_theta": 500.0}
    model = randomise(transformers.NomicBertModel(transformers.NomicBertConfig(**sizes, rope_parameters=rope)), 6)
    save_texts("nomic_bert", model)
    published = {NOMIC_NAMES.get(key, key): value for key, value in sizes.items()} | dict(
        model_type="nomic_bert", rotary_emb_base=500, rotary_emb_fraction=1.0, rotary_scaling_factor=None,
        rotary_emb_interleaved=False, activation_function="swiglu", qkv_proj_bias=False, prenorm=False,
        auto_map={"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
    )
    (FIXTURES / "nomic_bert" / "published.json").write_text(json.dumps(published, indent=2) + "\n")


def gte():
    config = transformers.GteConfig(**TEXT | dict(type_vocab_size=0), layer_norm_eps=1e-3)
    save_texts("gte", randomise(transformers.GteModel(config), 7))

    sizes = TEXT | dict(type_vocab_size=2, layer_norm_eps=1e-12)
    model = randomise(transformers.GteModel(transformers.GteConfig(**sizes)), 8)
    factor, theta, d = 2.0, 1000.0, sizes["hidden_size"] // sizes["num_attention_heads"]
    frequencies = (theta * factor) ** (-torch.arange(0, d, 2).double() / d) / factor ** (2 / d)
    model.rotary_emb.inv_freq = frequencies
    published = dict(
        model_type="new", rope_theta=theta, rope_scaling={"type": "ntk", "factor": factor}, hidden_act="gelu",
        position_embedding_type="rope", layer_norm_type="layer_norm", pack_qkv=True, logn_attention_scale=False,
        auto_map={"AutoModel": "modeling.NewModel"},
    )
    save_texts("gte_ntk", model, sizes | published)
    path = FIXTURES / "gte_ntk" / "model.safetensors"
    save_file({f"new.{name}": tensor for name, tensor in load_file(path).items()}, path)


def gte_sentences():
    folder = FIXTURES / "gte_sentences"
    shutil.rmtree(folder, ignore_errors=True)
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] a photo of cat . two dogs the river mill old new and s query : ##s".split()
    vocabulary = words + [f"w{i}" for i in range(TEXT["vocab_size"] - len(words))]
    tokenizer = transformers.BertTokenizer(vocab={word: i for i, word in enumerate(vocabulary)}, model_max_length=16)
    tokenizer.save_pretrained(folder)
    randomise(transformers.GteModel(transformers.GteConfig(**TEXT)), 11).half().save_pretrained(folder)
    torch.manual_seed(12)
    transformer = models.Transformer(str(folder), model_kwargs={"dtype": torch.float32})
    dense = models.Dense(24, 8, activation_function=torch.nn.Identity())
    modules = [transformer, models.Pooling(24, "mean"), dense]
    model = SentenceTransformer(modules=modules, prompts={"query": "query: "}, device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)
    (folder / "texts.json").write_text(json.dumps(SENTENCES[:3] + ["w1 w2 " * 12]) + "\n")
    texts = json.loads((folder / "texts.json").read_text())
    vectors = {name: model.encode(texts, prompt_name=prompt) for name, prompt in [("default", None), ("query", "query")]}
    save_file({name: torch.tensor(values) for name, values in vectors.items()}, folder / "expected.safetensors")


def dinov2():
    sizes = IMAGE | dict(mlp_ratio=2, layer_norm_eps=1e-3)
    processor = transformers.BitImageProcessorPil(size={"shortest_edge": 16}, crop_size=12, do_center_crop=True)
    model = randomise(transformers.Dinov2Model(transformers.Dinov2Config(**sizes)), 9)
    save_images("dinov2", model, 20, 12, processor=processor)
    config = transformers.Dinov2WithRegistersConfig(**sizes, num_register_tokens=3)
    save_images("dinov2_with_registers", randomise(transformers.Dinov2WithRegistersModel(config), 10), 20, 12, 24)


if __name__ == "__main__":
    for make in [siglip, jina_bert, nomic_bert, gte, gte_sentences, dinov2]:
        make()
