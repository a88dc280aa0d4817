"""Training runs and reproductions, each in a process of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from engram._engram import DataError


def train(
    study: str,
    recipe: str | os.PathLike[str],
    run: str | os.PathLike[str],
    overrides: dict[str, Any] | None = None,
    *,
    callback: Callable[[dict[str, Any]], Any] | None = None,
    options: Iterable[str] = (),
    quiet: bool = False,
) -> dict[str, Any] | None:
    """Trains a run, as `engram train STUDY --recipe RECIPE --run RUN`; returns its summary.

    `overrides` maps recipe keys to values, such as `{"optimiser.learning_rate": 1e-3}`. `callback`
    gets each line of the run's metrics as a dictionary. If it returns `False`, the run stops with a
    checkpoint, and the result is `None`; `options=["--resume"]` continues it.
    """
    words = ["train", study, "--recipe", os.fspath(recipe), "--run", os.fspath(run)]
    for key, value in (overrides or {}).items():
        words += ["--set", f"{key}={_toml(value)}"]
    lines = _Lines(os.path.join(run, "metrics.jsonl")) if callback else None
    code = _run([*words, *options], quiet, lines, callback)
    if code == 130:
        return None
    with open(os.path.join(run, "summary.json"), encoding="utf-8") as summary:
        return json.load(summary)


def reproduce(
    out: str | os.PathLike[str],
    *,
    study: str | None = None,
    options: Iterable[str] = (),
    quiet: bool = False,
) -> dict[str, Any]:
    """Measures the claims of the documents again, as `engram reproduce`; returns the report."""
    words = ["reproduce", "--out", os.fspath(out), *options]
    words += ["--study", study] if study else []
    _run(words, quiet)
    with open(os.path.join(out, "report.json"), encoding="utf-8") as report:
        return json.load(report)


class _Lines:
    """The new lines of a growing file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._read = os.path.getsize(path) if os.path.exists(path) else 0

    def new(self) -> Iterator[dict[str, Any]]:
        if not os.path.exists(self._path):
            return
        with open(self._path, "rb") as file:
            file.seek(self._read)
            text = file.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._read += len(complete)
        for line in complete.splitlines():
            yield json.loads(line)


def _run(
    words: list[str],
    quiet: bool,
    lines: _Lines | None = None,
    callback: Callable[[dict[str, Any]], Any] | None = None,
) -> int:
    """Runs the command, and returns its exit code: 0, 1 for a failed check, or 130."""
    import signal
    import subprocess
    import tempfile
    import time

    command = [sys.executable, "-m", "engram", *words, *(["--quiet"] if quiet else [])]
    out = subprocess.DEVNULL if quiet else None
    with (
        tempfile.TemporaryFile("w+b") as errors,
        subprocess.Popen(
            command, stdout=out, stderr=subprocess.PIPE, start_new_session=True
        ) as child,
    ):
        try:
            assert child.stderr is not None
            os.set_blocking(child.stderr.fileno(), False)
            is_running = True
            while is_running:
                is_running = child.poll() is None
                text = child.stderr.read()
                if text:
                    errors.write(text)
                if text and not quiet:
                    sys.stderr.write(text.decode(errors="replace"))
                    sys.stderr.flush()
                for line in lines.new() if lines else ():
                    if callback is not None and callback(line) is False:
                        child.send_signal(signal.SIGINT)
                        lines = None
                        break
                time.sleep(0.05 if is_running else 0)
        except BaseException:
            child.send_signal(signal.SIGINT)
            child.wait()
            raise
        if child.returncode not in (0, 1, 130):
            errors.seek(0)
            printed = errors.read().decode(errors="replace").strip().splitlines()
            found = [line for line in printed if line.startswith("error: ")]
            reason = (found or printed or ["the command failed"])[-1]
            raise DataError(reason.removeprefix("error: "))
        return child.returncode


def _toml(value: Any) -> str:
    """A value of a recipe."""
    return str(value).lower() if isinstance(value, bool) else json.dumps(value)
