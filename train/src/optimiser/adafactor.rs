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

use super::lanes::{DecayedStep, ElementRule, Lane, MeanWeights, StateValues, update_all};
use super::settings::{InvalidKey, Settings, at_least_zero, below_one, positive};
use super::{State, Step, UpdateRule, decay_of, sum_of_squares};
use crate::error::Result as TrainResult;
use crate::recipe::table;
use second_moment::SecondMoment;

table! {
    /// `kind = "adafactor"`: second moments of matrices as means of rows and columns.
    pub struct AdafactorSettings {
        /// The exponent in the decay of the second moment: `1 − t^−exponent` at step `t`.
        pub decay_exponent: f64 = 0.8,
        /// Added to the squared gradients.
        pub epsilon: f64 = 1e-30,
        /// The maximum root mean square of a tensor's update, for update clipping.
        pub update_clip: f64 = 1.0,
        /// Momentum, the decay of the update's moving average; 0 for none.
        pub momentum: f64 = 0.0,
        /// Weight decay for tensors of rank 2 or higher, not multiplied by the learning rate.
        pub weight_decay: f64 = 0.01,
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

    /// The factor on the update, from the root mean squares of the update and of the parameter.
    fn scale(&self, of_update: f64, of_parameter: f64, step: &Step) -> f32 {
        let clip = (of_update / self.settings.update_clip).max(1.0);
        (step.size.learning_rate * of_parameter.max(MIN_PARAMETER_SCALE) / clip) as f32
    }

    fn step(&self, scale: f32, step: &Step) -> AdafactorStep {
        let decay = (1.0 - step.rate_factor * self.settings.weight_decay) as f32;
        let rate_factor = step.rate_factor as f32;
        let momentum = MeanWeights::new(self.settings.momentum);
        AdafactorStep { scale, momentum, decay, rate_factor }
    }
}

/// The last part of a step for one tensor. Its gradients are the scaled updates.
#[derive(Clone, Copy)]
struct AdafactorStep {
    scale: f32,
    momentum: MeanWeights,
    decay: f32,
    rate_factor: f32,
}

/// Without momentum.
impl ElementRule<0> for AdafactorStep {
    #[inline(always)]
    fn apply<L: Lane>(&self, value: &L, update: &L, _: [&L; 0]) -> Result<(L, [L; 0]), L::Error> {
        let step = DecayedStep { decay: self.decay, step: -self.rate_factor * self.scale };
        Ok((step.of(value, update)?, []))
    }
}

/// With momentum: the state is the moving average of updates.
impl ElementRule<1> for AdafactorStep {
    #[inline(always)]
    fn apply<L: Lane>(
        &self,
        value: &L,
        update: &L,
        [mean]: [&L; 1],
    ) -> Result<(L, [L; 1]), L::Error> {
        let mean = self.momentum.mean(mean, &update.times(self.scale)?)?;
        let step = DecayedStep { decay: self.decay, step: -self.rate_factor };
        Ok((step.of(value, &mean)?, [mean]))
    }
}

impl UpdateRule for Adafactor {
    fn update(
        &mut self,
        values: &mut [f32],
        gradient: &[f32],
        step: &Step,
        scratch: &mut Vec<f32>,
    ) -> TrainResult<()> {
        scratch.resize(gradient.len(), 0.0);
        let update = &mut scratch[..];
        let decay = self.second_moment_decay(step);
        let gradient_scale = step.size.gradient_scale as f32;
        let epsilon = self.settings.epsilon as f32;
        self.moment.scale(gradient, update, gradient_scale, epsilon, decay)?;
        let scale = self.scale(root_mean_square(update), root_mean_square(values), step);
        let rule = self.step(scale, step);
        match &mut self.momentum {
            Some(mean) => update_all(rule, values, update, [mean.host()?]),
            None => update_all(rule, values, update, []),
        }
        Ok(())
    }

    fn updated(
        &mut self,
        values: &Tensor,
        gradient: &Tensor,
        step: &Step,
    ) -> candle_core::Result<Tensor> {
        let decay = self.second_moment_decay(step);
        let gradient = (gradient * step.size.gradient_scale)?;
        let update = self.moment.scaled(&gradient, self.settings.epsilon as f32, decay)?;
        let root_mean_square = |x: &Tensor| -> candle_core::Result<f64> {
            Ok(f64::from(x.sqr()?.mean_all()?.to_scalar::<f32>()?).sqrt())
        };
        let scale = self.scale(root_mean_square(&update)?, root_mean_square(values)?, step);
        let rule = self.step(scale, step);
        let Some(mean) = &mut self.momentum else {
            return Ok(rule.apply(values, &update, [])?.0);
        };
        let mean = mean.tensor(values.dims(), values)?;
        let (updated, [new_mean]) = rule.apply(values, &update, [&*mean])?;
        *mean = new_mean;
        Ok(updated)
    }

    fn state(&self) -> TrainResult<State<'_>> {
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

fn root_mean_square(values: &[f32]) -> f64 {
    (sum_of_squares(values) / values.len().max(1) as f64).sqrt()
}
