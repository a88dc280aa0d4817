//! A device kernel as an operation of candle's graph.

use std::sync::{Mutex, PoisonError};

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Storage, Tensor, TensorId};

use super::super::graph::{Operation, attach};
use super::{BackwardPass, DeviceKernel, Saved};
use crate::gradients::{add_gradient, expects_gradient, has_gradients};

/// Applies a device kernel to its inputs. The result is part of the graph if any input is.
pub(in super::super) fn apply(
    kernel: impl DeviceKernel + 'static,
    inputs: &[&Tensor],
) -> Result<Tensor> {
    let roles: Vec<Role> = inputs.iter().map(|input| Role::of(input)).collect();
    let values: Vec<Tensor> =
        inputs.iter().map(|input| input.detach().contiguous()).collect::<Result<_>>()?;
    let tracked: Vec<bool> = roles.iter().map(|role| *role != Role::Constant).collect();
    let (output, saved) = kernel.forward(&values, &tracked)?;
    let mut attached: Vec<usize> =
        (0..inputs.len()).filter(|i| roles[*i] == Role::Attached).collect();
    if attached.is_empty() {
        // One parameter makes the operation a part of the graph.
        match roles.iter().position(|role| *role != Role::Constant) {
            Some(parameter) => attached.push(parameter),
            None => return Ok(output),
        }
    }
    let shape = output.shape().clone();
    let storage = take_storage(&output)?;
    let attached_inputs: Vec<Tensor> = attached.iter().map(|i| inputs[*i].clone()).collect();
    let node = Node { kernel: Box::new(kernel), inputs: values, roles, attached, saved };
    attach(node, &attached_inputs, (storage, shape))
}

/// The use of an input's gradient.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    /// The input needs no gradient.
    Constant,
    /// candle's graph receives the gradient.
    Attached,
    /// A parameter whose gradient goes to [`crate::gradients::Gradients`].
    Parameter(TensorId),
}

impl Role {
    fn of(input: &Tensor) -> Self {
        if !input.track_op() {
            Self::Constant
        } else if has_gradients(input.id()) {
            Self::Parameter(input.id())
        } else {
            Self::Attached
        }
    }
}

struct Node {
    kernel: Box<dyn DeviceKernel>,
    inputs: Vec<Tensor>,
    roles: Vec<Role>,
    /// The inputs that candle sees.
    attached: Vec<usize>,
    saved: Saved,
}

impl Operation for Node {
    fn name(&self) -> &'static str {
        "device kernel"
    }

    /// Returns the gradients of the inputs that candle sees. Adds the gradients of parameters to
    /// those of the running pass.
    fn gradients(&self, output: &Tensor, gradient: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let wanted = self.roles.iter().map(|role| match role {
            Role::Constant => false,
            Role::Attached => true,
            Role::Parameter(id) => expects_gradient(*id),
        });
        let wanted: Vec<bool> = wanted.collect();
        let gradients = self.kernel.backward(&BackwardPass {
            inputs: &self.inputs,
            output: &output.detach(),
            saved: &self.saved,
            gradient: &gradient.detach().contiguous()?,
            wanted: &wanted,
        })?;
        let mut attached = Vec::with_capacity(self.attached.len());
        for (i, (gradient, input)) in gradients.into_iter().zip(&self.inputs).enumerate() {
            let gradient = gradient.map(|gradient| gradient.to_dtype(input.dtype())).transpose()?;
            match self.roles[i] {
                Role::Constant => {}
                Role::Attached => attached.push(match gradient {
                    Some(gradient) => Some(gradient),
                    // candle expects a gradient for each node of its graph.
                    None => Some(input.zeros_like()?),
                }),
                Role::Parameter(id) => {
                    if let Some(gradient) = gradient {
                        add_gradient(id, &gradient)?;
                    }
                    if self.attached.contains(&i) {
                        attached.push(None);
                    }
                }
            }
        }
        Ok(attached)
    }
}

/// Takes the storage out of a tensor, which must not be used afterwards.
fn take_storage(tensor: &Tensor) -> Result<Storage> {
    let taken = Take::default();
    tensor.inplace_op1(&taken)?;
    match taken.0.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(storage) => Ok(storage),
        None => candle_core::bail!("the output of a device kernel has no storage"),
    }
}

#[derive(Default)]
struct Take(Mutex<Option<Storage>>);

impl Take {
    fn set(&self, storage: Storage) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(storage);
    }
}

impl InplaceOp1 for Take {
    fn name(&self) -> &'static str {
        "take"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> Result<()> {
        self.set(Storage::Cpu(std::mem::replace(storage, CpuStorage::U8(Vec::new()))));
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> Result<()> {
        self.set(Storage::Cuda(crate::cuda::take(storage)?));
        Ok(())
    }
}
