//! Checks models and training runs on a device against f32 on the CPU, and measures training steps.
//!
//! `run.sh` runs everything on a machine with a GPU. Without a GPU, `models/tests/suite/compute.rs`
//! and `tests/command/compute.rs` make similar comparisons with the operations that a GPU runs.

mod inference;
mod models;
#[cfg(feature = "mpi")]
mod ranks;
mod steps;
mod training;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};
use engram_models::compute::{Compute, Precision};
use engram_models::recompute::Recompute;

/// For each precision, the largest allowed relative errors of values and of gradients.
const TOLERANCES: [(Precision, f64, f64); 2] =
    [(Precision::F32, 1e-3, 1e-3), (Precision::Bf16, 6e-2, 6e-2)];

#[derive(Parser)]
struct Arguments {
    /// The device: `cpu`, `cuda` or `cuda:N`
    #[arg(long, default_value = "cuda")]
    device: String,
    #[command(subcommand)]
    check: Check,
}

#[derive(Subcommand)]
enum Check {
    /// Values and gradients of every model family, in f32 and bf16
    Models,
    /// Small trainings of every study, and inference with them (not AVFormer), in f32 and bf16
    Training {
        /// The folder of the runs
        folder: PathBuf,
    },
    /// Sums of gradients and a small training on the GPUs of the ranks that `mpirun` has started
    #[cfg(feature = "mpi")]
    Ranks {
        /// The folder of the run
        folder: PathBuf,
    },
    /// Times of training steps at published sizes
    Steps {
        /// Only models whose names contain this text
        #[arg(long, default_value = "")]
        filter: String,
        /// The precision: `f32` or `bf16`
        #[arg(long, default_value = "f32", value_parser = precision)]
        precision: Precision,
    },
}

fn main() -> ExitCode {
    match Arguments::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn precision(name: &str) -> Result<Precision, serde_json::Error> {
    serde_json::from_value(name.into())
}

impl Arguments {
    fn run(&self) -> Result<()> {
        match &self.check {
            Check::Models => self.models(),
            Check::Training { folder } => {
                for (precision, ..) in TOLERANCES {
                    let name = precision.name();
                    for found in training::compare_trainings(&self.device, name, folder)? {
                        println!(
                            "training {:9} {name:4} losses differ by {:.1e}; {:.1} s (CPU in \
                             f32: {:.1} s)",
                            found.study, found.loss_error, found.seconds, found.cpu_seconds
                        );
                    }
                }
                self.inference(folder)
            }
            #[cfg(feature = "mpi")]
            Check::Ranks { folder } => ranks::check(&self.device, folder),
            Check::Steps { filter, precision } => {
                let compute = Compute::open(&self.device, *precision)?;
                steps::measure(&compute, filter, |time| {
                    println!(
                        "step {:36} {:4} {:8.1} ms, of which passes {:8.1} ms (host {:8.1} ms), \
                         tensors at most {} MiB",
                        time.name,
                        precision.name(),
                        time.step_ms,
                        time.passes_ms,
                        time.host_ms,
                        time.peak_bytes.unwrap_or(0) >> 20
                    );
                    println!("  clipping and AdamW {:8.2} ms", time.update_ms);
                    for (kernel, pass, calls, seconds) in time.profile {
                        println!(
                            "  {kernel:16} {pass:8} {calls:4} x {:8.1} us",
                            seconds * 1e6 / calls as f64
                        );
                    }
                })
            }
        }
    }

    /// Uses the trained models in f32 and bf16.
    fn inference(&self, folder: &Path) -> Result<()> {
        let mut failures = Vec::new();
        for (precision, tolerance, _) in TOLERANCES {
            let (compute, name) = (Compute::open(&self.device, precision)?, precision.name());
            for found in inference::compare_inference(&compute, folder)? {
                let texts = match found.equal_texts {
                    Some(true) => ", equal texts",
                    Some(false) => ", other texts",
                    None => "",
                };
                println!("inference {:9} {name:4} {:.1e}{texts}", found.study, found.error);
                // In bf16, another token or entry may be the best one.
                let is_close = found.error < tolerance && found.equal_texts != Some(false);
                if !is_close && precision == Precision::F32 {
                    failures.push(found.study);
                }
            }
        }
        ensure!(failures.is_empty(), "too large differences: {}", failures.join(", "));
        Ok(())
    }

    fn models(&self) -> Result<()> {
        let mut failures = Vec::new();
        for (precision, value_tolerance, gradient_tolerance) in TOLERANCES {
            let (compute, name) = (Compute::open(&self.device, precision)?, precision.name());
            for recompute in [Recompute::None, Recompute::Block] {
                for found in models::compare_models(&compute, recompute)? {
                    let (values, gradients) = (found.value_error, found.gradient_error);
                    println!(
                        "model {:24} {name:4} recompute {recompute:?}: values {values:.1e}, \
                         gradients {gradients:.1e}",
                        found.model
                    );
                    // NaN fails, too.
                    if !(values < value_tolerance && gradients < gradient_tolerance) {
                        failures.push(format!("{} in {name}, {recompute:?}", found.model));
                    }
                }
            }
        }
        let generated = models::generated_tokens(&Compute::open(&self.device, Precision::F32)?)?;
        if generated != models::generated_tokens(&Compute::cpu())? {
            failures.push("texts generated by T5".to_string());
        }
        ensure!(failures.is_empty(), "too large differences: {}", failures.join(", "));
        Ok(())
    }
}
