//! Recomputation, or gradient checkpointing (arXiv 1604.06174): the backward pass runs parts of the
//! forward pass again, so that their intermediate values need not stay in memory.

use candle_core::{DType, Shape, Tensor, Var};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{ModelError, Result, bail};
use crate::gradients;
use crate::kernels::graph::{Operation, attach, copy_output};

/// The values that the backward pass computes again instead of keeping them in memory. On the CPU,
/// all variants give the same bytes of gradients.
///
/// Per channel and token, a block of ViT keeps 14 values without recomputation, 11 with
/// [`Recompute::Selective`] and 1 with [`Recompute::Block`]; a block of T5 v1.1 keeps 21, 12 and 1.
/// Scores of attention and activated values of feed-forward blocks are never kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// No values.
    #[default]
    None,
    /// Within a block: the outputs of norms, activations, gated units, dropout and residual sums.
    /// Only the fused kernels (f32 on the CPU) do this.
    Selective,
    /// The whole forward pass of each block. Only the inputs and outputs of blocks stay in memory.
    Block,
}

/// Runs `block` on `inputs` as one operation of candle's graph that keeps only its inputs and its
/// output in memory. The backward pass runs `block` again.
///
/// `block` must compute the same values in both runs. The gradients of parameters that it uses, but
/// that are not among `inputs`, are added to the [`Gradients`](gradients::Gradients) that call the
/// backward pass. The inputs are on one device.
///
/// Gradients have the same bytes as without recomputation, with two exceptions. If several blocks
/// use a parameter in ordinary candle operations, or a block uses an input twice, the summands are
/// added in another order. In the second case, pass the input once for each use.
///
/// # Errors
/// The errors of `block`. In the backward pass: if parameters need gradients, but candle's own
/// `Tensor::backward` was called.
pub fn recompute(
    inputs: &[&Tensor],
    block: impl Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<Tensor> {
    let detached: Vec<Tensor> = inputs.iter().map(|x| x.detach()).collect();
    let first_run = block(&detached)?;
    let output = first_run.detach();
    let needs_gradient: Vec<bool> = inputs.iter().map(|x| x.track_op()).collect();
    let mut graph_inputs: Vec<Tensor> = inputs.iter().map(|&x| x.clone()).collect();
    if !needs_gradient.contains(&true) {
        if !first_run.track_op() {
            return Ok(output);
        }
        // Without a variable among its inputs, candle's backward pass would skip the operation.
        graph_inputs.push(Var::zeros(1, DType::F32, output.device())?.into_inner());
    }
    drop(first_run);
    let kept = |(x, detached): (&&Tensor, Tensor)| {
        // A parameter stays itself, so that kernels find its buffer.
        if x.is_variable() { (*x).clone() } else { detached }
    };
    let inputs = inputs.iter().zip(detached).map(kept).collect();
    let num_graph_inputs = graph_inputs.len();
    let operation = Recomputed { block, inputs, needs_gradient, num_graph_inputs };
    Ok(attach(operation, &graph_inputs, copy_output(&output)?)?)
}

/// A block whose backward pass runs it again.
struct Recomputed<F> {
    block: F,
    /// The inputs: parameters, and detached tensors.
    inputs: Vec<Tensor>,
    needs_gradient: Vec<bool>,
    num_graph_inputs: usize,
}

impl<F> Operation for Recomputed<F>
where
    F: Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
{
    fn name(&self) -> &'static str {
        "recompute"
    }

    fn gradients(&self, _: &Tensor, gradient: &Tensor) -> candle_core::Result<Vec<Option<Tensor>>> {
        self.run_again(gradient).map_err(|error| match error {
            ModelError::Candle(error) => error,
            other => candle_core::Error::wrap(other),
        })
    }
}

impl<F> Recomputed<F>
where
    F: Fn(&[Tensor]) -> Result<Tensor>,
{
    /// Runs the block and its backward pass. Returns the gradients of the inputs in the graph.
    fn run_again(&self, gradient: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let variable = |(x, needs_gradient): (&Tensor, &bool)| match needs_gradient {
            true => Ok(Var::from_tensor(x)?.into_inner()),
            false => Ok(x.clone()),
        };
        let inputs = self.inputs.iter().zip(&self.needs_gradient).map(variable);
        let inputs = inputs.collect::<Result<Vec<Tensor>>>()?;
        let output = (self.block)(&inputs)?;
        if output.shape() != gradient.shape() {
            bail!(
                "recompute: an output of shape {:?}, but {:?} in the first run",
                output.shape(),
                gradient.shape()
            );
        }
        let is_input = |x: &Tensor| inputs.iter().any(|input| input.id() == x.id());
        if !gradients::is_running()
            && output.sorted_nodes().iter().any(|x| x.is_variable() && !is_input(x))
        {
            bail!(
                "recompute: only `Gradients::backward` gives gradients to parameters \
                          inside a block"
            );
        }
        let zero = Tensor::zeros(Shape::from(()), DType::F32, output.device())?;
        let start = StartGradient(gradient.clone());
        let mut store =
            attach(start, std::slice::from_ref(&output), copy_output(&zero)?)?.backward()?;
        let mut input_gradients = vec![None; self.num_graph_inputs];
        for (i, input) in inputs.iter().enumerate().filter(|(i, _)| self.needs_gradient[*i]) {
            input_gradients[i] = match store.remove(input) {
                // The gradient of a parameter may be in its buffer.
                None if self.inputs[i].is_variable() => None,
                None => Some(input.zeros_like()?),
                gradient => gradient,
            };
        }
        gradients::add(&store)?;
        Ok(input_gradients)
    }
}

/// An operation whose input has this gradient: it starts the nested backward pass.
struct StartGradient(Tensor);

impl Operation for StartGradient {
    fn name(&self) -> &'static str {
        "start of a backward pass"
    }

    fn gradients(&self, _: &Tensor, _: &Tensor) -> candle_core::Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(self.0.clone())])
    }
}
