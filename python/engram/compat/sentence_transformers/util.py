"""Similarities of embeddings: arrays, tensors, or lists of them.

They are tensors of PyTorch if it is installed, and otherwise arrays of NumPy.
"""

from enum import Enum

import numpy


class SimilarityFunction(Enum):
    """The names of the similarities."""

    COSINE = "cosine"
    DOT_PRODUCT = "dot"
    DOT = "dot"
    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"

    @staticmethod
    def possible_values():
        """All names."""
        return [function.value for function in SimilarityFunction]


def cos_sim(a, b):
    """The cosine of each row of `a` with each row of `b`."""
    return tensor(_unit(_rows(a)) @ _unit(_rows(b)).T)


def pytorch_cos_sim(a, b):
    """The same as `cos_sim`."""
    return cos_sim(a, b)


def dot_score(a, b):
    """The dot product of each row of `a` with each row of `b`."""
    return tensor(_rows(a) @ _rows(b).T)


def euclidean_sim(a, b):
    """The negative Euclidean distance of each row of `a` to each row of `b`."""
    b = _rows(b)
    distances = [numpy.sqrt(((row - b) ** 2).sum(axis=-1)) for row in _rows(a)]
    return tensor(-numpy.stack(distances))


def manhattan_sim(a, b):
    """The negative Manhattan distance of each row of `a` to each row of `b`."""
    b = _rows(b)
    return tensor(-numpy.stack([numpy.abs(row - b).sum(axis=-1) for row in _rows(a)]))


def pairwise_cos_sim(a, b):
    """The cosine of each row of `a` with the same row of `b`."""
    return tensor((_unit(_array(a)) * _unit(_array(b))).sum(axis=-1))


def pairwise_dot_score(a, b):
    """The dot product of each row of `a` with the same row of `b`."""
    return tensor((_array(a) * _array(b)).sum(axis=-1))


def pairwise_euclidean_sim(a, b):
    """The negative Euclidean distance of each row of `a` to the same row of `b`."""
    return tensor(-numpy.sqrt(((_array(a) - _array(b)) ** 2).sum(axis=-1)))


def pairwise_manhattan_sim(a, b):
    """The negative Manhattan distance of each row of `a` to the same row of `b`."""
    return tensor(-numpy.abs(_array(a) - _array(b)).sum(axis=-1))


def normalize_embeddings(embeddings):
    """The embeddings with unit length."""
    unit = _unit(_array(embeddings))
    return unit if isinstance(embeddings, numpy.ndarray) else tensor(unit)


def truncate_embeddings(embeddings, truncate_dim):
    """The first `truncate_dim` components of each embedding."""
    return embeddings[..., :truncate_dim]


def semantic_search(
    query_embeddings,
    corpus_embeddings,
    query_chunk_size=100,
    corpus_chunk_size=500000,
    top_k=10,
    score_function=cos_sim,
):
    """The best rows of the corpus for each query, as dictionaries with `corpus_id` and `score`."""
    queries, corpus = _rows(query_embeddings), _array(corpus_embeddings)
    if score_function is cos_sim:
        queries, corpus = _unit(queries), _unit(corpus)
    found = [[] for _ in queries]
    for corpus_start in range(0, len(corpus), corpus_chunk_size):
        chunk = corpus[corpus_start : corpus_start + corpus_chunk_size]
        for start in range(0, len(queries), query_chunk_size):
            some = queries[start : start + query_chunk_size]
            if score_function in (cos_sim, dot_score):
                scores = some @ chunk.T
            else:
                scores = _array(score_function(tensor(some), tensor(chunk)))
            ids = best(scores, top_k)
            values = numpy.take_along_axis(scores, ids, axis=1).tolist()
            for hits, of_ids, of_scores in zip(found[start:], ids.tolist(), values):
                hits += [
                    {"corpus_id": corpus_start + id, "score": score}
                    for id, score in zip(of_ids, of_scores)
                ]
    for hits in found:
        hits.sort(key=lambda hit: -hit["score"])
        del hits[top_k:]
    return found


def best(scores, k):
    """The columns of the `k` highest scores of each row, best first."""
    k = min(k, scores.shape[1])
    if k < scores.shape[1]:
        ids = numpy.argpartition(-scores, k, axis=1)[:, :k]
    else:
        ids = numpy.broadcast_to(numpy.arange(k), scores.shape)
    order = numpy.argsort(-numpy.take_along_axis(scores, ids, axis=1), axis=1, kind="stable")
    return numpy.take_along_axis(ids, order, axis=1)


def quantize_embeddings(embeddings, precision, ranges=None, calibration_embeddings=None):
    """The embeddings as `int8` or `uint8`, or with one bit a component, `binary` or `ubinary`."""
    embeddings = _array(embeddings)
    if embeddings.dtype in (numpy.int8, numpy.uint8):
        raise ValueError(f"the embeddings are {embeddings.dtype} already; give floats")
    if precision == "float32":
        return embeddings.astype(numpy.float32)
    if precision in ("binary", "ubinary"):
        bits = numpy.packbits(embeddings > 0, axis=-1)
        return bits if precision == "ubinary" else (bits ^ 128).view(numpy.int8)
    if precision not in ("int8", "uint8"):
        raise ValueError(f"Precision {precision!r} is not supported")
    if ranges is None:
        sample = embeddings if calibration_embeddings is None else calibration_embeddings
        if calibration_embeddings is None and (sample.ndim == 1 or len(sample) == 1):
            raise ValueError(
                f"the {precision} range of a single embedding is unknown; give `ranges` or "
                "`calibration_embeddings`"
            )
        ranges = numpy.stack([sample.min(axis=0), sample.max(axis=0)])
    low, high = ranges.astype(numpy.float32, copy=False)
    step = (high - low) / 255
    levels = numpy.floor((embeddings - low) / numpy.where(step == 0, 1, step))
    levels = numpy.clip(levels, 0, 255).astype(numpy.uint8)
    return levels if precision == "uint8" else (levels ^ 128).view(numpy.int8)


def tensor(array):
    """The array as a tensor, or unchanged without PyTorch."""
    try:
        import torch
    except ImportError:
        return array
    return torch.from_numpy(numpy.asarray(array, order="C"))


def _array(value):
    """An array of NumPy, in float32 for numbers of Python and for smaller floats."""
    if isinstance(value, (list, tuple)) and len(value) and hasattr(value[0], "shape"):
        value = numpy.stack([_array(row) for row in value])
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    array = numpy.asarray(value)
    if array.dtype == numpy.float16 or (array.dtype == numpy.float64 and array is not value):
        array = array.astype(numpy.float32)
    return array


def _rows(value):
    array = _array(value)
    return array[None] if array.ndim == 1 else array


def _unit(array):
    if array.dtype.kind != "f":
        raise RuntimeError(f"the embeddings are {array.dtype}; give floats")
    return array / numpy.maximum(numpy.linalg.norm(array, axis=-1, keepdims=True), 1e-12)
