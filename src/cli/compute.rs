//! `--device` and `--precision` of commands that run a model.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use engram_models::compute::{Compute, Precision};

/// The device and the precision of a model.
#[derive(Debug, Args)]
#[command(next_help_heading = "Compute")]
pub(super) struct ComputeOptions {
    /// The device of the model: `cpu`, `cuda` or `cuda:N`
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: String,
    /// The precision of activations
    #[arg(long, value_name = "PRECISION", default_value = Precision::F32.name(),
        value_parser = PossibleValuesParser::new([Precision::F32.name(), Precision::Bf16.name()])
            .map(|name| if name == Precision::F32.name() { Precision::F32 } else { Precision::Bf16 }))]
    precision: Precision,
}

impl ComputeOptions {
    /// Opens the device.
    pub(super) fn open(&self) -> anyhow::Result<Compute> {
        Ok(Compute::open(&self.device, self.precision)?)
    }
}
