#!/usr/bin/env bash
# Runs the GPU checks with a program that tests/gpu/build.sh has built: at most 8 minutes.
#
#   tests/gpu/run.sh PROGRAM
#
# PROGRAM may be compressed (.xz). Needs an NVIDIA GPU and CUDA 13's libraries. With a python3 that
# has torch and transformers, PyTorch's times are printed beside Engram's.
set -uo pipefail
cd "$(dirname "$0")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
program="$1"
if [ "${program%.xz}" != "$program" ]; then
    xz -dc "$program" > "$work/engram-gpu"
    chmod +x "$work/engram-gpu"
    program="$work/engram-gpu"
fi
for library in libcublas.so.13 libcurand.so.10 libcudart.so.13; do
    if ! ldconfig -p | grep -q "$library"; then
        found="$(find / -name "$library" -not -path '/proc/*' 2> /dev/null | head -1)"
        LD_LIBRARY_PATH="$(dirname "$found"):${LD_LIBRARY_PATH:-}"
    fi
done
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
failed=0
check() { timeout "$@" || { echo "FAILED ($?): ${*:2}"; failed=1; }; }
check 60 "$program" models
check 180 "$program" training "$work/runs"
for precision in f32 bf16; do
    check 60 "$program" steps --filter MiniLM --precision "$precision"
    timeout 60 python3 peer.py "$precision" || echo "PyTorch did not finish in 60 s"
done
for model in Whisper REVEAL DeBERTa; do
    check 60 "$program" steps --filter "$model" --precision bf16
done
exit "$failed"
