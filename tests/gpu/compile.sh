#!/usr/bin/env bash
# Compiles the CUDA kernels to models/cuda/kernels.ptx, with the hash of their sources in the first
# line. Needs nvcc: tests/gpu/build.sh installs it.
set -euo pipefail
cd "$(dirname "$0")/../../models/cuda"
nvcc -arch=compute_80 --fmad=false -ptx kernels.cu -o kernels.ptx.new
{ printf '// sources: %s\n' "$(cat ./*.cu ./*.h | sha256sum | cut -d ' ' -f 1)"; cat kernels.ptx.new; } \
    > kernels.ptx
rm kernels.ptx.new
