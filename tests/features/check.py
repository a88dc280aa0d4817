#!/usr/bin/env python3
"""Checks that tests of single crates use the dependencies as a release build compiles them.

Lists the dependencies that would be compiled once more, with other features; see Cargo.toml.
"""

import subprocess
import sys

CRATES = "durable textfile entry models frozen memory data eval infer train".split()


def packages(*options: str) -> set[str]:
    """The lines `name version features` of the dependencies from the registry."""
    tree = ["cargo", "tree", "--locked", "--prefix", "none", "--format", "{p} [{f}]", *options]
    lines = subprocess.run(tree, check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.removesuffix(" (*)").replace(" (proc-macro)", "") for line in lines if " (/" not in line}


def name(line: str) -> str:
    return line.split(" [")[0]


program = packages("--package", "engram", "--edges", "normal,build")
names = {name(line) for line in program}
found = False
for crate in CRATES:
    for line in sorted(packages("--package", f"engram-{crate}") - program):
        if name(line) in names:
            found = True
            print(f"engram-{crate}: {line}; in the program: {[p for p in program if name(p) == name(line)]}")
sys.exit("add these features to tests/features/Cargo.toml" if found else 0)
