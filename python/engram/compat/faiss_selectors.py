"""Selectors of ids for `engram.compat.faiss`."""

import numpy as np


class IDSelector:
    """Selects ids."""

    def is_member(self, id):
        """Whether an id is selected."""
        return bool(self.mask(np.array([id], dtype="int64"))[0])

    def mask(self, ids):
        """Whether each id is selected."""
        raise NotImplementedError(f"{type(self).__name__} is not implemented")


class IDSelectorBatch(IDSelector):
    """Selects the ids of an array."""

    def __init__(self, indices):
        self._indices = np.ascontiguousarray(indices, dtype="int64")

    def mask(self, ids):
        return np.isin(ids, self._indices)


class IDSelectorArray(IDSelectorBatch):
    """Selects the ids of an array."""


class IDSelectorRange(IDSelector):
    """Selects the ids from `imin` up to, but without, `imax`."""

    def __init__(self, imin, imax, assume_sorted=False):
        if not isinstance(imin, (int, np.integer)) or not isinstance(imax, (int, np.integer)):
            raise TypeError("IDSelectorRange takes two integers")
        self.imin, self.imax, self.assume_sorted = imin, imax, assume_sorted

    def mask(self, ids):
        return (ids >= self.imin) & (ids < self.imax)


class IDSelectorBitmap(IDSelector):
    """Selects the ids whose bit is set in an array of bytes."""

    def __init__(self, bitmap):
        bits = np.require(bitmap, dtype="uint8", requirements=["C"])
        self._bits = np.unpackbits(bits, bitorder="little").astype(bool)

    def mask(self, ids):
        is_known = (ids >= 0) & (ids < len(self._bits))
        return is_known & self._bits[np.where(is_known, ids, 0)] if len(self._bits) else is_known


class IDSelectorAll(IDSelector):
    """Selects all ids."""

    def mask(self, ids):
        return np.ones(len(ids), dtype=bool)


class IDSelectorNot(IDSelector):
    """Selects the ids that another selector does not select."""

    def __init__(self, sel):
        self._of = [checked(sel)]

    def mask(self, ids):
        return ~self._of[0].mask(ids)


class IDSelectorAnd(IDSelector):
    """Selects the ids that both selectors select."""

    _join = np.logical_and

    def __init__(self, lhs, rhs):
        self._of = [checked(lhs), checked(rhs)]

    def mask(self, ids):
        return type(self)._join(*(selector.mask(ids) for selector in self._of))


class IDSelectorOr(IDSelectorAnd):
    """Selects the ids that one or both selectors select."""

    _join = np.logical_or


class IDSelectorXOr(IDSelectorAnd):
    """Selects the ids that one of two selectors selects."""

    _join = np.logical_xor


def checked(selector):
    """A selector, or a `TypeError`."""
    if not isinstance(selector, IDSelector):
        raise TypeError(f"{type(selector).__name__} is not an IDSelector")
    return selector
