"""Evaluations: forms of input, values, items, comparisons, errors."""

import csv
import math
import os
import tempfile
import unittest

import engram

REF = ["the cat sat on the mat", "a dog", "no speech here"]
HYP = ["the cat sat on mat", "a dog", "no peach here"]


class Frame:
    """A data frame as pandas has it."""

    def __init__(self, rows):
        self.rows, self.columns = rows, list(rows[0])

    def to_dict(self, orient):
        assert orient == "records"
        return self.rows


class EvaluationTest(unittest.TestCase):
    def test_all_forms_of_input_give_the_same_value(self):
        ids = [f"u{number}" for number in range(3)]
        rows = lambda texts: [{"id": id, "text": text} for id, text in zip(ids, texts)]
        with tempfile.TemporaryDirectory() as folder:
            files = []
            for name, texts in [("ref.csv", REF), ("hyp.csv", HYP)]:
                files.append(os.path.join(folder, name))
                with open(files[-1], "w", newline="") as file:
                    csv.writer(file).writerows([("id", "text"), *zip(ids, texts)])
            inputs = [
                (REF, HYP),
                (dict(zip(ids, REF)), dict(zip(ids, HYP))),
                (rows(REF), rows(HYP)),
                (Frame(rows(REF)), Frame(rows(HYP))),
                files,
            ]
            for ref, hyp in inputs:
                result = engram.evaluate("wer", ref=ref, hyp=hyp)
                self.assertAlmostEqual(result.value, 2 / 11)
                self.assertEqual(result.n, 3)
                low, high = result.interval
                self.assertTrue(0 <= low <= result.value <= high)
                self.assertEqual(len(result.items), 3)

    def test_options_are_those_of_the_command(self):
        result = engram.evaluate(
            "wer", ref=["Mr. Smith"], hyp=["mister smith"], normalizer="whisper-en", resamples=0
        )
        self.assertEqual((result.value, result.interval), (0.0, None))
        self.assertEqual(result["cer"].n, 1)
        with self.assertRaisesRegex(KeyError, "this evaluation has wer, cer"):
            result["bleu"]

    def test_other_tasks(self):
        gold = [
            {"id": str(i), "anchor": a, "target": t, "context": "A47", "score": s}
            for i, (a, t, s) in enumerate([("a", "b", 0.0), ("a", "c", 0.5), ("d", "e", 1.0)])
        ]
        predicted = [{"id": str(i), "score": s} for i, s in enumerate([0.1, 0.4, 0.9])]
        phrase = engram.evaluate("phrase", ref=gold, hyp=predicted)
        self.assertEqual(phrase.primary.metric, "pearson")
        self.assertGreater(phrase.value, 0.98)
        text = engram.evaluate("text", ref=["a cat"], hyp=["a cat"])
        self.assertAlmostEqual(text.value, 100.0)
        annotations = {
            "images": [{"id": 1}, {"id": 2}],
            "annotations": [
                {"id": 1, "image_id": 1, "caption": "a cat on a mat"},
                {"id": 2, "image_id": 2, "caption": "a dog in the sun"},
            ],
        }
        captions = [
            {"image_id": 1, "caption": "a cat on a mat"},
            {"image_id": 2, "caption": "a dog in rain"},
        ]
        caption = engram.evaluate("caption", ref=annotations, hyp=captions)
        self.assertEqual(caption.n, 2)
        self.assertFalse(math.isnan(caption["cider_d"].value))

    def test_two_systems_are_compared(self):
        a = engram.evaluate("wer", ref=REF, hyp=HYP)
        b = engram.evaluate("wer", ref=REF, hyp=REF)
        comparison = engram.compare(a, b, resamples=200)
        self.assertAlmostEqual(comparison.difference.value, 2 / 11)
        self.assertTrue(0 <= comparison.p_value <= 1)

    def test_errors_name_the_argument_and_the_line(self):
        with self.assertRaisesRegex(engram.DataError, r"hyp\.jsonl: no prediction for id `1`"):
            engram.evaluate("wer", ref=["a", "b"], hyp=["a"])
        with self.assertRaises(FileNotFoundError):
            engram.evaluate("wer", ref="/nowhere/ref.tsv", hyp=["a"])
        with self.assertRaisesRegex(engram.DataError, "unexpected argument '--reff' found"):
            engram.evaluate("wer", reff=["a"], hyp=["a"])
        with self.assertRaisesRegex(TypeError, "row 1 is int"):
            engram.evaluate("wer", ref=["a", 2], hyp=["a", "b"])
        with self.assertRaisesRegex(ValueError, "no subcommand|unrecognized subcommand 'war'"):
            engram.evaluate("war", ref=["a"], hyp=["a"])


if __name__ == "__main__":
    unittest.main()
