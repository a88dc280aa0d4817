#!/usr/bin/env bash
# Checks the CUDA kernels on the CPU: values and gradients, and races with the thread sanitizer.
# Needs g++ 12 or newer; takes a minute.
set -euo pipefail
cd "$(dirname "$0")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
g++ -std=c++20 -O1 -Wall -Wextra -Wno-unknown-pragmas -pthread kernels_test.cpp -o "$work/test"
timeout 60 "$work/test"
g++ -std=c++20 -O1 -g -fsanitize=thread -pthread kernels_test.cpp -o "$work/races"
timeout 300 "$work/races"
