"""Drop-in replacement of `faster_whisper`: speech recognition with Whisper.

The windows of a long recording are transcribed independently, at temperature 0.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import zlib
from dataclasses import dataclass

import numpy

from engram import _engram

#: The rate of recordings, in Hz.
RATE = 16000
#: Languages whose words have no spaces between them.
WITHOUT_SPACES = ("zh", "ja", "th", "lo", "my", "yue")
SIZES = ["tiny", "base", "small", "medium"]
NAMES = {
    **{size + end: f"openai/whisper-{size}{end}" for size in SIZES for end in (".en", "")},
    **{f"large-v{version}": f"openai/whisper-large-v{version}" for version in (1, 2, 3)},
    "large": "openai/whisper-large-v3",
    **{
        f"distil-{size}": f"distil-whisper/distil-{size}"
        for size in ("large-v2", "medium.en", "small.en", "large-v3", "large-v3.5")
    },
    "large-v3-turbo": "openai/whisper-large-v3-turbo",
    "turbo": "openai/whisper-large-v3-turbo",
}


@dataclass
class Word:
    """A word with its times in seconds."""

    start: float
    end: float
    word: str
    probability: float


@dataclass
class Segment:
    """A segment with its times in seconds.

    `tokens` is empty, and the two probabilities are those of the whole recording.
    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: list | None
    temperature: float


@dataclass
class TranscriptionOptions:
    """The options of a transcription that Engram has."""

    beam_size: int
    without_timestamps: bool
    word_timestamps: bool


@dataclass
class TranscriptionInfo:
    """What is known of a recording before its segments."""

    language: str
    language_probability: float
    duration: float
    duration_after_vad: float
    all_language_probs: list | None
    transcription_options: TranscriptionOptions
    vad_options: None


#: Arguments of `transcribe` that have only their default value.
DEFAULTS = {
    "log_progress": False,
    "best_of": 5,
    "patience": 1,
    "length_penalty": 1,
    "repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
    "compression_ratio_threshold": 2.4,
    "log_prob_threshold": -1.0,
    "no_speech_threshold": 0.6,
    "prompt_reset_on_temperature": 0.5,
    "initial_prompt": None,
    "prefix": None,
    "suppress_blank": True,
    "suppress_tokens": [-1],
    "max_initial_timestamp": 1.0,
    "prepend_punctuations": "\"'“¿([{-",
    "append_punctuations": "\"'.。,，!！?？:：”)]}、",
    "multilingual": False,
    "vad_filter": False,
    "vad_parameters": None,
    "max_new_tokens": None,
    "chunk_length": None,
    "clip_timestamps": "0",
    "hallucination_silence_threshold": None,
    "hotwords": None,
    "language_detection_threshold": 0.5,
    "language_detection_segments": 1,
}


class WhisperModel:
    """A Whisper model: a size such as `tiny.en`, `owner/name` of the Hub, or a folder.

    The folder has a model of transformers or of CTranslate2.
    """

    def __init__(
        self,
        model_size_or_path,
        device="auto",
        device_index=0,
        compute_type="default",
        cpu_threads=0,
        num_workers=1,
        download_root=None,
        local_files_only=False,
        files=None,
        revision=None,
        use_auth_token=None,
        **model_kwargs,
    ):
        _refuse("cpu_threads", cpu_threads, 0, "set RAYON_NUM_THREADS before the start")
        _refuse("num_workers", num_workers, 1)
        _refuse("download_root", download_root, None, "set HF_HOME before the start")
        _refuse("files", files, None)
        _refuse("use_auth_token", use_auth_token, None)
        for name, value in model_kwargs.items():
            _refuse(name, value, None)
        if compute_type not in ("default", "auto", "float32"):
            raise NotImplementedError(f"compute_type={compute_type!r}: Engram computes in float32")
        if not isinstance(device_index, int):
            raise NotImplementedError(f"device_index={device_index!r}: give the number of one device")
        location = os.fspath(model_size_or_path)
        if not os.path.isdir(location) and not location.startswith("hf://"):
            _refuse("local_files_only", local_files_only, False, "give a folder")
            location = _of_hub(location, revision)
        device = f"cuda:{device_index}" if device == "cuda" else "cpu" if device == "auto" else device
        with tempfile.TemporaryDirectory() as folder:
            location = _converted(location, folder)
            self._transcriber = _engram.Transcriber(location, device)

    @property
    def supported_languages(self):
        """The languages, of an English-only model."""
        if self._transcriber.multilingual:
            raise NotImplementedError("supported_languages: only for an English-only model")
        return ["en"]

    def detect_language(self, *values, **options):
        """Engram does not detect languages."""
        raise NotImplementedError("detect_language: give the `language` to `transcribe`")

    def transcribe(
        self,
        audio,
        language=None,
        task="transcribe",
        *,
        beam_size=5,
        temperature=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
        condition_on_previous_text=True,
        without_timestamps=False,
        word_timestamps=False,
        **others,
    ):
        """A generator of segments, and facts about the recording.

        `audio` is a file, a file object, or samples at 16 kHz. Segments are computed when the
        generator starts.
        """
        for name, value in others.items():
            if name not in DEFAULTS:
                raise TypeError(f"transcribe() got an unexpected keyword argument {name!r}")
            _refuse(name, value, DEFAULTS[name])
        first = temperature[0] if isinstance(temperature, (list, tuple)) else temperature
        _refuse("temperature", first, 0, "Engram decodes at temperature 0")
        if task not in ("transcribe", "translate"):
            raise ValueError(f"'{task}' is not a valid task (accepted tasks: transcribe, translate)")
        if beam_size < 1:
            raise ValueError(f"beam_size={beam_size}: give at least 1")
        if not self._transcriber.multilingual:
            language = "en"
        elif language is None:
            raise NotImplementedError("language=None: Engram does not detect it; give the language")
        samples = audio if isinstance(audio, numpy.ndarray) else decode_audio(audio)
        if samples.ndim != 1:
            raise ValueError(f"the audio has the shape {samples.shape}; give one channel")
        samples = numpy.ascontiguousarray(samples, dtype=numpy.float32)
        duration = len(samples) / RATE
        if without_timestamps and duration > self._transcriber.max_seconds:
            _refuse("without_timestamps", True, False, "it needs clips of at most 30 s")
        options = {
            "beams": beam_size,
            "segments": not without_timestamps,
            "words": word_timestamps,
            "language": language,
            "translate": task == "translate",
            "padding": "zeros",
            "boost": [],
            "boost_weight": None,
        }
        of_info = TranscriptionOptions(beam_size, without_timestamps, word_timestamps)
        info = TranscriptionInfo(language, 1, duration, duration, None, of_info, None)
        return self._segments(samples, options), info

    def _segments(self, samples, options):
        if options["segments"]:
            report = json.loads(self._transcriber.transcribe_windows(samples, options))
            found = report["transcript"]
        else:
            [found] = json.loads(self._transcriber.transcribe([samples], options, None))
            segment = {"start": 0.0, "end": found["seconds"], "text": found["text"]}
            found["segments"] = [segment] if found["text"] else []
            report = {"starts": [0.0], "words": [len(found.get("words", []))]}
        words = iter(found.get("words", []))
        space = "" if options["language"] in WITHOUT_SPACES else " "
        rows = zip(found.get("segments", []), report["starts"], report["words"])
        for id, (segment, start, count) in enumerate(rows, 1):
            text = segment["text"].encode()
            of_segment = [_word(next(words), space) for _ in range(count)]
            yield Segment(
                id=id,
                seek=round(start * 100),
                start=segment["start"],
                end=segment["end"],
                text=space + segment["text"],
                tokens=[],
                avg_logprob=found["mean_log_probability"],
                compression_ratio=len(text) / len(zlib.compress(text)),
                no_speech_prob=found["no_speech_probability"],
                words=of_segment if options["words"] else None,
                temperature=0.0,
            )


class BatchedInferencePipeline:
    """Engram does not transcribe the parts of one recording in batches."""

    def __init__(self, model):
        raise NotImplementedError("BatchedInferencePipeline: use WhisperModel.transcribe")


def decode_audio(input_file, sampling_rate=16000, split_stereo=False):
    """The samples of a file or a file object, mono, as float32."""
    _refuse("split_stereo", split_stereo, False)
    source = input_file.read() if hasattr(input_file, "read") else input_file
    if not isinstance(source, (str, bytes, os.PathLike)):
        raise TypeError(f"{type(source).__name__} is not audio; give a file or a file object")
    return _engram.decode_audio(source, sampling_rate)


def available_models():
    """The sizes that `WhisperModel` takes."""
    return list(NAMES)


def _word(word, space):
    return Word(word["start"], word["end"], space + word["text"], word["probability"])


def _converted(location, folder):
    """The location of a model; a model of CTranslate2 is first converted to `folder`."""
    is_file = [os.path.isfile(os.path.join(location, f"model.{end}")) for end in ("bin", "safetensors")]
    if is_file != [True, False]:
        return location
    out = os.path.join(folder, "model")
    words = ["data", "convert", "ctranslate2", location, "--out", out]
    done = subprocess.run([sys.executable, "-m", "engram", *words], capture_output=True, text=True)
    if done.returncode:
        raise _engram.DataError(done.stderr.strip().removeprefix("error: "))
    return out


def _of_hub(name, revision):
    if name not in NAMES and "/" not in name:
        raise ValueError(f"no model {name!r}; give a folder, or one of {', '.join(NAMES)}")
    return f"hf://{NAMES.get(name, name)}" + (f"@{revision}" if revision else "")


def _refuse(name, value, default, remedy=""):
    is_nan = isinstance(value, float) and math.isnan(value)
    if is_nan or value != default:
        remedy = remedy or f"leave out `{name}`"
        raise NotImplementedError(f"{name}={value!r}: Engram does not have it; {remedy}")
