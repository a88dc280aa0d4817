//! Values as 4-bit integers from -7 to 7. Each group of 32 components of a token has a scale: a
//! component is its number times the scale. The last group of a token may be shorter.
//!
//! A byte holds two numbers, each plus 8. Byte `i` of a group of `n` components holds component `i`
//! in its low bits, and component `i + n / 2` (rounded up) in its high bits, so that both halves
//! are read in order. If `n` is odd, the last high bits are padding.
//!
//! A scale is a bfloat16 number. Normally distributed values need 18 bytes per 32 components, with
//! a relative error of 0.0967; f32 scales would need 20 bytes for an error of 0.0970. f16 scales
//! would lose very small and very large values. Groups below 1e-37 may lose more.

use half::bf16;
use safetensors::Dtype;

use super::{Codec, largest};

/// The number of components with a common scale.
const GROUP: usize = 32;
/// The largest number.
const MAX: f32 = 7.0;
/// Added to a number, so that the sum is positive.
const OFFSET: u8 = 8;

pub(super) struct Int4;

impl Codec for Int4 {
    fn name(&self) -> &'static str {
        "int4"
    }

    fn description(&self) -> &'static str {
        "4-bit integers with one scale per 32 components"
    }

    fn numbers(&self, width: usize) -> (Dtype, Vec<usize>) {
        (Dtype::U8, vec![width.div_ceil(2)])
    }

    fn scales(&self, width: usize) -> Option<(Dtype, Vec<usize>)> {
        Some((Dtype::BF16, vec![width.div_ceil(GROUP)]))
    }

    fn encode(
        &self,
        width: usize,
        components: &[f32],
        numbers: &mut Vec<u8>,
        scales: &mut Vec<u8>,
    ) {
        let groups = components.chunks(width).flat_map(|token| token.chunks(GROUP));
        for group in groups {
            let scale = rounded_down(largest(group) / MAX);
            let (low, high) = group.split_at(group.len().div_ceil(2));
            let padded = high.iter().chain(&[0.0]);
            let bytes = low.iter().zip(padded);
            numbers.extend(bytes.map(|(low, high)| code(*low, scale) | code(*high, scale) << 4));
            scales.extend(bf16::from_f32(scale).to_le_bytes());
        }
    }

    fn decode(&self, width: usize, numbers: &[u8], scales: &[u8], out: &mut [f32]) {
        decode(width, numbers, scales, out);
    }
}

/// Rounds a scale down to bfloat16, so that products of numbers with the scale do not overflow, and
/// decoded components are encoded as the same numbers.
fn rounded_down(scale: f32) -> f32 {
    f32::from_bits(scale.to_bits() & 0xFFFF_0000)
}

/// Returns the number of a component, plus [`OFFSET`].
fn code(component: f32, scale: f32) -> u8 {
    let number = if scale > 0.0 { (component / scale).round().clamp(-MAX, MAX) } else { 0.0 };
    (number + f32::from(OFFSET)) as u8
}

#[multiversion::multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512cd+avx512dq+avx512vl",
    "x86_64+avx2"
))]
fn decode(width: usize, numbers: &[u8], scales: &[u8], out: &mut [f32]) {
    let (token_bytes, groups) = (width.div_ceil(2), width.div_ceil(GROUP));
    let tokens = out.chunks_mut(width).zip(numbers.chunks(token_bytes));
    for ((out, numbers), scales) in tokens.zip(scales.as_chunks::<2>().0.chunks(groups)) {
        let groups = out.chunks_mut(GROUP).zip(numbers.chunks(GROUP / 2)).zip(scales);
        for ((out, numbers), scale) in groups {
            let scale = bf16::from_le_bytes(*scale).to_f32();
            // With the sizes of a complete group, the compiler unrolls the loops.
            match <&mut [f32; GROUP]>::try_from(&mut *out) {
                Ok(out) => decode_group(&numbers[..GROUP / 2], scale, out),
                Err(_) => decode_group(numbers, scale, out),
            }
        }
    }
}

/// Writes the components of a group to `out`.
#[inline(always)]
fn decode_group(numbers: &[u8], scale: f32, out: &mut [f32]) {
    let component = |code: u8| f32::from(code.cast_signed() - OFFSET.cast_signed()) * scale;
    let (low, high) = out.split_at_mut(out.len().div_ceil(2));
    low.iter_mut().zip(numbers).for_each(|(out, byte)| *out = component(byte & 0xF));
    high.iter_mut().zip(numbers).for_each(|(out, byte)| *out = component(byte >> 4));
}
