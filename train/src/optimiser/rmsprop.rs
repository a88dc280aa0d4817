//! RMSProp (Tieleman and Hinton, 2012), as in `torch.optim.RMSprop`.

use candle_core::Tensor;
use multiversion::multiversion;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::settings::{InvalidKey, Settings, at_least_zero, below_one, positive};
use super::state_values::StateValues;
use super::{BLOCK, State, Step, UpdateRule, decay_of};
use crate::error::Result;

/// `kind = "rmsprop"`: gradients divided by the root of their running mean square.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RmspropSettings {
    /// The decay of the running mean square.
    pub decay: f64,
    /// Added to the root mean square.
    pub epsilon: f64,
    /// The factor on the sum of earlier updates; 0 for none.
    pub momentum: f64,
    /// Weight decay for tensors of rank 2 or higher, added to the gradient (L2 penalty).
    pub weight_decay: f64,
}

impl Default for RmspropSettings {
    fn default() -> Self {
        Self { decay: 0.99, epsilon: 1e-8, momentum: 0.0, weight_decay: 0.0 }
    }
}

impl Settings for RmspropSettings {
    fn first_invalid_key(&self) -> Option<InvalidKey> {
        below_one("decay", self.decay)
            .or_else(|| positive("epsilon", self.epsilon))
            .or_else(|| below_one("momentum", self.momentum))
            .or_else(|| at_least_zero("weight_decay", self.weight_decay))
    }

    fn build(&self, shape: &[usize]) -> Box<dyn UpdateRule> {
        let count = shape.iter().product();
        let velocity = StateValues::zeros(if self.momentum > 0.0 { count } else { 0 });
        let weight_decay = decay_of(self.weight_decay, shape);
        Box::new(Rmsprop {
            settings: Self { weight_decay, ..self.clone() },
            mean_square: StateValues::zeros(count),
            velocity,
        })
    }
}

struct Rmsprop {
    settings: RmspropSettings,
    mean_square: StateValues,
    /// The decayed sum of normalised gradients; empty without momentum.
    velocity: StateValues,
}

/// The factors of one step for one tensor.
#[derive(Clone, Copy)]
struct Factors {
    gradient_scale: f32,
    weight_decay: f32,
    decay: f32,
    epsilon: f32,
    momentum: f32,
    learning_rate: f32,
}

impl UpdateRule for Rmsprop {
    fn update(
        &mut self,
        values: &mut [f32],
        gradient: &[f32],
        step: &Step,
        _: &mut Vec<f32>,
    ) -> Result<()> {
        let factors = Factors {
            gradient_scale: step.size.gradient_scale as f32,
            weight_decay: self.settings.weight_decay as f32,
            decay: self.settings.decay as f32,
            epsilon: self.settings.epsilon as f32,
            momentum: self.settings.momentum as f32,
            learning_rate: step.learning_rate() as f32,
        };
        let blocks = values
            .par_chunks_mut(BLOCK)
            .zip(gradient.par_chunks(BLOCK))
            .zip(self.mean_square.host()?.par_chunks_mut(BLOCK));
        if self.settings.momentum == 0.0 {
            blocks.for_each(|((values, gradient), mean_square)| {
                update_without_momentum(values, gradient, mean_square, factors);
            });
        } else {
            blocks.zip(self.velocity.host()?.par_chunks_mut(BLOCK)).for_each(
                |(((values, gradient), mean_square), velocity)| {
                    update_with_momentum(values, gradient, mean_square, velocity, factors);
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
        let RmspropSettings { decay, epsilon, momentum, weight_decay } = self.settings;
        let gradient = (gradient * step.size.gradient_scale)?;
        let gradient = (gradient + (values * weight_decay)?)?;
        let mean_square = self.mean_square.average(&gradient.sqr()?, decay)?;
        let mut update = (gradient / (mean_square.sqrt()? + epsilon)?)?;
        if momentum > 0.0 {
            let velocity = self.velocity.tensor(values.dims(), values)?;
            *velocity = ((&*velocity * momentum)? + update)?;
            update = velocity.clone();
        }
        values - (update * step.learning_rate())?
    }

    fn state(&self) -> Result<State<'_>> {
        let mut state = vec![("mean_square", self.mean_square.to_host()?)];
        if self.settings.momentum > 0.0 {
            state.push(("velocity", self.velocity.to_host()?));
        }
        Ok(state)
    }

    fn set_state(&mut self, name: &str, values: Vec<f32>) {
        if name == "velocity" {
            self.velocity = StateValues::Host(values);
        } else {
            self.mean_square = StateValues::Host(values);
        }
    }
}

/// Updates the mean square and returns the gradient divided by the root of the mean
/// square.
#[inline(always)]
fn normalised(value: f32, gradient: f32, mean_square: &mut f32, factors: Factors) -> f32 {
    let gradient = factors.weight_decay.mul_add(value, gradient * factors.gradient_scale);
    *mean_square = factors.decay.mul_add(*mean_square, (1.0 - factors.decay) * gradient * gradient);
    gradient / (mean_square.sqrt() + factors.epsilon)
}

#[multiversion(targets("x86_64+avx512f+avx512vl+fma", "x86_64+avx2+fma"))]
fn update_without_momentum(
    values: &mut [f32],
    gradient: &[f32],
    mean_square: &mut [f32],
    factors: Factors,
) {
    for ((value, gradient), mean_square) in values.iter_mut().zip(gradient).zip(mean_square) {
        *value = (-factors.learning_rate)
            .mul_add(normalised(*value, *gradient, mean_square, factors), *value);
    }
}

#[multiversion(targets("x86_64+avx512f+avx512vl+fma", "x86_64+avx2+fma"))]
fn update_with_momentum(
    values: &mut [f32],
    gradient: &[f32],
    mean_square: &mut [f32],
    velocity: &mut [f32],
    factors: Factors,
) {
    let elements = values.iter_mut().zip(gradient).zip(mean_square).zip(velocity);
    for (((value, gradient), mean_square), velocity) in elements {
        *velocity = factors
            .momentum
            .mul_add(*velocity, normalised(*value, *gradient, mean_square, factors));
        *value = (-factors.learning_rate).mul_add(*velocity, *value);
    }
}
