#!/usr/bin/env python3
"""Writes the release archive of one target, under the name that `cargo binstall` expects.

    .github/package.py x86_64-unknown-linux-musl target/x86_64-unknown-linux-musl/release/engram dist

The names come from `[package.metadata.binstall]` in Cargo.toml. Prints the path of the archive.
"""

import pathlib
import re
import sys
import tarfile
import tomllib
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Stored beside the program.
DOCUMENTS = ["LICENSE-APACHE", "LICENSE-MIT", "NOTICE", "README.md"]


def names(target):
    """Returns the URL of a target's archive, and the path of the program inside it."""
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    package, shared = manifest["package"], manifest["workspace"]["package"]
    binstall = package["metadata"]["binstall"]
    settings = {**binstall, **binstall["overrides"].get(target, {})}
    windows = "-windows-" in target
    values = {
        "name": package["name"],
        "bin": "engram",
        "version": shared["version"],
        "repo": shared["repository"],
        "target": target,
        "archive-suffix": {"tgz": ".tar.gz", "zip": ".zip"}[settings["pkg-fmt"]],
        "binary-ext": ".exe" if windows else "",
    }
    fill = lambda template: re.sub(r"\{ ([a-z-]+) \}", lambda match: values[match[1]], template)
    return fill(settings["pkg-url"]), fill(settings["bin-dir"])


def write(target, program, out):
    """Writes the archive into the folder `out` and returns its path."""
    url, inside = names(target)
    archive = pathlib.Path(out) / url.rsplit("/", 1)[1]
    archive.parent.mkdir(parents=True, exist_ok=True)
    folder = inside.rsplit("/", 1)[0]
    files = [(program, inside)] + [(ROOT / name, f"{folder}/{name}") for name in DOCUMENTS]
    if archive.suffix == ".zip":
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
