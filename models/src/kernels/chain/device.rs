//! The device path of a chain: the device paths of its kernels, one after the other.

use candle_core::{Result, Tensor};

use super::super::device::{self, BackwardPass, DeviceKernel, Saved};
use super::steps::{Source, Steps};

impl Steps {
    /// Returns whether each step's output needs a gradient, given the chain's inputs that do.
    fn wanted_outputs(&self, inputs: &[bool]) -> Vec<bool> {
        let mut outputs: Vec<bool> = Vec::with_capacity(self.list.len());
        for step in &self.list {
            outputs.push(wanted(&step.sources, inputs, &outputs).contains(&true));
        }
        outputs
    }
}

/// Returns which of a step's inputs need gradients.
fn wanted(sources: &[Source], inputs: &[bool], outputs: &[bool]) -> Vec<bool> {
    let is_wanted = |source: &Source| match *source {
        Source::Input(k) => inputs[k],
        Source::Step(j) => outputs[j],
    };
    sources.iter().map(is_wanted).collect()
}

impl DeviceKernel for Steps {
    fn forward(&self, inputs: &[Tensor], wanted: &[bool]) -> Result<(Tensor, Saved)> {
        let wanted_outputs = self.wanted_outputs(wanted);
        let mut outputs: Vec<Tensor> = Vec::with_capacity(self.list.len());
        let mut saved = Vec::with_capacity(self.list.len());
        for step in &self.list {
            let find = |source: &Source| match *source {
                Source::Input(k) => inputs[k].clone(),
                Source::Step(j) => outputs[j].clone(),
            };
            let step_inputs: Vec<Tensor> = step.sources.iter().map(find).collect();
            let step_wanted = self::wanted(&step.sources, wanted, &wanted_outputs);
            let (output, values) = device::forward(&*step.kernel, &step_inputs, &step_wanted)?;
            outputs.push(output);
            saved.push(values);
        }
        let Some(last) = outputs.pop() else {
            candle_core::bail!("chain: no kernels were added");
        };
        let outputs = outputs.into_iter().map(Some).chain([None]);
        Ok((last, Saved { tensors: Vec::new(), steps: outputs.zip(saved).collect() }))
    }

    fn backward(&self, pass: &BackwardPass<'_>) -> Result<Vec<Option<Tensor>>> {
        let wanted_outputs = self.wanted_outputs(pass.wanted);
        let output = |step: usize| pass.saved.steps[step].0.as_ref().unwrap_or(pass.output);
        let mut input_gradients = vec![None; pass.inputs.len()];
        let mut gradients: Vec<Option<Tensor>> = vec![None; self.list.len()];
        if let Some(last) = gradients.last_mut() {
            *last = Some(pass.gradient.clone());
        }
        for (i, step) in self.list.iter().enumerate().rev() {
            let Some(gradient) = gradients[i].take() else { continue };
            let find = |source: &Source| match *source {
                Source::Input(k) => pass.inputs[k].clone(),
                Source::Step(j) => output(j).clone(),
            };
            let step_inputs: Vec<Tensor> = step.sources.iter().map(find).collect();
            let step_wanted = wanted(&step.sources, pass.wanted, &wanted_outputs);
            let results = device::backward(
                &*step.kernel,
                &BackwardPass {
                    inputs: &step_inputs,
                    output: output(i),
                    saved: &pass.saved.steps[i].1,
                    gradient: &gradient.contiguous()?,
                    wanted: &step_wanted,
                },
            )?;
            let results = step.sources.iter().zip(step_inputs).zip(step_wanted).zip(results);
            for (((source, input), wanted), result) in results {
                let Some(result) = result.filter(|_| wanted) else { continue };
                let (sum, result) = match *source {
                    Source::Input(k) => (&mut input_gradients[k], result),
                    Source::Step(j) => (&mut gradients[j], result.to_dtype(input.dtype())?),
                };
                *sum = Some(match sum.take() {
                    Some(sum) => (&sum + result.to_dtype(sum.dtype())?)?,
                    None => result,
                });
            }
        }
        Ok(input_gradients)
    }
}
