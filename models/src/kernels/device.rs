//! Kernels on a GPU and in other dtypes than f32: forward and backward passes over tensors.
//!
//! candle's graph costs host time for each operation, because its backward pass allocates a zero
//! gradient for every edge and adds to it. So a kernel with a device path is one operation of the
//! graph. It passes the gradients of parameters to [`crate::gradients::Gradients`] directly, so
//! candle does not see these parameters. On a GPU the passes consist of matrix products and CUDA
//! kernels of this crate ([`crate::cuda`]). On the CPU, where tests check them, they consist of
//! candle operations with the same formulas.

mod graph;
mod node;
pub(super) mod primitives;
mod profile;

use candle_core::{Result, Tensor};

use super::operation::Kernel;
pub(super) use node::apply;
use profile::timed;
pub use profile::{begin_profile, end_profile};

/// A forward and backward pass over tensors without a graph, in f32 or bf16. On the CPU, it also
/// runs in f64, so that central differences can check it.
pub(crate) trait DeviceKernel: Send + Sync {
    /// Returns the output and the tensors that the backward pass needs, from contiguous inputs.
    /// `wanted` tells which inputs need gradients. The output must not share its storage with
    /// another tensor, and must start at its first element.
    fn forward(&self, inputs: &[Tensor], wanted: &[bool]) -> Result<(Tensor, Saved)>;

    /// Returns the gradients of the inputs, of any dtype; `None` for inputs that need none.
    fn backward(&self, pass: &BackwardPass<'_>) -> Result<Vec<Option<Tensor>>>;
}

/// The values of a forward pass that the backward pass needs.
#[derive(Default)]
pub(crate) struct Saved {
    pub tensors: Vec<Tensor>,
    /// For each kernel of a chain: its output (`None` for the last kernel) and its saved values.
    pub steps: Vec<(Option<Tensor>, Saved)>,
}

impl Saved {
    pub(super) fn tensors(tensors: impl Into<Vec<Tensor>>) -> Self {
        Self { tensors: tensors.into(), steps: Vec::new() }
    }
}

/// The arguments of a backward pass. No tensor is part of a graph.
pub(crate) struct BackwardPass<'a> {
    pub inputs: &'a [Tensor],
    pub output: &'a Tensor,
    pub saved: &'a Saved,
    /// The gradient of the output, contiguous.
    pub gradient: &'a Tensor,
    /// Which inputs need gradients.
    pub wanted: &'a [bool],
}

/// Runs the forward pass of any kernel. Without a device path, it runs the composite.
pub(super) fn forward(
    kernel: &dyn Kernel,
    inputs: &[Tensor],
    wanted: &[bool],
) -> Result<(Tensor, Saved)> {
    timed((kernel.name(), "forward"), inputs, || match kernel.device() {
        Some(device) => device.forward(inputs, wanted),
        None => graph::forward(kernel, inputs, wanted),
    })
}

/// Runs the backward pass of any kernel.
pub(super) fn backward(
    kernel: &dyn Kernel,
    pass: &BackwardPass<'_>,
) -> Result<Vec<Option<Tensor>>> {
    timed((kernel.name(), "backward"), pass.inputs, || match kernel.device() {
        Some(device) => device.backward(pass),
        None => graph::backward(pass),
    })
}

/// A kernel as a device kernel.
pub(super) struct OfKernel<K>(pub K);

impl<K: Kernel> DeviceKernel for OfKernel<K> {
    fn forward(&self, inputs: &[Tensor], wanted: &[bool]) -> Result<(Tensor, Saved)> {
        forward(&self.0, inputs, wanted)
    }

    fn backward(&self, pass: &BackwardPass<'_>) -> Result<Vec<Option<Tensor>>> {
        backward(&self.0, pass)
    }
}

pub(super) use graph::{backward as composite_backward, forward as composite_forward};
