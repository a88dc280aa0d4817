"""The command `engram`."""

from __future__ import annotations

import sys

from engram import _engram


def main() -> int:
    """Runs the command with the arguments of this process."""
    restart = [sys.executable, "-m", "engram"]
    return _engram.main(["engram", *sys.argv[1:]], restart, _engram.__file__)


if __name__ == "__main__":
    sys.exit(main())
