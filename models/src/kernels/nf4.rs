//! NF4, the 4-bit quantisation of QLoRA (arXiv 2305.14314, appendix E), without double
//! quantisation: blocks of 64 values share a scale, and each value is one of 16 levels.
//!
//! Reference: `quantize_4bit` of bitsandbytes 0.50.2 on the CPU. Quantising dequantised values
//! gives the same codes and scales again.

use std::sync::{Arc, PoisonError, RwLock};

use candle_core::{DType, Device, Result, Tensor};
use rayon::prelude::*;

/// The values of a block, in row-major order.
const BLOCK: usize = 64;

/// Blocks that are converted in one task.
const BLOCKS_AT_ONCE: usize = 256;

/// The levels, ascending.
const LEVELS: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_04,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The code of zero.
const ZERO: u8 = 7;

/// Values in NF4.
#[derive(Debug, Clone, PartialEq)]
pub struct Nf4 {
    /// Two codes a byte; the first is in the upper half.
    pub codes: Vec<u8>,
    /// The largest absolute value of each block.
    pub scales: Vec<f32>,
    len: usize,
}

impl Nf4 {
    /// Quantises values to the nearest level, and to the lower of two equally near levels. NaN
    /// becomes zero.
    pub fn quantise(values: &[f32]) -> Self {
        let blocks: Vec<(f32, Vec<u8>)> = values
            .par_chunks(BLOCK)
            .with_min_len(BLOCKS_AT_ONCE)
            .map(|block| {
                let scale = block.iter().fold(0.0f32, |scale, value| scale.max(value.abs()));
                let code = |value: &f32| if scale > 0.0 { nearest(value / scale) } else { ZERO };
                let pack = |pair: &[f32]| code(&pair[0]) << 4 | pair.get(1).map_or(ZERO, code);
                (scale, block.chunks(2).map(pack).collect())
            })
            .collect();
        let scales = blocks.iter().map(|(scale, _)| *scale).collect();
        let codes = blocks.into_iter().flat_map(|(_, codes)| codes).collect();
        Self { codes, scales, len: values.len() }
    }

    /// Returns the values.
    pub fn dequantise(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.len];
        values
            .par_chunks_mut(BLOCK * BLOCKS_AT_ONCE)
            .zip(self.codes.par_chunks(BLOCK / 2 * BLOCKS_AT_ONCE))
            .zip(self.scales.par_chunks(BLOCKS_AT_ONCE))
            .for_each(|((values, codes), scales)| dequantise_blocks(codes, scales, values));
        values
    }
}

/// A matrix in NF4. Copies share the values.
#[derive(Debug, Clone)]
pub struct QuantisedMatrix {
    values: Arc<RwLock<Values>>,
    rows: usize,
    columns: usize,
}

/// Values, and their copy on a GPU once they were used there.
#[derive(Debug)]
struct Values {
    values: Nf4,
    on_gpu: Option<Nf4Tensors>,
}

/// Values in NF4 on a device.
#[derive(Debug, Clone)]
struct Nf4Tensors {
    /// The bytes with two codes, `[blocks, 32]` in u8.
    codes: Tensor,
    /// `[blocks, 1]`
    scales: Tensor,
    /// The two levels of each byte, `[256, 2]`.
    levels: Tensor,
}

impl Nf4Tensors {
    /// Copies whole blocks to a device. `None` if the last block is not whole.
    fn new(values: &Nf4, device: &Device) -> Result<Option<Self>> {
        if !values.len.is_multiple_of(BLOCK) {
            return Ok(None);
        }
        let blocks = values.scales.len();
        let levels = (0..256).flat_map(|byte| [LEVELS[byte >> 4], LEVELS[byte & 15]]);
        Ok(Some(Self {
            codes: Tensor::from_slice(&values.codes, (blocks, BLOCK / 2), device)?,
            scales: Tensor::from_slice(&values.scales, (blocks, 1), device)?,
            levels: Tensor::from_iter(levels, device)?.reshape((256, 2))?,
        }))
    }

    /// The values, `[blocks, 64]`.
    fn dequantise(&self) -> Result<Tensor> {
        // Not u8, because candle takes the largest index of a type for zeros, and 255 is a code.
        let codes = self.codes.flatten_all()?.to_dtype(DType::U32)?;
        let levels = self.levels.index_select(&codes, 0)?;
        levels.reshape(((), BLOCK))?.broadcast_mul(&self.scales)
    }
}

impl QuantisedMatrix {
    /// Quantises a matrix `[rows, columns]`.
    pub fn new(values: &[f32], rows: usize, columns: usize) -> Self {
        let values = Values { values: Nf4::quantise(values), on_gpu: None };
        Self { values: Arc::new(RwLock::new(values)), rows, columns }
    }

    /// `[rows, columns]`.
    pub(crate) fn dims(&self) -> [usize; 2] {
        [self.rows, self.columns]
    }

    /// Returns the values in row-major order.
    pub(crate) fn dequantise(&self) -> Vec<f32> {
        self.values.read().unwrap_or_else(PoisonError::into_inner).values.dequantise()
    }

    /// Quantises other values, for all copies.
    pub(crate) fn set(&self, values: &[f32]) {
        let values = Values { values: Nf4::quantise(values), on_gpu: None };
        *self.values.write().unwrap_or_else(PoisonError::into_inner) = values;
    }

    /// Returns the values as a tensor on the device and in the dtype of `x`. On a GPU, the
    /// quantised values stay there.
    pub(super) fn tensor_like(&self, x: &Tensor) -> Result<Tensor> {
        let shape = (self.rows, self.columns);
        let on_gpu = if x.device().is_cpu() { None } else { self.on_gpu(x.device())? };
        let tensor = match on_gpu {
            Some(on_gpu) => on_gpu.dequantise()?.reshape(shape)?,
            None => Tensor::from_vec(self.dequantise(), shape, x.device())?,
        };
        tensor.to_dtype(x.dtype())
    }

    /// The values on a GPU, copied at the first call. `None` if the last block is not whole.
    fn on_gpu(&self, device: &Device) -> Result<Option<Nf4Tensors>> {
        let mut shared = self.values.write().unwrap_or_else(PoisonError::into_inner);
        if shared.on_gpu.is_none() {
            shared.on_gpu = Nf4Tensors::new(&shared.values, device)?;
        }
        Ok(shared.on_gpu.clone())
    }
}

/// Returns the code of the level that is nearest to `value` in `[-1, 1]`.
fn nearest(value: f32) -> u8 {
    if value.is_nan() {
        return ZERO;
    }
    let above = LEVELS.windows(2).take_while(|pair| value - pair[0] > pair[1] - value);
    above.count() as u8
}

vectorised! {
    fn dequantise_blocks(codes: &[u8], scales: &[f32], values: &mut [f32]) {
        let blocks = values.chunks_mut(BLOCK).zip(codes.chunks(BLOCK / 2)).zip(scales);
        for ((values, codes), scale) in blocks {
            for (pair, code) in values.chunks_mut(2).zip(codes) {
                pair[0] = LEVELS[usize::from(code >> 4)] * scale;
                if let Some(second) = pair.get_mut(1) {
                    *second = LEVELS[usize::from(code & 15)] * scale;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_becomes_the_nearest_level_and_levels_are_kept() {
        let values: Vec<f32> = (0..1000).map(|i| ((i * i) as f32 * 0.013).sin() * 3.0).collect();
        let quantised = Nf4::quantise(&values);
        let restored = quantised.dequantise();
        for (block, (values, restored)) in
            values.chunks(BLOCK).zip(restored.chunks(BLOCK)).enumerate()
        {
            let scale = values.iter().fold(0.0f32, |scale, value| scale.max(value.abs()));
            for (value, restored) in values.iter().zip(restored) {
                let errors = LEVELS.iter().map(|level| (level * scale - value).abs());
                let smallest = errors.fold(f32::INFINITY, f32::min);
                let error = (restored - value).abs();
                assert!(error <= smallest + 1e-6, "block {block}: {value} became {restored}");
            }
        }
        assert_eq!(Nf4::quantise(&restored), quantised);
        assert!(Nf4Tensors::new(&quantised, &Device::Cpu).is_ok_and(|tensors| tensors.is_none()));
    }

    #[test]
    fn tensors_give_the_same_values_bit_for_bit() -> Result<()> {
        let values: Vec<f32> = (0..640).map(|i| ((i * i) as f32 * 0.017).sin() * 2.0).collect();
        let quantised = Nf4::quantise(&values);
        let tensors = Nf4Tensors::new(&quantised, &Device::Cpu)?.expect("whole blocks");
        let restored = tensors.dequantise()?.flatten_all()?.to_vec1::<f32>()?;
        assert_eq!(restored, quantised.dequantise());
        Ok(())
    }

    #[test]
    fn blocks_of_zeros_odd_lengths_and_nan_are_kept() {
        let mut values = vec![0.0; 65];
        assert_eq!(Nf4::quantise(&values).dequantise(), values);
        values[64] = -2.5;
        assert_eq!(Nf4::quantise(&values).dequantise(), values);
        values[3] = f32::NAN;
        assert_eq!(Nf4::quantise(&values).dequantise()[3], 0.0);
        assert_eq!(Nf4::quantise(&[]).dequantise(), [0.0; 0]);
    }
}
