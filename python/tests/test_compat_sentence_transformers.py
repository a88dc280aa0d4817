"""`engram.compat.sentence_transformers`. Expected values are from sentence-transformers 6.2.0."""

import os
import unittest

import numpy

from engram.compat.sentence_transformers import SentenceTransformer, util

MINILM = os.environ.get("ENGRAM_MINILM")


def array(value):
    return numpy.asarray(value)


class Util(unittest.TestCase):
    a = numpy.array([[1, 2, 2], [0, 3, 4]], dtype="float32")
    b = numpy.array([[2, 1, 2], [0, 0, 1], [3, 0, 4]], dtype="float32")

    def test_similarities(self):
        cosines = [[8 / 9, 2 / 3, 11 / 15], [11 / 15, 0.8, 0.64]]
        numpy.testing.assert_allclose(array(util.cos_sim(self.a, self.b)), cosines, rtol=1e-6)
        numpy.testing.assert_allclose(array(util.dot_score(self.a, self.b))[1], [11, 4, 16])
        pairs = array(util.pairwise_cos_sim(self.a, self.b[:2]))
        numpy.testing.assert_allclose(pairs, [8 / 9, 0.8], rtol=1e-6)
        numpy.testing.assert_allclose(array(util.pairwise_dot_score(self.a, self.b[:2])), [8, 4])
        distances = array(util.euclidean_sim(self.a[0], self.b))
        numpy.testing.assert_allclose(distances, -numpy.sqrt([[2, 6, 12]]), rtol=1e-6)
        numpy.testing.assert_allclose(array(util.manhattan_sim(self.a[0], self.b)), [[-2, -4, -6]])

    def test_inputs(self):
        for value in ([[1.0, 2.0, 2.0]], [1.0, 2.0, 2.0], [self.a[0]], self.a[:1].astype("f2")):
            scores = array(util.cos_sim(value, numpy.asfortranarray(self.b)))
            self.assertEqual((scores.shape, scores.dtype), ((1, 3), numpy.float32))
        self.assertTrue(numpy.isnan(array(util.cos_sim([numpy.nan], [1.0]))).all())
        self.assertRaises(RuntimeError, util.cos_sim, [[1, 2]], [[1, 2]])
        zeros = util.normalize_embeddings(numpy.zeros((1, 2), "f4"))
        numpy.testing.assert_array_equal(zeros, [[0, 0]])

    def test_semantic_search(self):
        for options in ({}, {"corpus_chunk_size": 1}, {"query_chunk_size": 1}):
            found = util.semantic_search(self.a, self.b, top_k=2, **options)
            self.assertEqual([[hit["corpus_id"] for hit in hits] for hits in found], [[0, 2], [1, 0]])
            self.assertAlmostEqual(found[0][0]["score"], 8 / 9, 6)
        found = util.semantic_search(self.a[0], self.b, score_function=util.dot_score)
        self.assertEqual([hit["score"] for hit in found[0]], [11, 8, 2])

    def test_precisions(self):
        rows = numpy.array([[0.0, -1, 1, 2, -3, 4, 0.5, 1, 2], [1, 1, -1, 2, 3, 4, 0, 0, 0]], "f4")
        quantized = [[0, 0, 254, 0, 0, 0, 254, 254, 254], [254, 254, 0, 0, 255, 0, 0, 0, 0]]
        self.assertEqual(util.quantize_embeddings(rows, "uint8").tolist(), quantized)
        quantized = [[level - 128 for level in row] for row in quantized]
        self.assertEqual(util.quantize_embeddings(rows, "int8").tolist(), quantized)
        self.assertEqual(util.quantize_embeddings(rows, "ubinary").tolist(), [[55, 128], [220, 0]])
        self.assertEqual(util.quantize_embeddings(rows, "binary").tolist(), [[-73, 0], [92, -128]])
        self.assertRaises(ValueError, util.quantize_embeddings, rows[:1], "int8")
        self.assertRaises(ValueError, util.quantize_embeddings, rows, "int4")


@unittest.skipUnless(MINILM, "NOT TESTED: set ENGRAM_MINILM to the folder of all-MiniLM-L6-v2")
class Model(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = SentenceTransformer(MINILM)

    def test_embeddings(self):
        rows = self.model.encode(["A dog runs.", "Two cats", ""])
        self.assertEqual((rows.shape, rows.dtype), ((3, 384), numpy.float32))
        expected = [0.0339136, 0.00376167, 0.0231214, 0.06638832]
        numpy.testing.assert_allclose(rows[0, :4], expected, atol=2e-6)
        numpy.testing.assert_allclose(self.model.encode("A dog runs."), rows[0], atol=1e-6)
        scores = array(self.model.similarity(rows, rows[:1]))
        self.assertEqual(scores.shape, (3, 1))
        self.assertAlmostEqual(float(scores[0, 0]), 1, 5)
        self.assertEqual(array(self.model.similarity_pairwise(rows, rows)).shape, (3,))

    def test_prompts_and_widths(self):
        model = SentenceTransformer(MINILM, prompts={"query": "query: "}, truncate_dim=8)
        self.assertEqual(model.prompts, {"query": "query: ", "document": ""})
        query = model.encode_query("a")
        numpy.testing.assert_array_equal(query, model.encode("a", prompt="query: "))
        numpy.testing.assert_array_equal(query, model.encode("query: a"))
        numpy.testing.assert_array_equal(model.encode_document(["a"]), model.encode(("a",)))
        self.assertEqual(model.get_sentence_embedding_dimension(), 8)
        unit = model.encode("a", normalize_embeddings=True)
        self.assertAlmostEqual(float(numpy.linalg.norm(unit)), 1, 5)
        self.assertEqual(model.encode(numpy.array(["a", "b"]), truncate_dim=3).shape, (2, 3))
        self.assertEqual(model.max_seq_length, 256)
        model.max_seq_length = 3
        numpy.testing.assert_array_equal(model.encode("a"), model.encode("a dog"))
        model.max_seq_length = 256

    def test_bad_inputs(self):
        encode = self.model.encode
        self.assertEqual(encode([]).shape, (0,))
        for inputs in (["a", 3], [None], None, 3, [b"a"]):
            self.assertRaises(ValueError, encode, inputs)
        self.assertRaises(TypeError, encode, ["a\ud800"])
        for options in ({"precision": "x"}, {"batch_size": 0}, {"other": 1}, {"prompt_name": "x"}):
            self.assertRaises(ValueError, encode, "a", **options)
        for options in ({"output_value": None}, {"pool": {"a": 1}}, {"device": "cuda"}):
            self.assertRaises(NotImplementedError, encode, "a", **options)
        self.assertRaises(NotImplementedError, encode, [("a", "b")])
        self.assertRaises(NotImplementedError, SentenceTransformer, MINILM, modules=[1])
        self.assertRaises(FileNotFoundError, SentenceTransformer, "/no/such/folder")


if __name__ == "__main__":
    unittest.main()
