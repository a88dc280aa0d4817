#!/usr/bin/env python3
"""Writes the archive of the program for one target: the program, the licences and the README.

    .github/package.py x86_64-unknown-linux-musl target/x86_64-unknown-linux-musl/release/engram dist

Prints the path of the archive, `dist/engram-VERSION-TARGET.tar.gz`, or `.zip` for Windows.
"""

import pathlib
import sys
import tarfile
import tomllib
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Stored beside the program.
DOCUMENTS = ["LICENSE-APACHE", "LICENSE-MIT", "NOTICE", "README.md"]


def write(target, program, out):
    """Writes the archive into the folder `out` and returns its path."""
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    windows = "-windows-" in target
    folder = f"engram-{manifest['workspace']['package']['version']}-{target}"
    files = [(program, f"{folder}/engram{'.exe' if windows else ''}")]
    files += [(ROOT / name, f"{folder}/{name}") for name in DOCUMENTS]
    archive = pathlib.Path(out) / f"{folder}{'.zip' if windows else '.tar.gz'}"
    archive.parent.mkdir(parents=True, exist_ok=True)
    if windows:
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as package:
            for path, name in files:
                package.write(path, name)
    else:
        with tarfile.open(archive, "w:gz") as package:
            for path, name in files:
                package.add(path, name)
    return archive


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(f"{__doc__}\nthree arguments are needed: target, program, output folder")
    print(write(*sys.argv[1:]))
