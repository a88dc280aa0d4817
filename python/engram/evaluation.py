"""Metrics with confidence intervals, and comparisons of two systems."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from typing import Any

from engram import _engram
from engram.rows import is_file, json_lines, rows_of

#: The tasks whose files are tables, and those whose files are JSON documents.
_TABLES = {"phrase"}
_DOCUMENTS = {"caption", "vqa", "aokvqa"}


@dataclass(frozen=True)
class Measure:
    """The value of a metric, its interval and the number of items."""

    metric: str
    value: float
    #: Lower and upper limit; `None` without an interval.
    interval: tuple[float, float] | None
    n: int
    higher_is_better: bool | None

    def __str__(self) -> str:
        limits = "" if self.interval is None else " [{:.4f}, {:.4f}]".format(*self.interval)
        return f"{self.metric} {self.value:.4f}{limits}, n = {self.n}"

    @classmethod
    def of(cls, report: dict[str, Any]) -> Measure:
        """The measure of a part of a report."""
        number = lambda value: math.nan if value is None else value
        limits = report.get("interval")
        return cls(
            report["metric"],
            number(report["value"]),
            None if limits is None else (number(limits["low"]), number(limits["high"])),
            report["n"],
            report["higher_is_better"],
        )


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation: the primary metric, the other metrics, and each item."""

    task: str
    primary: Measure
    secondary: list[Measure]
    #: The report as in `engram eval … --json`.
    report: dict[str, Any] = field(repr=False)
    #: One dictionary for each item, as in `engram eval … --items`.
    items: list[dict[str, Any]] = field(repr=False)

    @property
    def value(self) -> float:
        """The value of the primary metric."""
        return self.primary.value

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the primary metric; `None` without one."""
        return self.primary.interval

    @property
    def n(self) -> int:
        """The number of items."""
        return self.primary.n

    def __getitem__(self, metric: str) -> Measure:
        """The measure of a metric by its name."""
        for measure in [self.primary, *self.secondary]:
            if measure.metric == metric:
                return measure
        names = ", ".join(measure.metric for measure in [self.primary, *self.secondary])
        raise KeyError(f"no metric {metric!r}; this evaluation has {names}")

    def __str__(self) -> str:
        return "\n".join(map(str, [self.primary, *self.secondary]))

    def records(self) -> list[dict[str, Any]]:
        """The metrics as rows for a data frame."""
        return [
            {
                "metric": measure.metric,
                "value": measure.value,
                "low": measure.interval and measure.interval[0],
                "high": measure.interval and measure.interval[1],
                "n": measure.n,
            }
            for measure in [self.primary, *self.secondary]
        ]


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same items: both values, the difference `a - b`, and p-values."""

    a: Measure
    b: Measure
    difference: Measure
    p_value: float | None
    #: The report as in `engram eval compare --json`.
    report: dict[str, Any] = field(repr=False)


def evaluate(task: str, *, ref: Any = None, hyp: Any = None, **options: Any) -> Evaluation:
    """Evaluates predictions, as `engram eval TASK` does.

    `task` is a subcommand of `engram eval`, such as `wer`, `text`, `caption`, `phrase`, `retrieval`
    or `vqa`, and the other arguments are its options: `normalizer="whisper-en"` stands for
    `--normalizer whisper-en`. An option that names a file also takes the rows themselves: a list of
    texts, a list of dictionaries with the columns of the file, a dictionary from ids to texts, or a
    data frame.

    >>> evaluate("wer", ref={"a": "one two"}, hyp={"a": "one three"}).value
    0.5
    """
    import tempfile

    options = {"ref": ref, "hyp": hyp, **options}
    with tempfile.TemporaryDirectory(prefix="engram-") as folder:
        words = [task]
        for name, value in options.items():
            words += _words(task, name, value, folder)
        path = os.path.join(folder, "items.jsonl")
        report = json.loads(_run([*words, "--json", "--items", path], folder))
        with open(path, encoding="utf-8") as lines:
            items = [json.loads(line) for line in lines]
    secondary = [Measure.of(part) for part in report.get("secondary", [])]
    return Evaluation(task, Measure.of(report), secondary, report, items)


def compare(a: Evaluation, b: Evaluation, **options: Any) -> Comparison:
    """Compares two evaluations over the same items: difference, interval, p-values.

    >>> ref = {"a": "one two", "b": "three"}
    >>> a = evaluate("wer", ref=ref, hyp={"a": "one two", "b": "tree"})
    >>> b = evaluate("wer", ref=ref, hyp={"a": "one", "b": "tree"})
    >>> round(compare(a, b).difference.value, 3)
    -0.333
    """
    import tempfile

    with tempfile.TemporaryDirectory(prefix="engram-") as folder:
        files = []
        for name, evaluation in [("a", a), ("b", b)]:
            files.append(os.path.join(folder, name))
            with open(files[-1], "w", encoding="utf-8") as lines:
                lines.write(json_lines(evaluation.items))
        words = ["compare", *files, "--json"]
        for name, value in options.items():
            words += _words("compare", name, value, folder)
        report = json.loads(_run(words, folder))
    first, second, difference = (Measure.of(report[part]) for part in ["a", "b", "difference"])
    return Comparison(first, second, difference, report["p_value"], report)


def _words(task: str, name: str, value: Any, folder: str) -> list[str]:
    """The words of an option; rows are written to a file in `folder`."""
    option = "--" + name.replace("_", "-")
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    if is_file(value) or isinstance(value, (int, float)):
        return [option, os.fspath(value) if is_file(value) else str(value)]
    if task in _DOCUMENTS:
        path, text = f"{name}.json", json.dumps(value)
    elif task in _TABLES:
        path, text = f"{name}.csv", _table(rows_of(value))
    else:
        path, text = f"{name}.jsonl", json_lines(rows_of(value))
    path = os.path.join(folder, path)
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    return [option, path]


def _table(rows: list[dict[str, Any]]) -> str:
    """Rows as a CSV table."""
    import csv
    import io

    text = io.StringIO()
    columns = dict.fromkeys(column for row in rows for column in row)
    table = csv.DictWriter(text, list(columns))
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def _run(words: list[str], folder: str) -> str:
    """Runs an evaluation; messages name an argument instead of its temporary file."""
    try:
        return _engram.evaluate(words)
    except (ValueError, OSError) as error:
        text = str(error).replace(folder + os.sep, "")
        raise type(error)(text) from None
