//! AdamW: Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
//!
//! The operations and their order equal those of `torch.optim.AdamW`.

use candle_core::Tensor;
#[cfg(feature = "cuda")]
use engram_models::cuda::AdamwUpdate;
use multiversion::multiversion;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::settings::{InvalidKey, Settings, at_least_zero, below_one, positive};
use super::state_values::StateValues;
use super::{BLOCK, State, Step, UpdateRule, decay_of};
use crate::error::Result;

/// `kind = "adamw"`: Adam with decoupled weight decay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdamwSettings {
    /// Decay rates of the first and second moment.
    pub betas: [f64; 2],
    /// Added to the square root of the second moment.
    pub epsilon: f64,
    /// Weight decay for tensors of rank 2 or higher, multiplied by the learning rate.
    pub weight_decay: f64,
}

impl Default for AdamwSettings {
    fn default() -> Self {
        Self { betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.01 }
    }
}

impl Settings for AdamwSettings {
    fn first_invalid_key(&self) -> Option<InvalidKey> {
        let mut betas = self.betas.into_iter();
        betas
            .find_map(|beta| below_one("betas", beta))
            .or_else(|| positive("epsilon", self.epsilon))
            .or_else(|| at_least_zero("weight_decay", self.weight_decay))
    }

    fn build(&self, shape: &[usize]) -> Box<dyn UpdateRule> {
        Box::new(AdamW::new(self, shape))
    }
}

/// The number of values that share an idle flag: less than the row length of most embedding
/// tables.
const VALUES_PER_FLAG: usize = 256;

struct AdamW {
    betas: [f64; 2],
    epsilon: f64,
    weight_decay: f64,
    first_moment: StateValues,
    second_moment: StateValues,
    /// For each block of values, whether both moments are all 0. Idle values only decay. A row of a
    /// word embedding table is idle until its token occurs. Empty before the first update, and
    /// after the moments were replaced.
    idle: Vec<bool>,
}

/// The factors of one step for one tensor.
#[derive(Clone, Copy)]
struct Factors {
    gradient_scale: f32,
    /// The factor on the parameter: `1 − learning_rate · weight_decay`.
    decay_factor: f32,
    beta1: f32,
    beta2: f32,
    /// The factor on the ratio of the first moment to the second moment's root, at step `t`:
    /// `−learning_rate / (1 − beta1^t)`.
    step: f32,
    /// `√(1 − beta2^t)`: the bias correction of the second moment's square root.
    correction: f32,
    epsilon: f32,
}

impl AdamW {
    fn new(settings: &AdamwSettings, shape: &[usize]) -> Self {
        let count = shape.iter().product();
        Self {
            betas: settings.betas,
            epsilon: settings.epsilon,
            weight_decay: decay_of(settings.weight_decay, shape),
            first_moment: StateValues::zeros(count),
            second_moment: StateValues::zeros(count),
            idle: Vec::new(),
        }
    }

    fn factors(&self, step: &Step) -> Factors {
        let [beta1, beta2] = self.betas;
        let correction1 = 1.0 - beta1.powf(step.number as f64);
        let correction2 = 1.0 - beta2.powf(step.number as f64);
        let learning_rate = step.learning_rate();
        Factors {
            gradient_scale: step.size.gradient_scale as f32,
            decay_factor: (1.0 - learning_rate * self.weight_decay) as f32,
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            step: (-learning_rate / correction1) as f32,
            correction: correction2.sqrt() as f32,
            epsilon: self.epsilon as f32,
        }
    }
}

impl UpdateRule for AdamW {
    fn update(
        &mut self,
        values: &mut [f32],
        gradient: &[f32],
        step: &Step,
        _: &mut Vec<f32>,
    ) -> Result<()> {
        let factors = self.factors(step);
        let (first_moment, second_moment) = (self.first_moment.host()?, self.second_moment.host()?);
        if self.idle.is_empty() {
            let blocks =
                first_moment.chunks(VALUES_PER_FLAG).zip(second_moment.chunks(VALUES_PER_FLAG));
            let idle = blocks.map(|(first_moment, second_moment)| {
                first_moment.iter().chain(second_moment).all(|m| *m == 0.0)
            });
            self.idle = idle.collect();
        }
        values
            .par_chunks_mut(BLOCK)
            .zip(gradient.par_chunks(BLOCK))
            .zip(first_moment.par_chunks_mut(BLOCK))
            .zip(second_moment.par_chunks_mut(BLOCK))
            .zip(self.idle.par_chunks_mut(BLOCK / VALUES_PER_FLAG))
            .for_each(|((((values, gradient), first_moment), second_moment), idle)| {
                let blocks = values
                    .chunks_mut(VALUES_PER_FLAG)
                    .zip(gradient.chunks(VALUES_PER_FLAG))
                    .zip(first_moment.chunks_mut(VALUES_PER_FLAG))
                    .zip(second_moment.chunks_mut(VALUES_PER_FLAG))
                    .zip(idle);
                for ((((values, gradient), first_moment), second_moment), idle) in blocks {
                    *idle = *idle && gradient.iter().all(|g| *g == 0.0);
                    if *idle {
                        values.iter_mut().for_each(|value| *value *= factors.decay_factor);
                    } else {
                        update(values, gradient, first_moment, second_moment, factors);
                    }
                }
            });
        Ok(())
    }

    fn updated(
        &mut self,
        values: &Tensor,
        gradient: &Tensor,
        step: &Step,
    ) -> candle_core::Result<Tensor> {
        let f = self.factors(step);
        let [beta1, beta2] = self.betas;
        let gradient = (gradient * f64::from(f.gradient_scale))?;
        let first_moment = self.first_moment.average(&gradient, beta1)?;
        let second_moment = self.second_moment.average(&gradient.sqr()?, beta2)?;
        let root = (second_moment.sqrt()? / f64::from(f.correction))?;
        let direction = (first_moment / (root + f64::from(f.epsilon))?)?;
        (values * f64::from(f.decay_factor))? + (direction * f64::from(f.step))?
    }

    #[cfg(feature = "cuda")]
    fn adamw_update(
        &mut self,
        values: &Tensor,
        gradient: &Tensor,
        step: &Step,
    ) -> candle_core::Result<Option<AdamwUpdate>> {
        let f = self.factors(step);
        let first_moment = self.first_moment.tensor(values.dims(), values)?.clone();
        let second_moment = self.second_moment.tensor(values.dims(), values)?.clone();
        Ok(Some(AdamwUpdate {
            values: values.clone(),
            moments: [first_moment, second_moment],
            gradient: gradient.contiguous()?,
            factors: [
                f.gradient_scale,
                f.decay_factor,
                f.beta1,
                f.beta2,
                f.step,
                f.correction,
                f.epsilon,
            ],
        }))
    }

    fn state(&self) -> Result<State<'_>> {
        Ok(vec![
            ("first_moment", self.first_moment.to_host()?),
            ("second_moment", self.second_moment.to_host()?),
        ])
    }

    fn set_state(&mut self, name: &str, values: Vec<f32>) {
        self.idle.clear();
        if name == "first_moment" {
            self.first_moment = StateValues::Host(values);
        } else {
            self.second_moment = StateValues::Host(values);
        }
    }
}

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512cd+avx512dq+avx512vl+fma",
    "x86_64+avx2+fma"
))]
fn update(
    values: &mut [f32],
    gradient: &[f32],
    first_moment: &mut [f32],
    second_moment: &mut [f32],
    factors: Factors,
) {
    let one_minus_beta1 = 1.0 - factors.beta1;
    let one_minus_beta2 = 1.0 - factors.beta2;
    for (((value, gradient), first_moment), second_moment) in
        values.iter_mut().zip(gradient).zip(first_moment.iter_mut()).zip(second_moment.iter_mut())
    {
        let gradient = gradient * factors.gradient_scale;
        *first_moment = one_minus_beta1.mul_add(gradient - *first_moment, *first_moment);
        *second_moment =
            factors.beta2.mul_add(*second_moment, one_minus_beta2 * gradient * gradient);
        let denominator = second_moment.sqrt() / factors.correction + factors.epsilon;
        *value = factors.step.mul_add(*first_moment / denominator, *value * factors.decay_factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimiser::StepSize;

    /// The rows of a table get gradients at different steps. The shortcut gives the same values as
    /// no shortcut, also if the state is restored before each step.
    #[test]
    fn the_shortcut_for_idle_values_changes_no_value() {
        const WIDTH: usize = 300;
        let settings = AdamwSettings::default();
        let run = |shortcut: bool, resume: bool| {
            let mut rule = AdamW::new(&settings, &[7, WIDTH]);
            let mut values: Vec<f32> = (0..7 * WIDTH).map(|i| (i as f32).sin()).collect();
            for (steps_done, row) in [2, 5, 2, 0, 5].into_iter().enumerate() {
                if !shortcut {
                    rule.idle = vec![false; (7 * WIDTH).div_ceil(VALUES_PER_FLAG)];
                }
                if resume {
                    let mut restored = AdamW::new(&settings, &[7, WIDTH]);
                    for (name, values) in rule.state().expect("the state") {
                        restored.set_state(name, values.to_vec());
                    }
                    rule = restored;
                }
                let mut gradient = vec![0.0; values.len()];
                for (gradient, value) in
                    gradient.iter_mut().zip(&values).skip(row * WIDTH).take(WIDTH)
                {
                    *gradient = 2.0 * value;
                }
                let size = StepSize { learning_rate: 0.1, gradient_scale: 1.0 };
                let step = Step { number: steps_done as u64 + 1, size, rate_factor: 1.0 };
                rule.update(&mut values, &gradient, &step, &mut Vec::new()).expect("a step");
            }
            assert_eq!(rule.idle.contains(&true), shortcut);
            values
        };
        let dense = run(false, false);
        assert_eq!(run(true, false), dense);
        assert_eq!(run(true, true), dense);
    }
}
