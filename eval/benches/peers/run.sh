#!/usr/bin/env bash
# Times `engram eval` against the reference tools: whole process against whole process, on the same files,
# in turns. Installs the tools into a virtual environment; says so and stops where pip cannot.
#
#   cargo build --release && eval/benches/peers/run.sh [ROUNDS] [VENV]
#
# pycocoevalcap needs Java. ENGRAM names another binary, ENGRAM_DATA the folder of the fixtures, whose captions
# and strings are repeated to the sizes below.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
rounds=${1:-3}
venv=${2:-${TMPDIR:-/tmp}/engram-eval-peers}
export ENGRAM=${ENGRAM:-$here/../../../target/release/engram}
export ENGRAM_DATA=${ENGRAM_DATA:-$here/../../../../shared/data}

if [ ! -x "$ENGRAM" ]; then
    echo "SKIPPED: $ENGRAM is not there; run cargo build --release first"
    exit 0
fi
if [ ! -d "$ENGRAM_DATA/metrics" ]; then
    echo "SKIPPED: $ENGRAM_DATA/metrics is not there; set ENGRAM_DATA"
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
# Whisper's normaliser without Whisper, which would bring PyTorch.
if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
    openai-whisper==20250625; then
    echo "Without openai-whisper: its row is left out"
fi
exec "$venv/bin/python" "$here/compare.py" "$rounds"
