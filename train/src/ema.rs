//! An exponential moving average (EMA) of the trainable parameters.

use engram_models::params::Parameters;
use rayon::prelude::*;

use crate::error::Result;

/// Values per parallel task. It is fixed, so that results do not depend on the thread count.
const BLOCK: usize = 1 << 14;

/// The moving average, with one buffer per trainable parameter.
pub(crate) struct Ema {
    decay: f64,
    pub(crate) mean: Vec<Vec<f32>>,
}

impl Ema {
    /// An average that starts at the parameters' current values.
    pub(crate) fn new(decay: f64, parameters: &Parameters) -> Result<Self> {
        let mean = parameters.trainable().map(|p| Ok(p.read(<[f32]>::to_vec)?));
        Ok(Self { decay, mean: mean.collect::<Result<_>>()? })
    }

    /// Updates the average after the phase's optimiser step `step` (counted from 1). Early steps
    /// use a lower decay: `min(decay, (1 + step) / (10 + step))`.
    pub(crate) fn update(&mut self, parameters: &Parameters, step: u64) -> Result<()> {
        let step = step as f64;
        let value_weight = 1.0 - self.decay.min((1.0 + step) / (10.0 + step)) as f32;
        for (parameter, mean) in parameters.trainable().zip(&mut self.mean) {
            parameter.read(|values| {
                let blocks = mean.par_chunks_mut(BLOCK).zip(values.par_chunks(BLOCK));
                blocks.for_each(|(mean, values)| {
                    for (mean, value) in mean.iter_mut().zip(values) {
                        *mean += value_weight * (value - *mean);
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
    fn updates_decay_by_step_and_two_swaps_restore_both_exactly() -> Result<()> {
        let builder = ParameterBuilder::on_cpu(0);
        builder.get("weight", &[2], Init::Zeros)?;
        let parameters = builder.finish()?;
        let set_all = |value: f32| -> Result<()> {
            parameters.iter().try_for_each(|p| Ok(p.update(&mut |values| values.fill(value))?))
        };
        let mut ema = Ema::new(0.75, &parameters)?;
        set_all(1.0)?;
        // The decay of step 1 is (1 + 1) / (10 + 1), the decay of step 1000 is 0.75.
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
