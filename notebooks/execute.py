#!/usr/bin/env python3
"""Executes the notebooks beside this file, and says which outputs are not those that are committed.

    pip install nbclient                     # and: cargo install evcxr_jupyter --locked; evcxr_jupyter --install
    python3 notebooks/execute.py             # all of them; exit code 1 if a cell fails
    python3 notebooks/execute.py --write 04-memory.ipynb    # keeps the new outputs
    python3 notebooks/execute.py --lab       # Jupyter Lab with the same build (pip install jupyterlab)

All of them share one build, below `cells-library`: one notebook at a time. How it is compiled says Cargo.toml beside this
file, of which versions the repository's Cargo.lock.
"""

import argparse
import os
import pathlib
import shutil
import sys
import time

import nbformat
from nbclient import NotebookClient

HERE = pathlib.Path(__file__).resolve().parent
# A member of the workspace beside this file.
BUILD = HERE / "cells-library"


def shown(cell):
    """What a reader sees of a cell's outputs."""
    return [output.get("text", output.get("data")) for output in cell.get("outputs", [])]


def execute(path, write):
    """Executes a notebook; how many of its cells failed."""
    notebook = nbformat.read(path, as_version=4)
    committed = [shown(cell) for cell in notebook.cells]
    seconds = [0.0] * len(notebook.cells)

    def started(cell, cell_index):
        seconds[cell_index] = -time.monotonic()

    def ended(cell, cell_index, execute_reply=None):
        seconds[cell_index] += time.monotonic()

    NotebookClient(
        notebook,
        kernel_name="rust",
        timeout=1800,
        startup_timeout=300,
        allow_errors=True,
        resources={"metadata": {"path": str(HERE)}},
        on_cell_start=started,
        on_cell_executed=ended,
    ).execute()

    failed = 0
    for number, cell in enumerate(notebook.cells):
        cell.get("metadata", {}).pop("execution", None)
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                failed += 1
                print(f"{path.name}, cell {number}:\n" + "\n".join(output.traceback), file=sys.stderr)
    code = [number for number, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    differ = [number for number in code if shown(notebook.cells[number]) != committed[number]]
    slowest = max(seconds[number] for number in code[1:])
    print(
        f"{path.name}: {len(code)} cells, {failed} failed; the first took {seconds[code[0]]:.0f} s, "
        f"the slowest of the others {slowest:.0f} s",
        flush=True,
    )
    if differ and not write:
        print(f"{path.name}: other outputs than committed in cells {differ}", flush=True)
    if write and not failed:
        nbformat.write(notebook, path)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("notebooks", nargs="*", metavar="NOTEBOOK", help="all where none is named")
    parser.add_argument("--write", action="store_true", help="keep the new outputs")
    parser.add_argument("--lab", action="store_true", help="open Jupyter Lab in the place of executing them")
    options = parser.parse_args()
    names = options.notebooks or sorted(path.name for path in HERE.glob("*.ipynb"))
    shutil.copy(HERE.parent / "Cargo.lock", HERE)
    os.environ["EVCXR_TMPDIR"] = str(BUILD)
    if options.lab:
        os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", str(HERE)])
    sys.exit(1 if sum([execute(HERE / pathlib.Path(name).name, options.write) for name in names]) else 0)


if __name__ == "__main__":
    main()
