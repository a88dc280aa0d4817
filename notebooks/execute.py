#!/usr/bin/env python3
"""Executes the notebooks in this folder and reports outputs that differ from the committed outputs.

    pip install nbclient                     # and: cargo install evcxr_jupyter --locked; evcxr_jupyter --install
    python3 notebooks/execute.py             # all notebooks; exit code 1 if a cell fails
    python3 notebooks/execute.py --write 04-memory.ipynb    # saves the new outputs
    python3 notebooks/execute.py --lab       # Jupyter Lab with the same build (pip install jupyterlab)

All notebooks share one build in `cells-library`, so only one notebook can run at a time. Cargo.toml in this folder sets
the compiler options, and the repository's Cargo.lock sets the versions.
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
# The folder in which evcxr builds the cells: a member of the workspace in this folder.
BUILD = HERE / "cells-library"


def visible_outputs(cell):
    """Returns the visible outputs of a cell."""
    return [output.get("text", output.get("data")) for output in cell.get("outputs", [])]


def execute(path, write):
    """Executes a notebook. Returns the number of failed cells."""
    notebook = nbformat.read(path, as_version=4)
    committed = [visible_outputs(cell) for cell in notebook.cells]
    seconds = [0.0] * len(notebook.cells)

    def start_timer(cell, cell_index):
        seconds[cell_index] = -time.monotonic()

    def stop_timer(cell, cell_index, execute_reply=None):
        seconds[cell_index] += time.monotonic()

    NotebookClient(
        notebook,
        kernel_name="rust",
        timeout=1800,
        startup_timeout=300,
        allow_errors=True,
        resources={"metadata": {"path": str(HERE)}},
        on_cell_start=start_timer,
        on_cell_executed=stop_timer,
    ).execute()

    failed = 0
    for number, cell in enumerate(notebook.cells):
        cell.get("metadata", {}).pop("execution", None)
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                failed += 1
                print(f"{path.name}, cell {number}:\n" + "\n".join(output.traceback), file=sys.stderr)
    code_cells = [number for number, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    differing = [number for number in code_cells if visible_outputs(notebook.cells[number]) != committed[number]]
    slowest = max(seconds[number] for number in code_cells[1:])
    print(
        f"{path.name}: {len(code_cells)} cells, {failed} failed; the first took {seconds[code_cells[0]]:.0f} s, "
        f"the slowest of the others {slowest:.0f} s",
        flush=True,
    )
    if differing and not write:
        print(f"{path.name}: outputs differ from the committed ones in cells {differing}", flush=True)
    if write and not failed:
        nbformat.write(notebook, path)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("notebooks", nargs="*", metavar="NOTEBOOK", help="notebooks to execute; default: all")
    parser.add_argument("--write", action="store_true", help="save the new outputs")
    parser.add_argument("--lab", action="store_true", help="open Jupyter Lab instead of executing the notebooks")
    options = parser.parse_args()
    names = options.notebooks or sorted(path.name for path in HERE.glob("0[1-4]-*.ipynb"))
    shutil.copy(HERE.parent / "Cargo.lock", HERE)
    os.environ["EVCXR_TMPDIR"] = str(BUILD)
    if options.lab:
        os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", str(HERE)])
    sys.exit(1 if sum([execute(HERE / pathlib.Path(name).name, options.write) for name in names]) else 0)


if __name__ == "__main__":
    main()
