//! Optimisers: one pass over each tensor, in place, with the same bytes on any number of threads.

mod adafactor;
mod adamw;

use engram_models::gradients::Gradients;
use engram_models::params::{Parameter, Parameters};

use crate::error::Result;
use crate::recipe::{OptimiserKind, OptimiserSettings};
pub use adafactor::Adafactor;
pub use adamw::AdamW;

/// Numbers that one parallel task works through; fixed, so that results do not depend on threads.
const BLOCK: usize = 1 << 14;

/// One step's common numbers.
#[derive(Debug, Clone, Copy)]
pub struct StepSize {
    /// The learning rate that the schedule gives.
    pub learning_rate: f64,
    /// The factor on every gradient: clipping, and the mean over micro-batches.
    pub gradient_scale: f64,
}

/// One tensor of an optimiser's state.
#[derive(Debug, Clone, Copy)]
pub struct StateTensor<'a> {
    /// The parameter's name and the state's, such as `encoder.weight#first_moment`.
    pub name: &'a str,
    /// The values, flat.
    pub values: &'a [f32],
}

/// A rule that moves the trainable parameters along their gradients.
pub trait Optimiser {
    /// Moves every trainable parameter that has a gradient. `rates` holds one factor on the
    /// learning rate for each, in the order of [`Parameters::trainable`].
    fn step(
        &mut self,
        parameters: &Parameters,
        gradients: &Gradients,
        rates: &[f64],
        size: StepSize,
    ) -> Result<()>;

    /// The steps done.
    fn steps(&self) -> u64;

    /// Sets the steps done, when a run is resumed and [`Optimiser::state_mut`] has been filled.
    fn set_steps(&mut self, steps: u64);

    /// The state by name, in a fixed order.
    fn state(&self) -> Vec<StateTensor<'_>>;

    /// The same, to be filled when a run is resumed.
    fn state_mut(&mut self) -> Vec<(&str, &mut [f32])>;
}

/// The optimiser that the recipe asks for, with fresh state for these parameters.
pub fn new(settings: &OptimiserSettings, parameters: &Parameters) -> Box<dyn Optimiser> {
    match settings.kind {
        OptimiserKind::Adamw => Box::new(AdamW::new(settings, parameters)),
        OptimiserKind::Adafactor => Box::new(Adafactor::new(settings, parameters)),
    }
}

/// A tensor of state with its name.
struct Buffer {
    name: String,
    values: Vec<f32>,
}

impl Buffer {
    /// Zeros, named after the parameter.
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

/// The trainable parameters that have a gradient: each with it, its rate and its state.
fn moving<'a, S>(
    parameters: &'a Parameters,
    gradients: &'a Gradients,
    rates: &'a [f64],
    states: &'a mut [S],
) -> impl Iterator<Item = (&'a Parameter, &'a [f32], f64, &'a mut S)> {
    let all = parameters.trainable().zip(states).enumerate();
    all.filter_map(|(i, (parameter, state))| Some((parameter, gradients.get(i)?, rates[i], state)))
}

/// Weight decay of a tensor: none for vectors (biases, the scale of a norm).
fn decay_of(settings: &OptimiserSettings, parameter: &Parameter) -> f64 {
    if parameter.tensor().rank() >= 2 { settings.weight_decay } else { 0.0 }
}
