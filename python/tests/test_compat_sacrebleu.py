"""engram.compat.sacrebleu against values of sacrebleu 2.6.0."""

import unittest

from engram.compat import sacrebleu

HYPOTHESES = ["a cat sat.", "two  dogs (big)"]
REFERENCES = [["a cat sits.", "two dogs"], ["The cat sat!", "a pair of dogs"]]


class Scores(unittest.TestCase):
    def test_values(self):
        for settings, corpus, sentence in [
            ({}, 60.44975534925586, 46.072078064599935),
            ({"word_order": 2}, 58.86382598261798, 45.07592698364801),
            ({"beta": 3, "eps_smoothing": True}, 61.919223394248924, 44.79307698483299),
            ({"remove_whitespace": False, "word_order": 2}, 55.36685356967559, 54.977422948526346),
            ({"char_order": 4, "word_order": 1}, 69.43464645582263, 56.92142894498943),
        ]:
            score = sacrebleu.corpus_chrf(HYPOTHESES, REFERENCES, **settings).score
            self.assertAlmostEqual(score, corpus, 10, settings)
            references = [texts[0] for texts in REFERENCES]
            score = sacrebleu.sentence_chrf(HYPOTHESES[0], references, **settings).score
            self.assertAlmostEqual(score, sentence, 10, settings)

    def test_missing_references(self):
        score = sacrebleu.CHRF().corpus_score(["a", "b"], [["a", "c"], [None, "b"]])
        self.assertEqual(str(score), "chrF2 = 100.00")
        with self.assertRaises(ValueError):
            sacrebleu.corpus_chrf(["a"], [[None]])

    def test_bootstrap_and_signature(self):
        references = [texts * 20 for texts in REFERENCES]
        metric = sacrebleu.CHRF(lowercase=True)
        score = metric.corpus_score(HYPOTHESES * 20, references, n_bootstrap=100)
        self.assertEqual(str(score), "chrF2 = 60.45 (μ = 60.53 ± 4.63)")
        signature = "nrefs:2|bs:100|seed:12345|case:lc|eff:yes|nc:6|nw:0|space:no|version:"
        self.assertEqual(str(metric.get_signature()).split("engram")[0], signature)
        self.assertEqual(score.format(width=1, score_only=True), "60.4 (μ = 60.5 ± 4.6)")

    def test_cached_references(self):
        metric = sacrebleu.CHRF(references=REFERENCES)
        self.assertAlmostEqual(metric.corpus_score(HYPOTHESES, None).score, 60.44975534925586, 10)

    def test_errors(self):
        for error, call in [
            (TypeError, lambda: sacrebleu.corpus_chrf(5, [["b"]])),
            (TypeError, lambda: sacrebleu.corpus_chrf([5], [["b"]])),
            (TypeError, lambda: sacrebleu.corpus_chrf(["a", None], [["b", "c"]])),
            (TypeError, lambda: sacrebleu.corpus_chrf(["a"], 5)),
            (TypeError, lambda: sacrebleu.sentence_chrf("a", "b")),
            (RuntimeError, lambda: sacrebleu.CHRF().corpus_score(["a"], None)),
            (ValueError, lambda: sacrebleu.CHRF().get_signature()),
            (NotImplementedError, lambda: sacrebleu.CHRF(char_order=7)),
            (NotImplementedError, lambda: sacrebleu.CHRF(word_order=3)),
            (NotImplementedError, lambda: sacrebleu.corpus_bleu(["a"], [["a"]])),
            (NotImplementedError, lambda: sacrebleu.TER()),
        ]:
            with self.assertRaises(error):
                call()


if __name__ == "__main__":
    unittest.main()
