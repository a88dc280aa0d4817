"""Encoders, speech recognition, and answers of REVEAL."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engram import _engram

if TYPE_CHECKING:
    import os

    import numpy as np


class Encoder:
    """An encoder of texts and images: `hf://owner/name`, or a folder with its files.

    `prompt_name` names a prompt of the model, such as `query` or `document`; `prompt` is a text
    before each text.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        device: str = "cpu",
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> None:
        self._encoder = _engram.Encoder(str(model), device, prompt_name, prompt)

    @property
    def width(self) -> int:
        """The width of a vector."""
        return self._encoder.width

    @property
    def max_length(self) -> int | None:
        """The greatest number of tokens of a text; `None` without a limit."""
        return self._encoder.max_length

    def encode(
        self,
        texts: str | Iterable[str] | None = None,
        *,
        images: Iterable[str | os.PathLike[str] | bytes] | None = None,
        normalise: bool = True,
        progress: bool = False,
    ) -> np.ndarray:
        """Encodes texts, images (files or bytes), or both, as a float32 array `[inputs, width]`."""
        if isinstance(texts, str):
            return self.encode([texts], images=images, normalise=normalise)[0]
        all_texts = None if texts is None else list(texts)
        all_images = None if images is None else list(images)
        bar = Progress("encode", len(all_texts or all_images or [])) if progress else None
        return self._encoder.encode(all_texts, all_images, normalise, bar)


@dataclass(frozen=True)
class Word:
    """A word with its times in seconds."""

    start: float
    end: float
    text: str
    probability: float


@dataclass(frozen=True)
class Segment:
    """A segment with its times in seconds."""

    start: float
    end: float
    text: str


@dataclass(frozen=True)
class Transcript:
    """The transcript of a recording."""

    text: str
    seconds: float
    mean_log_probability: float
    no_speech_probability: float
    segments: list[Segment] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)

    @classmethod
    def of(cls, report: dict[str, Any]) -> Transcript:
        """The transcript of a report."""
        return cls(
            report["text"],
            report["seconds"],
            report["mean_log_probability"],
            report["no_speech_probability"],
            [Segment(**segment) for segment in report.get("segments", [])],
            [Word(**word) for word in report.get("words", [])],
        )


class Transcriber:
    """A speech recogniser: Whisper or a Conformer, from `hf://owner/name` or a folder."""

    def __init__(self, model: str | os.PathLike[str], *, device: str = "cpu") -> None:
        self._transcriber = _engram.Transcriber(str(model), device)

    def transcribe(
        self,
        recording: Any,
        *,
        language: str | None = None,
        translate: bool = False,
        beams: int = 1,
        segments: bool = False,
        words: bool = False,
        boost: Iterable[str] = (),
        boost_weight: float | None = None,
        padding: str = "zeros",
        progress: bool = False,
    ) -> Any:
        """Transcribes a recording, or a list of recordings.

        A recording is a file, the bytes of a file, or a float32 array of samples at 16 kHz. `boost`
        has words that become more likely.
        """
        is_list = isinstance(recording, (list, tuple))
        recordings = list(recording) if is_list else [recording]
        options = {
            "beams": beams,
            "segments": segments,
            "words": words,
            "language": language,
            "translate": translate,
            "padding": padding,
            "boost": list(boost),
            "boost_weight": boost_weight,
        }
        bar = Progress("transcribe", len(recordings)) if progress else None
        reports = json.loads(self._transcriber.transcribe(recordings, options, bar))
        transcripts = [Transcript.of(report) for report in reports]
        return transcripts if is_list else transcripts[0]


@dataclass(frozen=True)
class Answer:
    """An answer with its evidence."""

    text: str
    log_probability: float
    #: The retrieved entries with scores, weights and, if asked for, their credit.
    evidence: list[dict[str, Any]]
    #: The tokens of the answer, one for each number of a credit.
    tokens: list[str] = field(default_factory=list)


class Answerer:
    """A trained REVEAL run. `memory` replaces the run's own memory, `k` its number of entries."""

    def __init__(
        self,
        run: str | os.PathLike[str],
        *,
        memory: str | os.PathLike[str] | None = None,
        k: int | None = None,
        control: str | None = None,
        device: str = "cpu",
    ) -> None:
        self._answerer = _engram.Answerer(run, memory, k, control, device)

    def ask(
        self,
        question: str | None = None,
        image: str | os.PathLike[str] | None = None,
        *,
        without: Iterable[int] = (),
        credit: str | None = None,
    ) -> Answer:
        """Answers a question about an image, or describes the image.

        `without` has ids of entries to leave out. `credit` is `attribution` or `shapley`.
        """
        if image is None:
            raise TypeError("give the file of an image")
        if credit not in (None, "attribution", "shapley"):
            raise ValueError(f"no credit {credit!r}; give attribution or shapley")
        report = self._answerer.ask(
            question, image, list(without), credit == "attribution", credit == "shapley"
        )
        report = json.loads(report)
        return Answer(
            report["answer"],
            report["log_probability"],
            report["evidence"],
            report.get("tokens", []),
        )

    def find(
        self,
        question: str | None = None,
        image: str | os.PathLike[str] | None = None,
        k: int = 10,
    ) -> list[dict[str, Any]]:
        """The best entries for a question, an image or both."""
        return json.loads(self._answerer.find(question, image, k))

    def put(
        self, entry: dict[str, Any], image: str | os.PathLike[str] | None = None
    ) -> None:
        """Adds an entry, a dictionary with an `id`, or replaces the one with its id."""
        if "id" not in entry:
            raise ValueError("the entry has no id; give its id")
        self._answerer.put(json.dumps(entry, ensure_ascii=False), entry["id"], image)


class Progress:
    """A progress line with the time left, on standard error."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total, self._start = name, total, time.monotonic()

    def __call__(self, done: int) -> None:
        seconds = time.monotonic() - self._start
        left = seconds / max(done, 1) * (self._total - done)
        end = "\n" if done >= self._total else ""
        line = f"\r{self._name}: {done}/{self._total}, {left:.0f} s left "
        print(line, end=end, file=sys.stderr, flush=True)
