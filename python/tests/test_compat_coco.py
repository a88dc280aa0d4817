"""`engram.compat.pycocoevalcap`. Expected values are from pycocoevalcap 1.2."""

import contextlib
import io
import unittest
import warnings

import numpy

from engram.compat.pycocoevalcap.bleu.bleu import Bleu
from engram.compat.pycocoevalcap.cider.cider import Cider
from engram.compat.pycocoevalcap.eval import COCOEvalCap
from engram.compat.pycocoevalcap.meteor.meteor import Meteor
from engram.compat.pycocoevalcap.rouge.rouge import Rouge
from engram.compat.pycocoevalcap.spice.spice import Spice
from engram.compat.pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

GTS = {
    1: ["a man riding a wave on top of a surfboard", "a man rides a wave"],
    "b": ["two dogs play in the grass", "dogs playing on grass", "two brown dogs"],
    3: ["a red bus on the street"],
}
RES = {1: ["a man riding a wave"], "b": ["a dog in the grass"], 3: ["a red bus on the street"]}


def quiet(run, *values):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        return run(*values), out.getvalue()


class Coco:
    """The part of `pycocotools.coco.COCO` that COCOEvalCap uses."""

    def __init__(self, captions):
        self.imgToAnns = {
            image: [{"caption": text} for text in texts] for image, texts in captions.items()
        }

    def getImgIds(self):
        return list(self.imgToAnns)


class Tokenizer(unittest.TestCase):
    def test_captions_equal_the_java_program(self):
        captions = {
            7: [{"caption": "A (very) big dog, running!"}, {"caption": "a\nb"}],
            8: [],
            "x": [{"caption": "It's a T-shirt; don't touch."}],
        }
        expected = {
            7: ["a -lrb- very -rrb- big dog running", "a b"],
            "x": ["it 's a t-shirt do n't touch"],
        }
        self.assertEqual(PTBTokenizer().tokenize(captions), expected)
        self.assertEqual(PTBTokenizer().tokenize({}), {})

    def test_bad_captions(self):
        tokenize = PTBTokenizer().tokenize
        for captions, error in [
            ({1: [{"text": "a"}]}, KeyError),
            ({1: [{"caption": None}]}, AttributeError),
            ({1: [{"caption": "a\ud800"}]}, UnicodeEncodeError),
            ({1: ["a"]}, TypeError),
        ]:
            self.assertRaises(error, tokenize, captions)


class Metrics(unittest.TestCase):
    def test_cider(self):
        score, scores = Cider().compute_score(GTS, RES)
        self.assertIsInstance(score, numpy.float64)
        self.assertAlmostEqual(score, 5.028615194678154, 12)
        expected = [3.7905395709024643, 1.2953060131319978, 10.0]
        numpy.testing.assert_allclose(scores, expected, rtol=1e-12)

    def test_rouge(self):
        score, scores = Rouge().compute_score(GTS, RES)
        self.assertAlmostEqual(score, 0.8026951543080575, 14)
        numpy.testing.assert_allclose(scores, [0.8714285714285713, 0.5366568914956013, 1.0])
        self.assertAlmostEqual(Rouge().calc_score(["a b c"], ["a c", "b"]), 0.8299319727891156)

    def test_bleu(self):
        (score, scores), out = quiet(Bleu().compute_score, GTS, RES)
        expected = [0.8749999999453126, 0.8604560507552892, 0.8398127380023935, 0.8065008589354788]
        numpy.testing.assert_allclose(score, expected, rtol=1e-12)
        self.assertEqual([len(values) for values in scores], [3] * 4)
        expected = [0.999999999479, 8.40896414984e-05, 0.999999999596]
        numpy.testing.assert_allclose(scores[3], expected, rtol=1e-10)
        counts = "{'testlen': 16, 'reflen': 15, 'guess': [16, 13, 10, 7], 'correct': [14, 11, 8, 5]}"
        self.assertEqual(out, counts + "\nratio: 1.0666666665955555\n")
        (score, scores), out = quiet(Bleu(2).compute_score, GTS, RES, 0)
        self.assertEqual((len(score), len(scores), out), (2, 2, ""))

    def test_names(self):
        names = [scorer.method() for scorer in (Bleu(), Rouge(), Cider())]
        self.assertEqual(names, ["Bleu", "Rouge", "CIDEr"])

    def test_bad_captions(self):
        for gts, res, error in [
            ({1: ["a"]}, {2: ["a"]}, AssertionError),
            ({1: ["a"]}, {1: ["a", "b"]}, AssertionError),
            ({1: []}, {1: ["a"]}, AssertionError),
            ({1: ("a",)}, {1: ["a"]}, AssertionError),
            ({1: ["a"]}, {1: [3]}, AttributeError),
            ([["a"]], [["a"]], AttributeError),
        ]:
            for scorer in (Bleu(), Rouge(), Cider()):
                self.assertRaises(error, scorer.compute_score, gts, res)
        self.assertRaises(ValueError, Cider().compute_score, {}, {})
        self.assertRaises(ValueError, Cider().compute_score, {1: [""]}, {1: [""]})
        self.assertEqual(Cider().compute_score({1: ["a"]}, {1: ["a"]})[0], 0)

    def test_what_is_missing(self):
        for make in (Meteor, Spice, lambda: Bleu(5), lambda: Cider(n=3), lambda: Cider(sigma=1)):
            self.assertRaises(NotImplementedError, make)


class Evaluation(unittest.TestCase):
    def test_evaluation(self):
        evaluation = COCOEvalCap(Coco(GTS), Coco(RES))
        evaluation.params["image_id"] = [1, 3]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            quiet(evaluation.evaluate)
        self.assertIn("METEOR and SPICE are left out", str(caught[0].message))
        names = ["Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "ROUGE_L", "CIDEr"]
        self.assertEqual(list(evaluation.eval), names)
        self.assertEqual(list(evaluation.evalImgs[1]), ["image_id", *names])
        self.assertEqual(list(evaluation.imgToEval), [1, 3])
        self.assertAlmostEqual(evaluation.imgToEval[3]["ROUGE_L"], 1.0)

    def test_an_image_without_a_caption(self):
        evaluation = COCOEvalCap(Coco(GTS), Coco({**RES, 3: []}))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.assertRaises(AssertionError, quiet, evaluation.evaluate)


if __name__ == "__main__":
    unittest.main()
