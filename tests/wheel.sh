#!/usr/bin/env bash
# Builds the wheel `engram-from-source` from what `cargo build --release` has built, installs it into a fresh
# Python environment, and tries the command and the module. Fails if more than the module is compiled.
set -euo pipefail
cd "$(dirname "$0")/.."
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

python3 -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet --disable-pip-version-check maturin==1.16.0
"$work/tools/bin/maturin" build --release --locked --out "$work/wheel" 2>&1 | tee "$work/log"
if grep "Compiling" "$work/log" | grep -vE "Compiling (pyo3|numpy|engram-python|ndarray|matrixmultiply|rawpointer|target-lexicon|portable-atomic)"; then
    echo "the wheel compiles crates again"
    exit 1
fi

python3 -m venv "$work/user"
"$work/user/bin/pip" install --quiet --disable-pip-version-check "$work"/wheel/engram_from_source-*.whl
engram="$work/user/bin/engram"
"$engram" --version
printf 'a\tthe cat sat\nb\ton the mat\n' > "$work/ref.tsv"
printf 'a\tthe cat sat\nb\ton a mat\n' > "$work/hyp.tsv"
"$engram" eval wer --ref "$work/ref.tsv" --hyp "$work/hyp.tsv" | tee "$work/report"
# One of six words is wrong.
grep -q "0\.1667" "$work/report"
"$work/user/bin/pip" show --files engram-from-source > "$work/files"
PYTHONPATH='' "$work/user/bin/python" -m unittest discover --start-directory python/tests --top-level-directory python/tests
for document in LICENSE-APACHE LICENSE-MIT NOTICE; do grep -q "licenses/$document" "$work/files"; done
