//! Dropout with a stateless generator. A mask value is a function of the seed, the number of the
//! dropout in the forward pass, and the element's index. Masks are never stored.

use candle_core::{Result, Shape, Tensor};
use rayon::prelude::*;

use super::device::{BackwardPass, DeviceKernel, Saved};
use super::operation::{Gradient, Input, Kernel, Output, Pass, apply};
use super::rows::{ELEMENTS, new_values};

/// One dropout mask.
#[derive(Debug, Clone, Copy)]
pub struct Dropout {
    key: [u32; 2],
    threshold: u32,
    scale: f32,
}

impl Dropout {
    /// Creates mask number `index` of a forward pass with this seed.
    pub(super) fn of_mask(probability: f64, seed: u64, index: u64) -> Self {
        Self::new(probability, split_mix(seed ^ split_mix(index)))
    }

    /// Returns the same mask, with the factors of retained elements multiplied by `factor`.
    pub(super) fn scaled_by(self, factor: f32) -> Self {
        Self { scale: self.scale * factor, ..self }
    }

    /// Creates a mask that drops each element with `probability` (in `[0, 1)`). Equal keys give
    /// equal masks.
    pub fn new(probability: f64, key: u64) -> Self {
        let probability = probability.clamp(0.0, 0.999_999);
        Self {
            key: [key as u32, (key >> 32) as u32],
            threshold: (probability * 4_294_967_296.0) as u32,
            scale: (1.0 / (1.0 - probability)) as f32,
        }
    }

    /// Returns the factor of element `index`: 0 or `1 / (1 - probability)`.
    #[inline(always)]
    pub fn factor(&self, index: usize) -> f32 {
        let (low, high) = (index as u32, (index as u64 >> 32) as u32);
        let hash = hash32(hash32(low ^ self.key[0]).wrapping_add(self.key[1]).wrapping_add(high));
        if hash >= self.threshold { self.scale } else { 0.0 }
    }

    /// Multiplies each element of `x`, of any shape, with its factor, without a graph.
    pub(crate) fn masked(self, x: &Tensor) -> Result<Tensor> {
        self.masked_sum(x, None)
    }

    /// Computes `residual + dropout(x)` without a graph, for tensors of one shape and dtype.
    pub(super) fn masked_sum(self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            return crate::cuda::masked(x, residual, self, None);
        }
        let mask: Vec<f32> = (0..x.elem_count()).map(|i| self.factor(i)).collect();
        let masked = x.mul(&Tensor::from_vec(mask, x.shape(), x.device())?.to_dtype(x.dtype())?)?;
        match residual {
            Some(residual) => residual + masked,
            None => Ok(masked),
        }
    }

    /// The key, the threshold and the factor of elements that are not dropped, for CUDA kernels.
    #[cfg(feature = "cuda")]
    pub(crate) fn parameters(&self) -> ([u32; 2], u32, f32) {
        (self.key, self.threshold, self.scale)
    }
}

/// Applies a dropout mask: dropped elements become 0 and the others are scaled up. `None` returns
/// `x`. `x` of any shape → the same shape.
pub fn dropout(x: &Tensor, mask: Option<Dropout>) -> Result<Tensor> {
    match mask {
        Some(mask) => apply(DropoutKernel(mask), &[x]),
        None => Ok(x.clone()),
    }
}

pub(super) struct DropoutKernel(pub(super) Dropout);

impl Kernel for DropoutKernel {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output> {
        Ok((masked(self.0, inputs[0].data), Shape::from(inputs[0].dims), Box::new(())))
    }

    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()> {
        let gradient = pass.gradient;
        if let Some(buffer) = &mut input_gradients[0] {
            add_masked(self.0, gradient, buffer.as_sum());
        }
        Ok(())
    }

    fn device(&self) -> Option<&dyn DeviceKernel> {
        Some(self)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// Returns the masked values.
pub(super) fn masked(mask: Dropout, values: &[f32]) -> Vec<f32> {
    new_values(values.len(), ELEMENTS, |block, masked| {
        let start = block * ELEMENTS;
        add_masked_block(mask, start, &values[start..][..masked.len()], masked);
    })
}

/// Adds the masked values of `from` to `to`.
pub(super) fn add_masked(mask: Dropout, from: &[f32], to: &mut [f32]) {
    let blocks = to.par_chunks_mut(ELEMENTS).zip(from.par_chunks(ELEMENTS));
    blocks.enumerate().for_each(|(block, (to, from))| {
        add_masked_block(mask, block * ELEMENTS, from, to);
    });
}

impl DeviceKernel for DropoutKernel {
    fn forward(&self, inputs: &[Tensor], _: &[bool]) -> Result<(Tensor, Saved)> {
        Ok((self.0.masked(&inputs[0])?, Saved::default()))
    }

    fn backward(&self, pass: &BackwardPass<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(self.0.masked(pass.gradient)?)])
    }
}

vectorised! {
    /// Adds the masked values of the block that starts at element `start`.
    pub(crate) fn add_masked_block(mask: Dropout, start: usize, from: &[f32], to: &mut [f32]) {
        for (i, (to, from)) in to.iter_mut().zip(from).enumerate() {
            *to += from * mask.factor(start + i);
        }
    }
}

/// A 32-bit hash with low bias (Wellons, "lowbias32").
#[inline(always)]
fn hash32(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// One step of the SplitMix64 generator: spreads neighbouring seeds far apart.
fn split_mix(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::super::mode::Mode;
    use super::*;

    /// Attention indexes its weights over the whole batch; the indices can exceed 2^32.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn a_mask_does_not_repeat_after_2_to_the_32() {
        let mask = Dropout::new(0.5, 3);
        let num_equal =
            (0..100_000).filter(|&i| mask.factor(i) == mask.factor(i + (1 << 32))).count();
        assert!((num_equal as i64 - 50_000).abs() < 800, "{num_equal}");
    }

    #[test]
    fn masks_match_the_probability_are_independent_and_reproducible() {
        let mode = Mode::train(7);
        let (a, b) = (mode.dropout(0.3).unwrap(), mode.dropout(0.3).unwrap());
        let num_nonzero = |d: Dropout| (0..100_000).filter(|&i| d.factor(i) > 0.0).count();
        assert!((num_nonzero(a) as i64 - 70_000).abs() < 600, "{}", num_nonzero(a));
        let num_in_both = (0..100_000).filter(|&i| a.factor(i) > 0.0 && b.factor(i) > 0.0).count();
        assert!(
            (num_in_both as i64 - 49_000).abs() < 600,
            "two masks are dependent: {num_in_both}"
        );
        let repeated = Mode::train(7).dropout(0.3).unwrap();
        assert!((0..1000).all(|i| repeated.factor(i) == a.factor(i)));
        assert!(Mode::evaluate().dropout(0.3).is_none());
    }
}
