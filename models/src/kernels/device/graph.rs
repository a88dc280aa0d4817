//! A kernel without a device path: its composite in a graph of its own.

use candle_core::{Result, Tensor, Var};

use super::super::operation::{Kernel, run_composite};
use super::{BackwardPass, Saved};

/// Runs the composite. Saves its inputs and its output, as parts of a graph if they need gradients.
pub(in super::super) fn forward(
    kernel: &dyn Kernel,
    inputs: &[Tensor],
    wanted: &[bool],
) -> Result<(Tensor, Saved)> {
    let mut saved = Vec::with_capacity(inputs.len() + 1);
    for (input, wanted) in inputs.iter().zip(wanted) {
        saved.push(match *wanted {
            true => Var::from_tensor(input)?.as_tensor().clone(),
            false => input.clone(),
        });
    }
    let output = run_composite(kernel, &saved)?;
    saved.push(output.clone());
    Ok((output.detach().copy()?, Saved::tensors(saved)))
}

/// Runs the backward pass of the composite's graph.
pub(in super::super) fn backward(pass: &BackwardPass<'_>) -> Result<Vec<Option<Tensor>>> {
    let Some((output, inputs)) = pass.saved.tensors.split_last() else {
        candle_core::bail!("a composite saved no output");
    };
    let gradients = (output * pass.gradient)?.sum_all()?.backward()?;
    let inputs = inputs.iter().zip(pass.wanted);
    Ok(inputs.map(|(x, wanted)| gradients.get(x).filter(|_| *wanted).cloned()).collect())
}
