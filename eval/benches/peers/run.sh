#!/usr/bin/env bash
# Times `engram eval` and the reference tools in turns, as whole processes on the same files. Installs the tools
# into a virtual environment; without them, prints SKIPPED and exits.
#
#   cargo build --release && ENGRAM_DATA=DATA eval/benches/peers/run.sh [ROUNDS] [VENV]
#
# pycocoevalcap needs Java. ENGRAM names another binary. ENGRAM_DATA names the folder of the fixtures; compare.py
# repeats them to larger sizes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
rounds=${1:-3}
venv=${2:-${TMPDIR:-/tmp}/engram-eval-peers}
export ENGRAM=${ENGRAM:-$here/../../../target/release/engram}
export ENGRAM_DATA=${ENGRAM_DATA:-}

if [ ! -x "$ENGRAM" ]; then
    echo "SKIPPED: $ENGRAM does not exist; run cargo build --release first"
    exit 0
fi
if [ ! -d "$ENGRAM_DATA/metrics" ]; then
    echo "SKIPPED: no folder '$ENGRAM_DATA/metrics'; set ENGRAM_DATA to the folder of the fixtures"
    exit 0
fi
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
fi
if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    jiwer==4.0.0 rapidfuzz==3.14.6 pycocoevalcap==1.2 pycocotools regex more-itertools; then
    echo "SKIPPED: pip could not install the reference tools"
    exit 0
fi
# Whisper's normaliser without the dependencies of Whisper, such as PyTorch.
if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
    openai-whisper==20250625; then
    echo "pip could not install openai-whisper: its normaliser is not timed"
fi
exec "$venv/bin/python" "$here/compare.py" "$rounds"
