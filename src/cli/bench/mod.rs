//! `engram bench`: benchmarks of a memory on the user's machine.

mod baselines;
mod keys;
mod memory;

use clap::Subcommand;

use super::Outcome;

/// Measure the speed of a memory on your machine, also against other tools.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  engram bench memory --keys 20000")]
pub enum Bench {
    Memory(memory::MemoryBench),
}

impl Bench {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        match self {
            Self::Memory(command) => command.run(),
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
    let status = engram_durable::read_text("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
