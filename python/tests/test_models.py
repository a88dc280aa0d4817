"""Encoders, speech recognition, answers and training."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy as np

import engram

ROOT = pathlib.Path(__file__).resolve().parents[2]


def weights(variable):
    """Skips a test without the weights that a variable names."""
    return unittest.skipUnless(variable in os.environ, f"SKIPPED: {variable} is not set")


def command(*words):
    """Runs the command."""
    words = [sys.executable, "-m", "engram", *words, "--quiet"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


class EncoderTest(unittest.TestCase):
    @weights("ENGRAM_MINILM")
    def test_texts_of_one_meaning_are_close(self):
        encoder = engram.Encoder(os.environ["ENGRAM_MINILM"])
        texts = ["the key hangs in the kitchen", "where is the key?", "stock prices fell"]
        vectors = encoder.encode(texts)
        self.assertEqual((vectors.shape, vectors.dtype), ((3, encoder.width), np.float32))
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
        near, far = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
        self.assertGreater(near, far + 0.2)
        np.testing.assert_array_equal(encoder.encode(texts[0]), encoder.encode(texts[:1])[0])
        self.assertEqual(encoder.encode([]).shape, (0, encoder.width))
        with tempfile.TemporaryDirectory() as folder:
            memory = engram.Memory.from_texts(os.path.join(folder, "m"), texts, encoder)
            self.assertEqual(memory.hits(vectors[1], k=1)[0].entry["text"], texts[1])
        with self.assertRaisesRegex(engram.DataError, "image"):
            encoder.encode(images=[b"no image"])

    def test_a_model_that_is_missing(self):
        with self.assertRaises((FileNotFoundError, engram.DataError)):
            engram.Encoder("/nowhere")


class TranscriberTest(unittest.TestCase):
    def test_samples_bytes_and_files_have_one_transcript(self):
        transcriber = engram.Transcriber(ROOT / "train/bundled/conformer")
        with tempfile.TemporaryDirectory() as folder:
            command("data", "speech", "--out", f"{folder}/speech", "--count", "1")
            file = next(pathlib.Path(folder).rglob("*.wav"))
            data = file.read_bytes()
            samples = np.frombuffer(data[data.index(b"data") + 8 :], "<f4")
            transcript = transcriber.transcribe(file)
            self.assertTrue(transcript.text)
            self.assertAlmostEqual(transcript.seconds, len(samples) / 16000, delta=0.01)
            self.assertEqual(transcriber.transcribe(data), transcript)
            self.assertEqual(transcriber.transcribe([samples])[0], transcript)
            words = transcriber.transcribe(file, words=True).words
            self.assertEqual(" ".join(word.text for word in words), transcript.text)
        with self.assertRaisesRegex(engram.DataError, "Whisper"):
            transcriber.transcribe(samples, language="en")
        with self.assertRaises((TypeError, ValueError)):
            transcriber.transcribe(samples.astype("float64"))


class AnswererTest(unittest.TestCase):
    def test_an_answer_follows_its_entry(self):
        with tempfile.TemporaryDirectory() as folder:
            run = os.path.join(folder, "run")
            shutil.copytree(ROOT / "train/bundled/reveal", run)
            command("data", "world", "--out", f"{folder}/world", "--images", "40")
            image = next(pathlib.Path(folder).rglob("*.png"))
            answerer = engram.Answerer(run, k=3)
            answer = answerer.ask("What dance belongs to this?", image, credit="attribution")
            self.assertEqual(len(answer.evidence), 3)
            self.assertEqual(len(answer.evidence[0]["attribution"]), len(answer.tokens))
            first = answer.evidence[0]["id"]
            without = answerer.ask("What dance belongs to this?", image, without=[first])
            self.assertNotIn(first, [entry["id"] for entry in without.evidence])
            self.assertEqual(answerer.find("What dance?", image, k=2)[0].keys() & {"id", "text"}, {"id", "text"})
            with self.assertRaisesRegex(ValueError, "no control .magic."):
                engram.Answerer(run, control="magic")


class TrainingTest(unittest.TestCase):
    def test_a_run_reports_its_steps_and_stops(self):
        with tempfile.TemporaryDirectory() as folder:
            run, steps = os.path.join(folder, "run"), []
            tiny = {"options": ["--tiny"], "quiet": True}
            summary = engram.train("patent", "patent/world", run, callback=steps.append, **tiny)
            self.assertTrue(any("loss" in line for line in steps))
            self.assertIn("seed", str(summary))
            with self.assertRaisesRegex(engram.DataError, "unknown key"):
                engram.train("patent", "patent/world", run + "2", {"nothing": 1}, **tiny)


if __name__ == "__main__":
    unittest.main()
