//! A device kernel as an operation of candle's graph.

use std::sync::{Mutex, PoisonError};

use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, InplaceOp1, Layout, Shape, Tensor,
    TensorId,
};

use super::super::operation::{Relayed, relay};
use super::{BackwardPass, DeviceKernel, Saved};
use crate::gradients::{add_gradient, expects_gradient, has_gradients};

/// Applies a device kernel to its inputs. The result is part of the graph if any input is.
pub(in super::super) fn apply(
    kernel: impl DeviceKernel + 'static,
    inputs: &[&Tensor],
) -> candle_core::Result<Tensor> {
    let roles: Vec<Role> = inputs.iter().map(|input| Role::of(input)).collect();
    let values: Vec<Tensor> =
        inputs.iter().map(|input| input.detach().contiguous()).collect::<Result<_, _>>()?;
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
    let taken = Take::default();
    output.inplace_op1(&taken)?;
    let relayed = Relayed::default();
    let node = Node {
        kernel: Box::new(kernel),
        inputs: values,
        roles,
        attached: attached.clone(),
        saved,
        output: taken,
        shape,
        relayed: relayed.clone(),
    };
    match *attached {
        [a] => inputs[a].apply_op1(node),
        [a, b] => inputs[a].apply_op2(inputs[b], node),
        [a, b, c] => inputs[a].apply_op3(inputs[b], inputs[c], node),
        _ => {
            let rest: Vec<Tensor> = attached[1..].iter().map(|i| inputs[*i].clone()).collect();
            inputs[attached[0]].apply_op2(&relay(&rest, &relayed)?, node)
        }
    }
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
    output: Take,
    shape: Shape,
    relayed: Relayed,
}

impl Node {
    /// Returns the gradients of the inputs that candle sees. Adds the gradients of parameters to
    /// those of the running pass.
    fn gradients(
        &self,
        output: &Tensor,
        gradient: &Tensor,
    ) -> candle_core::Result<Vec<Option<Tensor>>> {
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
                        add_gradient(id, gradient)?;
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

impl CustomOp1 for Node {
    fn name(&self) -> &'static str {
        "device kernel"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((self.output.cpu()?, self.shape.clone()))
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> candle_core::Result<(CudaStorage, Shape)> {
        Ok((self.output.cuda()?, self.shape.clone()))
    }

    fn bwd(&self, _: &Tensor, out: &Tensor, grad: &Tensor) -> candle_core::Result<Option<Tensor>> {
        Ok(self.gradients(out, grad)?.swap_remove(0))
    }
}

impl CustomOp2 for Node {
    fn name(&self) -> &'static str {
        "device kernel"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((self.output.cpu()?, self.shape.clone()))
    }

    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> candle_core::Result<(CudaStorage, Shape)> {
        Ok((self.output.cuda()?, self.shape.clone()))
    }

    fn bwd(
        &self,
        _: &Tensor,
        second: &Tensor,
        out: &Tensor,
        grad: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let mut gradients = self.gradients(out, grad)?;
        let first = gradients.remove(0);
        if self.attached.len() == 2 {
            return Ok((first, gradients.remove(0)));
        }
        // The second argument is the first link of the relay chain.
        *self.relayed.lock().unwrap_or_else(PoisonError::into_inner) = gradients;
        Ok((first, Some(second.zeros_like()?)))
    }
}

impl CustomOp3 for Node {
    fn name(&self) -> &'static str {
        "device kernel"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((self.output.cpu()?, self.shape.clone()))
    }

    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> candle_core::Result<(CudaStorage, Shape)> {
        Ok((self.output.cuda()?, self.shape.clone()))
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        out: &Tensor,
        grad: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let mut gradients = self.gradients(out, grad)?.into_iter();
        let mut next = || gradients.next().flatten();
        Ok((next(), next(), next()))
    }
}

/// Takes the storage out of a tensor, which must not be used afterwards.
#[derive(Default)]
struct Take {
    cpu: Mutex<Option<CpuStorage>>,
    cuda: Mutex<Option<CudaStorage>>,
}

impl Take {
    fn cpu(&self) -> candle_core::Result<CpuStorage> {
        taken(&self.cpu)
    }

    fn cuda(&self) -> candle_core::Result<CudaStorage> {
        taken(&self.cuda)
    }
}

fn taken<S>(storage: &Mutex<Option<S>>) -> candle_core::Result<S> {
    match storage.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(storage) => Ok(storage),
        None => candle_core::bail!("the forward pass of a device kernel ran twice"),
    }
}

impl InplaceOp1 for Take {
    fn name(&self) -> &'static str {
        "take"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        let taken = std::mem::replace(storage, CpuStorage::U8(Vec::new()));
        *self.cpu.lock().unwrap_or_else(PoisonError::into_inner) = Some(taken);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> candle_core::Result<()> {
        let taken = crate::cuda::take(storage)?;
        *self.cuda.lock().unwrap_or_else(PoisonError::into_inner) = Some(taken);
        Ok(())
    }
}
