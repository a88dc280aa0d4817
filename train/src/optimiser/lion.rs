//! Lion (Chen et al., arXiv 2302.06675), as in `optax.lion`.

use candle_core::Tensor;
use multiversion::multiversion;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::settings::{InvalidKey, Settings, at_least_zero, below_one};
use super::state_values::StateValues;
use super::{BLOCK, State, Step, UpdateRule, decay_of};
use crate::error::Result;

/// `kind = "lion"`: steps of equal length along the sign of a momentum. Use 3 to 10 times lower
/// learning rates than with AdamW.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LionSettings {
    /// The momentum's weight in the update, and the momentum's decay rate.
    pub betas: [f64; 2],
    /// Weight decay for tensors of rank 2 or higher, multiplied by the learning rate.
    pub weight_decay: f64,
}

impl Default for LionSettings {
    fn default() -> Self {
        Self { betas: [0.9, 0.99], weight_decay: 0.01 }
    }
}

impl Settings for LionSettings {
    fn first_invalid_key(&self) -> Option<InvalidKey> {
        let mut betas = self.betas.into_iter();
        betas
            .find_map(|beta| below_one("betas", beta))
            .or_else(|| at_least_zero("weight_decay", self.weight_decay))
    }

    fn build(&self, shape: &[usize]) -> Box<dyn UpdateRule> {
        Box::new(Lion {
            betas: self.betas,
            weight_decay: decay_of(self.weight_decay, shape),
            momentum: StateValues::zeros(shape.iter().product()),
        })
    }
}

struct Lion {
    betas: [f64; 2],
    weight_decay: f64,
    momentum: StateValues,
}

/// The factors of one step for one tensor.
#[derive(Clone, Copy)]
struct Factors {
    gradient_scale: f32,
    betas: [f32; 2],
    learning_rate: f32,
    /// The factor on the parameter: `1 − learning_rate · weight_decay`.
    decay_factor: f32,
}

impl Lion {
    fn factors(&self, step: &Step) -> Factors {
        let learning_rate = step.learning_rate();
        Factors {
            gradient_scale: step.size.gradient_scale as f32,
            betas: self.betas.map(|beta| beta as f32),
            learning_rate: learning_rate as f32,
            decay_factor: (1.0 - learning_rate * self.weight_decay) as f32,
        }
    }
}

impl UpdateRule for Lion {
    fn update(
        &mut self,
        values: &mut [f32],
        gradient: &[f32],
        step: &Step,
        _: &mut Vec<f32>,
    ) -> Result<()> {
        let factors = self.factors(step);
        values
            .par_chunks_mut(BLOCK)
            .zip(gradient.par_chunks(BLOCK))
            .zip(self.momentum.host()?.par_chunks_mut(BLOCK))
            .for_each(|((values, gradient), momentum)| apply(values, gradient, momentum, factors));
        Ok(())
    }

    fn updated(
        &mut self,
        values: &Tensor,
        gradient: &Tensor,
        step: &Step,
    ) -> candle_core::Result<Tensor> {
        let Factors { gradient_scale, learning_rate, decay_factor, .. } = self.factors(step);
        let [beta1, beta2] = self.betas;
        let gradient = (gradient * f64::from(gradient_scale))?;
        let momentum = self.momentum.tensor(values.dims(), values)?;
        let direction = ((&*momentum * beta1)? + (&gradient * (1.0 - beta1))?)?;
        self.momentum.average(&gradient, beta2)?;
        let update = (direction.sign()? * f64::from(learning_rate))?;
        (values * f64::from(decay_factor))? - update
    }

    fn state(&self) -> Result<State<'_>> {
        Ok(vec![("momentum", self.momentum.to_host()?)])
    }

    fn set_state(&mut self, _: &str, values: Vec<f32>) {
        self.momentum = StateValues::Host(values);
    }
}

#[multiversion(targets("x86_64+avx512f+avx512vl+fma", "x86_64+avx2+fma"))]
fn apply(values: &mut [f32], gradient: &[f32], momentum: &mut [f32], factors: Factors) {
    let [beta1, beta2] = factors.betas;
    for ((value, gradient), momentum) in values.iter_mut().zip(gradient).zip(momentum) {
        let gradient = gradient * factors.gradient_scale;
        let direction = beta1.mul_add(*momentum, (1.0 - beta1) * gradient);
        // Here the sign of 0 is 0; `f32::signum` returns 1 or −1.
        let sign = f32::from(u8::from(direction > 0.0)) - f32::from(u8::from(direction < 0.0));
        *momentum = beta2.mul_add(*momentum, (1.0 - beta2) * gradient);
        *value = (-factors.learning_rate).mul_add(sign, *value * factors.decay_factor);
    }
}
