//! Operations of candle's graph with any number of inputs. Their outputs are computed before candle
//! adds them to the graph.
//!
//! candle's custom operations take at most three inputs. If an operation has more than two, all
//! after the first are attached to a chain of one-element tensors, the *relays*, which is its
//! second input. The backward pass of the operation stores their gradients, and each link of the
//! chain returns them to candle.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, DType, Device, Layout, Result, Shape,
    Storage, Tensor,
};

/// The backward pass of an operation.
pub(crate) trait Operation: Send + Sync + 'static {
    /// The name for error messages.
    fn name(&self) -> &'static str;

    /// Returns one gradient per input, given the output and its gradient. `None` for an input that
    /// needs no gradient, and for a parameter whose gradient is already in its buffer.
    fn gradients(&self, output: &Tensor, gradient: &Tensor) -> Result<Vec<Option<Tensor>>>;
}

/// Adds an operation with this output to the graph. All inputs are on one device.
pub(crate) fn attach<O: Operation>(
    operation: O,
    inputs: &[Tensor],
    output: (Storage, Shape),
) -> Result<Tensor> {
    let name = operation.name();
    let node = Node {
        operation,
        num_inputs: inputs.len(),
        output: Prepared::new(name, output),
        relayed: Arc::default(),
    };
    match inputs {
        [input] => input.apply_op1(node),
        [first, second] => first.apply_op2(second, node),
        [first, rest @ ..] => {
            let chain = relay(rest, first.device(), &node.relayed)?;
            first.apply_op2(&chain, node)
        }
        [] => candle_core::bail!("{name}: no inputs"),
    }
}

/// Returns a copy of a tensor's values, as the output of an operation.
pub(crate) fn copy_output(tensor: &Tensor) -> Result<(Storage, Shape)> {
    let is_whole = tensor.is_contiguous() && tensor.layout().start_offset() == 0;
    let tensor = if is_whole { tensor.clone() } else { tensor.force_contiguous()? };
    let (storage, layout) = tensor.storage_and_layout();
    Ok((storage.try_clone(layout)?, tensor.shape().clone()))
}

/// The computed output of an operation, until candle takes it.
struct Prepared {
    name: &'static str,
    output: Mutex<Option<(Storage, Shape)>>,
}

impl Prepared {
    fn new(name: &'static str, output: (Storage, Shape)) -> Self {
        Self { name, output: Mutex::new(Some(output)) }
    }

    fn take(&self) -> Result<(Storage, Shape)> {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        match output.take() {
            Some(output) => Ok(output),
            None => candle_core::bail!("{}: the forward pass ran twice", self.name),
        }
    }

    fn take_on_cpu(&self) -> Result<(CpuStorage, Shape)> {
        match self.take()? {
            (Storage::Cpu(storage), shape) => Ok((storage, shape)),
            _ => candle_core::bail!("{}: inputs on the CPU, but not the output", self.name),
        }
    }

    fn take_on_cuda(&self) -> Result<(CudaStorage, Shape)> {
        match self.take()? {
            (Storage::Cuda(storage), shape) => Ok((storage, shape)),
            _ => candle_core::bail!("{}: inputs on a GPU, but not the output", self.name),
        }
    }
}

/// The name and the forward passes of a custom operation with these inputs: its output is prepared.
macro_rules! prepared_passes {
    ($($input:ident)+) => {
        fn name(&self) -> &'static str {
            self.output.name
        }

        fn cpu_fwd(
            &self,
            $($input: &CpuStorage, _: &Layout),+
        ) -> Result<(CpuStorage, Shape)> {
            self.output.take_on_cpu()
        }

        fn cuda_fwd(
            &self,
            $($input: &CudaStorage, _: &Layout),+
        ) -> Result<(CudaStorage, Shape)> {
            self.output.take_on_cuda()
        }
    };
}

/// The gradients that the relays return, one for each input of an operation after the first.
type Relayed = Arc<Mutex<Vec<Option<Tensor>>>>;

/// An operation in candle's graph.
struct Node<O> {
    operation: O,
    num_inputs: usize,
    output: Prepared,
    relayed: Relayed,
}

impl<O: Operation> CustomOp1 for Node<O> {
    prepared_passes!(_x);

    fn bwd(&self, _: &Tensor, out: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        Ok(self.operation.gradients(out, grad)?.swap_remove(0))
    }
}

impl<O: Operation> CustomOp2 for Node<O> {
    prepared_passes!(_x _y);

    fn bwd(
        &self,
        _: &Tensor,
        second: &Tensor,
        out: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let mut gradients = self.operation.gradients(out, grad)?;
        if self.num_inputs == 2 {
            let second = gradients.swap_remove(1);
            return Ok((gradients.swap_remove(0), second));
        }
        // The second argument is the first link of the relay chain.
        let first = gradients.remove(0);
        *self.relayed.lock().unwrap_or_else(PoisonError::into_inner) = gradients;
        Ok((first, Some(second.zeros_like()?)))
    }
}

/// Builds a chain of one-element tensors with `inputs` attached, two per link.
fn relay(inputs: &[Tensor], device: &Device, relayed: &Relayed) -> Result<Tensor> {
    let zero = Tensor::zeros(1, DType::F32, device)?;
    let mut chain: Option<Tensor> = None;
    let mut start = inputs.len();
    while start > 0 {
        let count = if start.is_multiple_of(2) { 2 } else { 1 };
        start -= count;
        let next = chain.take().unwrap_or_else(|| zero.clone());
        let second = if count == 2 { inputs[start + 1].clone() } else { next.clone() };
        let output = Prepared::new("relay", copy_output(&zero)?);
        let link = Relay { first: start, count, output, relayed: relayed.clone() };
        chain = Some(inputs[start].apply_op3(&second, &next, link)?);
    }
    chain.ok_or_else(|| candle_core::Error::Msg("relay: no inputs".into()))
}

/// One link of the chain: relayed input `first`, relayed input `first + 1` if `count` is 2, and the
/// next link.
struct Relay {
    first: usize,
    count: usize,
    output: Prepared,
    relayed: Relayed,
}

impl CustomOp3 for Relay {
    prepared_passes!(_x _y _z);

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        next: &Tensor,
        _: &Tensor,
        _: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let mut relayed = self.relayed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut take = |i: usize| relayed.get_mut(i).and_then(Option::take);
        let first = take(self.first);
        let second = if self.count == 2 { take(self.first + 1) } else { None };
        let next = if next.track_op() { Some(next.zeros_like()?) } else { None };
        Ok((first, second, next))
    }
}
