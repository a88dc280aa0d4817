//! Gradients outside of a backward pass, for sums over micro-batches.

use candle_core::{Device, Shape, Tensor};

use super::{GpuGradient, Gradients, add_values};
use crate::error::Result;

/// The gradients of one or several micro-batches, without the running pass. Made by
/// [`Gradients::new_set`].
#[derive(Default)]
pub struct GradientSet {
    pub(super) buffers: Vec<Vec<f32>>,
    /// Whether each buffer holds a gradient.
    pub(super) written: Vec<bool>,
    pub(super) on_gpu: Vec<GpuGradient>,
}

impl GradientSet {
    /// For each trainable parameter, whether it has a gradient, on the CPU or on a GPU.
    pub fn has_gradient(&self) -> Vec<bool> {
        let each = self.written.iter().zip(&self.on_gpu);
        each.map(|(written, on_gpu)| *written || on_gpu.tensor.is_some()).collect()
    }

    /// The gradient of the `index`-th trainable parameter if it is on a GPU.
    pub fn on_gpu(&self, index: usize) -> Option<&Tensor> {
        self.on_gpu[index].tensor.as_ref()
    }

    /// For each trainable parameter, whether it has a gradient on the CPU.
    pub fn written(&self) -> &[bool] {
        &self.written
    }

    /// The gradients on the CPU, in the order of the trainable parameters. The values of a
    /// parameter without a gradient are undefined.
    pub fn values(&self) -> &[Vec<f32>] {
        &self.buffers
    }

    /// Like [`GradientSet::values`], for writing. A buffer that was taken out must have its length
    /// again before the set is used for another pass.
    pub fn values_mut(&mut self) -> &mut [Vec<f32>] {
        &mut self.buffers
    }

    /// Discards the gradients. The buffers stay allocated.
    pub fn clear(&mut self) {
        self.written.fill(false);
        self.on_gpu.fill_with(GpuGradient::default);
    }
}

impl Gradients {
    /// For each trainable parameter, whether it has a gradient, on the CPU or on a GPU.
    pub fn has_gradient(&self) -> Vec<bool> {
        self.pool.set.has_gradient()
    }

    /// The shape and the device of the `index`-th trainable parameter if its gradient is on a GPU.
    pub fn place_on_gpu(&self, index: usize) -> Option<&(Shape, Device)> {
        self.places[index].as_ref()
    }

    /// Replaces the gradient on a GPU of the `index`-th trainable parameter.
    pub fn set_on_gpu(&mut self, index: usize, gradient: Tensor) {
        self.pool.set.on_gpu[index] =
            GpuGradient { tensor: Some(gradient), ..GpuGradient::default() };
    }

    /// Creates a set for the same parameters, without gradients.
    pub fn new_set(&self) -> GradientSet {
        GradientSet {
            buffers: self.sizes.iter().map(|size| vec![0.0; *size]).collect(),
            written: vec![false; self.len()],
            on_gpu: self.sizes.iter().map(|_| GpuGradient::default()).collect(),
        }
    }

    /// Swaps the gradients with a set of the same parameters. Copies nothing.
    pub fn swap(&mut self, set: &mut GradientSet) {
        std::mem::swap(&mut self.pool.set, set);
    }

    /// Adds the gradients of a set of the same parameters. A parameter without a gradient in one of
    /// them keeps the other's gradient unchanged.
    ///
    /// # Errors
    /// If a GPU fails.
    pub fn add(&mut self, set: &GradientSet) -> Result<()> {
        let GradientSet { buffers, written, on_gpu } = &mut self.pool.set;
        for (i, is_added) in set.written.iter().enumerate() {
            match (*is_added, written[i]) {
                (false, _) => {}
                (true, true) => add_values(&mut buffers[i], &set.buffers[i]),
                (true, false) => buffers[i].copy_from_slice(&set.buffers[i]),
            }
            written[i] |= is_added;
        }
        for (own, added) in on_gpu.iter_mut().zip(&set.on_gpu) {
            let sum = match (&own.tensor, &added.tensor) {
                (_, None) => continue,
                (Some(own), Some(added)) => (added + own)?,
                (None, Some(added)) => added.clone(),
            };
            *own = GpuGradient { tensor: Some(sum), ..GpuGradient::default() };
        }
        Ok(())
    }

    /// Sets which parameters have a gradient, after their values were written to
    /// [`Gradients::values_mut`].
    pub fn set_written(&mut self, written: &[bool]) {
        self.pool.set.written.copy_from_slice(written);
    }

    /// The buffers of the gradients on the CPU, in the order of the trainable parameters; empty for
    /// a parameter on a GPU. The values of a parameter without a gradient are undefined.
    pub fn values_mut(&mut self) -> &mut [Vec<f32>] {
        &mut self.pool.set.buffers
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;
    use crate::kernels::linear;
    use crate::params::{Init, ParameterBuilder};

    /// Micro-batches that differ in the parameters that they use.
    #[test]
    fn sums_of_sets_have_the_gradients_of_all_micro_batches() -> Result<()> {
        let builder = ParameterBuilder::on_cpu(1);
        let both = builder.get("both", &[3], Init::Normal(1.0))?;
        let first = builder.get("first", &[3], Init::Normal(1.0))?;
        let second = builder.get("second", &[3], Init::Normal(1.0))?;
        let unused = builder.get("unused", &[3], Init::Normal(1.0))?;
        let parameters = builder.finish()?;
        let mut gradients = Gradients::new(&parameters);
        let loss = |other: &Tensor, factor: f64| both.mul(other)?.sum_all()? * factor;
        gradients.backward(&loss(&first, 2.0)?)?;
        let mut set = gradients.new_set();
        gradients.swap(&mut set);
        assert!(gradients.by_name("both").is_none());
        gradients.backward(&loss(&second, 3.0)?)?;
        gradients.add(&set)?;
        let values = |tensor: &Tensor| tensor.to_vec1::<f32>();
        let (first, second) = (values(&first)?, values(&second)?);
        let sums = first.iter().zip(&second).map(|(a, b)| 2.0 * a + 3.0 * b);
        assert_eq!(gradients.by_name("both"), Some(&*sums.collect::<Vec<f32>>()));
        let both = values(&both)?;
        let scaled = |factor: f32| both.iter().map(|value| factor * value).collect::<Vec<f32>>();
        assert_eq!(gradients.by_name("first"), Some(&*scaled(2.0)));
        assert_eq!(gradients.by_name("second"), Some(&*scaled(3.0)));
        assert!(gradients.by_name("unused").is_none() && unused.dims() == [3]);
        Ok(())
    }

    #[test]
    fn gradients_kept_as_tensors_equal_those_in_buffers() -> Result<()> {
        let builder = ParameterBuilder::on_cpu(1);
        let weight = builder.get("weight", &[2, 3], Init::Normal(1.0))?;
        builder.get("unused", &[4], Init::Zeros)?;
        let parameters = builder.finish()?;
        let mut buffers = Gradients::new(&parameters);
        let mut tensors = Gradients::as_tensors(&parameters);
        let x = Tensor::ones((4, 3), DType::F32, weight.device())?;
        for gradients in [&mut buffers, &mut tensors] {
            // The weight is used twice.
            let once = linear(&x, &weight, None)?.sum_all()?;
            let again = linear(&(&x * 2.0)?, &weight, None)?.sqr()?.sum_all()?;
            gradients.backward(&(once + again)?)?;
            assert_eq!(gradients.has_gradient(), [true, false]);
        }
        assert!(buffers.on_gpu(0).is_none());
        assert_eq!(tensors.on_gpu(0).map(Tensor::dims), Some(&[2, 3][..]));
        assert!(buffers.get(0).is_some());
        assert_eq!(tensors.get(0), buffers.get(0));
        Ok(())
    }
}
