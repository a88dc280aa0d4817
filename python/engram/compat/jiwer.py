"""jiwer 4.0: word and character error rates, alignments, and error counts.

>>> from engram.compat import jiwer
>>> jiwer.wer("the cat sat", "the cat sits")
0.3333333333333333
"""

import gc
from collections import defaultdict
from dataclasses import dataclass, fields
from itertools import pairwise

from engram import _engram
from engram.compat import jiwer_transforms as transforms
from engram.compat.jiwer_transforms import *  # noqa: F403
from engram.compat.jiwer_transforms import Compose, cer_default, wer_default

__all__ = [
    *transforms.__all__,
    "AlignmentChunk",
    "CharacterOutput",
    "WordOutput",
    "cer",
    "collect_error_counts",
    "mer",
    "process_characters",
    "process_words",
    "visualize_alignment",
    "visualize_error_counts",
    "wer",
    "wil",
    "wip",
]

transformations = transforms

#: The last transforms that Rust can do, and whether they split a text into characters.
_WORD_STEPS = (
    transforms.RemoveMultipleSpaces,
    transforms.Strip,
    transforms.ReduceToListOfListOfWords,
)
_CHARACTER_STEPS = (transforms.Strip, transforms.ReduceToListOfListOfChars)

_KINDS = ["equal", "substitute", "delete", "insert"]


@dataclass
class AlignmentChunk:
    """Neighbouring words or characters that are `equal`, `substitute`, `insert` or `delete`."""

    type: str
    ref_start_idx: int
    ref_end_idx: int
    hyp_start_idx: int
    hyp_end_idx: int

    def __post_init__(self):
        if self.type == "replace":
            self.type = "substitute"
        if self.type not in _KINDS:
            raise ValueError(f"no type {self.type!r}; give one of {', '.join(_KINDS)}")
        if self.ref_start_idx > self.ref_end_idx:
            raise ValueError(f"reference from {self.ref_start_idx} to {self.ref_end_idx}")
        if self.hyp_start_idx > self.hyp_end_idx:
            raise ValueError(f"hypothesis from {self.hyp_start_idx} to {self.hyp_end_idx}")


class _Output:
    """Makes the lists of an output when they are first read."""

    @classmethod
    def _of(cls, alignment, **values):
        output = cls.__new__(cls)
        output.__dict__.update(values, _alignment=alignment)
        return output

    def __getattr__(self, name):
        if name not in ("references", "hypotheses", "alignments") or "_alignment" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        # None of the many new lists is garbage, so collections would only take time.
        is_collecting = gc.isenabled()
        gc.disable()
        try:
            value = getattr(self._alignment, name)()
        finally:
            if is_collecting:
                gc.enable()
        setattr(self, name, value)
        return value

    def __getstate__(self):
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass
class WordOutput(_Output):
    """The alignments of words, the error rates and the counts."""

    references: list[list[str]]
    hypotheses: list[list[str]]
    alignments: list[list[AlignmentChunk]]
    wer: float
    mer: float
    wil: float
    wip: float
    hits: int
    substitutions: int
    insertions: int
    deletions: int


@dataclass
class CharacterOutput(_Output):
    """The alignments of characters, the error rate and the counts."""

    references: list[list[str]]
    hypotheses: list[list[str]]
    alignments: list[list[AlignmentChunk]]
    cer: float
    hits: int
    substitutions: int
    insertions: int
    deletions: int


class _Alignment:
    """The alignments of all pairs, from texts or from lists of tokens."""

    def __init__(self, references, hypotheses):
        self.sides, self._split = [references, hypotheses], None
        numbers = defaultdict()
        numbers.default_factory = numbers.__len__
        encoded = [[[numbers[token] for token in text] for text in side] for side in self.sides]
        self.counts, self._chunks, self._ends = _engram.align_tokens(*encoded)

    @classmethod
    def of_texts(cls, references, hypotheses, characters):
        alignment = cls.__new__(cls)
        alignment.sides = [references, hypotheses]
        alignment._split = _characters if characters else _words
        alignment.counts, alignment._chunks, alignment._ends = _engram.align_texts(
            references, hypotheses, characters
        )
        return alignment

    def references(self):
        return self._tokens(0)

    def hypotheses(self):
        return self._tokens(1)

    def _tokens(self, side):
        return self._split(self.sides[side]) if self._split else self.sides[side]

    def alignments(self):
        kinds, *limits = self._chunks.tolist()
        chunks = list(map(AlignmentChunk, map(_KINDS.__getitem__, kinds), *limits))
        return [chunks[start:end] for start, end in pairwise([0, *self._ends.tolist()])]


def _characters(texts):
    return [list(text.strip()) for text in texts]


def _words(texts):
    # The only white space that is printable is the space.
    split = Compose([step() for step in _WORD_STEPS])
    return [text.split() if text.isprintable() else split(text)[0] for text in texts]


def process_words(
    reference,
    hypothesis,
    reference_transform=wer_default,
    hypothesis_transform=wer_default,
):
    """Aligns the words of each reference and hypothesis, with the fewest edits."""
    alignment = _align(reference, hypothesis, reference_transform, hypothesis_transform)
    hits, substitutions, deletions, insertions = alignment.counts
    errors = substitutions + deletions + insertions
    in_reference = hits + substitutions + deletions
    in_hypothesis = hits + substitutions + insertions
    if in_reference == 0:
        wer, mer, wip = insertions, int(in_hypothesis > 0), int(in_hypothesis == 0)
    else:
        wer, mer = errors / in_reference, errors / (in_reference + insertions)
        wip = (hits / in_reference) * (hits / in_hypothesis) if in_hypothesis else 0
    return WordOutput._of(
        alignment,
        wer=wer,
        mer=mer,
        wil=1 - wip,
        wip=wip,
        hits=hits,
        substitutions=substitutions,
        insertions=insertions,
        deletions=deletions,
    )


def process_characters(
    reference,
    hypothesis,
    reference_transform=cer_default,
    hypothesis_transform=cer_default,
):
    """Aligns the characters of each reference and hypothesis, with the fewest edits."""
    output = process_words(reference, hypothesis, reference_transform, hypothesis_transform)
    return CharacterOutput._of(
        output._alignment,
        cer=output.wer,
        hits=output.hits,
        substitutions=output.substitutions,
        insertions=output.insertions,
        deletions=output.deletions,
    )


def _rate(name, what, process, transform):
    """The function that returns one rate of an alignment."""

    def rate(
        reference=None,
        hypothesis=None,
        reference_transform=transform,
        hypothesis_transform=transform,
    ):
        output = process(reference, hypothesis, reference_transform, hypothesis_transform)
        return getattr(output, name)

    rate.__name__ = rate.__qualname__ = name
    rate.__doc__ = f"The {what}."
    return rate


wer = _rate("wer", "word error rate", process_words, wer_default)
mer = _rate("mer", "match error rate", process_words, wer_default)
wip = _rate("wip", "word information preserved", process_words, wer_default)
wil = _rate("wil", "word information lost", process_words, wer_default)
cer = _rate("cer", "character error rate", process_characters, cer_default)


def _align(reference, hypothesis, reference_transform, hypothesis_transform):
    """Aligns texts. Rust does the last transforms, if they are the default ones on both sides."""
    values, remaining = [], []
    for value, transform in [(reference, reference_transform), (hypothesis, hypothesis_transform)]:
        value = [value] if isinstance(value, str) else value
        first, last = _parts(transform)
        for step in first:
            value = step(value)
        values.append(value)
        remaining.append(last)
    kinds = [tuple(map(type, last)) for last in remaining]
    if kinds[0] == kinds[1] != () and all(isinstance(value, list) for value in values):
        # Without texts, jiwer aligns one pair without words.
        texts = [list(value) or [""] for value in values]
        try:
            return _Alignment.of_texts(*texts, kinds[0] == _CHARACTER_STEPS)
        except (TypeError, ValueError):
            # Lists of different lengths, not texts, or lone surrogates: the transforms decide.
            pass
    for side, last in enumerate(remaining):
        for step in last:
            values[side] = step(values[side])
        _check_tokens(values[side], ["reference", "hypothesis"][side])
    references, hypotheses = values
    if len(references) != len(hypotheses):
        raise ValueError(
            "After applying the transforms on the reference and hypothesis sentences, their "
            f"lengths must match. Instead got {len(references)} reference and {len(hypotheses)} "
            "hypothesis sentences."
        )
    return _Alignment(references, hypotheses)


def _parts(transform):
    """The transforms that run in Python, and those that Rust can do."""
    if type(transform) is not transforms.Compose:
        return [transform], []
    steps = list(transform.transforms)
    for last_steps in (_WORD_STEPS, _CHARACTER_STEPS):
        last = steps[-len(last_steps) :]
        if tuple(map(type, last)) == last_steps and getattr(last[-1], "word_delimiter", " ") == " ":
            return steps[: -len(last)], last
    return steps, []


def _check_tokens(value, name):
    is_list = isinstance(value, list) and all(isinstance(tokens, list) for tokens in value)
    if not is_list or not all(isinstance(token, str) for tokens in value for token in tokens):
        raise ValueError(
            f"After applying the transformation, each {name} should be a list of strings, "
            "with each string being a single word or character. Please ensure the given "
            "transformation reduces the input to a list of list strings."
        )


def visualize_alignment(output, show_measures=True, skip_correct=True, line_width=None):
    """The aligned texts with their edits as text, and the error rates."""
    is_character = isinstance(output, CharacterOutput)
    pairs = zip(output.references, output.hypotheses, output.alignments)
    parts = []
    for number, (reference, hypothesis, chunks) in enumerate(pairs, start=1):
        if skip_correct and all(chunk.type == "equal" for chunk in chunks):
            continue
        space = "" if is_character else " "
        lines = _aligned_lines(reference, hypothesis, chunks, space, line_width)
        parts.append(f"=== SENTENCE {number} ===\n\n{lines}\n")
    if not show_measures:
        return "".join(parts)[:-1]
    rates = ["cer"] if is_character else ["mer", "wil", "wip", "wer"]
    rates = "\n".join(f"{rate}={getattr(output, rate) * 100:.2f}%" for rate in rates)
    parts.append(
        f"=== SUMMARY ===\nnumber of sentences: {len(output.alignments)}\n"
        f"substitutions={output.substitutions} deletions={output.deletions} "
        f"insertions={output.insertions} hits={output.hits}\n\n{rates}\n"
    )
    return "".join(parts)


def _aligned_lines(reference, hypothesis, chunks, space, line_width):
    """The lines `REF`, `HYP` and the edits, broken at the line width."""
    start = ["REF: ", "HYP: ", " " * 5]
    blocks, lines = [], list(start)
    for chunk in chunks:
        in_reference = reference[chunk.ref_start_idx : chunk.ref_end_idx]
        in_hypothesis = hypothesis[chunk.hyp_start_idx : chunk.hyp_end_idx]
        if chunk.type == "insert":
            in_reference = ["*"] * len(in_hypothesis)
        elif chunk.type == "delete":
            in_hypothesis = ["*"] * len(in_reference)
        mark = " " if chunk.type == "equal" else chunk.type[0].upper()
        for first, second in zip(in_reference, in_hypothesis):
            width = max(len(first), len(second), 1)
            if line_width is not None and len(lines[0]) + width > line_width:
                blocks.append(lines)
                lines = list(start)
            if first == "*":
                first *= width
            elif second == "*":
                second *= width
            for row, text in enumerate([first, second, mark]):
                lines[row] += f"{text:>{width}}{space}"
    blocks.append(lines)
    trimmed = lambda line: line[:-1] if space else line
    return "\n".join("".join(trimmed(line) + "\n" for line in lines) for lines in blocks)


def collect_error_counts(output):
    """How often each substitution, each insertion and each deletion occurs."""
    substitutions, insertions, deletions = (defaultdict(int) for _ in range(3))
    space = " " if isinstance(output, WordOutput) else ""
    pairs = zip(output.references, output.hypotheses, output.alignments)
    for reference, hypothesis, chunks in pairs:
        for chunk in chunks:
            if chunk.type == "equal":
                continue
            before = space.join(reference[chunk.ref_start_idx : chunk.ref_end_idx])
            after = space.join(hypothesis[chunk.hyp_start_idx : chunk.hyp_end_idx])
            if chunk.type == "insert":
                insertions[after] += 1
            elif chunk.type == "delete":
                deletions[before] += 1
            else:
                substitutions[before, after] += 1
    return substitutions, insertions, deletions


def visualize_error_counts(
    output, show_substitutions=True, show_insertions=True, show_deletions=True, top_k=None
):
    """The most frequent substitutions, insertions and deletions as text."""
    titles = ["SUBSTITUTIONS", "INSERTIONS", "DELETIONS"]
    are_shown = [show_substitutions, show_insertions, show_deletions]
    parts = []
    for title, is_shown, counts in zip(titles, are_shown, collect_error_counts(output)):
        if is_shown:
            parts.append(f"=== {title} ===\n{_count_lines(counts, top_k)}")
    return "\n".join(parts).removesuffix("\n")


def _count_lines(counts, top_k):
    if not counts:
        return "none"
    rows = sorted(counts.items(), key=lambda row: row[1], reverse=True)
    rows = [(key if isinstance(key, tuple) else (key,), count) for key, count in rows][:top_k]
    width = max((len(text) for key, _ in rows for text in key))
    lines = (" --> ".join(f"{text:<{width}}" for text in key) for key, _ in rows)
    return "".join(f"{line} = {count}x\n" for line, (_, count) in zip(lines, rows))
