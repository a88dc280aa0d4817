"""Evaluation with confidence intervals, editable memories, encoders, speech recognition, and answers
from a memory.

>>> import engram
>>> result = engram.evaluate("wer", ref=["the cat sat"], hyp=["the cat sits"])
>>> round(result.value, 3)
0.333
"""

import os

# Threads for small operations of a model wait longer than they work.
os.environ.setdefault("CANDLE_NUM_THREADS", "1")

from engram._engram import DataError, __version__
from engram.evaluation import Comparison, Evaluation, Measure, compare, evaluate
from engram.memory import Hit, Memory
from engram.models import Answer, Answerer, Encoder, Segment, Transcriber, Transcript, Word
from engram.training import reproduce, train

__all__ = [
    "Answer",
    "Answerer",
    "Comparison",
    "DataError",
    "Encoder",
    "Evaluation",
    "Hit",
    "Measure",
    "Memory",
    "Segment",
    "Transcriber",
    "Transcript",
    "Word",
    "__version__",
    "compare",
    "evaluate",
    "reproduce",
    "train",
]
