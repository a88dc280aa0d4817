#!/usr/bin/env bash
# Builds `engram` with CUDA and the program of the GPU checks, in tests/gpu/target/release/. Needs no
# GPU.
#
#   tests/gpu/build.sh [CAPABILITY]
#
# CAPABILITY is the compute capability of the GPU, 90 (Hopper) by default. Without nvcc, CUDA 13.0 is
# installed from PyPI into tests/gpu/target/cuda (1.2 GB). With ENGRAM_MPI, as in tests/mpi/build.sh, the
# programs can train on several GPUs. NCCL is loaded at run time.
set -euo pipefail
cd "$(dirname "$0")"
if [ -z "${CUDA_HOME:-}" ] && ! command -v nvcc > /dev/null; then
    environment="$PWD/target/cuda"
    if [ ! -d "$environment" ]; then
        python3 -m venv "$environment"
        "$environment/bin/pip" install --quiet \
            "cuda-toolkit[nvcc,crt,nvvm,cudart,cccl,cublas,curand,nvrtc]==13.0.2"
    fi
    CUDA_HOME="$(echo "$environment"/lib/python3*/site-packages/nvidia/cu13)"
    chmod +x "$CUDA_HOME"/bin/* "$CUDA_HOME"/nvvm/bin/*
    for library in cublas cublasLt cudart curand nvrtc; do
        (cd "$CUDA_HOME/lib" && ln -sf "$(ls lib$library.so.* | grep -v alt | head -1)" "lib$library.so")
    done
    # The driver's library, for linking only.
    mkdir -p "$CUDA_HOME/lib/stubs"
    if ! ldconfig -p | grep -q libcuda.so.1; then
        # Every function returns 100: no device.
        grep -ohE '\bcu[A-Z][A-Za-z0-9_]*' "$CUDA_HOME/include/cuda.h" | sort -u |
            sed 's/.*/int &(void) { return 100; }/' |
            gcc -shared -fPIC -w -Wl,-soname,libcuda.so.1 -x c - -o "$CUDA_HOME/lib/stubs/libcuda.so"
    fi
fi
CUDA_HOME="${CUDA_HOME:-$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")}"
export CUDA_HOME CUDA_PATH="$CUDA_HOME" PATH="$CUDA_HOME/bin:$PATH"
export CUDA_COMPUTE_CAP="${1:-90}"
export LIBRARY_PATH="$CUDA_HOME/lib:$CUDA_HOME/lib/stubs:$CUDA_HOME/lib64:$CUDA_HOME/lib64/stubs"
export LD_LIBRARY_PATH="$LIBRARY_PATH:${LD_LIBRARY_PATH:-}"
./compile.sh
cargo=(cargo)
features=engram/cuda,engram-gpu/cuda
if [ -n "${ENGRAM_MPI:-}" ]; then
    cargo=(../mpi/build.sh)
    features="$features,engram/mpi,engram-gpu/mpi"
fi
"${cargo[@]}" build --release --locked --target-dir target \
    --package engram --package engram-gpu --features "$features"
ls -l target/release/engram target/release/engram-gpu
