"""Tests of `engram.compat.faiss`. Expected values are those of faiss-cpu 1.15.1."""

import os
import pickle
import tempfile
import unittest

import numpy as np

from engram.compat import faiss

X = np.arange(12, dtype="float32").reshape(4, 3)
MAX = np.finfo("float32").max


def index_of(kind, x=X):
    index = kind(x.shape[1])
    index.add(x)
    return index


def map_of(kind, ids=(10, 20, 30, 40)):
    index = kind(faiss.IndexFlatIP(3))
    index.add_with_ids(X, np.array(ids))
    return index


class Search(unittest.TestCase):
    def check(self, found, *expected):
        for found, expected in zip(found, expected, strict=True):
            np.testing.assert_array_equal(found, np.array(expected, dtype=found.dtype))

    def test_search(self):
        ip, l2 = index_of(faiss.IndexFlatIP), index_of(faiss.IndexFlatL2)
        self.check(ip.search(X[:1], 5), [[32, 23, 14, 5, -MAX]], [[3, 2, 1, 0, -1]])
        self.check(l2.search(X[:1], 5), [[0, 27, 108, 243, MAX]], [[0, 1, 2, 3, -1]])
        self.check(faiss.IndexFlatIP(3).search(X[:1], 2), [[-MAX, -MAX]], [[-1, -1]])
        self.assertEqual(l2.search(X[:0], 2)[1].shape, (0, 2))
        self.check(l2.search(np.asfortranarray(X.astype("f8")), 1), [[0]] * 4, [[0], [1], [2], [3]])
        self.check(l2.range_search(X[:2], 28.0), [0, 2, 5], [0, 27, 27, 0, 27], [0, 1, 0, 1, 2])
        self.check(ip.range_search(X[:1], 14), [0, 2], [23, 32], [2, 3])
        self.check(faiss.knn(X[:1], X, 2), [[0, 27]], [[0, 1]])
        D, I, R = ip.search_and_reconstruct(X[:1], 5)
        self.check(R[0, :2], X[3], X[2])
        self.assertTrue(np.isnan(R[0, 4]).all())

    def test_not_finite(self):
        keys = np.array([[np.nan] * 3, [1, 1, 1], [np.inf] * 3], dtype="f4")
        ip, l2 = index_of(faiss.IndexFlatIP, keys), index_of(faiss.IndexFlatL2, keys)
        self.check(ip.search(X[1:2], 3), [[np.inf, 12, -MAX]], [[2, 1, -1]])
        self.check(l2.search(X[1:2], 3), [[29, MAX, MAX]], [[1, -1, -1]])
        self.check(ip.search(keys[:1], 2), [[-MAX, -MAX]], [[-1, -1]])

    def test_selectors(self):
        l2, ids = index_of(faiss.IndexFlatL2), map_of(faiss.IndexIDMap)
        batch = faiss.IDSelectorBatch([1, 3, 40])
        search = lambda index, sel: index.search(X[:1], 3, params=faiss.SearchParameters(sel=sel))
        self.check(search(l2, batch), [[27, 243, MAX]], [[1, 3, -1]])
        self.check(search(ids, batch), [[32, -MAX, -MAX]], [[40, -1, -1]])
        self.check(search(ids, faiss.IDSelectorNot(batch)), [[23, 14, 5]], [[30, 20, 10]])
        between = faiss.IDSelectorRange(1, 3)
        self.assertEqual([between.is_member(id) for id in (0, 1, 2, 3)], [False, True, True, False])
        bits = faiss.IDSelectorBitmap(np.array([5], dtype="u1"))
        self.assertEqual([bits.is_member(id) for id in (-1, 0, 1, 2, 9)], [0, 1, 0, 1, 0])

    def test_many_vectors_and_changes(self):
        # As many as get codes, in parts; removed rows shift later ones.
        random = np.random.default_rng(7)
        x, q = (random.random((n, 24), dtype="f4") for n in (9400, 70))
        for kind in (faiss.IndexFlatIP, faiss.IndexFlatL2):
            index, kept = kind(24), np.ones(len(x), dtype=bool)
            for start, end in ((0, 4200), (4200, 4300), (4300, 9300), (9300, 9400)):
                index.add(x[start:end])
                self.compare(index, x[:end], q)
            removed = np.array([3, 6000, 6001, 9350, 99999, 3])
            self.assertEqual(index.remove_ids(removed), 4)
            kept[removed[:4]] = False
            self.compare(index, x[kept], q)
            allowed = np.arange(0, len(x) - 4, 2)
            params = faiss.SearchParameters(sel=faiss.IDSelectorArray(allowed))
            best = index.search(q, 5, params=params)[1]
            self.check([allowed[self.best(kind, x[kept][allowed], q, 5)]], best)
            index.add(np.full((1, 24), np.nan, dtype="f4"))
            self.compare(index, x[kept], q)

    def best(self, kind, x, q, k):
        x, q = x.astype("f8"), q.astype("f8")
        scores = q @ x.T if kind is faiss.IndexFlatIP else 2 * q @ x.T - (x * x).sum(1)
        return np.argsort(-scores, axis=1, kind="stable")[:, :k]

    def compare(self, index, x, q):
        D, I = index.search(q, 5)
        self.check([I], self.best(type(index), x, q, 5))
        pairs = q[:, None].astype("f8"), x[I].astype("f8")
        ip = isinstance(index, faiss.IndexFlatIP)
        scores = np.prod(pairs[:1], 0) * pairs[1] if ip else (pairs[0] - pairs[1]) ** 2
        np.testing.assert_allclose(D, scores.sum(-1), rtol=1e-5)

    def test_ids_and_vectors(self):
        flat, ids = index_of(faiss.IndexFlatIP), map_of(faiss.IndexIDMap)
        ids2 = map_of(faiss.IndexIDMap2)
        self.assertEqual(flat.remove_ids(np.array([1, 7, 1])), 1)
        self.check([flat.reconstruct_n()], X[[0, 2, 3]])
        self.assertEqual(ids.remove_ids(faiss.IDSelectorRange(15, 35)), 2)
        self.check([faiss.vector_to_array(ids.id_map)], [10, 40])
        self.check([ids2.reconstruct(20), *ids2.reconstruct_batch([10, 40])], X[1], X[0], X[3])
        ids.merge_from(map_of(faiss.IndexIDMap), 5)
        self.check([ids.id_map], [10, 40, 15, 25, 35, 45])
        ids.reset()
        self.assertEqual((ids.ntotal, ids.d, ids.is_trained, ids.metric_type), (0, 3, True, 0))

    def test_files(self):
        header = "04000000000000000000100000000000000010000000000001"
        flat = "4978464903000000" + header + "000000000c00000000000000" + X.tobytes().hex()
        ids = np.array([10, 20, 30, 40]).tobytes().hex()
        data = bytes.fromhex("49784d3203000000" + header + "00000000" + flat + "04" + "00" * 7 + ids)
        index = map_of(faiss.IndexIDMap2)
        self.assertEqual(faiss.serialize_index(index).tobytes(), data)
        with tempfile.TemporaryDirectory() as folder:
            faiss.write_index(index, os.path.join(folder, "index"))
            copies = [faiss.read_index(os.path.join(folder, "index"))]
        for copy in [*copies, pickle.loads(pickle.dumps(index)), faiss.clone_index(index)]:
            self.assertIs(type(copy), faiss.IndexIDMap2)
            self.check(copy.search(X[:1], 2), [[32, 23]], [[40, 30]])
        for size in (0, 3, 30, len(data) - 1):
            with self.assertRaises(RuntimeError):
                faiss.deserialize_index(np.frombuffer(data[:size], dtype="u1"))

    def test_normalize(self):
        x = np.array([[3, 4], [0, 0]], dtype="f4")
        faiss.normalize_L2(x)
        np.testing.assert_allclose(x, [[0.6, 0.8], [0, 0]], rtol=1e-6)

    def test_errors(self):
        flat = index_of(faiss.IndexFlatL2)
        for error, call in [
            (AssertionError, lambda: flat.search(X, 0)),
            (RuntimeError, lambda: flat.add_with_ids(X, np.arange(4))),
            (RuntimeError, lambda: flat.reconstruct(4)),
            (RuntimeError, lambda: faiss.IndexIDMap(flat)),
            (RuntimeError, lambda: map_of(faiss.IndexIDMap).search_and_reconstruct(X, 1)),
            (RuntimeError, lambda: map_of(faiss.IndexIDMap2).reconstruct(5)),
            (OverflowError, lambda: flat.reconstruct(2**70)),
            (TypeError, lambda: faiss.normalize_L2(X.astype("f8"))),
            (AttributeError, lambda: setattr(flat, "unknown", 1)),
            (NotImplementedError, lambda: faiss.IndexIVFFlat(flat, 3, 1)),
            (NotImplementedError, lambda: faiss.index_factory(3, "IVF10,Flat")),
        ]:
            self.assertRaises(error, call)
