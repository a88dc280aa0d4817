#!/usr/bin/env python3
"""Compiles the code of each notebook as one program in the repository's release build, and runs it.

    python3 notebooks/check.py                     # all notebooks; exit code 1 if one fails
    python3 notebooks/check.py 01-metrics.ipynb
    python3 notebooks/check.py --build "cargo build --workspace"     # to reuse a build of the whole workspace

This takes a minute; `execute.py` takes longer because it builds everything again for evcxr. It needs only cargo and
Python. Reports printed text that differs from the committed output. The programs are in `examples/notebook-*` while
they run.
"""

import argparse
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
# Is printed before the output of each cell.
CELL_SEPARATOR = "\x1e"

PROGRAM = """//! Written by notebooks/check.py.
#![allow(unused, clippy::all)]

/// Holds any error that a cell returns with `?`.
#[derive(Debug)]
struct AnyError(String);

impl<E: std::fmt::Display> From<E> for AnyError {{
    fn from(error: E) -> Self {{
        Self(error.to_string())
    }}
}}

fn main() -> Result<(), AnyError> {{
{cells}
    Ok(())
}}
"""


def statements(code):
    """Converts the code of a cell to statements in a function. A value at the end is discarded."""
    code = code.rstrip()
    if code.endswith("}"):
        start = code.rfind("\n{\n") + 1
        if code[start] == "{":
            return code[:start] + "let _ = " + code[start:] + ";"
        return code
    return code if code.endswith(";") else code + ";"


def program(notebook):
    """Returns the program and the environment variables that the notebook sets."""
    cells, environment = [], {}
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        lines = "".join(cell["source"]).split("\n")
        for line in lines:
            if match := re.match(r":env (\w+)=(.*)", line):
                environment[match[1]] = match[2]
        code = "\n".join(line for line in lines if not line.startswith(":"))
        cells.append(f'print!("{{}}", {json.dumps(CELL_SEPARATOR)});\n{statements(code)}'.replace("\\u001e", "\\u{1e}"))
    return PROGRAM.format(cells="\n".join(cells)), environment


def committed_text(cell):
    """Returns the committed printed text of a cell."""
    streams = (output for output in cell["outputs"] if output["output_type"] == "stream")
    return "".join("".join(output["text"]) for output in streams)


def write_programs(paths):
    """Writes the code of each notebook as an example of the crate. Returns the folders."""
    folders = []
    for path in paths:
        folder = ROOT / "examples" / f"notebook-{path.stem}"
        folder.mkdir(exist_ok=True)
        code, _ = program(json.loads(path.read_text()))
        (folder / "main.rs").write_text(code)
        folders.append(folder)
    return folders


def run(path):
    """Runs the program of a notebook. Returns whether it succeeded."""
    notebook = json.loads(path.read_text())
    _, environment = program(notebook)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    program_file = target / "release" / "examples" / f"notebook-{path.stem}"
    run = subprocess.run(
        [program_file], cwd=HERE, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    )
    committed = [committed_text(cell) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    outputs = run.stdout.split(CELL_SEPARATOR)[1:]
    differing = [number for number, pair in enumerate(zip(outputs, committed)) if pair[0].strip() != pair[1].strip()]
    print(f"{path.name}: {'failed' if run.returncode else 'runs'}; printed text differs in cells {differing}", flush=True)
    return run.returncode == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("notebooks", nargs="*")
    parser.add_argument("--build", default="cargo build", help="the command that builds the programs")
    arguments = parser.parse_args()
    # `05-python.ipynb` is run by python/tests.
    names = arguments.notebooks or [path.name for path in HERE.glob("0[1-4]-*.ipynb")]
    paths = sorted(HERE / pathlib.Path(name).name for name in names)
    folders = write_programs(paths)
    try:
        examples = [word for folder in folders for word in ("--example", folder.name)]
        command = shlex.split(arguments.build) + ["--release", "--locked", "--quiet", *examples]
        if subprocess.run(command, cwd=ROOT).returncode:
            sys.exit("the code of a notebook does not compile")
        sys.exit(0 if all([run(path) for path in paths]) else 1)
    finally:
        for folder in folders:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
