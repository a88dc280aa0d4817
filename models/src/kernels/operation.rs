//! Turns a fused kernel into a differentiable operation of candle's graph.
//!
//! candle's backward pass allocates a zero gradient for each input of an operation and adds to it.
//! The gradient of a parameter is instead written to (or accumulated in) the parameter's buffer in
//! [`crate::gradients::Gradients`]. candle receives no gradient for it.
//!
//! On other devices and in other dtypes than f32 on the CPU, an operation runs on its device path
//! ([`super::device`]) if it has one. Otherwise it runs as its *composite*: the same computation as
//! a series of candle operations with correct gradients.

use std::any::Any;
use std::cell::Cell;
use std::sync::LazyLock;

use candle_core::{CpuStorage, DType, Device, Result, Shape, Storage, Tensor};
use rayon::prelude::*;

use super::device::{self, DeviceKernel};
use super::graph::{Operation, attach};
use super::rows::zeros;
use crate::gradients::{return_buffer, take_buffer};

/// A fused forward and backward pass over f32 slices on the CPU. A kernel is a plan: it can run
/// several times. It has a device path or a composite.
pub(crate) trait Kernel: Send + Sync + 'static {
    /// The name for error messages.
    fn name(&self) -> &'static str;

    /// Returns the output, its shape and the values that the backward pass needs besides inputs and
    /// output, from contiguous inputs.
    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output>;

    /// Writes the gradients of the inputs into `input_gradients`. `None` there marks an input that
    /// needs no gradient.
    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()>;

    /// The passes over tensors on a GPU and in other dtypes; `None` for a kernel with a composite.
    fn device(&self) -> Option<&dyn DeviceKernel> {
        None
    }

    /// Computes the same function with candle's differentiable operations.
    fn composite(&self, _inputs: &[Tensor]) -> Result<Tensor> {
        candle_core::bail!("{} has no composite", self.name())
    }

    /// Whether the composite computes in f32 if the first input has half precision. The composite
    /// converts the first input itself; the others get f32. Otherwise, all inputs get the first
    /// input's dtype.
    fn is_full_precision(&self) -> bool {
        false
    }

    /// Whether the output takes little time to compute again. The backward pass of such a kernel
    /// does not read its output.
    fn is_cheap(&self) -> bool {
        false
    }
}

/// The output of a forward pass, its shape, and the saved values.
pub(crate) type Output = (Vec<f32>, Shape, SavedValues);

/// The values of a forward pass that the backward pass needs, of a type of the kernel's own.
pub(crate) type SavedValues = Box<dyn Any + Send + Sync>;

/// The values that a backward pass reads.
pub(crate) struct Pass<'a> {
    pub inputs: &'a [Input<'a>],
    pub output: &'a [f32],
    /// The gradient of the output.
    pub gradient: &'a [f32],
    pub saved: &'a SavedValues,
}

impl Pass<'_> {
    /// Returns the saved values, which have type `T`.
    pub fn saved<T: 'static>(&self) -> Result<&T> {
        match self.saved.downcast_ref() {
            Some(saved) => Ok(saved),
            None => candle_core::bail!("a backward pass got the saved values of another kernel"),
        }
    }
}

/// One input of a kernel: contiguous values and their dimensions.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    pub data: &'a [f32],
    pub dims: &'a [usize],
}

impl Input<'_> {
    /// Returns the input's shape with another last dimension.
    pub fn shape_with_width(&self, width: usize) -> Shape {
        Shape::from(with_width(self.dims, width))
    }
}

/// Returns dimensions with another last dimension.
pub(super) fn with_width(dims: &[usize], width: usize) -> Vec<usize> {
    let mut dims = dims.to_vec();
    if let Some(last) = dims.last_mut() {
        *last = width;
    }
    dims
}

/// Returns the dimensions of each input.
pub(super) fn dims_of<'a>(inputs: &[Input<'a>]) -> Vec<&'a [usize]> {
    inputs.iter().map(|input| input.dims).collect()
}

/// Returns the dimensions of each tensor.
pub(super) fn tensor_dims(tensors: &[Tensor]) -> Vec<&[usize]> {
    tensors.iter().map(Tensor::dims).collect()
}

/// The gradient of one input: its buffer and the state of the buffer.
pub(crate) struct Gradient {
    pub data: Vec<f32>,
    pub state: BufferState,
}

/// The content of a gradient's buffer before a kernel writes to it.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum BufferState {
    /// Values of an earlier step, to be overwritten.
    Stale,
    /// Zeros.
    Zeros,
    /// A gradient to add to.
    Sum,
}

impl Gradient {
    /// Returns the factor on the old content: 1 to accumulate, 0 to overwrite.
    pub fn beta(&self) -> f32 {
        if self.state == BufferState::Sum { 1.0 } else { 0.0 }
    }

    /// Returns the buffer as a sum to add to. Stale values are cleared first.
    pub fn as_sum(&mut self) -> &mut [f32] {
        if self.state == BufferState::Stale {
            self.data.par_chunks_mut(1 << 16).for_each(|block| block.fill(0.0));
        }
        self.state = BufferState::Sum;
        &mut self.data
    }

    /// Adds a complete gradient. A buffer of zeros is replaced by it.
    pub fn add(&mut self, gradient: Vec<f32>) {
        match self.state {
            BufferState::Zeros => self.data = gradient,
            _ => super::rows::add(&gradient, self.as_sum()),
        }
    }
}

/// Runs a kernel on inputs without a graph.
pub(crate) fn run(kernel: &dyn Kernel, inputs: &[&Tensor]) -> Result<Tensor> {
    if !is_fused(inputs) {
        check_dtypes(kernel, inputs)?;
        let inputs: Vec<Tensor> = inputs.iter().map(|&x| x.clone()).collect();
        let Some(device) = kernel.device() else { return run_composite(kernel, &inputs) };
        let inputs = inputs.iter().map(|x| x.detach().contiguous());
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        return Ok(device.forward(&inputs, &vec![false; inputs.len()])?.0);
    }
    let inputs = contiguous(inputs)?;
    let (output, shape, _) = with_inputs(&inputs, |inputs| kernel.forward(inputs))?;
    Tensor::from_vec(output, shape, &Device::Cpu)
}

/// Applies a kernel to its inputs. The result is part of the graph if any input is.
pub(crate) fn apply(kernel: impl Kernel, inputs: &[&Tensor]) -> Result<Tensor> {
    if !is_fused(inputs) && kernel.device().is_some() {
        check_dtypes(&kernel, inputs)?;
        return device::apply(device::OfKernel(kernel), inputs);
    }
    if !is_fused(inputs) || inputs.iter().all(|x| !x.track_op()) {
        return run(&kernel, inputs);
    }
    let inputs = contiguous(inputs)?;
    let (output, shape, saved) = with_inputs(&inputs, |inputs| kernel.forward(inputs))?;
    let node = KernelNode { kernel, inputs: inputs.clone(), saved };
    attach(node, &inputs, (Storage::Cpu(CpuStorage::F32(output)), shape))
}

/// Runs a kernel's composite. All inputs but the first are converted to the dtype in which it
/// computes.
pub(super) fn run_composite(kernel: &dyn Kernel, inputs: &[Tensor]) -> Result<Tensor> {
    let Some((first, others)) = inputs.split_first() else { return kernel.composite(inputs) };
    let dtype = match first.dtype() {
        DType::F16 | DType::BF16 if kernel.is_full_precision() => DType::F32,
        dtype => dtype,
    };
    let others = others.iter().map(|x| x.to_dtype(dtype));
    let inputs = std::iter::once(Ok(first.clone())).chain(others).collect::<Result<Vec<_>>>()?;
    kernel.composite(&inputs)
}

thread_local! {
    /// Whether composites and device paths replace the fused kernels on this thread.
    static WITHOUT_FUSED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` with composites and device paths in place of the fused kernels on this thread, for
/// gradient checks.
pub(crate) fn without_fused_kernels<R>(f: impl FnOnce() -> R) -> R {
    let before = WITHOUT_FUSED.replace(true);
    let result = f();
    WITHOUT_FUSED.set(before);
    result
}

/// Whether the fused kernels apply: f32 on the CPU, unless the environment variable `ENGRAM_FUSED`
/// is 0. With 0, the CPU runs the same operations as a GPU.
fn is_fused(inputs: &[&Tensor]) -> bool {
    static ALLOWED: LazyLock<bool> =
        LazyLock::new(|| std::env::var_os("ENGRAM_FUSED").is_none_or(|value| value != "0"));
    let is_allowed = *ALLOWED && !WITHOUT_FUSED.get();
    is_allowed && inputs.iter().all(|x| x.dtype() == DType::F32 && x.device().is_cpu())
}

/// Checks that inputs on a GPU have a dtype of the CUDA kernels.
fn check_dtypes(kernel: &dyn Kernel, inputs: &[&Tensor]) -> Result<()> {
    let is_supported =
        |x: &Tensor| !x.device().is_cuda() || matches!(x.dtype(), DType::F32 | DType::BF16);
    match inputs.iter().find(|x| !is_supported(x)) {
        Some(x) => candle_core::bail!(
            "{}: {:?} tensors are not supported on a GPU; convert them to f32 or bf16",
            kernel.name(),
            x.dtype()
        ),
        None => Ok(()),
    }
}

fn contiguous(inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    inputs.iter().map(|x| x.contiguous()).collect()
}

/// A kernel as an operation of candle's graph.
struct KernelNode<K> {
    kernel: K,
    inputs: Vec<Tensor>,
    saved: SavedValues,
}

impl<K: Kernel> Operation for KernelNode<K> {
    fn name(&self) -> &'static str {
        self.kernel.name()
    }

    fn gradients(&self, output: &Tensor, gradient: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let mut buffered = vec![false; self.inputs.len()];
        let mut input_gradients: Vec<Option<Gradient>> = Vec::with_capacity(self.inputs.len());
        for (input, buffered) in self.inputs.iter().zip(&mut buffered) {
            input_gradients.push(if !input.track_op() {
                None
            } else if let Some((data, accumulate)) = take_buffer(input.id()) {
                *buffered = true;
                Some(Gradient {
                    data,
                    state: if accumulate { BufferState::Sum } else { BufferState::Stale },
                })
            } else {
                Some(Gradient { data: zeros(input.elem_count()), state: BufferState::Zeros })
            });
        }
        let outputs = [output.clone(), gradient.contiguous()?];
        with_inputs(&outputs, |outputs| {
            let (output, gradient) = (outputs[0].data, outputs[1].data);
            with_inputs(&self.inputs, |inputs| {
                let pass = Pass { inputs, output, gradient, saved: &self.saved };
                self.kernel.backward(&pass, &mut input_gradients)
            })
        })?;
        let mut gradients = Vec::with_capacity(input_gradients.len());
        for ((input, buffer), buffered) in self.inputs.iter().zip(input_gradients).zip(buffered) {
            gradients.push(match buffer {
                None => None,
                Some(gradient) if buffered => {
                    return_buffer(input.id(), gradient.data);
                    None
                }
                Some(gradient) => {
                    Some(Tensor::from_vec(gradient.data, input.shape(), &Device::Cpu)?)
                }
            });
        }
        Ok(gradients)
    }
}

/// Runs `f` on the contiguous f32 values of CPU tensors.
fn with_inputs<R>(tensors: &[Tensor], f: impl FnOnce(&[Input<'_>]) -> Result<R>) -> Result<R> {
    let guards: Vec<_> = tensors.iter().map(|t| t.storage_and_layout()).collect();
    let mut inputs = Vec::with_capacity(tensors.len());
    for ((storage, layout), tensor) in guards.iter().zip(tensors) {
        let data = match &**storage {
            Storage::Cpu(storage) => storage.as_slice::<f32>()?,
            _ => candle_core::bail!("fused kernel: an input is not on the CPU"),
        };
        let Some((start, end)) = layout.contiguous_offsets() else {
            candle_core::bail!("fused kernel: an input is not contiguous");
        };
        inputs.push(Input { data: &data[start..end], dims: tensor.dims() });
    }
    f(&inputs)
}
