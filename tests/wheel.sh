#!/usr/bin/env bash
# Builds the wheel `engram-from-source` from the program that `cargo build --release` has built, installs it
# into a fresh Python environment and tries the command. Fails if a crate is compiled again.
set -euo pipefail
cd "$(dirname "$0")/.."
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

python3 -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet --disable-pip-version-check maturin==1.16.0
"$work/tools/bin/maturin" build --release --locked --out "$work/wheel" 2>&1 | tee "$work/log"
if grep -q "Compiling" "$work/log"; then
    echo "the wheel compiles crates again"
    exit 1
fi

python3 -m venv "$work/user"
"$work/user/bin/pip" install --quiet --disable-pip-version-check --no-index "$work"/wheel/engram_from_source-*.whl
engram="$work/user/bin/engram"
cmp "$engram" "${CARGO_TARGET_DIR:-target}/release/engram"
"$engram" --version
printf 'a\tthe cat sat\nb\ton the mat\n' > "$work/ref.tsv"
printf 'a\tthe cat sat\nb\ton a mat\n' > "$work/hyp.tsv"
"$engram" eval wer --ref "$work/ref.tsv" --hyp "$work/hyp.tsv" | tee "$work/report"
# One of six words is wrong.
grep -q "0\.1667" "$work/report"
"$work/user/bin/pip" show --files engram-from-source > "$work/files"
for document in LICENSE-APACHE LICENSE-MIT NOTICE; do grep -q "licenses/$document" "$work/files"; done
