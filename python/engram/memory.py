"""Editable memories of keys, values and entries."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from engram import _engram
from engram.rows import plain, rows_of

if TYPE_CHECKING:
    import os

    import numpy as np

    from engram.models import Encoder


class Hit(NamedTuple):
    """A retrieved entry."""

    id: int
    score: float
    entry: dict[str, Any]


class Memory:
    """A memory in a folder. Many threads may search it while one changes it.

    Keys and queries are C-contiguous float32 arrays `[rows, width]` of NumPy, or arrays on the CPU
    with `__dlpack__`, such as tensors of PyTorch. They are not copied.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Opens the memory in a folder."""
        self._memory = _engram.Memory.open(folder)

    @classmethod
    def build(
        cls,
        folder: str | os.PathLike[str],
        keys: Any,
        entries: Any = None,
        *,
        values: Any = None,
        normalised: bool = True,
        numbers: str = "f16",
    ) -> Memory:
        """Builds a memory in a new or empty folder.

        `entries` are dictionaries with any fields, texts, or a data frame; `values` has the shape
        `[rows, tokens, width]` and is stored as `numbers`: `f16`, `int8` or `int4`. A `normalised`
        memory compares by cosine, another one by dot product.
        """
        memory = object.__new__(cls)
        rows = _change(keys, entries, values)
        memory._memory = _engram.Memory.build(folder, rows, normalised, numbers)
        return memory

    @classmethod
    def from_texts(
        cls,
        folder: str | os.PathLike[str],
        texts: Any,
        encoder: Encoder,
        *,
        progress: bool = False,
    ) -> Memory:
        """Builds a memory of texts, dictionaries with a `text`, or a frame with such a column."""
        entries = _entries(texts)
        keys = encoder.encode([entry["text"] for entry in entries], progress=progress)
        return cls.build(folder, keys, entries)

    @property
    def folder(self) -> Path:
        """The folder."""
        return self._memory.folder

    @property
    def description(self) -> dict[str, Any]:
        """Number of entries, width of keys, sources and other facts, as a dictionary."""
        return json.loads(self._memory.description())

    def __len__(self) -> int:
        return self.description["entries"]

    def __contains__(self, id: int) -> bool:
        try:
            self._memory.entries([id])
        except KeyError:
            return False
        return True

    def __getitem__(self, id: int) -> dict[str, Any]:
        """The entry with an id, as a dictionary."""
        return json.loads(self._memory.entries([id]))[0]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Iterates over the entries, by ascending id, in the state at the first step."""
        ids = self.ids()
        for start in range(0, len(ids), 1000):
            yield from self.entries(ids[start : start + 1000])

    def ids(self) -> np.ndarray:
        """All ids, ascending, as an array of int64."""
        return self._memory.ids()

    def entries(self, ids: Iterable[int]) -> list[dict[str, Any]]:
        """The entries with these ids, as dictionaries."""
        return json.loads(self._memory.entries(list(map(int, ids))))

    def keys(self, ids: Iterable[int]) -> np.ndarray:
        """The keys of these ids, `[ids, width]`."""
        return self._memory.keys(list(map(int, ids)))

    def values(self, ids: Iterable[int]) -> np.ndarray | None:
        """The values of these ids, `[ids, tokens, width]`; `None` for a memory without values."""
        return self._memory.values(list(map(int, ids)))

    def reload(self) -> bool:
        """Loads the state that another process wrote. Returns whether it changed."""
        return self._memory.reload()

    def search(
        self,
        queries: Any = None,
        k: int = 10,
        *,
        texts: list[str] | None = None,
        sources: list[str] | None = None,
        ids: Iterable[int] | None = None,
        exclude: Iterable[Iterable[str]] | None = None,
        min_score: float | None = None,
        mmr: float | None = None,
        candidates: int | None = None,
        graph: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The ids and scores `[queries, k]` of the best entries, best first; -1 for none.

        `queries` are vectors `[queries, width]`. `texts` are the words of the queries: alone, they
        search the entries' texts (BM25), and with `queries` both lists are fused by reciprocal rank.
        `sources` and `ids` restrict the search, and `exclude` has a list of documents for each
        query. `mmr` from 0 (most diverse) to 1 chooses entries that differ from each other.
        `graph` is the number of candidates of a search in the graph of `index()`.
        """
        if queries is None and texts is None:
            raise TypeError("give queries, texts or both")
        if queries is not None:
            queries = array(queries)
            if queries.ndim == 1:
                queries = queries.reshape(1, -1)
        choice = {
            "k": k,
            "graph": graph,
            "sources": sources,
            "ids": None if ids is None else list(map(int, ids)),
            "exclude": [] if exclude is None else [list(map(str, names)) for names in exclude],
            "min_score": min_score,
            "mmr": mmr,
            "candidates": max(10 * k, 100) if candidates is None else candidates,
            "texts": None if texts is None else list(texts),
        }
        return self._memory.search(queries, choice)

    def hits(
        self, query: Any = None, k: int = 10, *, text: str | None = None, **options: Any
    ) -> list[Hit]:
        """The best entries for one query, as a list of `Hit`."""
        texts = None if text is None else [text]
        ids, scores = self.search(query, k, texts=texts, **options)
        found = [(int(id), float(score)) for id, score in zip(ids[0], scores[0]) if id >= 0]
        entries = self.entries(id for id, _ in found)
        return [Hit(id, score, entry) for (id, score), entry in zip(found, entries)]

    def explain(self, id: int, query: Any = None, *, text: str | None = None) -> dict[str, Any]:
        """Why an entry is found or not: its score and rank by key, and by text."""
        explained: dict[str, Any] = {"entry": self[id]}
        for name, options in [("key", {"queries": query}), ("text", {"texts": text and [text]})]:
            if all(value is None for value in options.values()):
                continue
            ids, scores = self.search(k=max(len(self), 1), **options)
            found = [rank for rank, other in enumerate(ids[0]) if other == id]
            explained[name] = None
            if found:
                score = float(scores[0][found[0]])
                explained[name] = {"rank": found[0] + 1, "score": score}
        return explained

    @contextmanager
    def transaction(self) -> Iterator[Change]:
        """A change that readers see as a whole at its end; an exception discards it.

        >>> import numpy, tempfile
        >>> memory = Memory.build(tempfile.mkdtemp(), numpy.eye(2, dtype="float32"))
        >>> with memory.transaction() as change:
        ...     change.delete([0])
        ...     new = change.add(numpy.ones((1, 2), dtype="float32"), ["both"])
        >>> len(memory), memory[new[0]]["text"]
        (2, 'both')
        """
        change = Change(self._memory.begin(), self.description["next_id"])
        try:
            yield change
        except BaseException:
            change._transaction.rollback()
            raise
        change._transaction.commit()
        self._memory.reload()

    def add(self, keys: Any, entries: Any = None, *, values: Any = None) -> list[int]:
        """Adds entries; returns their ids."""
        with self.transaction() as change:
            return change.add(keys, entries, values=values)

    def update(self, keys: Any, entries: Any, *, values: Any = None) -> None:
        """Replaces the entries with the same ids."""
        with self.transaction() as change:
            change.update(keys, entries, values=values)

    def delete(self, ids: Iterable[int]) -> None:
        """Deletes entries."""
        with self.transaction() as change:
            change.delete(ids)

    def index(self) -> None:
        """Builds a graph over the keys, for faster searches with `graph=`."""
        self._memory.index()

    def compact(self) -> None:
        """Rewrites the files without the deleted entries."""
        self._memory.compact()

    def verify(self) -> list[str]:
        """Checks all files; returns the faults as texts."""
        return self._memory.verify()

    def __repr__(self) -> str:
        about = self.description
        return f"<Memory {self.folder}: {about['entries']} entries of width {about['width']}>"


class Change:
    """A change of a memory in a transaction."""

    def __init__(self, transaction: _engram.Transaction, next_id: int) -> None:
        self._transaction = transaction
        self._next_id = next_id

    def add(self, keys: Any, entries: Any = None, *, values: Any = None) -> list[int]:
        """Adds entries; returns their ids. Entries without an `id` get the next free ones."""
        ids = self._transaction.add(_change(keys, entries, values), self._next_id)
        self._next_id = max([self._next_id, *(id + 1 for id in ids)])
        return ids

    def update(self, keys: Any, entries: Any, *, values: Any = None) -> None:
        """Replaces the entries with the same ids."""
        self._transaction.update(_change(keys, entries, values))

    def delete(self, ids: Iterable[int]) -> None:
        """Deletes entries."""
        self._transaction.delete(list(map(int, ids)))


def array(value: Any) -> np.ndarray:
    """An array of NumPy, without a copy; tensors on the CPU become arrays."""
    import numpy

    if not isinstance(value, numpy.ndarray) and hasattr(value, "__dlpack__"):
        if getattr(value, "requires_grad", False):
            value = value.detach()
        value = numpy.from_dlpack(value)
    if not isinstance(value, numpy.ndarray):
        raise TypeError(f"{type(value).__name__} is not an array; give a float32 array")
    if value.dtype != numpy.float32:
        raise TypeError(f"the array has the type {value.dtype}; give array.astype('float32')")
    return value


def _entries(entries: Any) -> list[dict[str, Any]]:
    rows = rows_of(entries)
    if any(isinstance(entry, str) for entry in list(entries)[:1]):
        rows = [{"text": row["text"]} for row in rows]
    return rows


def _change(keys: Any, entries: Any, values: Any) -> tuple[Any, Any, str | None]:
    if entries is not None:
        entries = json.dumps(_entries(entries), ensure_ascii=False, default=plain)
    return array(keys), None if values is None else array(values), entries
