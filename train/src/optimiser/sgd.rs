//! Stochastic gradient descent with momentum, as in `torch.optim.SGD`.

use candle_core::Tensor;
use multiversion::multiversion;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::settings::{InvalidKey, Settings, at_least_zero, below_one};
use super::state_values::StateValues;
use super::{BLOCK, State, Step, UpdateRule, decay_of};
use crate::error::Result;

/// `kind = "sgd"`: stochastic gradient descent with momentum.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SgdSettings {
    /// The factor on the sum of earlier gradients; 0 for none.
    pub momentum: f64,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
    /// Weight decay for tensors of rank 2 or higher, added to the gradient (L2 penalty).
    pub weight_decay: f64,
}

impl Default for SgdSettings {
    fn default() -> Self {
        Self { momentum: 0.9, nesterov: false, weight_decay: 0.0 }
    }
}

impl Settings for SgdSettings {
    fn first_invalid_key(&self) -> Option<InvalidKey> {
        let lacks_momentum = self.nesterov && self.momentum == 0.0;
        below_one("momentum", self.momentum)
            .or_else(|| lacks_momentum.then_some(("nesterov", "needs a momentum above 0")))
            .or_else(|| at_least_zero("weight_decay", self.weight_decay))
    }

    fn build(&self, shape: &[usize]) -> Box<dyn UpdateRule> {
        let count = if self.momentum > 0.0 { shape.iter().product() } else { 0 };
        Box::new(Sgd {
            momentum: self.momentum as f32,
            nesterov: self.nesterov,
            weight_decay: decay_of(self.weight_decay, shape) as f32,
            velocity: StateValues::zeros(count),
        })
    }
}

struct Sgd {
    momentum: f32,
    nesterov: bool,
    weight_decay: f32,
    /// The decayed sum of gradients; empty without momentum.
    velocity: StateValues,
}

impl UpdateRule for Sgd {
    fn update(
        &mut self,
        values: &mut [f32],
        gradient: &[f32],
        step: &Step,
        _: &mut Vec<f32>,
    ) -> Result<()> {
        let gradient_scale = step.size.gradient_scale as f32;
        let learning_rate = step.learning_rate() as f32;
        let (momentum, nesterov, weight_decay) = (self.momentum, self.nesterov, self.weight_decay);
        let blocks = values.par_chunks_mut(BLOCK).zip(gradient.par_chunks(BLOCK));
        if self.momentum == 0.0 {
            blocks.for_each(|(values, gradient)| {
                update_without_momentum(
                    values,
                    gradient,
                    gradient_scale,
                    weight_decay,
                    learning_rate,
                );
            });
        } else {
            blocks.zip(self.velocity.host()?.par_chunks_mut(BLOCK)).for_each(
                |((values, gradient), velocity)| {
                    update_with_momentum(
                        values,
                        gradient,
                        velocity,
                        gradient_scale,
                        weight_decay,
                        learning_rate,
                        momentum,
                        nesterov,
                    );
                },
            );
        }
        Ok(())
    }

    fn updated(
        &mut self,
        values: &Tensor,
        gradient: &Tensor,
        step: &Step,
    ) -> candle_core::Result<Tensor> {
        let momentum = f64::from(self.momentum);
        let gradient = (gradient * step.size.gradient_scale)?;
        let gradient = (gradient + (values * f64::from(self.weight_decay))?)?;
        if self.momentum == 0.0 {
            return values - (gradient * step.learning_rate())?;
        }
        let velocity = self.velocity.tensor(values.dims(), values)?;
        *velocity = ((&*velocity * momentum)? + &gradient)?;
        let update = match self.nesterov {
            true => (gradient + (&*velocity * momentum)?)?,
            false => velocity.clone(),
        };
        values - (update * step.learning_rate())?
    }

    fn state(&self) -> Result<State<'_>> {
        let has_velocity = self.momentum > 0.0;
        Ok(if has_velocity { vec![("velocity", self.velocity.to_host()?)] } else { Vec::new() })
    }

    fn set_state(&mut self, _: &str, values: Vec<f32>) {
        self.velocity = StateValues::Host(values);
    }
}

#[multiversion(targets("x86_64+avx512f+avx512vl+fma", "x86_64+avx2+fma"))]
fn update_without_momentum(
    values: &mut [f32],
    gradient: &[f32],
    gradient_scale: f32,
    weight_decay: f32,
    learning_rate: f32,
) {
    for (value, gradient) in values.iter_mut().zip(gradient) {
        let gradient = weight_decay.mul_add(*value, gradient * gradient_scale);
        *value = (-learning_rate).mul_add(gradient, *value);
    }
}

#[multiversion(targets("x86_64+avx512f+avx512vl+fma", "x86_64+avx2+fma"))]
#[allow(clippy::too_many_arguments)] // The factors of one loop.
fn update_with_momentum(
    values: &mut [f32],
    gradient: &[f32],
    velocity: &mut [f32],
    gradient_scale: f32,
    weight_decay: f32,
    learning_rate: f32,
    momentum: f32,
    nesterov: bool,
) {
    // The update is `gradient + momentum · velocity` with Nesterov momentum, else `velocity`.
    let (gradient_weight, velocity_weight) = if nesterov { (1.0, momentum) } else { (0.0, 1.0) };
    for ((value, gradient), velocity) in values.iter_mut().zip(gradient).zip(velocity) {
        let gradient = weight_decay.mul_add(*value, gradient * gradient_scale);
        *velocity = momentum.mul_add(*velocity, gradient);
        let update = velocity_weight.mul_add(*velocity, gradient_weight * gradient);
        *value = (-learning_rate).mul_add(update, *value);
    }
}
