"""`engram.compat.faster_whisper`. Expected values are from faster-whisper 1.2.1."""

import inspect
import io
import os
import tempfile
import unittest
import wave

import numpy

from engram.compat import faster_whisper
from engram.compat.faster_whisper import WhisperModel, available_models, decode_audio

#: The folder of whisper-tiny.en of CTranslate2.
WHISPER = os.environ.get("ENGRAM_WHISPER")
SPEECH = os.path.join(os.environ.get("ENGRAM_DATA", ""), "speech/wav16k/LJ001-0004.wav")


def wav(samples, rate=16000):
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, rate, len(samples), "NONE", ""))
        writer.writeframes(numpy.asarray(samples, dtype="<i2").tobytes())
    file.seek(0)
    return file


class Audio(unittest.TestCase):
    def test_audio_files(self):
        samples = decode_audio(wav([0, 16384, -32768, 8192]))
        self.assertEqual(samples.dtype, numpy.float32)
        self.assertEqual(samples.tolist(), [0, 0.5, -1, 0.25])
        self.assertEqual(len(decode_audio(wav([0] * 800, 8000))), 1600)

    def test_bad_audio(self):
        self.assertRaises(FileNotFoundError, decode_audio, "/no/such/file.wav")
        self.assertRaises(ValueError, decode_audio, io.BytesIO(b"no audio"))
        self.assertRaises(TypeError, decode_audio, None)
        self.assertRaises(NotImplementedError, decode_audio, wav([0]), split_stereo=True)

    def test_names(self):
        self.assertEqual(len(available_models()), 19)
        self.assertIn("tiny.en", available_models())
        self.assertRaises(ValueError, WhisperModel, "huge")
        with tempfile.TemporaryDirectory() as folder:
            open(os.path.join(folder, "model.bin"), "wb").close()
            self.assertRaises(ValueError, WhisperModel, folder)
        for options in ({"cpu_threads": 4}, {"compute_type": "int8"}, {"num_workers": 2}):
            self.assertRaises(NotImplementedError, WhisperModel, "/", **options)
        self.assertRaises(NotImplementedError, faster_whisper.BatchedInferencePipeline, None)


@unittest.skipUnless(
    WHISPER and os.path.exists(SPEECH),
    "NOT TESTED: set ENGRAM_WHISPER to a folder of whisper-tiny.en, and ENGRAM_DATA",
)
class Model(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = WhisperModel(WHISPER)

    def test_segments(self):
        segments, info = self.model.transcribe(SPEECH, beam_size=1, word_timestamps=True)
        self.assertTrue(inspect.isgenerator(segments))
        self.assertEqual((info.language, info.language_probability), ("en", 1))
        self.assertAlmostEqual(info.duration, 5.13875)
        [segment] = segments
        text = " produced the block books, which were the immediate predecessors of the true printed book."
        self.assertEqual(segment.text, text)
        self.assertEqual((segment.id, segment.seek, segment.temperature), (1, 0, 0))
        self.assertEqual((segment.start, segment.end), (0, 5.02))
        self.assertAlmostEqual(segment.avg_logprob, -0.254878, 3)
        self.assertAlmostEqual(segment.no_speech_prob, 0.010359, 4)
        self.assertAlmostEqual(segment.compression_ratio, 1.171053, 5)
        self.assertEqual("".join(word.word for word in segment.words), text)
        self.assertAlmostEqual(segment.words[3].probability, 0.9610, 3)
        self.assertEqual((segment.words[3].start, segment.words[3].end), (1.1, 1.6))

    def test_short_inputs(self):
        samples = numpy.zeros(0, "float32")
        self.assertEqual(list(self.model.transcribe(samples)[0]), [])
        silence = numpy.zeros(16000, "int16")
        self.assertEqual(list(self.model.transcribe(silence)[0]), [])
        self.assertEqual(self.model.supported_languages, ["en"])

    def test_bad_options(self):
        samples = numpy.zeros(160, "float32")
        for options, error in [
            ({"task": "sing"}, ValueError),
            ({"beam_size": 0}, ValueError),
            ({"unknown": 1}, TypeError),
            ({"vad_filter": True}, NotImplementedError),
            ({"temperature": 0.5}, NotImplementedError),
            ({"initial_prompt": "a"}, NotImplementedError),
            ({"patience": numpy.nan}, NotImplementedError),
        ]:
            self.assertRaises(error, self.model.transcribe, samples, **options)
        self.model.transcribe(samples, temperature=0, vad_filter=False, suppress_tokens=[-1])
        self.assertRaises(ValueError, self.model.transcribe, numpy.zeros((2, 9), "float32"))
        self.assertRaises(NotImplementedError, self.model.detect_language, samples)


if __name__ == "__main__":
    unittest.main()
