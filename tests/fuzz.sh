#!/usr/bin/env bash
# Fuzzes every reader: all targets of all fuzz packages, on stable Rust, guided by coverage.
#
#   tests/fuzz.sh              500,000 inputs per target
#   tests/fuzz.sh 10000 npy    10,000 inputs of one target
#   FUZZ_SECONDS=60 tests/fuzz.sh   at most a minute per target
#
# Each run starts from the committed corpus and leaves it unchanged. An input that fails stays in target/fuzz/failed.
# Needs cargo-fuzz (`cargo install cargo-fuzz --locked`).
set -euo pipefail
cd "$(dirname "$0")/.."

inputs_per_target="${1:-500000}"
only_target="${2:-}"
seconds="${FUZZ_SECONDS:-0}"
target="${FUZZ_TARGET_DIR:-$PWD/target/fuzz}"
failed=0
total=0
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir -p "$target/failed"

printf '%-8s %-24s %10s %8s  %s\n' package target inputs rate result
for package in data eval memory models; do
    (cd "$package" && cargo fuzz build -s none --strip-dead-code --target-dir "$target" 2> "$work/build.log") \
        || { cat "$work/build.log"; exit 1; }
    for name in $(cd "$package" && cargo fuzz list); do
        if [ -n "$only_target" ] && [ "$only_target" != "$name" ]; then continue; fi
        rm -rf "$work/corpus"
        cp -r "$package/fuzz/corpus/$name" "$work/corpus"
        result=passed
        "$target/x86_64-unknown-linux-gnu/release/$name" "$work/corpus" -runs="$inputs_per_target" -seed=1 -timeout=20 \
            -rss_limit_mb=2048 -max_total_time="$seconds" -print_final_stats=1 -verbosity=0 \
            -artifact_prefix="$target/failed/$package-$name-" > "$work/log" 2>&1 || result=FAILED
        inputs="$(awk '/number_of_executed_units/ { print $2 }' "$work/log")"
        rate="$(awk '/average_exec_per_sec/ { print $2 }' "$work/log")"
        printf '%-8s %-24s %10s %8s  %s\n' "$package" "$name" "${inputs:-0}" "${rate:-?}/s" "$result"
        if [ "$result" = FAILED ]; then tail -30 "$work/log"; failed=1; fi
        total=$((total + ${inputs:-0}))
    done
done
printf 'total inputs: %s\n' "$total"
exit "$failed"
