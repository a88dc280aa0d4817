//! Optimisers: an update rule for each parameter. Results do not depend on the number of threads.
//!
//! To add a rule, add its file in `optimiser/` and its line in [`settings`].

mod adafactor;
mod adamw;
mod lanes;
mod lion;
mod muon;
pub mod settings;
mod sgd;

use std::borrow::Cow;

use candle_core::Tensor;
#[cfg(feature = "cuda")]
use engram_models::cuda::AdamwUpdate;
use engram_models::gradients::Gradients;
use engram_models::params::{Parameters, path_matches};
use rayon::prelude::*;

use crate::error::{Result, TrainError};
pub(crate) use lanes::{Lane, StateValues};
use settings::RuleSettings;

/// Values per parallel task. It is fixed, so that results do not depend on the thread count.
pub(crate) const BLOCK: usize = 1 << 14;

/// The learning rate and gradient scale of one step.
#[derive(Debug, Clone, Copy)]
pub struct StepSize {
    /// The learning rate from the schedule.
    pub learning_rate: f64,
    /// The factor on every gradient, for clipping and for the mean over micro-batches.
    pub gradient_scale: f64,
}

/// One step of one parameter.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// The number of the optimiser step, counted from 1 in each phase. Skipped steps do not count.
    pub number: u64,
    /// The learning rate and gradient scale.
    pub size: StepSize,
    /// The factor on the learning rate for this parameter, from groups and layer-wise decay.
    pub rate_factor: f64,
}

impl Step {
    /// The learning rate of the parameter.
    fn learning_rate(&self) -> f64 {
        self.size.learning_rate * self.rate_factor
    }
}

/// The state tensors of an update rule: names and flattened values.
pub type State<'a> = Vec<(&'static str, Cow<'a, [f32]>)>;

/// The update rule of one parameter, with its state. Functions fail if a tensor operation or a GPU
/// fails.
pub trait UpdateRule: Send {
    /// Updates the parameter's values in place. `scratch` is a buffer for temporary values.
    fn update(
        &mut self,
        values: &mut [f32],
        gradient: &[f32],
        step: &Step,
        scratch: &mut Vec<f32>,
    ) -> Result<()>;

    /// Returns the updated values of a parameter on a GPU. All tensors are on its device and have
    /// its shape. The result equals [`UpdateRule::update`] up to rounding.
    fn updated(
        &mut self,
        values: &Tensor,
        gradient: &Tensor,
        step: &Step,
    ) -> candle_core::Result<Tensor>;

    /// Returns this step for the AdamW kernel, which updates all parameters on a GPU at once.
    /// `None` for other rules.
    #[cfg(feature = "cuda")]
    fn adamw_update(
        &mut self,
        _: &Tensor,
        _: &Tensor,
        _: &Step,
    ) -> candle_core::Result<Option<AdamwUpdate>> {
        Ok(None)
    }

    /// The state tensors by name, in a fixed order.
    fn state(&self) -> Result<State<'_>>;

    /// Replaces the state tensor `name`, for resuming, and drops values derived from the old one.
    fn set_state(&mut self, name: &str, values: Vec<f32>);
}

/// The update rules of a recipe: one for all parameters, and others by path pattern.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RuleSet {
    /// The rule of parameters that match no pattern.
    pub default: RuleSettings,
    /// Path patterns with their rules. If several match a parameter, the last one applies.
    pub by_pattern: Vec<(String, RuleSettings)>,
}

impl RuleSet {
    /// The rule of the parameter with this path.
    pub fn rule_of(&self, path: &str) -> &RuleSettings {
        let mut last_first = self.by_pattern.iter().rev();
        let matching =
            last_first.find(|(pattern, _)| path_matches(pattern.as_bytes(), path.as_bytes()));
        matching.map_or(&self.default, |(_, rule)| rule)
    }
}

/// The update rules of all trainable parameters, with their states.
pub struct Optimiser {
    /// The number of steps done.
    pub steps: u64,
    /// The name of each parameter, and its rule.
    rules: Vec<(String, Box<dyn UpdateRule>)>,
    scratch: Vec<f32>,
}

impl Optimiser {
    /// An optimiser for the trainable parameters, with initial state.
    pub fn new(rules: &RuleSet, parameters: &Parameters) -> Self {
        let rules = parameters.trainable().map(|parameter| {
            let rule = rules.rule_of(parameter.name()).build(parameter.tensor().dims());
            (parameter.name().to_owned(), rule)
        });
        Self { steps: 0, rules: rules.collect(), scratch: Vec::new() }
    }

    /// Updates every trainable parameter that has a gradient. `rate_factors` holds a factor on the
    /// learning rate for each parameter, in the order of [`Parameters::trainable`].
    ///
    /// # Errors
    /// [`TrainError::Model`] if a tensor operation fails.
    pub fn step(
        &mut self,
        parameters: &Parameters,
        gradients: &Gradients,
        rate_factors: &[f64],
        size: StepSize,
    ) -> Result<()> {
        self.steps += 1;
        #[cfg(feature = "cuda")]
        let mut updates = Vec::new();
        let with_rules = parameters.trainable().zip(&mut self.rules).zip(rate_factors);
        for (index, ((parameter, (_, rule)), rate_factor)) in with_rules.enumerate() {
            let step = Step { number: self.steps, size, rate_factor: *rate_factor };
            if let Some(gradient) = gradients.on_gpu(index) {
                let values = parameter.tensor();
                #[cfg(feature = "cuda")]
                if let Some(update) = rule.adamw_update(values, gradient, &step).map_err(model)? {
                    updates.push(update);
                    continue;
                }
                parameter.set(&rule.updated(values, gradient, &step).map_err(model)?)?;
                continue;
            }
            let Some(gradient) = gradients.get(index) else { continue };
            let mut result = Ok(());
            parameter.update(&mut |values| {
                result = rule.update(values, gradient, &step, &mut self.scratch);
            })?;
            result?;
        }
        #[cfg(feature = "cuda")]
        engram_models::cuda::adamw(&updates).map_err(model)?;
        Ok(())
    }

    /// The state in a fixed order: the names of parameter and state tensor, such as
    /// `encoder.weight#first_moment`, and the flattened values.
    ///
    /// # Errors
    /// [`TrainError::Model`] if a GPU fails.
    pub fn state(&self) -> Result<Vec<(String, Cow<'_, [f32]>)>> {
        let mut tensors = Vec::new();
        for (parameter, rule) in &self.rules {
            for (state, values) in rule.state()? {
                tensors.push((full_name(parameter, state), values));
            }
        }
        Ok(tensors)
    }

    /// Restores the state after `steps` steps. `read(name, length)` returns the values of a state
    /// tensor.
    ///
    /// # Errors
    /// The errors of `read`.
    pub fn restore(
        &mut self,
        steps: u64,
        read: impl Fn(&str, usize) -> Result<Vec<f32>>,
    ) -> Result<()> {
        self.steps = steps;
        for (parameter, rule) in &mut self.rules {
            let state_lengths: Vec<_> =
                rule.state()?.iter().map(|(state, values)| (*state, values.len())).collect();
            for (state, length) in state_lengths {
                rule.set_state(state, read(&full_name(parameter, state), length)?);
            }
        }
        Ok(())
    }
}

fn model(error: candle_core::Error) -> TrainError {
    TrainError::Model(error.into())
}

/// The name of a state tensor.
pub(crate) fn full_name(parameter: &str, state: &str) -> String {
    format!("{parameter}#{state}")
}

/// The sum of squares in f64, in an order that does not depend on the thread count.
fn sum_of_squares(values: &[f32]) -> f64 {
    let square = |value: &f32| f64::from(*value) * f64::from(*value);
    let sums: Vec<f64> =
        values.par_chunks(BLOCK).map(|block| block.iter().map(square).sum()).collect();
    sums.iter().sum()
}

/// The weight decay for a tensor of this shape; 0 for vectors (biases, norm scales).
fn decay_of(weight_decay: f64, shape: &[usize]) -> f64 {
    if shape.len() >= 2 { weight_decay } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use engram_models::compute::to_host;

    use super::*;

    /// Every rule takes the same steps with tensor operations, which update parameters on a GPU, as
    /// with loops on the CPU. The state has the same names and values.
    #[test]
    fn steps_with_tensor_operations_equal_steps_on_the_cpu() {
        let rules = [
            "kind = 'adamw'",
            "kind = 'adafactor'",
            "kind = 'adafactor'\nmomentum = 0.9",
            "kind = 'lion'",
            "kind = 'muon'",
            "kind = 'muon'\nnesterov = false",
            "kind = 'sgd'\nmomentum = 0.0\nweight_decay = 0.1",
            "kind = 'sgd'\nmomentum = 0.9",
            "kind = 'sgd'\nmomentum = 0.9\nnesterov = true",
        ];
        let shapes: [&[usize]; 5] = [&[7], &[3, 5], &[150, 130], &[3, 130, 140], &[140, 2, 130]];
        let close = |a: &[f32], b: &[f32], what: &str| {
            assert_eq!(a.len(), b.len(), "{what}");
            let largest = b.iter().fold(0.0f32, |largest, b| largest.max(b.abs()));
            let error = a.iter().zip(b).fold(0.0f32, |error, (a, b)| error.max((a - b).abs()));
            assert!(error <= 2e-5 * largest, "{what}: {error} of {largest}");
        };
        for text in rules {
            let settings: RuleSettings = toml::from_str(text).expect("a rule");
            for shape in shapes {
                let what = format!("{text} {shape:?}");
                let (mut on_cpu, mut with_tensors) = (settings.build(shape), settings.build(shape));
                let count: usize = shape.iter().product();
                let mut values: Vec<f32> = (0..count).map(|i| (i as f32).sin()).collect();
                let mut tensor = Tensor::from_slice(&values, shape, &Device::Cpu).expect("values");
                for number in 1..=4 {
                    let gradient = |i| ((i * i + number as usize * i) as f32).cos() + 0.1;
                    let gradient: Vec<f32> = (0..count).map(gradient).collect();
                    let size = StepSize { learning_rate: 0.01, gradient_scale: 0.5 };
                    let step = Step { number, size, rate_factor: 0.7 };
                    let updated = on_cpu.update(&mut values, &gradient, &step, &mut Vec::new());
                    updated.expect("a step on the CPU");
                    let gradient = Tensor::from_slice(&gradient, shape, &Device::Cpu);
                    let gradient = gradient.expect("a gradient");
                    tensor = with_tensors.updated(&tensor, &gradient, &step).expect("a step");
                }
                assert_eq!(tensor.dims(), shape, "{what}");
                close(&to_host(&tensor).expect("values"), &values, &what);
                let states = [on_cpu.state(), with_tensors.state()].map(|s| s.expect("a state"));
                assert_eq!(states[0].len(), states[1].len(), "{what}");
                for ((name, expected), (other, found)) in states[0].iter().zip(&states[1]) {
                    assert_eq!(name, other, "{what}");
                    close(found, expected, &format!("{what} {name}"));
                }
            }
        }
    }
}
