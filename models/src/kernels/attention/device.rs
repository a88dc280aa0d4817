//! The device path of attention without branches. On a GPU it computes tiles of scores; on the CPU,
//! and for heads that do not fit the GPU's kernels, it runs the composite.

use candle_core::{Result, Tensor};

use super::super::device::{
    BackwardPass, DeviceKernel, Saved, composite_backward, composite_forward,
};
#[cfg(feature = "cuda")]
use super::super::operation::tensor_dims;
use super::AttentionKernel;
#[cfg(feature = "cuda")]
use super::Sizes;

impl DeviceKernel for AttentionKernel {
    fn forward(&self, inputs: &[Tensor], wanted: &[bool]) -> Result<(Tensor, Saved)> {
        #[cfg(feature = "cuda")]
        if let Some(attention) = self.on_gpu(inputs)? {
            let (y, saved) = attention.forward(&self.options.segments)?;
            return Ok((y, Saved::tensors(saved)));
        }
        composite_forward(self, inputs, wanted)
    }

    fn backward(&self, pass: &BackwardPass<'_>) -> Result<Vec<Option<Tensor>>> {
        #[cfg(feature = "cuda")]
        if let Some(attention) = self.on_gpu(pass.inputs)? {
            let wants_bias = self.bias.is_some() && pass.wanted.last() == Some(&true);
            let (gradients, of_bias) = attention.backward(
                &self.options.segments,
                pass.output,
                pass.gradient,
                &pass.saved.tensors,
                wants_bias,
            )?;
            let mut gradients: Vec<_> = gradients.into_iter().map(Some).collect();
            gradients.extend(self.bias.map(|_| of_bias));
            return Ok(gradients);
        }
        composite_backward(pass)
    }
}

/// The composite runs if a query attends to more keys than this.
#[cfg(feature = "cuda")]
const MAX_KEYS: usize = 4096;

#[cfg(feature = "cuda")]
impl AttentionKernel {
    /// Returns the inputs of the GPU's kernels if they apply.
    fn on_gpu<'a>(&self, inputs: &'a [Tensor]) -> Result<Option<crate::cuda::Attention<'a>>> {
        let Sizes { width, shared_bias, .. } = self.check(&tensor_dims(inputs))?;
        let size = width / self.options.num_heads;
        let (inputs, bias) = match self.bias {
            Some(_) => inputs.split_at(inputs.len() - 1),
            None => (inputs, &[][..]),
        };
        let bias =
            bias.first().map(|values| crate::cuda::BiasInput { values, shared: shared_bias });
        let same_dtype = inputs.iter().all(|input| input.dtype() == inputs[0].dtype());
        let is_short = self.options.segments.iter().all(|(_, key)| key.length <= MAX_KEYS);
        let applies = inputs[0].device().is_cuda()
            && same_dtype
            && size.is_multiple_of(8)
            && size <= 128
            && is_short;
        Ok(applies.then(|| crate::cuda::Attention {
            inputs,
            num_heads: self.options.num_heads,
            width,
            scale: self.options.scale,
            causal: self.options.causal,
            mask: self.options.dropout,
            bias,
        }))
    }
}
