#!/usr/bin/env bash
# Runs the tests of all `unsafe` code under AddressSanitizer: kernels, SIMD products, memory-mapped files.
# Prints SKIPPED without nightly Rust. Miri cannot run this code because it lacks AVX-512 and mmap.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! cargo +nightly --version > /dev/null 2>&1; then
    echo "SKIPPED: no nightly Rust for AddressSanitizer (rustup toolchain install nightly)"
    exit 0
fi

target=x86_64-unknown-linux-gnu
export RUSTFLAGS="-Zsanitizer=address"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/sanitize"
# Leaks at exit are expected: thread pools and caches live as long as the process.
export ASAN_OPTIONS="detect_leaks=0"
# Short compile times matter more than speed here.
export CARGO_PROFILE_RELEASE_OPT_LEVEL=1

sanitized() { cargo +nightly test --release --locked --target "$target" "$@"; }
sanitized -p engram-memory --lib
sanitized -p engram-memory --test main -- damage exact graphs
sanitized -p engram-models --lib
sanitized -p engram-models --test suite -- kernels ctranslate2
