//! An exponential moving average (EMA) of the trainable parameters.

use engram_models::params::Parameters;
use rayon::prelude::*;

use crate::error::Result;

const BLOCK: usize = 1 << 14;

/// The moving average, with one buffer per trainable parameter.
pub(crate) struct Ema {
    decay: f64,
    pub(crate) mean: Vec<Vec<f32>>,
}

impl Ema {
    /// Starts at the parameters' current values.
    pub(crate) fn new(decay: f64, parameters: &Parameters) -> Result<Self> {
        let mean = parameters.trainable().map(|p| Ok(p.read(<[f32]>::to_vec)?));
        Ok(Self { decay, mean: mean.collect::<Result<_>>()? })
    }

    /// Updates the average after the phase's optimiser step `step` (counted from 1).
    pub(crate) fn update(&mut self, parameters: &Parameters, step: u64) -> Result<()> {
        let step = step as f64;
        let rest = 1.0 - self.decay.min((1.0 + step) / (10.0 + step)) as f32;
        for (parameter, mean) in parameters.trainable().zip(&mut self.mean) {
            parameter.read(|values| {
                let blocks = mean.par_chunks_mut(BLOCK).zip(values.par_chunks(BLOCK));
                blocks.for_each(|(mean, values)| {
                    for (mean, value) in mean.iter_mut().zip(values) {
                        *mean += rest * (value - *mean);
                    }
                });
            })?;
        }
        Ok(())
    }

    /// Swaps the average and the parameters. A second call restores both exactly.
    pub(crate) fn swap(&mut self, parameters: &Parameters) -> Result<()> {
        for (parameter, mean) in parameters.trainable().zip(&mut self.mean) {
            parameter.update(&mut |values| values.swap_with_slice(mean))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engram_models::params::{Init, ParameterBuilder};

    #[test]
    fn the_average_follows_and_swaps_back_exactly() -> Result<()> {
        let builder = ParameterBuilder::on_cpu(0);
        builder.get("weight", &[2], Init::Zeros)?;
        let parameters = builder.finish()?;
        let set = |value: f32| -> Result<()> {
            parameters.iter().try_for_each(|p| Ok(p.update(&mut |values| values.fill(value))?))
        };
        let mut ema = Ema::new(0.75, &parameters)?;
        set(1.0)?;
        // Early: decay (1 + 1) / (10 + 1). Later: 0.75.
        ema.update(&parameters, 1)?;
        assert!((ema.mean[0][0] - 9.0 / 11.0).abs() < 1e-6);
        ema.update(&parameters, 1000)?;
        let mean = ema.mean.clone();
        assert!((mean[0][0] - (1.0 - 0.75 * 2.0 / 11.0)).abs() < 1e-6);
        ema.swap(&parameters)?;
        assert!(parameters.iter().all(|p| p.to_vec().is_ok_and(|values| values == mean[0])));
        ema.swap(&parameters)?;
        assert!(parameters.iter().all(|p| p.to_vec().is_ok_and(|values| values == [1.0, 1.0])));
        assert_eq!(ema.mean, mean);
        Ok(())
    }
}
