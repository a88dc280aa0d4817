//! The kernels of a chain as one kernel.

use candle_core::{Result, Shape};

use super::super::device::DeviceKernel;
use super::super::operation::{BufferState, Gradient, Input, Kernel, Output, Pass, SavedValues};
use super::super::rows::zeros;

/// The index of an input, or of the step whose output is used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Source {
    Input(usize),
    Step(usize),
}

/// The kernels of a chain, in order.
#[derive(Default)]
pub(super) struct Steps {
    pub(super) list: Vec<Step>,
    /// Whether the backward pass computes the outputs of cheap kernels again.
    pub(super) selective: bool,
}

/// A kernel and the sources of its inputs.
pub(super) struct Step {
    pub(super) kernel: Box<dyn Kernel>,
    pub(super) sources: Vec<Source>,
}

/// The saved state of a step: the kernel's own, and the output with its dimensions.
pub(crate) struct StepState {
    saved: SavedValues,
    /// `None` for the last step, because the chain returns its output, and for outputs that the
    /// backward pass computes again.
    output: Option<Vec<f32>>,
    dims: Vec<usize>,
}

/// The values of a chain's inputs and steps.
struct Values<'a> {
    inputs: &'a [Input<'a>],
    states: &'a [StepState],
    /// The outputs that the backward pass has computed again; `None` for other steps.
    again: Vec<Option<Vec<f32>>>,
}

impl Values<'_> {
    /// Returns the output of a step, if it is in memory.
    fn output(&self, step: usize) -> Option<&[f32]> {
        self.states[step].output.as_deref().or_else(|| self.again.get(step)?.as_deref())
    }

    /// Returns the inputs of a step.
    fn gather(&self, step: &Step) -> Result<Vec<Input<'_>>> {
        let find = |source: &Source| match *source {
            Source::Input(i) => Ok(self.inputs[i]),
            Source::Step(j) => match self.output(j) {
                Some(data) => Ok(Input { data, dims: &self.states[j].dims }),
                None => candle_core::bail!("chain: the output of kernel {j} is not in memory"),
            },
        };
        step.sources.iter().map(find).collect()
    }
}

impl Steps {
    /// Computes the dropped inputs of a step again.
    fn compute_inputs(&self, step: &Step, values: &mut Values<'_>) -> Result<()> {
        for source in &step.sources {
            if let Source::Step(j) = *source
                && values.output(j).is_none()
            {
                let source = &self.list[j];
                self.compute_inputs(source, values)?;
                let (output, _, _) = source.kernel.forward(&values.gather(source)?)?;
                values.again[j] = Some(output);
            }
        }
        Ok(())
    }

    /// Drops the outputs of cheap kernels whose last use is this step.
    fn drop_outputs(&self, step: usize, states: &mut [StepState]) {
        for source in &self.list[step].sources {
            let is_used_later =
                || self.list[step + 1..].iter().any(|later| later.sources.contains(source));
            if let Source::Step(j) = *source
                && self.list[j].kernel.is_cheap()
                && !is_used_later()
            {
                states[j].output = None;
            }
        }
    }
}

impl Kernel for Steps {
    fn name(&self) -> &'static str {
        "chain"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output> {
        let mut states: Vec<StepState> = Vec::with_capacity(self.list.len());
        for (i, step) in self.list.iter().enumerate() {
            let values = Values { inputs, states: &states, again: Vec::new() };
            let (output, shape, saved) = step.kernel.forward(&values.gather(step)?)?;
            states.push(StepState { saved, output: Some(output), dims: shape.dims().to_vec() });
            if self.selective {
                self.drop_outputs(i, &mut states);
            }
        }
        let last =
            states.last_mut().and_then(|last| Some((last.output.take()?, last.dims.clone())));
        match last {
            Some((output, dims)) => Ok((output, Shape::from(dims), Box::new(states))),
            None => candle_core::bail!("chain: no kernels were added"),
        }
    }

    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()> {
        let (inputs, output, gradient) = (pass.inputs, pass.output, pass.gradient);
        let states = pass.saved::<Vec<StepState>>()?;
        let last = self.list.len() - 1;
        let again = self.list.iter().map(|_| None).collect();
        let mut values = Values { inputs, states, again };
        let mut gradients: Vec<Option<Gradient>> = self.list.iter().map(|_| None).collect();
        for (i, (step, state)) in self.list.iter().zip(states).enumerate().rev() {
            let step_gradient = gradients[i].take();
            let (output, gradient) = match &step_gradient {
                _ if i == last => (output, gradient),
                Some(step_gradient) => {
                    (state.output.as_deref().unwrap_or_default(), step_gradient.data.as_slice())
                }
                // The result does not depend on this step.
                None => continue,
            };
            values.again[i] = None;
            self.compute_inputs(step, &mut values)?;
            let mut step_gradients: Vec<Option<Gradient>> = step
                .sources
                .iter()
                .map(|source| match *source {
                    Source::Input(k) => input_gradients[k].take(),
                    Source::Step(j) => Some(gradients[j].take().unwrap_or_else(|| Gradient {
                        data: zeros(states[j].dims.iter().product()),
                        state: BufferState::Zeros,
                    })),
                })
                .collect();
            let step_inputs = values.gather(step)?;
            let step_pass = Pass { inputs: &step_inputs, output, gradient, saved: &state.saved };
            step.kernel.backward(&step_pass, &mut step_gradients)?;
            for (source, input_gradient) in step.sources.iter().zip(step_gradients) {
                let input_gradient = input_gradient
                    .map(|input_gradient| Gradient { state: BufferState::Sum, ..input_gradient });
                match *source {
                    Source::Input(k) => input_gradients[k] = input_gradient,
                    Source::Step(j) => gradients[j] = input_gradient,
                }
            }
        }
        Ok(())
    }

    fn device(&self) -> Option<&dyn DeviceKernel> {
        Some(self)
    }
}
