//! `engram bench`: benchmarks of the toolkit, also against other tools in the same run.

mod avformer;
mod baselines;
mod keys;
mod memory;
mod refresh;
mod scale;
mod tradeoffs;

use clap::Subcommand;

use super::Outcome;

/// Measure the speed of this toolkit, also against other tools.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  engram bench memory --keys 20000
  engram bench refresh
  engram bench scale --keys 10000,30000
  engram bench avformer --asr-model train/bundled/conformer --image-encoder train/bundled/clip")]
pub enum Bench {
    Memory(memory::MemoryBench),
    Refresh(refresh::RefreshBench),
    Scale(Box<scale::ScaleBench>),
    Avformer(avformer::AvformerBench),
    Tradeoffs(tradeoffs::TradeoffBench),
}

impl Bench {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        match self {
            Self::Memory(command) => command.run(),
            Self::Refresh(command) => command.run(),
            Self::Scale(command) => command.run(),
            Self::Avformer(command) => command.run(),
            Self::Tradeoffs(command) => command.run(),
        }
    }
}

/// The median of times in seconds.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The peak resident memory of this process in bytes; `None` if the system does not report it.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
