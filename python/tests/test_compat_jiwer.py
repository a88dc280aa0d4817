"""engram.compat.jiwer against values of jiwer 4.0.0."""

import copy
import pickle
import unittest
from dataclasses import asdict

from engram.compat import jiwer

REFERENCES = ["short one here", "quite a bit of longer sentence"]
HYPOTHESES = ["shoe order one", "quite bit of an even longest sentence here"]


class Outputs(unittest.TestCase):
    def test_measures_and_counts(self):
        output = jiwer.process_words(REFERENCES, HYPOTHESES)
        counts = output.hits, output.substitutions, output.deletions, output.insertions
        self.assertEqual(counts, (5, 2, 2, 4))
        self.assertEqual(round(output.wer, 4), 0.8889)
        self.assertEqual(round(output.mer, 4), 0.6154)
        self.assertEqual(round(output.wil, 4), 0.7475)
        self.assertEqual(output.references[0], ["short", "one", "here"])
        chunk = asdict(output)["alignments"][0][0]
        limits = {"ref_start_idx": 0, "ref_end_idx": 0, "hyp_start_idx": 0, "hyp_end_idx": 1}
        self.assertEqual(chunk, {"type": "insert", **limits})

    def test_an_output_is_copied_with_its_lists(self):
        output = jiwer.process_words("a b", "a c")
        self.assertEqual(pickle.loads(pickle.dumps(output)), output)
        self.assertEqual(copy.deepcopy(output), output)

    def test_later_changes_of_the_texts_do_not_matter(self):
        texts = ["a b"]
        output = jiwer.process_words(texts, "a c")
        texts[0] = "x"
        self.assertEqual(output.references, [["a", "b"]])

    def test_empty_references(self):
        output = jiwer.process_words("", "hello you")
        values = output.wer, output.mer, output.wip, output.wil, output.insertions
        self.assertEqual(values, (2, 1, 0, 1, 2))
        self.assertEqual(jiwer.wer([], []), 0)
        self.assertEqual(jiwer.wip("", ""), 1)
        self.assertEqual(jiwer.wip("a", ""), 0)

    def test_white_space(self):
        # One space of another kind does not separate words.
        text = " a\tb \u2003c\u00a0d\u3000\u3000e "
        output = jiwer.process_words(text, text)
        self.assertEqual(output.references, [["a\tb", "c\u00a0d", "e"]])
        self.assertEqual(output.hits, 3)

    def test_characters(self):
        output = jiwer.process_characters(" é日 ", "é本x")
        self.assertEqual(output.references, [["é", "日"]])
        self.assertEqual(output.cer, 1.0)
        self.assertEqual(jiwer.cer("abcd", "abxd"), 0.25)

    def test_lone_surrogates(self):
        self.assertEqual(jiwer.wer("\ud800 a", "\ud800 b"), 0.5)


class Transforms(unittest.TestCase):
    def test_transforms(self):
        for transform, text, expected in [
            (jiwer.RemovePunctuation(), "“Hi”, you!", "Hi you"),
            (jiwer.RemoveKaldiNonWords(), "you <unk> like [laugh]", "you  like "),
            (jiwer.ExpandCommonEnglishContractions(), "let's isn't won't", "let us is not will not"),
            (jiwer.RemoveWhiteSpace(replace_by_space=True), "a\tb", "a b"),
            (jiwer.SubstituteWords({"foo": "bar"}), "foo foobar", "bar foobar"),
            (jiwer.RemoveSpecificWords(["the"]), "the then", "  then"),
            (jiwer.SubstituteRegexes({r"(\w+)ed\b": r"\1"}), "loved", "lov"),
        ]:
            self.assertEqual(transform(text), expected)
            self.assertEqual(transform([text]), [expected])
        self.assertEqual(jiwer.RemoveEmptyStrings()(["", "a", " "]), ["a"])
        self.assertEqual(jiwer.ReduceToSingleSentence()(["a", "", "b"]), ["a b"])

    def test_custom_transforms(self):
        class WithoutE(jiwer.AbstractTransform):
            def process_string(self, s):
                return s.replace("e", "")

        steps = [WithoutE(), jiwer.ToUpperCase(), jiwer.ReduceToListOfListOfWords()]
        transform = jiwer.Compose(steps)
        output = jiwer.process_words(["the cat"], ["th cat"], transform, transform)
        self.assertEqual((output.wer, output.references), (0.0, [["TH", "CAT"]]))
        texts = ["She'll <unk> go"], ["she will", "go"]
        transform = jiwer.wer_standardize_contiguous
        self.assertEqual(jiwer.wer(*texts, transform, transform), 0.0)

    def test_errors(self):
        identity = lambda text: text
        for error, arguments in [
            (ValueError, [None, "a"]),
            (ValueError, [("a",), "a"]),
            (ValueError, [["a"], ["a", "b"]]),
            (ValueError, ["a", "a", identity, identity]),
            (TypeError, [[1], ["a"]]),
            (TypeError, [[None], ["a"]]),
        ]:
            with self.assertRaises(error):
                jiwer.wer(*arguments)
        with self.assertRaises(ValueError):
            jiwer.AlignmentChunk("equal", 1, 0, 0, 0)


class Texts(unittest.TestCase):
    def test_alignment(self):
        output = jiwer.process_words("this is a test of skill", "this was a messy test")
        expected = (
            "=== SENTENCE 1 ===\n\n"
            "REF: this  is a ***** test of skill\n"
            "HYP: this was a messy test ** *****\n"
            "            S       I       D     D\n"
        )
        self.assertEqual(jiwer.visualize_alignment(output, show_measures=False), expected)

    def test_error_counts(self):
        output = jiwer.process_words(REFERENCES, HYPOTHESES)
        expected = (
            "=== SUBSTITUTIONS ===\nshort   --> order   = 1x\nlonger  --> longest = 1x\n\n"
            "=== INSERTIONS ===\nshoe    = 1x\nan even = 1x\nhere    = 1x\n\n"
            "=== DELETIONS ===\nhere = 1x\na    = 1x"
        )
        self.assertEqual(jiwer.visualize_error_counts(output), expected)


if __name__ == "__main__":
    unittest.main()
