//! Values as 8-bit integers from -127 to 127. Each token has a scale: a component is its number
//! times the scale.

use safetensors::Dtype;

use super::{Codec, largest};

/// The largest scale: its products with numbers do not overflow.
const MAX_SCALE: f32 = (f32::MAX / 127.0).next_down();

pub(super) struct Int8;

impl Codec for Int8 {
    fn name(&self) -> &'static str {
        "int8"
    }

    fn description(&self) -> &'static str {
        "8-bit integers with one scale per token"
    }

    fn numbers(&self, width: usize) -> (Dtype, Vec<usize>) {
        (Dtype::I8, vec![width])
    }

    fn scales(&self, _: usize) -> Option<(Dtype, Vec<usize>)> {
        Some((Dtype::F32, Vec::new()))
    }

    fn encode(
        &self,
        width: usize,
        components: &[f32],
        numbers: &mut Vec<u8>,
        scales: &mut Vec<u8>,
    ) {
        for token in components.chunks(width) {
            let scale = (largest(token) / f32::from(i8::MAX)).min(MAX_SCALE);
            let number = |component: &f32| match scale > 0.0 {
                true => ((component / scale).round() as i8).cast_unsigned(),
                false => 0,
            };
            numbers.extend(token.iter().map(number));
            scales.extend(scale.to_le_bytes());
        }
    }

    fn decode(&self, width: usize, numbers: &[u8], scales: &[u8], out: &mut [f32]) {
        decode(width, numbers, scales, out);
    }
}

#[multiversion::multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512cd+avx512dq+avx512vl",
    "x86_64+avx2"
))]
fn decode(width: usize, numbers: &[u8], scales: &[u8], out: &mut [f32]) {
    let tokens = out.chunks_mut(width).zip(numbers.chunks(width));
    for ((out, numbers), scale) in tokens.zip(scales.as_chunks::<4>().0) {
        let scale = f32::from_le_bytes(*scale);
        for (out, number) in out.iter_mut().zip(numbers) {
            *out = f32::from(number.cast_signed()) * scale;
        }
    }
}
