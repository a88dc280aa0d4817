#!/usr/bin/env bash
# Runs the GPU checks with a program that tests/gpu/build.sh has built: at most 8 minutes.
#
#   tests/gpu/run.sh PROGRAM
#
# PROGRAM may be compressed (.xz). Needs an NVIDIA GPU and CUDA 13's libraries. With a python3 that
# has torch and transformers, PyTorch's times are printed beside Engram's. If PROGRAM is built with MPI
# and `mpirun` is there, ranks are compared: one and two on one GPU, and with NCCL on one GPU each.
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
for library in libcublas.so.13 libcurand.so.10 libcudart.so.13 libnccl.so.2; do
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
# Trains on $3 ranks with the device $2 into $work/$1; other arguments are variables.
ranks() {
    check 120 env "${@:4}" mpirun --allow-run-as-root --oversubscribe -n "$3" \
        "$program" --device "$2" ranks "$work/$1"
}
# Compares the files of two runs.
same() {
    diff -rq -x timing.jsonl -x .lock -x README.md -x 'events.*' "$work/$1" "$work/$2" ||
        { echo "FAILED: the runs $1 and $2 differ"; failed=1; }
}
if ! "$program" ranks --help > /dev/null 2>&1; then
    echo "SKIPPED: several ranks; $program is built without MPI"
elif ! command -v mpirun > /dev/null; then
    echo "SKIPPED: several ranks; there is no mpirun"
else
    ranks alone cuda:0 1 ENGRAM_NCCL=0
    ranks shared cuda:0 2 ENGRAM_NCCL=0
    same alone shared
    ranks nccl-1 cuda 1
    if [ "$(nvidia-smi -L | wc -l)" -ge 2 ]; then
        ranks nccl-2 cuda 2
        same nccl-1 nccl-2
    else
        echo "SKIPPED: NCCL between two GPUs; there is one GPU"
    fi
fi
exit "$failed"
