#!/usr/bin/env python3
"""Runs the commands of README.md and the tutorials, and compares their output with the printed output.

    python3 tests/docs_blocks.py                                 # all pages; exit code 1 if an output differs
    python3 tests/docs_blocks.py docs/tutorials/audio.md         # one page
    python3 tests/docs_blocks.py --write                         # puts the new outputs into the pages
    python3 tests/docs_blocks.py --engram /usr/bin/engram        # default: target/release/engram

A block that begins with ```sh is run; a block that begins with ```sh weights is run if the hub's cache has MiniLM
(tests/fetch_weights.sh). Other blocks are not run. The blocks of a page run in order, in one shell and in a new
folder that has `train/` and `tests/` of the repository. If a block prints text, the next block must be ```text and
have this text (standard output and standard error):

- `…` inside a line stands for any text; a line `…` stands for any number of lines.
- ```text ±0.05 allows this difference for each number with a decimal point. Other numbers must be equal.

`--write` keeps each `…` where the lines around it still fit. Look at the difference before you commit it.
"""

import argparse
import dataclasses
import difflib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MINILM = "models--sentence-transformers--all-MiniLM-L6-v2/snapshots/main/model.safetensors"
# Is printed after the output of each block.
SEPARATOR = "\x1e"
ANY = "…"
DECIMAL = r"-?\d+\.\d+"
NUMBER = r"-?\d+(?:\.\d+)?"


@dataclasses.dataclass
class Block:
    """A block of commands and the output after it. Lines are indices into the page's lines."""

    code: list
    end: int  # the line after the block of commands
    needs_weights: bool
    expected: list  # lines of the text block; empty without one
    expected_at: tuple  # its first line and the line after its last; None without a text block
    tolerance: float


def read_fence(lines, start):
    """The index of the line that closes the fence at `start`."""
    return next(index for index in range(start + 1, len(lines)) if lines[index].strip() == "```")


def blocks_of(lines):
    """The blocks of a page that are run."""
    blocks, index = [], 0
    while index < len(lines):
        if not lines[index].startswith("```"):
            index += 1
            continue
        words, end = lines[index][3:].split(), read_fence(lines, index)
        if words[:1] == ["sh"]:
            block = Block(lines[index + 1:end], end + 1, "weights" in words, [], None, 0.0)
            after = end + 1
            while after < len(lines) and not lines[after].strip():
                after += 1
            if after < len(lines) and lines[after].startswith("```text"):
                end = read_fence(lines, after)
                options = lines[after].split()[1:]
                block.tolerance = float(options[0].removeprefix("±")) if options else 0.0
                block.expected, block.expected_at = lines[after + 1:end], (after + 1, end)
            blocks.append(block)
        index = end + 1
    return blocks


def has_weights():
    """Whether the hub's cache has MiniLM."""
    variables = os.environ
    home = pathlib.Path(variables.get("HF_HOME", pathlib.Path.home() / ".cache/huggingface"))
    return (pathlib.Path(variables.get("HF_HUB_CACHE", home / "hub")) / MINILM).exists()


def run(blocks, engram):
    """Runs the blocks in a new folder. Returns the lines of each block's output, and whether the shell failed."""
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work, "clone")
        folder.mkdir()
        for name in ("train", "tests"):
            (folder / name).symlink_to(ROOT / name)
        programs = pathlib.Path(work, "bin")
        programs.mkdir()
        (programs / "engram").symlink_to(engram)
        code = ["set -euo pipefail"]
        for block in blocks:
            code += [*block.code, f"printf '{SEPARATOR}'"]
        path = f"{programs}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1"}
        # In a file, a command that reads standard input does not read the next commands.
        script = pathlib.Path(work, "blocks.sh")
        script.write_text("\n".join(code) + "\n", encoding="utf-8")
        done = subprocess.run(["bash", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        text = done.stdout.decode("utf-8", "replace")
        for path in (folder, ROOT):
            text = text.replace(f"{path}/", "")
    # Without a network, a note names the files that may be missing in the hub's cache.
    text = re.sub(f"(^|{SEPARATOR})note: hf://.*\n", r"\1", text, flags=re.M)
    outputs = [[line.rstrip() for line in part.splitlines()] for part in text.split(SEPARATOR)]
    return (outputs if done.returncode else outputs[:-1]), done.returncode != 0


def pattern(line, number):
    """A regular expression for a line of a text block. `number` is the expression for the numbers that may differ."""
    parts = []
    for part in re.split(f"({ANY}|{number})", line):
        if part == ANY:
            parts.append(".*?")
        else:
            parts.append(f"({number})" if re.fullmatch(number, part) else re.escape(part))
    return "".join(parts)


def same(expected, actual, tolerance):
    """Whether an output has the lines of the text block."""
    never = r"(?!)"
    number = DECIMAL if tolerance else never
    lines = [r"(?:.*\n)*?" if line.strip() == ANY else pattern(line, number) + r"\n" for line in expected]
    match = re.fullmatch("".join(lines), "".join(f"{line}\n" for line in actual))
    if match is None:
        return False
    wanted = [value for line in expected for value in re.findall(DECIMAL, line)] if tolerance else []
    return all(abs(float(a) - float(b)) <= tolerance * (1 + 1e-9) for a, b in zip(wanted, match.groups()))


def renewed(expected, actual):
    """The text block for a new output: lines that differ only in numbers keep their `…`."""
    old = [(index, re.compile(pattern(line, NUMBER))) for index, line in enumerate(expected) if line.strip() != ANY]
    # The longest common subsequence of old and new lines.
    longest = [[0] * (len(actual) + 1) for _ in range(len(old) + 1)]
    fits = [[bool(regex.fullmatch(line)) for line in actual] for _, regex in old]
    for i in reversed(range(len(old))):
        for j in reversed(range(len(actual))):
            longest[i][j] = max(longest[i + 1][j], longest[i][j + 1], fits[i][j] * (longest[i + 1][j + 1] + 1))
    pairs, i, j = [], 0, 0
    while i < len(old) and j < len(actual):
        if fits[i][j] and longest[i][j] == longest[i + 1][j + 1] + 1:
            pairs.append((old[i][0], j))
            i, j = i + 1, j + 1
        elif longest[i + 1][j] >= longest[i][j + 1]:
            i += 1
        else:
            j += 1
    lines, before, next_line = [], 0, 0
    for index, j in [*pairs, (len(expected), len(actual))]:
        if any(line.strip() == ANY for line in expected[before:index]):
            lines.append(ANY)
        else:
            lines += actual[next_line:j]
        if index < len(expected):
            numbers = iter(re.fullmatch(pattern(expected[index], NUMBER), actual[j]).groups())
            lines.append(re.sub(NUMBER, lambda _: next(numbers), expected[index]))
        before, next_line = index + 1, j + 1
    return lines


def check(page, engram, write):
    """Runs the blocks of a page. Returns the number of blocks that fail or differ."""
    name = page.relative_to(ROOT)
    lines = page.read_text(encoding="utf-8").splitlines()
    blocks = blocks_of(lines)
    if any(block.needs_weights for block in blocks) and not has_weights():
        print(f"SKIPPED: {name} needs MiniLM for some blocks: tests/fetch_weights.sh")
        blocks = [block for block in blocks if not block.needs_weights]
    start = time.monotonic()
    outputs, failed = run(blocks, engram)
    print(f"{name}: {len(blocks)} blocks, {time.monotonic() - start:.1f} s", flush=True)
    if failed:
        block = blocks[len(outputs) - 1]
        print(f"{name}:{block.end}: this block fails:\n" + "\n".join(block.code + outputs[-1]))
        return 1
    differing, edits = 0, []
    for block, actual in zip(blocks, outputs):
        if same(block.expected, actual, block.tolerance):
            continue
        if write:
            text = renewed(block.expected, actual)
            if block.expected_at is None:
                edits.append((block.end, block.end, ["", "```text", *text, "```"]))
            else:
                edits.append((*block.expected_at, text))
            continue
        differing += 1
        print(f"{name}:{block.end}: the output differs from the page ({ANY} stands for any text):")
        print("\n".join(difflib.unified_diff(block.expected, actual, "page", "output", lineterm="", n=1)))
    for start, end, text in reversed(edits):
        lines[start:end] = text
    if edits:
        page.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{name}: {len(edits)} outputs written")
    return differing


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pages", nargs="*", type=pathlib.Path, help="default: README.md and docs/tutorials/*.md")
    parser.add_argument("--engram", type=pathlib.Path, default=ROOT / "target/release/engram")
    parser.add_argument("--write", action="store_true", help="put the new outputs into the pages")
    arguments = parser.parse_args()
    engram = arguments.engram.resolve()
    if not engram.exists():
        sys.exit(f"{engram}: no such program; run `cargo build --release` or give --engram")
    pages = arguments.pages or [ROOT / "README.md", *sorted((ROOT / "docs/tutorials").glob("*.md"))]
    differing = sum(check(page.resolve(), engram, arguments.write) for page in pages)
    if differing:
        sys.exit(f"{differing} blocks fail or differ; `tests/docs_blocks.py --write` puts new outputs into the pages")


if __name__ == "__main__":
    main()
