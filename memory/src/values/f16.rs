//! Values as 16-bit floating-point numbers.

use half::f16;
use half::slice::HalfFloatSliceExt;
use safetensors::Dtype;

use super::Codec;
use crate::format::tensor::as_numbers;

/// The number of components that are converted together.
const CHUNK: usize = 1024;

pub(super) struct F16;

impl Codec for F16 {
    fn name(&self) -> &'static str {
        "f16"
    }

    fn description(&self) -> &'static str {
        "16-bit floating point"
    }

    fn max_abs(&self) -> f32 {
        f16::MAX.to_f32()
    }

    fn refusal(&self) -> &'static str {
        "contains NaN, infinity or a number beyond the f16 range"
    }

    fn numbers(&self, width: usize) -> (Dtype, Vec<usize>) {
        (Dtype::F16, vec![width])
    }

    fn scales(&self, _: usize) -> Option<(Dtype, Vec<usize>)> {
        None
    }

    fn encode(&self, _: usize, components: &[f32], numbers: &mut Vec<u8>, _: &mut Vec<u8>) {
        let mut converted = [f16::ZERO; CHUNK];
        for components in components.chunks(CHUNK) {
            let converted = &mut converted[..components.len()];
            converted.convert_from_f32_slice(components);
            numbers.extend(converted.iter().flat_map(|number| number.to_le_bytes()));
        }
    }

    fn decode(&self, _: usize, numbers: &[u8], _: &[u8], out: &mut [f32]) {
        // Mapped tensors are aligned. Bytes in main memory need not be.
        if let Some(numbers) = as_numbers::<f16>(numbers) {
            return numbers.convert_to_f32_slice(out);
        }
        for (out, bytes) in out.iter_mut().zip(numbers.as_chunks::<2>().0) {
            *out = f16::from_le_bytes(*bytes).to_f32();
        }
    }
}
