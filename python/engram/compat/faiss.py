"""A drop-in for the exact indexes of faiss: `from engram.compat import faiss`.

>>> import numpy
>>> index = IndexIDMap(IndexFlatIP(2))
>>> index.add_with_ids(numpy.array([[1, 0], [0, 1]]), numpy.array([7, 9]))
>>> scores, ids = index.search(numpy.array([[0, 2]]), 1)
>>> (scores.tolist(), ids.tolist())
([[2.0]], [[9]])

Vectors are in main memory. When an index of 4,096 vectors or more has had 64 queries, it encodes its
vectors in 8 bits, which makes later searches faster. The codes need files, which also have a copy of
the vectors. The files are in shared memory on Linux, and else in the folder for temporary files.
They are mapped, and removed at once.

Files of indexes are those of faiss. What is missing here raises `NotImplementedError`.
"""

import os
import struct
import tempfile

import numpy as np

from engram import _engram
from engram.compat.faiss_selectors import (  # noqa: F401
    IDSelector,
    IDSelectorAll,
    IDSelectorAnd,
    IDSelectorArray,
    IDSelectorBatch,
    IDSelectorBitmap,
    IDSelectorNot,
    IDSelectorOr,
    IDSelectorRange,
    IDSelectorXOr,
    checked,
)

#: The version of faiss with this interface.
__version__ = "1.15.1"

METRIC_INNER_PRODUCT, METRIC_L2 = 0, 1
Float32 = 0

_INTEGERS = (int, np.integer)
#: The folder of files in main memory on Linux.
_SHARED_MEMORY = "/dev/shm"


class _Missing(NotImplementedError, AttributeError):
    """A part of faiss that is not implemented. It is an `AttributeError`, too, for `hasattr`."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    raise _Missing(f"faiss.{name} is not implemented")


class Index:
    """An index of vectors of width `d`."""

    __slots__ = ("d", "metric_type", "metric_arg", "is_trained", "verbose", "__weakref__")

    def __init__(self, d, metric_type):
        if not isinstance(d, _INTEGERS) or not isinstance(metric_type, _INTEGERS):
            raise TypeError(f"{type(self).__name__} takes a width and a metric, both integers")
        if d < 1:
            raise NotImplementedError(f"d = {d} is not implemented; give a width of 1 or more")
        if metric_type not in (METRIC_INNER_PRODUCT, METRIC_L2):
            raise NotImplementedError(f"metric {metric_type} is not implemented")
        self.d, self.metric_type, self.metric_arg = int(d), int(metric_type), 0.0
        self.is_trained, self.verbose = True, False

    def __getattr__(self, name):
        raise _Missing(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self):
        return serialize_index(self).tobytes()

    def __setstate__(self, state):
        self._become(deserialize_index(np.frombuffer(state, dtype="uint8")))

    def train(self, x, *, numeric_type=Float32, xq_train=None):
        """Does nothing: these indexes need no training."""
        _vectors(self, x, numeric_type)

    def add_with_ids(self, x, ids, numeric_type=Float32):
        """Adds vectors with these ids."""
        raise RuntimeError(f"add_with_ids not implemented for {type(self).__name__}")

    def search(self, x, k, *, params=None, D=None, I=None, numeric_type=Float32):
        """The scores and ids of the best `k` vectors for each query, `[queries, k]`."""
        x = _vectors(self, x, numeric_type)
        assert k > 0
        D = _output(D, (len(x), k), np.float32)
        I = _output(I, (len(x), k), np.int64)
        found = min(k, self.ntotal)
        D[:, found:] = np.finfo(np.float32).max * (-1 if self.metric_type == 0 else 1)
        I[:, found:] = -1
        D[:, :found], I[:, :found] = self._search(x, found, _selector(params))
        return D, I

    def assign(self, x, k, labels=None):
        """The ids of the best `k` vectors for each query."""
        return self.search(x, k, I=labels)[1]

    def range_search(self, x, thresh, *, params=None):
        """All vectors nearer than a distance, or with a larger product: `(lims, D, I)`.

        The results of query `i` are `D[lims[i]:lims[i + 1]]` and `I[lims[i]:lims[i + 1]]`.
        """
        x = _vectors(self, x)
        return self._range_search(x, float(thresh), _selector(params))

    def search_and_reconstruct(self, x, k, *, params=None, D=None, I=None, R=None):
        """The best `k` vectors for each query, with the vectors `[queries, k, d]`."""
        D, I = self.search(x, k, params=params, D=D, I=I)
        R = _output(R, (*I.shape, self.d), np.float32)
        R[I < 0] = np.nan
        R[I >= 0] = self.reconstruct_batch(I[I >= 0])
        return D, I, R

    def reconstruct(self, key, x=None):
        """The vector with an id."""
        if not isinstance(key, _INTEGERS):
            raise TypeError(f"{key!r} is not an id; give an integer")
        return self.reconstruct_batch([key], _output(x, (self.d,), np.float32)[None])[0]

    def reconstruct_batch(self, key, x=None):
        """The vectors with these ids."""
        key = np.require(key, dtype="int64", requirements=["C", "ALIGNED"])
        (n,) = key.shape
        x = _output(x, (n, self.d), np.float32)
        x[:] = self._take(key)
        return x

    def reconstruct_n(self, n0=0, ni=-1, x=None):
        """The vectors with the ids `n0` to `n0 + ni - 1`; as many as there are if `ni` is -1."""
        ni = self.ntotal - n0 if ni == -1 else ni
        x = _output(x, (ni, self.d), np.float32)
        return self.reconstruct_batch(np.arange(n0, n0 + ni), x)

    def remove_ids(self, x):
        """Removes the vectors of a selector, or of an array of ids. Returns their number."""
        if not isinstance(x, IDSelector):
            assert x.ndim == 1
            x = IDSelectorBatch(x)
        removed = x.mask(self._ids())
        self._keep(~removed)
        return int(removed.sum())

    def check_compatible_for_merge(self, other):
        """Raises an error unless the vectors of the other index can be moved to this one."""
        is_map = isinstance(self, IndexIDMap) and isinstance(other, IndexIDMap)
        if not (is_map or type(other) is type(self)) or other.d != self.d or other is self:
            raise RuntimeError("indexes to merge must be of one type and one width")

    def __repr__(self):
        return f"<{type(self).__name__}: {self.ntotal} vectors of width {self.d}>"


class IndexFlat(Index):
    """Compares queries with all vectors. Removing vectors shifts the ids of later ones."""

    __slots__ = ("_flat",)

    def __init__(self, d, metric=METRIC_L2):
        super().__init__(d, metric)
        self.reset()

    def _become(self, other):
        super().__init__(other.d, other.metric_type)
        self._flat = other._flat

    @property
    def ntotal(self):
        """The number of vectors."""
        return len(self._flat)

    @property
    def code_size(self):
        """The size of a vector in bytes."""
        return 4 * self.d

    def reset(self):
        """Removes all vectors."""
        self._flat = _engram.Flat(self.d, self.metric_type == METRIC_INNER_PRODUCT)

    def add(self, x, numeric_type=Float32):
        """Adds vectors to the index. Their ids are the next numbers."""
        self._flat.add(_vectors(self, x, numeric_type))

    def merge_from(self, other, add_id=0):
        """Moves the vectors of another index to the end of this one."""
        self.check_compatible_for_merge(other)
        if add_id:
            raise RuntimeError("cannot set ids in an index without ids")
        self._flat.add(other.reconstruct_n())
        other.reset()

    def _ids(self):
        return np.arange(self.ntotal)

    def _search(self, x, k, selector, ids=None):
        if self._flat.needs_codes(len(x)):
            self._encode()
        return self._flat.search(x, k, self._allowed(selector, ids))

    def _encode(self):
        # Shared memory may be too small. Without any room, searches do without codes.
        places = [place for place in [_SHARED_MEMORY, tempfile.gettempdir()] if os.path.isdir(place)]
        for place in places:
            with tempfile.TemporaryDirectory(
                prefix="engram-", dir=place, ignore_cleanup_errors=True
            ) as folder:
                if self._flat.encode(folder):
                    return

    def _range_search(self, x, threshold, selector, ids=None):
        lims, D, I = self._flat.range_search(x, threshold, self._allowed(selector, ids))
        return lims, D, I

    def _allowed(self, selector, ids):
        if selector is None:
            return None
        return selector.mask(self._ids() if ids is None else ids)

    def _keep(self, kept):
        self._flat.keep(kept)

    def _take(self, rows):
        return self._flat.take(rows)


class IndexFlatIP(IndexFlat):
    """Finds the vectors with the largest inner products."""

    __slots__ = ()

    def __init__(self, d):
        super().__init__(d, METRIC_INNER_PRODUCT)


class IndexFlatL2(IndexFlat):
    """Finds the vectors with the smallest squared distances."""

    __slots__ = ()

    def __init__(self, d):
        super().__init__(d, METRIC_L2)


class IndexIDMap(Index):
    """Gives the vectors of a flat index the ids that are added with them."""

    __slots__ = ("index", "_buffer", "_rows")

    def __init__(self, index):
        if not isinstance(index, IndexFlat):
            raise NotImplementedError(f"{type(self).__name__} of {type(index).__name__}")
        if index.ntotal:
            raise RuntimeError("index must be empty on input")
        self._become_map(index, np.empty(0, dtype="int64"))

    def _become_map(self, index, ids):
        super().__init__(index.d, index.metric_type)
        self.index, self._buffer, self._rows = index, ids, None

    def _become(self, other):
        self._become_map(other.index, other._buffer)

    @property
    def ntotal(self):
        """The number of vectors."""
        return self.index.ntotal

    @property
    def id_map(self):
        """The ids, in the order of the vectors."""
        return self._ids()

    def reset(self):
        """Removes all vectors."""
        self.index.reset()
        self._buffer, self._rows = np.empty(0, dtype="int64"), None

    def add(self, x, numeric_type=Float32):
        """Raises an error: give ids, too."""
        _vectors(self, x, numeric_type)
        raise RuntimeError(f"add does not make sense with {type(self).__name__}, use add_with_ids")

    def add_with_ids(self, x, ids, numeric_type=Float32):
        """Adds vectors with these ids."""
        x = _vectors(self, x, numeric_type)
        assert ids.shape == (len(x),), "not same nb of vectors as ids"
        ids = np.ascontiguousarray(ids, dtype="int64")
        start, end = self.ntotal, self.ntotal + len(x)
        self.index.add(x)
        if end > len(self._buffer):
            # Twice the room, so that many small additions take little time.
            self._buffer = np.resize(self._buffer[:start], max(end, 2 * start))
        self._buffer[start:end] = ids
        if self._rows is not None:
            self._rows.update(zip(ids.tolist(), range(start, end)))

    def merge_from(self, other, add_id=0):
        """Moves the vectors of another index to this one; `add_id` is added to their ids."""
        self.check_compatible_for_merge(other)
        self.index.check_compatible_for_merge(other.index)
        self.add_with_ids(other.index.reconstruct_n(), other._ids() + add_id)
        other.reset()

    def _ids(self):
        return self._buffer[: self.ntotal]

    def _search(self, x, k, selector):
        ids = self._ids()
        D, I = self.index._search(x, k, selector, ids)
        return D, self._of_rows(I, ids)

    def _range_search(self, x, threshold, selector):
        ids = self._ids()
        lims, D, I = self.index._range_search(x, threshold, selector, ids)
        return lims, D, self._of_rows(I, ids)

    def _of_rows(self, rows, ids):
        return np.where(rows < 0, -1, ids[rows]) if len(ids) else rows

    def _keep(self, kept):
        ids = self._ids()[kept]
        self.index._keep(kept)
        self._buffer, self._rows = ids, None

    def _take(self, ids):
        raise RuntimeError("reconstruct not implemented for IndexIDMap; use IndexIDMap2")


class IndexIDMap2(IndexIDMap):
    """An `IndexIDMap` that can also reconstruct vectors by id."""

    __slots__ = ()

    def _take(self, ids):
        if self._rows is None:
            self._rows = dict(zip(self._ids().tolist(), range(self.ntotal)))
        try:
            rows = [self._rows[id] for id in ids.tolist()]
        except KeyError as error:
            raise RuntimeError(f"key {error} not found") from None
        return self.index._take(np.array(rows, dtype="int64"))


class SearchParameters:
    """Parameters of a search: `sel` selects the ids that may be found."""

    def __init__(self, **parameters):
        self.sel = None
        for name, value in parameters.items():
            assert hasattr(self, name), name
            setattr(self, name, value if value is None else checked(value))


def omp_set_num_threads(n):
    """Does nothing: the environment variable `RAYON_NUM_THREADS` sets the number of threads."""


def omp_get_max_threads():
    """The number of processors."""
    return os.cpu_count()


def index_factory(d, description, metric=METRIC_L2, own_invlists=True):
    """Makes the index of a description: `Flat`, `IDMap,Flat` or `IDMap2,Flat`."""
    if not isinstance(description, str):
        raise TypeError("the description of an index is a text")
    parts = sorted(description.split(","))
    maps = {"IDMap": IndexIDMap, "IDMap2": IndexIDMap2}
    if parts == ["Flat"]:
        return IndexFlat(d, metric)
    if len(parts) == 2 and parts[0] == "Flat" and parts[1] in maps:
        return maps[parts[1]](IndexFlat(d, metric))
    raise NotImplementedError(f"index_factory has no index {description!r}")


def knn(xq, xb, k, metric=METRIC_L2, metric_arg=0.0):
    """The scores and positions of the best `k` of the vectors `xb` for each query."""
    xb = np.ascontiguousarray(xb, dtype="float32")
    xq = np.ascontiguousarray(xq, dtype="float32")
    index = IndexFlat(xq.shape[1], metric)
    index.add(xb)
    return index.search(xq, k)


def normalize_L2(x):
    """Scales vectors to unit length in place. Zero vectors stay."""
    x.shape[1]
    if x.dtype != np.float32:
        raise TypeError(f"normalize_L2 takes float32, not {x.dtype}")
    if not x.flags.c_contiguous:
        raise ValueError("array is not C-contiguous")
    norms = np.sqrt(np.einsum("ij,ij->i", x, x))
    np.divide(x, norms[:, None], out=x, where=norms[:, None] > 0)


def vector_to_array(v):
    """A copy of a vector of faiss, such as `id_map`."""
    return np.array(v)


vector_float_to_array = vector_to_array


def downcast_index(index):
    """The index itself."""
    return index


def clone_index(index):
    """A copy of an index."""
    return deserialize_index(serialize_index(index))


def write_index(index, fname, io_flags=0):
    """Writes an index to a file, as faiss does."""
    _check_flags(io_flags)
    data = serialize_index(index)
    try:
        with open(os.fspath(fname), "wb") as file:
            file.write(data)
    except OSError as error:
        raise RuntimeError(f"could not open {fname} for writing: {error.strerror}") from error


def read_index(fname, io_flags=0):
    """Reads an index from a file that this module or faiss wrote."""
    try:
        with open(os.fspath(fname), "rb") as file:
            data = file.read()
    except OSError as error:
        raise RuntimeError(f"could not open {fname} for reading: {error.strerror}") from error
    try:
        return deserialize_index(np.frombuffer(data, dtype="uint8"), io_flags)
    except RuntimeError as error:
        raise RuntimeError(f"{fname}: {error}") from None


#: The start of an index: kind, width, number of vectors, two constants, whether trained, metric.
_HEADER = struct.Struct("<4siqqq?i")
_KINDS = {b"IxFI": IndexFlatIP, b"IxF2": IndexFlatL2, b"IxMp": IndexIDMap, b"IxM2": IndexIDMap2}


def serialize_index(index, io_flags=0):
    """The bytes of the file of an index, as an array."""
    _check_flags(io_flags)
    return np.frombuffer(b"".join(_parts(index)), dtype="uint8").copy()


def deserialize_index(data, io_flags=0):
    """The index of the bytes of a file."""
    _check_flags(io_flags)
    try:
        return _read(memoryview(np.ascontiguousarray(data, dtype="uint8")))[0]
    except (struct.error, ValueError) as error:
        raise RuntimeError(f"the index is damaged: {error}") from None


def _parts(index):
    """The bytes of an index, in parts."""
    is_map = isinstance(index, IndexIDMap)
    if is_map:
        kind = b"IxM2" if isinstance(index, IndexIDMap2) else b"IxMp"
    else:
        kind = b"IxFI" if index.metric_type == METRIC_INNER_PRODUCT else b"IxF2"
    yield _HEADER.pack(kind, index.d, index.ntotal, 1 << 20, 1 << 20, True, index.metric_type)
    if is_map:
        yield from _parts(index.index)
    numbers = index._ids() if is_map else index.reconstruct_n()
    yield struct.pack("<Q", numbers.size)
    yield numbers.tobytes()


def _read(data):
    """An index, and the bytes after it."""
    kind = bytes(data[:4])
    if len(kind) == 4 and kind not in _KINDS:
        raise NotImplementedError(f"index files of the kind {kind} are not implemented")
    kind, d, ntotal, _, _, _, metric = _HEADER.unpack_from(data)
    data = data[_HEADER.size :]
    is_map = issubclass(_KINDS[kind], IndexIDMap)
    if is_map:
        inner, data = _read(data)
    (size,) = struct.unpack_from("<Q", data)
    dtype = np.dtype("<i8" if is_map else "<f4")
    numbers = np.frombuffer(data[8 : 8 + size * dtype.itemsize], dtype=dtype)
    if d < 1 or len(numbers) != size or size != ntotal * (1 if is_map else d):
        raise ValueError(f"it has {size} numbers for {ntotal} vectors of width {d}")
    index = object.__new__(_KINDS[kind])
    if is_map:
        if inner.ntotal != ntotal:
            raise ValueError(f"it has {ntotal} ids for {inner.ntotal} vectors")
        index._become_map(inner, numbers.copy())
    else:
        IndexFlat.__init__(index, d, metric)
        index.add(numbers.reshape(ntotal, d))
    return index, data[8 + size * dtype.itemsize :]


def _check_flags(io_flags):
    if io_flags:
        raise NotImplementedError(f"io_flags = {io_flags} is not implemented")


def _vectors(index, x, numeric_type=Float32):
    """Vectors as a float32 array `[n, d]`."""
    if numeric_type != Float32:
        raise NotImplementedError(f"numeric_type = {numeric_type} is not implemented")
    n, d = x.shape
    x = np.require(x, dtype="float32", requirements=["C", "ALIGNED"])
    assert d == index.d
    return x


def _output(given, shape, dtype):
    """A given array for results, or a new one."""
    if given is None:
        return np.empty(shape, dtype=dtype)
    assert given.shape == shape
    if given.dtype != dtype:
        raise TypeError(f"the array for results has the type {given.dtype}, not {dtype.__name__}")
    return given


def _selector(params):
    """The selector of search parameters."""
    if params is not None and not isinstance(params, SearchParameters):
        raise TypeError(f"params is a {type(params).__name__}; give SearchParameters")
    return params and params.sel
