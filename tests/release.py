#!/usr/bin/env python3
"""Checks the archives of the program: their names and contents, for each target of the workflow.

    python3 tests/release.py target/release/engram
"""

import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / ".github"))
sys.dont_write_bytecode = True
import package  # noqa: E402

SYSTEMS = ["aarch64-apple-darwin", "aarch64-unknown-linux-musl", "x86_64-apple-darwin", "x86_64-pc-windows-msvc",
           "x86_64-unknown-linux-musl"]


def members(archive):
    """Returns the names of the files in an archive."""
    if archive.suffix == ".zip":
        return zipfile.ZipFile(archive).namelist()
    return tarfile.open(archive).getnames()


def check(target, program, version, out):
    """Checks the archive of one target."""
    archive = package.write(target, program, out)
    windows = "windows" in target
    stem = f"engram-{version}-{target}"
    assert archive.name == stem + (".zip" if windows else ".tar.gz"), archive
    inside = f"{stem}/engram{'.exe' if windows else ''}"
    expected = [inside] + [f"{stem}/{name}" for name in package.DOCUMENTS]
    assert members(archive) == expected, members(archive)
    if not windows:
        # Unpacked, the file is a program.
        tarfile.open(archive).extractall(out, filter="data")
        printed = subprocess.run([pathlib.Path(out) / inside, "--version"], capture_output=True, text=True, check=True)
        assert printed.stdout == f"engram {version}\n", printed.stdout


def main(program):
    printed = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    version = printed.removeprefix("engram ").strip()
    workflow = (ROOT / ".github/workflows/archives.yml").read_text(encoding="utf-8")
    targets = sorted(re.findall(r"target: ([a-z0-9_-]+),", workflow))
    assert targets == SYSTEMS, targets
    for target in targets:
        with tempfile.TemporaryDirectory() as out:
            check(target, program, version, out)
    print(f"{len(targets)} archives have the expected names and contents")


if __name__ == "__main__":
    main(*sys.argv[1:])
