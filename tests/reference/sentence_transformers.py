"""Reference model folders for the sentence encoders, made by `sentence-transformers`.

Writes to infer/tests/fixtures/sentence_transformers:
- blobs/: the folders' files that are binary or longer than 600 bytes, each once, named by the start of their SHA-256;
- folders.json: the texts, and for each folder its files (a text, or `{"blob": NAME}`) and the embeddings from
  sentence-transformers: `encode` (with the default prompt), `encode_query`, `encode_document`, and `encode` with each
  named prompt. All embeddings have unit length. For CLIP also the embedding of image.png.

The encoders are tiny and random. Some folders are unchanged from `save_pretrained`. In other folders some files are
changed to the form of older versions or published models.

    python tests/reference/sentence_transformers.py

Made with Python 3.11, torch 2.15.0, sentence-transformers 6.2.0, transformers 5.24.0.
"""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

# This file has the same name as the package and would be imported instead.
sys.path = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer, models
from sentence_transformers.sentence_transformer.modules import LayerNorm
from tokenizers import AddedToken, Tokenizer, decoders, models as tokenizer_models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    BertTokenizer,
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    CLIPProcessor,
    CLIPTokenizer,
    DebertaV2Config,
    DebertaV2Model,
    DebertaV2Tokenizer,
    DistilBertConfig,
    DistilBertModel,
    DistilBertTokenizer,
    ModernBertConfig,
    ModernBertForMaskedLM,
    MPNetConfig,
    MPNetModel,
    MPNetTokenizer,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
    RobertaTokenizer,
    XLMRobertaConfig,
    XLMRobertaModel,
    XLMRobertaTokenizer,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

FIXTURE = Path(__file__).resolve().parents[2] / "infer/tests/fixtures/sentence_transformers"
TEXTS = [
    "A pipe joint",
    "method of JOINING two pipes, with a Café",
    "the wide and the narrow end of a long pipe are joined by a bolt " * 3,
    "x",
]
LETTERS = [chr(c) for c in range(ord("a"), ord("z") + 1)]
WORDS = ["pipe", "joint", "method", "of", "two", "the", "wide", "narrow", "end", "and", "bolt", "by"]
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
# Prefix of the class names in modules.json of older versions.
OLD_CLASS_PREFIX = "sentence_transformers.models."
POOLING_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}

work = Path(tempfile.mkdtemp())
folders = []


def published_bert():
    """A BERT and its tokenizer, as transformers saves them."""
    capitals = [letter.upper() for letter in LETTERS]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",", *LETTERS, *capitals, *WORDS]
    vocabulary += ["##" + piece for piece in [*LETTERS, *capitals]]
    tokenizer = BertTokenizer(vocab={piece: id for id, piece in enumerate(vocabulary)}, model_max_length=64)
    torch.manual_seed(1)
    model = BertModel(BertConfig(vocab_size=len(vocabulary), type_vocab_size=2, **SIZES), add_pooling_layer=False)
    folder = work / "published_bert"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def published_deberta():
    """A DeBERTa-v2 and its tokenizer, as transformers saves them."""
    pieces = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "\u2581", *LETTERS, ",", *WORDS, *("\u2581" + word for word in WORDS)]
    scores = [0.0] * 4 + [-3.0] * (len(pieces) - 4)
    vocabulary = [(piece, score) for piece, score in zip(pieces, scores)] + [("[MASK]", 0.0)]
    tokenizer = DebertaV2Tokenizer(vocab=vocabulary, unk_id=3, model_max_length=512)
    torch.manual_seed(2)
    sizes = {**SIZES, "position_buckets": 8, "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
             "share_att_key": True, "norm_rel_ebd": "layer_norm", "position_biased_input": False,
             "max_relative_positions": -1, "type_vocab_size": 0, "layer_norm_eps": 1e-7}
    model = DebertaV2Model(DebertaV2Config(vocab_size=len(tokenizer), **sizes))
    folder = work / "published_deberta"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def published(name, model, tokenizer):
    """A model and its tokenizer, as transformers saves them."""
    folder = work / f"published_{name}"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def published_others():
    """Encoders of other families and their tokenizers."""
    torch.manual_seed(6)
    pieces = [",", *LETTERS, *WORDS, *("##" + piece for piece in LETTERS)]
    bert = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]
    vocabulary = lambda pieces: {piece: id for id, piece in enumerate(pieces)}
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 64,
             "initializer_range": 0.3}
    yield published("distilbert", DistilBertModel(DistilBertConfig(vocab_size=len(bert), **sizes)),
                    DistilBertTokenizer(vocab=vocabulary(bert), model_max_length=64))

    # Like the published vocabulary, it also has the names of BERT's special tokens.
    mpnet = ["<s>", "<pad>", "</s>", "<unk>", *bert, "<mask>"]
    sizes = {**SIZES, "max_position_embeddings": 66, "pad_token_id": 1, "layer_norm_eps": 1e-5}
    model = MPNetModel(MPNetConfig(vocab_size=len(mpnet), **sizes), add_pooling_layer=False)
    yield published("mpnet", model, MPNetTokenizer(vocab=vocabulary(mpnet), model_max_length=64))

    roberta = ["<s>", "<pad>", "</s>", "<unk>", "\u0120", *LETTERS, *(l.upper() for l in LETTERS), ",", "<mask>"]
    roberta = RobertaTokenizer(vocab=vocabulary(roberta), merges=[], model_max_length=64)
    sizes["type_vocab_size"] = 1
    model = RobertaModel(RobertaConfig(vocab_size=len(roberta), **sizes), add_pooling_layer=False)
    yield published("roberta", model, roberta)

    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = ["\u2581", *LETTERS, ",", *("\u2581" + word for word in WORDS)]
    scored = [(piece, 0.0) for piece in specials] + [(piece, -3.0) for piece in pieces] + [("<mask>", 0.0)]
    xlm_roberta = XLMRobertaTokenizer(vocab=scored, model_max_length=64)
    model = XLMRobertaModel(XLMRobertaConfig(vocab_size=len(xlm_roberta), **sizes), add_pooling_layer=False)
    yield published("xlm_roberta", model, xlm_roberta)

    # Like the published tokenizer, which adds its special tokens to a vocabulary of bytes. The model has its head.
    pieces = ["<|endoftext|>", "\u0120", *LETTERS, *(l.upper() for l in LETTERS), ",", "\u0120p", "ip", "\u0120pip"]
    specials = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    merges = [("\u0120", "p"), ("i", "p"), ("\u0120p", "ip")]
    bytes_of = Tokenizer(tokenizer_models.BPE(vocab=vocabulary(pieces), merges=merges))
    bytes_of.add_special_tokens([AddedToken(name, special=True, lstrip=name == "[MASK]") for name in specials])
    bytes_of.normalizer = normalizers.NFC()
    bytes_of.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_of.decoder = decoders.ByteLevel()
    ids = [(name, bytes_of.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    bytes_of.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", ids)
    roles = {name.strip("[]").lower() + "_token": name for name in specials}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_of, model_max_length=64, **roles)
    sizes = {**SIZES, "num_hidden_layers": 3, "local_attention": 10, "layer_norm_eps": 1e-5,
             "pad_token_id": tokenizer.pad_token_id}
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        del sizes[name]
    model = ModernBertForMaskedLM(ModernBertConfig(vocab_size=len(tokenizer), **sizes))
    yield published("modernbert", model, tokenizer)


def published_clip():
    """A CLIP with its processor, as transformers saves them."""
    ends = [letter + "</w>" for letter in [*LETTERS, ","]]
    vocabulary = [*LETTERS, ",", *ends, "<|startoftext|>", "<|endoftext|>"]
    tokenizer = CLIPTokenizer(
        vocab={piece: id for id, piece in enumerate(vocabulary)}, merges=[], model_max_length=24
    )
    last = len(vocabulary) - 1
    shared = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
              "initializer_range": 0.3}
    text = {**shared, "vocab_size": last + 1, "max_position_embeddings": 24, "eos_token_id": last,
            "bos_token_id": last - 1, "pad_token_id": last}
    vision = {**shared, "image_size": 16, "patch_size": 8}
    torch.manual_seed(3)
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))
    images = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    folder = work / "published_clip"
    model.save_pretrained(folder)
    CLIPProcessor(images, tokenizer).save_pretrained(folder)
    return folder


def saved(published, *modules, **settings):
    """Returns the folder that sentence-transformers saves for a Transformer and its following modules."""
    folder = Path(tempfile.mkdtemp(dir=work))
    torch.manual_seed(4)
    # transformers initialises an unused pooler at random; here it is the same in each folder.
    transformer = models.Transformer(str(published))
    modules = [module() if callable(module) and not isinstance(module, torch.nn.Module) else module for module in modules]
    SentenceTransformer(modules=[transformer, *modules], device="cpu", **settings).save_pretrained(
        str(folder), create_model_card=False
    )
    return folder


def changed(folder, **changes):
    """Returns a changed copy of a folder.

    `files` maps file names to None (removes the file), a function (edits the JSON value) or a new JSON value. `moves` has
    pairs of old and new paths.
    """
    copy = Path(tempfile.mkdtemp(dir=work)) / "folder"
    shutil.copytree(folder, copy)
    for name, change in changes.get("files", {}).items():
        path = copy / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if change is None:
            path.unlink()
        elif callable(change):
            value = json.loads(path.read_text())
            result = change(value)
            path.write_text(json.dumps(value if result is None else result))
        else:
            path.write_text(json.dumps(change))
    for old, new in changes.get("moves", []):
        (copy / new).parent.mkdir(parents=True, exist_ok=True)
        (copy / old).rename(copy / new)
    return copy


def unit_length(vectors):
    vectors = np.asarray(vectors, dtype=np.float64)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def rounded(vectors):
    return [[float(f"{value:.7g}") for value in row] for row in unit_length(vectors)]


def add(name, folder, image=None):
    """Stores a folder and its embeddings from sentence-transformers."""
    model = SentenceTransformer(str(folder), device="cpu")
    if image is not None:
        # Images are resized with Pillow, because torchvision rounds differently.
        processor = model[0].processor
        settings = processor.image_processor.to_dict()
        processor.image_processor = CLIPImageProcessorPil(**settings)
    options = {"batch_size": 2}
    expected = {
        "default": rounded(model.encode(TEXTS, **options)),
        "query": rounded(model.encode_query(TEXTS, **options)),
        "document": rounded(model.encode_document(TEXTS, **options)),
    }
    for prompt in model.prompts:
        if model.prompts[prompt] and prompt not in ("query", "document"):
            expected[f"prompt {prompt}"] = rounded(model.encode(TEXTS, prompt_name=prompt, **options))
    # Most folders have one embedding for all roles.
    for role in ("query", "document"):
        if expected[role] == expected["default"]:
            del expected[role]
    if image is not None:
        expected["image"] = rounded(model.encode([image]))
    files = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name in ("README.md", "special_tokens_map.json", ".gitattributes"):
            continue
        content = path.read_bytes()
        if path.suffix == ".safetensors" or len(content) > 600:
            blob = hashlib.sha256(content).hexdigest()[:12] + path.suffix
            (FIXTURE / "blobs" / blob).write_bytes(content)
            files[str(path.relative_to(folder))] = {"blob": blob}
        else:
            files[str(path.relative_to(folder))] = content.decode()
    folders.append({"name": name, "files": files, "expected": expected})
    print(f"{len(folders):3} {name}", flush=True)


def with_class_prefix(prefix):
    """Changes the classes in modules.json to those of older versions."""
    def change(modules):
        for module in modules:
            module["type"] = prefix + module["type"].rsplit(".", 1)[1]
    return change


def update(**values):
    return lambda value: value.update(values)


def prompts(default=None, **named):
    return {"prompts": named, "default_prompt_name": default, "similarity_fn_name": "cosine"}


def add_berts():
    bert = published_bert()
    pooling = lambda mode="mean", **settings: models.Pooling(32, mode, **settings)
    mean = saved(bert, pooling())
    config = "1_Pooling/config.json"

    for mode in POOLING_FLAGS:
        add(f"bert {mode}", saved(bert, pooling(mode)))
    for mode in POOLING_FLAGS:
        flags = {"word_embedding_dimension": 32, **{flag: other == mode for other, flag in POOLING_FLAGS.items()}}
        add(f"bert old flags {mode}", changed(mean, files={config: flags, "modules.json": with_class_prefix(OLD_CLASS_PREFIX)}))
    flags = lambda *on: {"word_embedding_dimension": 32, **{POOLING_FLAGS[mode]: True for mode in on}, "include_prompt": True}
    add("bert cls, mean", saved(bert, pooling(("cls", "mean"))))
    add("bert mean, cls", saved(bert, pooling(("mean", "cls"))))
    add("bert all modes", saved(bert, pooling(("lasttoken", "weightedmean", "mean_sqrt_len_tokens", "mean", "max", "cls"))))
    add("bert old flags mean, cls, max", changed(mean, files={config: flags("mean", "cls", "max")}))
    add("bert old flags of all", changed(mean, files={config: flags(*POOLING_FLAGS)}))
    add("bert old flags of none", changed(mean, files={config: {"word_embedding_dimension": 32, POOLING_FLAGS["mean"]: False}}))
    add("bert without modules", bert)

    def renamed(modules):
        modules[1]["path"] = "parts/pooling"
    cls = saved(bert, pooling("cls"))
    add("bert pooling folder with another name",
        changed(cls, files={"modules.json": renamed}, moves=[("1_Pooling", "parts/pooling")]))

    def inner(modules):
        modules[0]["path"] = "0_Transformer"
        with_class_prefix(OLD_CLASS_PREFIX)(modules)
    model_files = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
                   "sentence_bert_config.json"]
    add("bert in 0_Transformer", changed(
        cls, files={"modules.json": inner, "sentence_bert_config.json": {"max_seq_length": 20, "do_lower_case": False}},
        moves=[(file, f"0_Transformer/{file}") for file in model_files]))

    dense = lambda to=16, of=32, activation=torch.nn.Tanh, **settings: models.Dense(
        of, to, activation_function=activation(), **settings)
    normalize = models.Normalize
    add("bert dense tanh, normalize", saved(bert, pooling("cls"), lambda: dense(), normalize()))
    for activation in ("Identity", "ReLU", "GELU", "Sigmoid", "SiLU", "LeakyReLU", "ELU", "ReLU6"):
        add(f"bert dense {activation}", saved(bert, pooling(), lambda: dense(24, activation=getattr(torch.nn, activation))))
    add("bert dense without bias", saved(bert, pooling(), lambda: dense(32, bias=False)))
    add("bert dense without an activation", changed(
        saved(bert, pooling(), lambda: dense(32)),
        files={"2_Dense/config.json": lambda config: {k: v for k, v in config.items() if k != "activation_function"}}))
    add("bert dense residual", saved(bert, pooling(), lambda: dense(32, use_residual=True)))
    add("bert dense residual of another width", saved(bert, pooling(), lambda: dense(8, use_residual=True)))
    add("bert two dense", saved(bert, pooling(("cls", "max")), lambda: dense(48, 64), normalize(), lambda: dense(8, 48)))
    add("bert dense on tokens", saved(bert, lambda: dense(12, module_input_name="token_embeddings"),
                                      lambda: models.Pooling(12, "mean")))
    add("bert normalized tokens", saved(bert, normalize("token_embeddings"), pooling()))

    def trained_norm():
        norm = LayerNorm(32)
        torch.nn.init.normal_(norm.norm.weight)
        torch.nn.init.normal_(norm.norm.bias)
        return norm
    add("bert layer norm", saved(bert, pooling(), trained_norm))
    add("bert dropout", saved(bert, pooling(), models.Dropout(0.5), normalize()))
    add("bert normalize without a file", changed(
        saved(bert, pooling(), normalize()), files={"2_Normalize/config.json": None, "modules.json": with_class_prefix(OLD_CLASS_PREFIX)}))

    sentence, tokenizer = "sentence_bert_config.json", "tokenizer_config.json"
    add("bert max_seq_length 9", changed(mean, files={sentence: update(max_seq_length=9)}))
    add("bert model_max_length 9", changed(mean, files={tokenizer: update(model_max_length=9)}))
    add("bert model_max_length 9, max_seq_length 12",
        changed(mean, files={tokenizer: update(model_max_length=9), sentence: {"max_seq_length": 12}}))
    add("bert no model_max_length", changed(mean, files={tokenizer: lambda config: {
        k: v for k, v in config.items() if k != "model_max_length"}}))
    add("bert model_max_length in processor_kwargs",
        changed(mean, files={sentence: update(processor_kwargs={"model_max_length": 10})}))
    add("bert query_length, document_length", changed(mean, files={sentence: update(query_length=6, document_length=11)}))
    add("bert truncation in tokenizer.json", changed(mean, files={"tokenizer.json": update(
        truncation={"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0},
        padding={"strategy": {"Fixed": 30}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                 "pad_type_id": 0, "pad_token": "[PAD]"})}))
    add("bert truncation_side left", changed(
        mean, files={tokenizer: update(truncation_side="left", model_max_length=9)}))

    def cased(json):
        json["normalizer"]["lowercase"] = False
    add("bert cased", changed(mean, files={"tokenizer.json": cased, tokenizer: update(do_lower_case=False)}))
    add("bert cased with do_lower_case", changed(
        mean, files={"tokenizer.json": cased, tokenizer: update(do_lower_case=False), sentence: update(do_lower_case=True)}))
    add("bert tokenizer_config against tokenizer.json", changed(mean, files={"tokenizer.json": cased}))
    add("bert strip_accents false", changed(mean, files={tokenizer: update(strip_accents=False)}))

    def only_cls(json):
        json["post_processor"]["single"] = json["post_processor"]["single"][:2]
    fast = update(tokenizer_class="PreTrainedTokenizerFast")
    add("bert tokenizer that adds [CLS] alone", changed(mean, files={"tokenizer.json": only_cls, tokenizer: fast}))
    add("bert tokenizer that adds nothing",
        changed(mean, files={"tokenizer.json": update(post_processor=None), tokenizer: fast}))
    add("bert tokenizer without a post-processor", changed(mean, files={"tokenizer.json": update(post_processor=None)}))

    prompts_file = "config_sentence_transformers.json"
    both = prompts(query="the method: ", document="pipe: ", other="wide ")
    add("bert prompts", changed(mean, files={prompts_file: both}))
    for mode in (*POOLING_FLAGS, ("cls", "mean")):
        add(f"bert prompts, not pooled, {mode}",
            changed(saved(bert, pooling(mode, include_prompt=False)), files={prompts_file: both}))
    add("bert prompts, cut", changed(saved(bert, pooling(include_prompt=False)),
                                     files={prompts_file: prompts(query="the method of two " * 9), tokenizer: update(model_max_length=16)}))
    add("bert default prompt", changed(mean, files={prompts_file: prompts("other", other="wide ", query="q ")}))
    add("bert passage prompt", changed(mean, files={prompts_file: prompts(query="query: ", passage="passage: ")}))
    add("bert truncate_dim", changed(mean, files={prompts_file: {"truncate_dim": 20}}))
    add("bert dot", changed(mean, files={prompts_file: {"similarity_fn_name": "dot"}}))

    add("bert torch_dtype", changed(mean, files={"config.json": lambda config: {
        ("torch_dtype" if k == "dtype" else k): v for k, v in config.items()}}))
    sharded = changed(mean)
    weights = load_file(sharded / "model.safetensors")
    (sharded / "model.safetensors").unlink()
    names, index = sorted(weights), {}
    for number, part in enumerate((names[: len(names) // 2], names[len(names) // 2 :]), 1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: weights[name] for name in part}, sharded / file, metadata={"format": "pt"})
        index |= {name: file for name in part}
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    add("bert in shards", sharded)


def add_debertas():
    deberta = published_deberta()
    add("deberta without modules", deberta)
    pooling = lambda mode="mean", **settings: models.Pooling(32, mode, **settings)
    for mode in ("mean", "cls", "lasttoken"):
        add(f"deberta {mode}", saved(deberta, pooling(mode)))
    folder = saved(deberta, pooling(("weightedmean", "max"), include_prompt=False), models.Dense(64, 16), models.Normalize())
    add("deberta prompts, dense, normalize", changed(
        folder, files={"config_sentence_transformers.json": prompts(query="the method: ", document="pipe: ")}))
    mean = saved(deberta, pooling())
    add("deberta longer than max_position_embeddings",
        changed(mean, files={"sentence_bert_config.json": update(max_seq_length=120)}))
    add("deberta do_lower_case", changed(mean, files={"tokenizer_config.json": update(do_lower_case=True)}))
    add("deberta do_lower_case of the module", changed(mean, files={"sentence_bert_config.json": update(do_lower_case=True)}))


def add_others():
    for folder in published_others():
        name = folder.name.removeprefix("published_")
        add(f"{name} without modules", folder)
        add(f"{name} cls, normalize", saved(folder, models.Pooling(32, "cls"), models.Normalize()))
        if name in ("distilbert", "mpnet"):
            def cased(json):
                json["normalizer"]["lowercase"] = False
            add(f"{name} tokenizer_config against tokenizer.json", changed(folder, files={"tokenizer.json": cased}))
        if name == "modernbert":
            def older(config):
                for field in ("layer_types", "rope_parameters"):
                    del config[field]
                config |= {"global_attn_every_n_layers": 2, "global_rope_theta": 200.0, "local_rope_theta": 20.0}
            folder = saved(folder, models.Pooling(32, "mean"), models.Normalize())
            add("modernbert older configuration, prompts", changed(folder, files={
                "config.json": older, "config_sentence_transformers.json": prompts(query="q: ", document="d: ")}))


def add_clips():
    clip = published_clip()
    pixels = np.random.default_rng(5).integers(0, 256, (21, 30, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    image.save(FIXTURE / "image.png")
    add("clip without modules", clip, image)
    add("clip", saved(clip), image)
    add("clip normalize", saved(clip, models.Normalize()), image)
    add("clip prompts", changed(saved(clip), files={"config_sentence_transformers.json": prompts(query="q ", document="d ")}), image)
    older = json.loads((clip / "processor_config.json").read_text())["image_processor"]
    add("clip preprocessor_config.json", changed(
        clip, files={"processor_config.json": None, "preprocessor_config.json": older}), image)
    add("clip both processors", changed(
        clip, files={"preprocessor_config.json": {**older, "image_mean": [0.1, 0.2, 0.3]}}), image)
    oldest = {**older, "size": 16, "crop_size": 16, "feature_extractor_type": "CLIPFeatureExtractor"}
    del oldest["image_processor_type"]
    modules = [{"idx": 0, "name": "0", "path": "0_CLIPModel", "type": "sentence_transformers.models.CLIPModel"}]
    legacy = changed(clip, files={"processor_config.json": None, "preprocessor_config.json": oldest,
                                  "modules.json": modules},
                     moves=[(file, f"0_CLIPModel/{file}") for file in
                            ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
                             "preprocessor_config.json")])
    add("clip in 0_CLIPModel", legacy, image)


if __name__ == "__main__":
    shutil.rmtree(FIXTURE, ignore_errors=True)
    (FIXTURE / "blobs").mkdir(parents=True)
    add_berts()
    add_debertas()
    add_others()
    add_clips()
    lines = ",\n".join(json.dumps(folder, ensure_ascii=False, separators=(",", ":")) for folder in folders)
    texts = json.dumps(TEXTS, ensure_ascii=False)
    (FIXTURE / "folders.json").write_text(f'{{"texts": {texts},\n"folders": [\n{lines}\n]}}\n')
    shutil.rmtree(work)
    total = sum(path.stat().st_size for path in FIXTURE.rglob("*") if path.is_file())
    print(f"{len(folders)} folders, {total} bytes")
