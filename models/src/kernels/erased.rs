//! Kernels of any type, as the steps of a chain.

use std::any::Any;

use candle_core::{Shape, Tensor};

use super::device::DeviceKernel;
use super::operation::{CompositePrecision, Gradient, Input, Kernel};

/// A kernel of any type.
pub(super) struct AnyKernel(Box<dyn Erased>);

/// The saved state of a kernel of any type.
pub(super) type AnySaved = Box<dyn Any + Send + Sync>;

/// [`Kernel`] without the type of the saved state.
trait Erased: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    fn forward(&self, inputs: &[Input<'_>]) -> candle_core::Result<(Vec<f32>, Shape, AnySaved)>;

    fn backward(
        &self,
        inputs: &[Input<'_>],
        output: &[f32],
        gradient: &[f32],
        saved: &(dyn Any + Send + Sync),
        input_gradients: &mut [Option<Gradient>],
    ) -> candle_core::Result<()>;

    fn composite(&self, inputs: &[Tensor]) -> candle_core::Result<Tensor>;

    fn device(&self) -> Option<&dyn DeviceKernel>;

    fn is_cheap(&self) -> bool;

    fn precision(&self) -> CompositePrecision;
}

impl<K: Kernel> Erased for K {
    fn name(&self) -> &'static str {
        Kernel::name(self)
    }

    fn forward(&self, inputs: &[Input<'_>]) -> candle_core::Result<(Vec<f32>, Shape, AnySaved)> {
        let (output, shape, saved) = Kernel::forward(self, inputs)?;
        Ok((output, shape, Box::new(saved)))
    }

    fn backward(
        &self,
        inputs: &[Input<'_>],
        output: &[f32],
        gradient: &[f32],
        saved: &(dyn Any + Send + Sync),
        input_gradients: &mut [Option<Gradient>],
    ) -> candle_core::Result<()> {
        match saved.downcast_ref() {
            Some(saved) => Kernel::backward(self, inputs, output, gradient, saved, input_gradients),
            None => candle_core::bail!("{}: the saved state of another kernel", Kernel::name(self)),
        }
    }

    fn composite(&self, inputs: &[Tensor]) -> candle_core::Result<Tensor> {
        Kernel::composite(self, inputs)
    }

    fn device(&self) -> Option<&dyn DeviceKernel> {
        Kernel::device(self)
    }

    fn is_cheap(&self) -> bool {
        Kernel::is_cheap(self)
    }

    fn precision(&self) -> CompositePrecision {
        Kernel::precision(self)
    }
}

impl AnyKernel {
    pub(super) fn new(kernel: impl Kernel) -> Self {
        Self(Box::new(kernel))
    }
}

impl Kernel for AnyKernel {
    type Saved = AnySaved;

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn forward(&self, inputs: &[Input<'_>]) -> candle_core::Result<(Vec<f32>, Shape, Self::Saved)> {
        self.0.forward(inputs)
    }

    fn backward(
        &self,
        inputs: &[Input<'_>],
        output: &[f32],
        gradient: &[f32],
        saved: &Self::Saved,
        input_gradients: &mut [Option<Gradient>],
    ) -> candle_core::Result<()> {
        self.0.backward(inputs, output, gradient, saved.as_ref(), input_gradients)
    }

    fn composite(&self, inputs: &[Tensor]) -> candle_core::Result<Tensor> {
        self.0.composite(inputs)
    }

    fn device(&self) -> Option<&dyn DeviceKernel> {
        self.0.device()
    }

    fn is_cheap(&self) -> bool {
        self.0.is_cheap()
    }

    fn precision(&self) -> CompositePrecision {
        self.0.precision()
    }
}
