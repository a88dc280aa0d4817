#!/usr/bin/env python3
"""Compiles the code of each notebook as one program in the repository's release build, and runs it.

    python3 notebooks/check.py                     # all notebooks; exit code 1 if one fails
    python3 notebooks/check.py 01-metrics.ipynb

This takes a minute; `execute.py` takes longer because it builds everything again for evcxr. It needs only cargo and
Python. Reports printed text that differs from the committed output. The programs are in `examples/notebook-*` while
they run.
"""

import json
import os
import pathlib
import re
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


def check(path):
    """Builds and runs a notebook's code. Returns whether it succeeded."""
    name = f"notebook-{path.stem}"
    folder = ROOT / "examples" / name
    folder.mkdir(exist_ok=True)
    try:
        return build_and_run(folder, name, path)
    finally:
        shutil.rmtree(folder)


def build_and_run(folder, name, path):
    """Builds and runs the example `name` in `folder`. Returns whether it succeeded."""
    notebook = json.loads(path.read_text())
    code, environment = program(notebook)
    (folder / "main.rs").write_text(code)
    built = subprocess.run(["cargo", "build", "--release", "--locked", "--quiet", "--example", name], cwd=ROOT)
    if built.returncode:
        print(f"{path.name}: does not compile", flush=True)
        return False
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    program_file = target / "release" / "examples" / name
    run = subprocess.run(
        [program_file], cwd=HERE, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    )
    committed = [committed_text(cell) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    outputs = run.stdout.split(CELL_SEPARATOR)[1:]
    differing = [number for number, pair in enumerate(zip(outputs, committed)) if pair[0].strip() != pair[1].strip()]
    print(f"{path.name}: {'failed' if run.returncode else 'runs'}; printed text differs in cells {differing}", flush=True)
    return run.returncode == 0


def main():
    names = sys.argv[1:] or sorted(path.name for path in HERE.glob("*.ipynb"))
    sys.exit(0 if all([check(HERE / pathlib.Path(name).name) for name in names]) else 1)


if __name__ == "__main__":
    main()
