//! Adafactor (Shazeer and Stern, 2018), with the arithmetic of `optax.adafactor`.
//!
//! If the two largest dimensions of a tensor are 128 or more, only row and column means of the
//! squared gradients are stored. The order of operations follows optax:
//! - divide by the root of the second moment,
//! - clip the update's root mean square,
//! - multiply by the learning rate and by the parameter's own root mean square,
//! - apply momentum,
//! - apply weight decay (not multiplied by the learning rate),
//! - multiply by the group's factor.

mod second_moment;

use candle_core::Tensor;
use multiversion::multiversion;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::settings::{InvalidKey, Settings, at_least_zero, below_one, positive};
use super::state_values::StateValues;
use super::{BLOCK, State, Step, UpdateRule, decay_of, sum_of_squares};
use crate::error::Result;
use second_moment::SecondMoment;

/// `kind = "adafactor"`: second moments of matrices as means of rows and columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdafactorSettings {
    /// The exponent in the decay of the second moment: `1 − t^−exponent` at step `t`.
    pub decay_exponent: f64,
    /// Added to the squared gradients.
    pub epsilon: f64,
    /// The maximum root mean square of a tensor's update, for update clipping.
    pub update_clip: f64,
    /// Momentum, the decay of the update's moving average; 0 for none.
    pub momentum: f64,
    /// Weight decay for tensors of rank 2 or higher, not multiplied by the learning rate.
    pub weight_decay: f64,
}

impl Default for AdafactorSettings {
    fn default() -> Self {
        Self {
            decay_exponent: 0.8,
            epsilon: 1e-30,
            update_clip: 1.0,
            momentum: 0.0,
            weight_decay: 0.01,
        }
    }
}

impl Settings for AdafactorSettings {
    fn first_invalid_key(&self) -> Option<InvalidKey> {
        at_least_zero("decay_exponent", self.decay_exponent)
            .or_else(|| positive("epsilon", self.epsilon))
            .or_else(|| positive("update_clip", self.update_clip))
            .or_else(|| below_one("momentum", self.momentum))
            .or_else(|| at_least_zero("weight_decay", self.weight_decay))
    }

    fn build(&self, shape: &[usize]) -> Box<dyn UpdateRule> {
        let weight_decay = decay_of(self.weight_decay, shape);
        let count = shape.iter().product();
        Box::new(Adafactor {
            settings: Self { weight_decay, ..self.clone() },
            moment: SecondMoment::zeros(shape),
            momentum: (self.momentum > 0.0).then(|| StateValues::zeros(count)),
        })
    }

    fn needs_whole_tensors(&self) -> bool {
        true
    }
}

/// The minimum of the parameter's root mean square, which scales the update.
const MIN_PARAMETER_SCALE: f64 = 1e-3;

struct Adafactor {
    settings: AdafactorSettings,
    moment: SecondMoment,
    /// The moving average of updates; `None` without momentum.
    momentum: Option<StateValues>,
}

impl Adafactor {
    fn second_moment_decay(&self, step: &Step) -> f64 {
        1.0 - (step.number as f64).powf(-self.settings.decay_exponent)
    }
}

impl UpdateRule for Adafactor {
    fn update(
        &mut self,
        values: &mut [f32],
        gradient: &[f32],
        step: &Step,
        scratch: &mut Vec<f32>,
    ) -> Result<()> {
        scratch.resize(gradient.len(), 0.0);
        let update = &mut scratch[..];
        let second_moment_decay = self.second_moment_decay(step);
        let gradient_scale = step.size.gradient_scale as f32;
        let epsilon = self.settings.epsilon as f32;
        self.moment.scale(gradient, update, gradient_scale, epsilon, second_moment_decay as f32)?;
        let clip = (root_mean_square(update) / self.settings.update_clip).max(1.0);
        let parameter_scale = root_mean_square(values).max(MIN_PARAMETER_SCALE);
        let factor = (step.size.learning_rate * parameter_scale / clip) as f32;
        if let Some(mean) = &mut self.momentum {
            apply_momentum(mean.host()?, update, factor, self.settings.momentum as f32);
        }
        let factor = if self.momentum.is_some() { 1.0 } else { factor };
        let decay_factor = (1.0 - step.rate_factor * self.settings.weight_decay) as f32;
        let rate_factor = step.rate_factor as f32;
        let blocks = values.par_chunks_mut(BLOCK).zip(update.par_chunks(BLOCK));
        blocks.for_each(|(values, update)| {
            apply(values, update, -rate_factor * factor, decay_factor);
        });
        Ok(())
    }

    fn updated(
        &mut self,
        values: &Tensor,
        gradient: &Tensor,
        step: &Step,
    ) -> candle_core::Result<Tensor> {
        let AdafactorSettings { epsilon, update_clip, momentum, weight_decay, .. } = self.settings;
        let decay = self.second_moment_decay(step);
        let gradient = (gradient * step.size.gradient_scale)?;
        let mut update = self.moment.scaled(&gradient, epsilon, decay)?;
        let root_mean_square = |x: &Tensor| -> candle_core::Result<f64> {
            Ok(f64::from(x.sqr()?.mean_all()?.to_scalar::<f32>()?).sqrt())
        };
        let clip = (root_mean_square(&update)? / update_clip).max(1.0);
        let parameter_scale = root_mean_square(values)?.max(MIN_PARAMETER_SCALE);
        update = (update * (step.size.learning_rate * parameter_scale / clip))?;
        if let Some(mean) = &mut self.momentum {
            update = mean.average(&update, momentum)?;
        }
        (values * (1.0 - step.rate_factor * weight_decay))? - (update * step.rate_factor)?
    }

    fn state(&self) -> Result<State<'_>> {
        let mut state = match &self.moment {
            SecondMoment::Full(moment) => vec![(FULL, moment.to_host()?)],
            SecondMoment::Factored { rows, columns, .. } => {
                vec![(ROWS, rows.to_host()?), (COLUMNS, columns.to_host()?)]
            }
        };
        if let Some(momentum) = &self.momentum {
            state.push((MOMENTUM, momentum.to_host()?));
        }
        Ok(state)
    }

    fn set_state(&mut self, name: &str, values: Vec<f32>) {
        let values = StateValues::Host(values);
        match (&mut self.moment, name) {
            (_, MOMENTUM) => self.momentum = Some(values),
            (SecondMoment::Full(moment), _) => *moment = values,
            (SecondMoment::Factored { rows, .. }, ROWS) => *rows = values,
            (SecondMoment::Factored { columns, .. }, _) => *columns = values,
        }
    }
}

/// The names of the state tensors.
const FULL: &str = "second_moment";
const ROWS: &str = "second_moment_rows";
const COLUMNS: &str = "second_moment_columns";
const MOMENTUM: &str = "momentum";

/// Multiplies the update by `factor` and replaces it by its moving average `mean`.
fn apply_momentum(mean: &mut [f32], update: &mut [f32], factor: f32, momentum: f32) {
    let blocks = mean.par_chunks_mut(BLOCK).zip(update.par_chunks_mut(BLOCK));
    blocks.for_each(|(mean, update)| {
        for (mean, update) in mean.iter_mut().zip(update) {
            *mean = momentum.mul_add(*mean, (1.0 - momentum) * (*update * factor));
            *update = *mean;
        }
    });
}

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512cd+avx512dq+avx512vl+fma",
    "x86_64+avx2+fma"
))]
fn apply(values: &mut [f32], update: &[f32], update_factor: f32, decay_factor: f32) {
    for (value, update) in values.iter_mut().zip(update) {
        *value = update_factor.mul_add(*update, *value * decay_factor);
    }
}

fn root_mean_square(values: &[f32]) -> f64 {
    (sum_of_squares(values) / values.len().max(1) as f64).sqrt()
}
