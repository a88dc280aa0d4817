"""Memories: search, edits, threads, and arrays that do not fit."""

import multiprocessing
import os
import pickle
import tempfile
import threading
import unittest

import numpy as np

import engram


def unit(rows, width=16, seed=1):
    keys = np.random.default_rng(seed).normal(size=(rows, width)).astype("float32")
    return keys / np.linalg.norm(keys, axis=1, keepdims=True)


def search_in_child(work):
    """Searches in a process of a pool."""
    path, keys = work
    return engram.Memory(path).search(keys, k=3)


class MemoryTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.keys = unit(50)
        self.path = os.path.join(self.folder.name, "memory")
        entries = [
            {"text": f"word{row}", "source": "even" if row % 2 == 0 else "odd"}
            for row in range(50)
        ]
        self.memory = engram.Memory.build(self.path, self.keys, entries)

    def test_a_search_is_exact(self):
        queries = unit(7, seed=2)
        ids, scores = self.memory.search(queries, k=5)
        expected = queries.astype("float64") @ self.keys.T.astype("float64")
        order = np.argsort(-expected, axis=1)[:, :5]
        np.testing.assert_array_equal(ids, order)
        np.testing.assert_allclose(scores, np.take_along_axis(expected, order, 1), rtol=1e-6)
        self.assertEqual((ids.dtype, scores.dtype), (np.int64, np.float32))

    def test_filters_texts_and_diversity(self):
        query = self.keys[4]
        hits = self.memory.hits(query, k=3, sources=["odd"])
        self.assertTrue(all(hit.id % 2 == 1 for hit in hits))
        self.assertEqual(self.memory.hits(query, k=3, ids=[4, 7])[0].id, 4)
        ids, scores = self.memory.search(query, k=3, ids=[4])
        self.assertEqual(ids.tolist(), [[4, -1, -1]])
        self.assertEqual(scores[0, 1], -np.inf)
        self.assertEqual(self.memory.hits(text="word9", k=1)[0].entry["text"], "word9")
        both = self.memory.hits(query, text="word9", k=2)
        self.assertEqual({hit.id for hit in both}, {4, 9})
        self.assertEqual(len(self.memory.hits(query, k=5, mmr=0.5)), 5)
        explained = self.memory.explain(4, query, text="word9")
        self.assertEqual(explained["key"]["rank"], 1)
        self.assertIsNone(explained["text"])
        self.memory.index()
        self.assertEqual(self.memory.hits(query, k=1, graph=64)[0].id, 4)

    def test_edits_are_seen_by_the_next_search(self):
        new = self.memory.add(unit(2, seed=3), ["first", "second"])
        self.assertEqual(new, [50, 51])
        self.memory.update(unit(1, seed=4), [{"id": 50, "text": "changed"}])
        self.assertEqual(self.memory[50]["text"], "changed")
        self.memory.delete([51, 0])
        self.assertEqual(len(self.memory), 50)
        self.assertNotIn(0, self.memory)
        self.assertEqual([entry["id"] for entry in self.memory], self.memory.ids().tolist())
        with self.assertRaises(RuntimeError):
            with self.memory.transaction() as change:
                change.delete([1])
                raise RuntimeError("stop")
        self.assertIn(1, self.memory)
        other = engram.Memory(self.path)
        self.memory.delete([1])
        self.assertIn(1, other)
        self.assertTrue(other.reload())
        self.assertNotIn(1, other)
        self.memory.compact()
        self.assertEqual(self.memory.description["deleted"], 0)
        self.assertEqual(self.memory.verify(), [])

    def test_values_come_back(self):
        values = np.ones((50, 2, 3), dtype="float32")
        path = os.path.join(self.folder.name, "values")
        memory = engram.Memory.build(path, self.keys, values=values)
        self.assertEqual(memory.values([3, 4]).shape, (2, 2, 3))
        self.assertIsNone(self.memory.values([3]))
        np.testing.assert_allclose(memory.keys([3])[0], self.keys[3], rtol=1e-6)

    def test_bad_arrays_and_unknown_ids(self):
        for keys, error, reason in [
            (self.keys.astype("float64"), TypeError, "float64"),
            (self.keys.tolist(), TypeError, "list is not an array"),
            (np.asfortranarray(self.keys), ValueError, "not C-contiguous"),
            (self.keys[:, ::-1], ValueError, "not C-contiguous"),
            (self.keys[:, :8].copy(), ValueError, "width 8"),
            (np.full((1, 16), np.nan, "float32"), ValueError, "NaN|finite"),
        ]:
            with self.assertRaisesRegex(error, reason):
                self.memory.search(keys)
        for change, error in [
            (lambda: self.memory.delete([999]), KeyError),
            (lambda: self.memory.delete([2**70]), OverflowError),
            (lambda: self.memory[-1], KeyError),
            (lambda: self.memory.update(unit(1), ["text"]), ValueError),
            (lambda: self.memory.add(unit(2), ["one"]), ValueError),
            (lambda: self.memory.add(unit(1), [{"id": 3, "text": "again"}]), ValueError),
            (lambda: self.memory.add(unit(1, width=3), ["narrow"]), ValueError),
            (lambda: engram.Memory.build(self.path, self.keys), ValueError),
            (lambda: engram.Memory("/nowhere"), engram.DataError),
            (lambda: pickle.dumps(self.memory), TypeError),
        ]:
            with self.assertRaises(error):
                change()
        self.assertEqual(len(self.memory), 50)

    def test_threads_search_while_one_writes(self):
        queries = unit(20, seed=5)
        found, stop = [], threading.Event()

        def search():
            while not stop.is_set():
                ids, scores = self.memory.search(queries, k=10)
                # Ids from 1,000 on come and go together, two at a time.
                pairs = {int(id) for id in ids.ravel() if id >= 1000}
                found.append((np.diff(scores, axis=1) <= 0).all() and (ids >= 0).all())
                self.assertTrue(pairs <= {1000, 1001})

        threads = [threading.Thread(target=search) for _ in range(8)]
        [thread.start() for thread in threads]
        for _ in range(10):
            new = [{"id": 1000, "text": "a"}, {"id": 1001, "text": "b"}]
            self.memory.add(queries[:2].copy(), new)
            self.memory.delete([1000, 1001])
        stop.set()
        [thread.join() for thread in threads]
        self.assertTrue(found and all(found))

    def test_a_forked_process_searches(self):
        expected = self.memory.search(self.keys, k=3)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            for ids, _ in pool.map(search_in_child, [(self.path, self.keys)] * 4):
                np.testing.assert_array_equal(ids, expected[0])


if __name__ == "__main__":
    unittest.main()
