"""Sentence embeddings."""

import json
import logging
import os
from contextlib import contextmanager

import numpy

from engram import _engram
from engram.compat.sentence_transformers import util
from engram.models import Progress

logger = logging.getLogger(__name__)

PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")
SIMILARITIES = {
    "cosine": (util.cos_sim, util.pairwise_cos_sim),
    "dot": (util.dot_score, util.pairwise_dot_score),
    "euclidean": (util.euclidean_sim, util.pairwise_euclidean_sim),
    "manhattan": (util.manhattan_sim, util.pairwise_manhattan_sim),
}


class SentenceTransformer:
    """A model that embeds texts: a folder, `owner/name` of the Hub, or a name of the family."""

    def __init__(
        self,
        model_name_or_path=None,
        *,
        modules=None,
        device=None,
        prompts=None,
        default_prompt_name=None,
        cache_folder=None,
        trust_remote_code=False,
        revision=None,
        local_files_only=False,
        token=None,
        model_kwargs=None,
        processor_kwargs=None,
        config_kwargs=None,
        model_card_data=None,
        backend="torch",
        similarity_fn_name=None,
        truncate_dim=None,
    ):
        _refuse("modules", modules)
        _refuse("cache_folder", cache_folder)
        _refuse("trust_remote_code", trust_remote_code)
        _refuse("token", token)
        _refuse("model_kwargs", model_kwargs)
        _refuse("processor_kwargs", processor_kwargs)
        _refuse("config_kwargs", config_kwargs)
        _refuse("model_card_data", model_card_data)
        if model_name_or_path is None:
            raise NotImplementedError("model_name_or_path=None: give the name or folder of a model")
        if backend != "torch":
            raise NotImplementedError(f"backend={backend!r}: Engram has one; leave out `backend`")
        self._device = str(device or "cpu")
        self._encoder = _engram.Encoder(
            _location(os.fspath(model_name_or_path), revision), self._device, None, ""
        )
        settings = json.loads(self._encoder.prompts)
        #: The prompts by name, which `encode` puts before each text.
        self.prompts = {"query": "", "document": "", **settings["prompts"], **(prompts or {})}
        self.default_prompt_name = default_prompt_name or settings["default_name"]
        if self.default_prompt_name is not None:
            self._prompt(None, self.default_prompt_name, "Default prompt")
        self.similarity_fn_name = similarity_fn_name or settings["other_similarity"]
        self.truncate_dim = truncate_dim

    def encode(
        self,
        inputs=None,
        prompt_name=None,
        prompt=None,
        batch_size=32,
        show_progress_bar=None,
        output_value="sentence_embedding",
        precision="float32",
        convert_to_numpy=True,
        convert_to_tensor=False,
        device=None,
        normalize_embeddings=False,
        truncate_dim=None,
        pool=None,
        chunk_size=None,
        *,
        sentences=None,
        task=None,
        **kwargs,
    ):
        """The embeddings `[texts, width]` of texts, or `[width]` of one text."""
        inputs = sentences if inputs is None else inputs
        _refuse("pool", pool)
        if output_value != "sentence_embedding":
            raise NotImplementedError(f"output_value={output_value!r}: Engram embeds whole texts")
        if device is not None and str(device) != self._device:
            raise NotImplementedError(f"device={device!r}: the model is on {self._device}")
        if batch_size <= 0:
            raise ValueError(f"batch_size must be a positive integer, got {batch_size}.")
        if kwargs:
            raise ValueError(f"encode() has no arguments {list(kwargs)}")
        if precision is not None and precision not in PRECISIONS:
            raise ValueError(f"Precision {precision!r} is not supported, must be one of {PRECISIONS}")
        is_single = isinstance(inputs, str)
        texts = [inputs] if is_single else list(inputs) if _is_batch(inputs) else _bad(inputs)
        prompt = self._prompt(prompt, prompt_name)
        rows = self._embed(texts, prompt or "", _shows_progress(show_progress_bar))
        width = self.truncate_dim if truncate_dim is None else truncate_dim
        if width is not None:
            rows = numpy.ascontiguousarray(rows[:, :width])
        if normalize_embeddings:
            rows = util.normalize_embeddings(rows)
        if len(rows) and precision not in (None, "float32"):
            rows = util.quantize_embeddings(rows, precision)
        if convert_to_tensor or not convert_to_numpy:
            import torch

            rows = torch.from_numpy(rows) if len(rows) else torch.tensor([])
            rows = rows if convert_to_tensor else list(rows)
        elif not len(rows):
            rows = numpy.array([])
        return rows[0] if is_single else rows

    def encode_query(self, inputs=None, prompt_name=None, prompt=None, **kwargs):
        """The embeddings of queries, with the prompt `query`."""
        if prompt_name is None and prompt is None and "query" in self.prompts:
            prompt_name = "query"
        kwargs.update(inputs=inputs, prompt_name=prompt_name, prompt=prompt, task="query")
        return self.encode(**kwargs)

    def encode_document(self, inputs=None, prompt_name=None, prompt=None, **kwargs):
        """The embeddings of documents, with the prompt `document`, `passage` or `corpus`."""
        if prompt_name is None and prompt is None:
            names = ("document", "passage", "corpus")
            prompt_name = next((name for name in names if name in self.prompts), None)
        kwargs.update(inputs=inputs, prompt_name=prompt_name, prompt=prompt, task="document")
        return self.encode(**kwargs)

    @property
    def device(self):
        """The device: a `torch.device` if PyTorch is installed, and otherwise its name."""
        try:
            import torch
        except ImportError:
            return self._device
        return torch.device(self._device)

    @property
    def similarity_fn_name(self):
        """The name of the similarity: `cosine`, `dot`, `euclidean` or `manhattan`."""
        return self._similarity_fn_name

    @similarity_fn_name.setter
    def similarity_fn_name(self, value):
        value = getattr(value, "value", value) or "cosine"
        if value not in SIMILARITIES:
            raise ValueError(f"no similarity {value!r}; give one of {list(SIMILARITIES)}")
        self._similarity_fn_name = value

    def similarity(self, embeddings1, embeddings2):
        """The similarity of each embedding of the first group to each of the second."""
        return SIMILARITIES[self.similarity_fn_name][0](embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1, embeddings2):
        """The similarity of each embedding of the first group to the same one of the second."""
        return SIMILARITIES[self.similarity_fn_name][1](embeddings1, embeddings2)

    def get_embedding_dimension(self):
        """The width of an embedding."""
        width = self._encoder.width
        return width if self.truncate_dim is None else min(width, self.truncate_dim)

    get_sentence_embedding_dimension = get_embedding_dimension

    @property
    def max_seq_length(self):
        """The greatest number of tokens of a text; longer texts are cut."""
        return self._encoder.max_length

    @max_seq_length.setter
    def max_seq_length(self, value):
        self._encoder.max_length = value

    @contextmanager
    def truncate_embeddings(self, truncate_dim):
        """Cuts embeddings to `truncate_dim` components within a `with`."""
        before, self.truncate_dim = self.truncate_dim, truncate_dim
        try:
            yield
        finally:
            self.truncate_dim = before

    truncate_sentence_embeddings = truncate_embeddings

    def _prompt(self, prompt, name, kind="Prompt"):
        """The prompt of a call; `None` without one."""
        if prompt is not None:
            if name is not None:
                logger.warning("`prompt` replaces `prompt_name`; give only one of them")
            return prompt
        name = self.default_prompt_name if name is None else name
        if name is not None and name not in self.prompts:
            raise ValueError(
                f"{kind} name {name!r} not found in the configured prompts dictionary with keys "
                f"{list(self.prompts)!r}."
            )
        return self.prompts.get(name)

    def _embed(self, texts, prompt, shows_progress):
        for text in texts:
            if not isinstance(text, str):
                _bad(text)
        texts = [prompt + text for text in texts] if prompt else texts
        progress = Progress("Batches", len(texts)) if shows_progress else None
        try:
            return self._encoder.encode(texts, None, False, progress)
        except UnicodeEncodeError as error:
            raise TypeError(f"a text is not valid Unicode: {error}") from None


def _is_batch(inputs):
    if isinstance(inputs, numpy.ndarray):
        return inputs.ndim == 1 and inputs.dtype.kind in "UO"
    return hasattr(inputs, "__iter__") and not isinstance(inputs, (dict, bytes))


def _bad(value):
    if isinstance(value, (tuple, list, dict)):
        raise NotImplementedError(f"inputs: Engram embeds texts, not {type(value).__name__}")
    raise ValueError(f"Unsupported input type: {type(value).__name__}. Give texts")


def _location(name, revision):
    if os.path.exists(name) or name.startswith("hf://"):
        return name
    if name.startswith(("/", ".")) or name.count("/") > 1:
        raise FileNotFoundError(f"Path {name} not found")
    name = name if "/" in name else f"sentence-transformers/{name}"
    return f"hf://{name}" + (f"@{revision}" if revision else "")


def _refuse(name, value):
    if value:
        raise NotImplementedError(f"{name}={value!r}: Engram does not have it; leave out `{name}`")


def _shows_progress(wanted):
    return logger.getEffectiveLevel() in (logging.INFO, logging.DEBUG) if wanted is None else wanted
