//! Shared parts of the benchmarks: their arguments, medians and random keys.
#![allow(dead_code)]

#[path = "../../src/cli/bench/keys.rs"]
pub mod keys;

/// The arguments of the benchmark, without the `--bench` that cargo adds.
pub fn arguments() -> impl Iterator<Item = String> {
    std::env::args().skip(1).filter(|argument| argument != "--bench")
}

/// The median of times in seconds.
pub fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
