//! Optimisers: one in-place pass over each tensor, with the same bytes for any number of threads.

mod adafactor;
mod adamw;

use engram_models::gradients::Gradients;
use engram_models::params::{Parameter, Parameters};

use crate::error::Result;
use crate::recipe::{OptimiserKind, OptimiserSettings};
pub use adafactor::Adafactor;
pub use adamw::AdamW;

/// Values per parallel task. It is fixed, so that results do not depend on the thread count.
const BLOCK: usize = 1 << 14;

/// The learning rate and gradient scale of one step.
#[derive(Debug, Clone, Copy)]
pub struct StepSize {
    /// The learning rate from the schedule.
    pub learning_rate: f64,
    /// The factor on every gradient, for clipping and for the mean over micro-batches.
    pub gradient_scale: f64,
}

/// One tensor of an optimiser's state.
#[derive(Debug, Clone, Copy)]
pub struct StateTensor<'a> {
    /// The names of the parameter and of the state, such as `encoder.weight#first_moment`.
    pub name: &'a str,
    /// The flattened values.
    pub values: &'a [f32],
}

/// An algorithm that updates the trainable parameters from their gradients.
pub trait Optimiser {
    /// Updates every trainable parameter that has a gradient. `rates` holds a learning-rate factor
    /// for each parameter, in the order of [`Parameters::trainable`].
    fn step(
        &mut self,
        parameters: &Parameters,
        gradients: &Gradients,
        rates: &[f64],
        size: StepSize,
    ) -> Result<()>;

    /// The number of steps done.
    fn steps(&self) -> u64;

    /// Sets the number of steps done. A resumed run calls it after it fills
    /// [`Optimiser::state_mut`].
    fn set_steps(&mut self, steps: u64);

    /// The state by name, in a fixed order.
    fn state(&self) -> Vec<StateTensor<'_>>;

    /// The mutable state by name, for a resumed run to fill.
    fn state_mut(&mut self) -> Vec<(&str, &mut [f32])>;
}

/// The recipe's optimiser, with fresh state for these parameters.
pub fn new(settings: &OptimiserSettings, parameters: &Parameters) -> Box<dyn Optimiser> {
    match settings.kind {
        OptimiserKind::Adamw => Box::new(AdamW::new(settings, parameters)),
        OptimiserKind::Adafactor => Box::new(Adafactor::new(settings, parameters)),
    }
}

/// A named state tensor.
struct Buffer {
    name: String,
    values: Vec<f32>,
}

impl Buffer {
    /// A zero tensor, named after the parameter.
    fn new(parameter: &Parameter, state: &str, length: usize) -> Self {
        Self { name: format!("{}#{state}", parameter.name()), values: vec![0.0; length] }
    }

    fn tensor(&self) -> StateTensor<'_> {
        StateTensor { name: &self.name, values: &self.values }
    }

    fn tensor_mut(&mut self) -> (&str, &mut [f32]) {
        (&self.name, &mut self.values)
    }
}

/// The trainable parameters that have a gradient, each with its gradient, rate and state.
fn trainable_with_gradients<'a, S>(
    parameters: &'a Parameters,
    gradients: &'a Gradients,
    rates: &'a [f64],
    states: &'a mut [S],
) -> impl Iterator<Item = (&'a Parameter, &'a [f32], f64, &'a mut S)> {
    let all = parameters.trainable().zip(states).enumerate();
    all.filter_map(|(i, (parameter, state))| Some((parameter, gradients.get(i)?, rates[i], state)))
}

/// The weight decay of a tensor. It is 0 for vectors (biases, norm scales).
fn decay_of(settings: &OptimiserSettings, parameter: &Parameter) -> f64 {
    if parameter.tensor().rank() >= 2 { settings.weight_decay } else { 0.0 }
}
