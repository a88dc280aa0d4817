//! An exponential moving average (EMA) of the trainable parameters.

use std::borrow::Cow;

use candle_core::Tensor;
use engram_models::ModelError;
use engram_models::params::{Parameter, Parameters};
use rayon::prelude::*;

use crate::error::Result;
use crate::optimiser::{BLOCK, Lane, StateValues};

/// The moving average, with one buffer per trainable parameter.
pub(crate) struct Ema {
    decay: f64,
    mean: Vec<StateValues>,
}

impl Ema {
    /// An average that starts at the parameters' current values.
    pub(crate) fn new(decay: f64, parameters: &Parameters) -> Result<Self> {
        let mean = parameters.trainable().map(|p| match p.tensor().device().is_cpu() {
            true => Ok(StateValues::Host(p.read(<[f32]>::to_vec)?)),
            false => Ok(StateValues::OnGpu(copy(p.tensor())?)),
        });
        Ok(Self { decay, mean: mean.collect::<Result<_>>()? })
    }

    /// Updates the average after the phase's optimiser step `step` (counted from 1).
    pub(crate) fn update(&mut self, parameters: &Parameters, step: u64) -> Result<()> {
        let value_weight = value_weight(self.decay, step);
        for (parameter, mean) in parameters.trainable().zip(&mut self.mean) {
            let values = parameter.tensor();
            if !values.device().is_cpu() {
                let mean = mean.tensor(values.dims(), values).map_err(ModelError::from)?;
                *mean = moved(&*mean, &values.detach(), value_weight).map_err(ModelError::from)?;
                continue;
            }
            let mean = mean.host()?;
            parameter.read(|values| move_towards(mean, values, value_weight))?;
        }
        Ok(())
    }

    /// Swaps the average and the parameters. A second call restores both exactly.
    pub(crate) fn swap(&mut self, parameters: &Parameters) -> Result<()> {
        for (parameter, mean) in parameters.trainable().zip(&mut self.mean) {
            let values = parameter.tensor();
            if values.device().is_cpu() {
                let mean = mean.host()?;
                parameter.update(&mut |values| values.swap_with_slice(mean))?;
            } else {
                let mean = mean.tensor(values.dims(), values).map_err(ModelError::from)?;
                let values = copy(values)?;
                parameter.set(mean)?;
                *mean = values;
            }
        }
        Ok(())
    }

    /// The averages, flattened, in the order of the trainable parameters.
    pub(crate) fn values(&self) -> Result<Vec<Cow<'_, [f32]>>> {
        self.mean.iter().map(StateValues::to_host).collect()
    }

    /// Replaces the averages. `read` returns the flattened values of a parameter's average.
    pub(crate) fn restore(
        &mut self,
        parameters: &Parameters,
        read: impl Fn(&Parameter) -> Result<Vec<f32>>,
    ) -> Result<()> {
        for (parameter, mean) in parameters.trainable().zip(&mut self.mean) {
            *mean = StateValues::Host(read(parameter)?);
        }
        Ok(())
    }
}

/// The weight of the values in the average at a step. Early steps use a lower decay:
/// `min(decay, (1 + step) / (10 + step))`.
pub(crate) fn value_weight(decay: f64, step: u64) -> f32 {
    let step = step as f64;
    (1.0 - decay.min((1.0 + step) / (10.0 + step))) as f32
}

/// Moves an average towards the values.
pub(crate) fn move_towards(mean: &mut [f32], values: &[f32], value_weight: f32) {
    let blocks = mean.par_chunks_mut(BLOCK).zip(values.par_chunks(BLOCK));
    blocks.for_each(|(mean, values)| {
        for (mean, value) in mean.iter_mut().zip(values) {
            let Ok(moved) = moved(mean, value, value_weight);
            *mean = moved;
        }
    });
}

/// A copy with its own storage.
fn copy(values: &Tensor) -> Result<Tensor> {
    Ok(values.detach().copy().map_err(ModelError::from)?)
}

/// The average after it moved towards the values.
#[inline(always)]
fn moved<L: Lane>(mean: &L, values: &L, value_weight: f32) -> Result<L, L::Error> {
    mean.plus(&values.minus(mean)?.times(value_weight)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;
    use engram_models::compute::to_host;
    use engram_models::params::{Init, ParameterBuilder};

    #[test]
    fn updates_decay_by_step_and_two_swaps_restore_both_exactly() -> Result<()> {
        let builder = ParameterBuilder::on_cpu(0);
        builder.get("weight", &[2], Init::Zeros)?;
        let parameters = builder.finish()?;
        let set_all = |value: f32| -> Result<()> {
            parameters.iter().try_for_each(|p| Ok(p.update(&mut |values| values.fill(value))?))
        };
        let mean = |ema: &Ema| -> Result<Vec<f32>> { Ok(ema.values()?[0].to_vec()) };
        let tensor = |value: f32| -> Result<Tensor> {
            let values = Tensor::full(value, 2, &Device::Cpu);
            Ok(values.map_err(ModelError::from)?)
        };
        let mut ema = Ema::new(0.75, &parameters)?;
        set_all(1.0)?;
        // The decay of step 1 is (1 + 1) / (10 + 1), the decay of step 1000 is 0.75.
        ema.update(&parameters, 1)?;
        assert!((mean(&ema)?[0] - 9.0 / 11.0).abs() < 1e-6);
        let moved = moved(&tensor(0.0)?, &tensor(1.0)?, 9.0 / 11.0).map_err(ModelError::from)?;
        assert_eq!(to_host(&moved).map_err(ModelError::from)?, mean(&ema)?);
        ema.update(&parameters, 1000)?;
        let before = mean(&ema)?;
        assert!((before[0] - (1.0 - 0.75 * 2.0 / 11.0)).abs() < 1e-6);
        ema.swap(&parameters)?;
        assert!(parameters.iter().all(|p| p.to_vec().is_ok_and(|values| values == before)));
        ema.swap(&parameters)?;
        assert!(parameters.iter().all(|p| p.to_vec().is_ok_and(|values| values == [1.0, 1.0])));
        assert_eq!(mean(&ema)?, before);
        Ok(())
    }
}
