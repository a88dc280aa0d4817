//! The kernels of a chain as one kernel.

use candle_core::{Shape, Tensor};

use super::super::erased::{AnyKernel, AnySaved};
use super::super::operation::{
    BufferState, CompositePrecision, Gradient, Input, Kernel, run_composite,
};

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
}

/// A kernel and the sources of its inputs.
pub(super) struct Step {
    pub(super) kernel: AnyKernel,
    pub(super) sources: Vec<Source>,
}

/// The saved state of a step: the kernel's own, and the output with its dimensions.
pub(crate) struct StepState {
    saved: AnySaved,
    /// Empty for the last step: the chain returns its output.
    output: Vec<f32>,
    dims: Vec<usize>,
}

/// Returns the inputs of a step with these sources.
fn gather<'a>(sources: &[Source], inputs: &[Input<'a>], states: &'a [StepState]) -> Vec<Input<'a>> {
    let find = |source: &Source| match *source {
        Source::Input(i) => inputs[i],
        Source::Step(j) => Input { data: &states[j].output, dims: &states[j].dims },
    };
    sources.iter().map(find).collect()
}

impl Kernel for Steps {
    type Saved = Vec<StepState>;

    fn name(&self) -> &'static str {
        "chain"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> candle_core::Result<(Vec<f32>, Shape, Self::Saved)> {
        let mut states: Vec<StepState> = Vec::with_capacity(self.list.len());
        for step in &self.list {
            let step_inputs = gather(&step.sources, inputs, &states);
            let (output, shape, saved) = step.kernel.forward(&step_inputs)?;
            states.push(StepState { saved, output, dims: shape.dims().to_vec() });
        }
        match states.last_mut() {
            Some(last) => {
                let output = std::mem::take(&mut last.output);
                let shape = Shape::from(last.dims.clone());
                Ok((output, shape, states))
            }
            None => candle_core::bail!("chain: no kernels were added"),
        }
    }

    fn backward(
        &self,
        inputs: &[Input<'_>],
        output: &[f32],
        gradient: &[f32],
        states: &Self::Saved,
        input_gradients: &mut [Option<Gradient>],
    ) -> candle_core::Result<()> {
        let last = self.list.len() - 1;
        let mut gradients: Vec<Option<Gradient>> = self.list.iter().map(|_| None).collect();
        for (i, (step, state)) in self.list.iter().zip(states).enumerate().rev() {
            let step_gradient = gradients[i].take();
            let (output, gradient) = match &step_gradient {
                _ if i == last => (output, gradient),
                Some(step_gradient) => (state.output.as_slice(), step_gradient.data.as_slice()),
                // The result does not depend on this step.
                None => continue,
            };
            let mut step_gradients: Vec<Option<Gradient>> = step
                .sources
                .iter()
                .map(|source| match *source {
                    Source::Input(k) => input_gradients[k].take(),
                    Source::Step(j) => Some(gradients[j].take().unwrap_or_else(|| Gradient {
                        data: vec![0.0; states[j].output.len()],
                        state: BufferState::Zeros,
                    })),
                })
                .collect();
            let step_inputs = gather(&step.sources, inputs, states);
            let saved = &state.saved;
            step.kernel.backward(&step_inputs, output, gradient, saved, &mut step_gradients)?;
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

    fn composite(&self, inputs: &[Tensor]) -> candle_core::Result<Tensor> {
        let mut outputs: Vec<Tensor> = Vec::with_capacity(self.list.len());
        for step in &self.list {
            let find = |source: &Source| match *source {
                Source::Input(i) => inputs[i].clone(),
                Source::Step(j) => outputs[j].clone(),
            };
            let step_inputs: Vec<Tensor> = step.sources.iter().map(find).collect();
            outputs.push(run_composite(&step.kernel, &step_inputs)?);
        }
        outputs.pop().ok_or_else(|| candle_core::Error::Msg("chain: no kernels were added".into()))
    }

    fn precision(&self) -> CompositePrecision {
        CompositePrecision::Mixed
    }
}
