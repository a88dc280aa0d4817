//! Elementary functions written for automatic vectorisation, and sums in a fixed order.
//!
//! All functions are branch-free and inlined into kernels that are compiled once for each
//! instruction set (`multiversion`). `mul_add` is fused on every instruction set, so the results do
//! not depend on the instruction set.

use std::ops::{Add, Div, Mul, Sub};

/// `e^x` to about 2 units in the last place; 0 below -87.3, and `e^88` above 88.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let p = 1.987_569_1e-4_f32
        .mul_add(r, 1.398_199_9e-3)
        .mul_add(r, 8.333_452e-3)
        .mul_add(r, 4.166_579_6e-2)
        .mul_add(r, 1.666_666_5e-1)
        .mul_add(r, 0.5);
    let mantissa = p.mul_add(r * r, r) + 1.0;
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x < -87.3 { 0.0 } else { mantissa * scale }
}

/// The error function, accurate to about 1e-7 (the rational approximation of Eigen and XLA).
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let x = x.clamp(-4.0, 4.0);
    let s = x * x;
    let p = (-2.726_142_3e-10_f32)
        .mul_add(s, 2.770_681_3e-8)
        .mul_add(s, -2.101_024e-6)
        .mul_add(s, -5.692_506_5e-5)
        .mul_add(s, -7.349_906_5e-4)
        .mul_add(s, -2.954_6e-3)
        .mul_add(s, -1.609_603_4e-2);
    let q = (-1.456_607_2e-5_f32)
        .mul_add(s, -2.133_740_6e-4)
        .mul_add(s, -1.682_827e-3)
        .mul_add(s, -7.373_329_3e-3)
        .mul_add(s, -1.426_473_9e-2);
    x * p / q
}

/// The hyperbolic tangent, with an absolute error below 3e-7.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    // Beyond 20, the result is exactly 1 or -1.
    1.0 - 2.0 / (exp(2.0 * x.clamp(-20.0, 20.0)) + 1.0)
}

/// A number of an activation: f32 in the fused kernels, f64 in gradient checks.
pub(crate) trait Real:
    Copy
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    fn of(value: f64) -> Self;
    fn exp(self) -> Self;
    fn erf(self) -> Self;
    fn tanh(self) -> Self;
    fn mul_add(self, factor: Self, summand: Self) -> Self;
}

/// Implements [`Real`] with these functions.
macro_rules! real {
    ($number:ty, $exp:expr, $erf:expr, $tanh:expr) => {
        impl Real for $number {
            #[inline(always)]
            fn of(value: f64) -> Self {
                value as Self
            }

            #[inline(always)]
            fn exp(self) -> Self {
                $exp(self)
            }

            #[inline(always)]
            fn erf(self) -> Self {
                $erf(self)
            }

            #[inline(always)]
            fn tanh(self) -> Self {
                $tanh(self)
            }

            #[inline(always)]
            fn mul_add(self, factor: Self, summand: Self) -> Self {
                <$number>::mul_add(self, factor, summand)
            }
        }
    };
}

real!(f32, exp, erf, tanh);
real!(f64, f64::exp, candle_core::cpu::erf::erf_f64, f64::tanh);

/// The number of running sums. They fix the order of addition, which is the same on every machine.
const LANES: usize = 16;

/// Returns the sum of `f(a, b)` over two slices of equal length.
#[inline(always)]
pub(crate) fn sum2(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (a_blocks, b_blocks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let (a_remainder, b_remainder) = (a_blocks.remainder(), b_blocks.remainder());
    for (a, b) in a_blocks.zip(b_blocks) {
        for ((lane, &a), &b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += f(a, b);
        }
    }
    for ((lane, &a), &b) in lanes.iter_mut().zip(a_remainder).zip(b_remainder) {
        *lane += f(a, b);
    }
    fold(lanes, |a, b| a + b)
}

/// Returns the sum of `f(a)` over a slice.
#[inline(always)]
pub(crate) fn sum(a: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    sum2(a, a, |a, _| f(a))
}

/// Returns the largest value of a slice, ignoring NaN; minus infinity if there is none.
#[inline(always)]
pub(crate) fn max(a: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let blocks = a.chunks_exact(LANES);
    let remainder = blocks.remainder();
    for block in blocks {
        for (lane, &a) in lanes.iter_mut().zip(block) {
            *lane = if a > *lane { a } else { *lane };
        }
    }
    for (lane, &a) in lanes.iter_mut().zip(remainder) {
        *lane = if a > *lane { a } else { *lane };
    }
    fold(lanes, |a, b| if a > b { a } else { b })
}

/// Reduces the lanes to one value, in a fixed order.
#[inline(always)]
fn fold(mut lanes: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = f(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_matches_the_standard_library() {
        for i in -8700..8800 {
            let x = i as f32 * 0.01;
            let expected = f64::from(x).exp();
            let relative_error = (f64::from(exp(x)) - expected).abs() / expected;
            assert!(relative_error < 3e-7, "exp({x}): {relative_error}");
        }
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn erf_matches_reference_values() {
        // scipy.special.erf
        let reference = [
            (0.0, 0.0),
            (0.1, 0.112_462_916_018_284_9),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (1.7, 0.983_790_458_590_774_6),
            (2.5, 0.999_593_047_982_555),
            (3.5, 0.999_999_256_901_627_7),
            (6.0, 1.0),
        ];
        for (x, expected) in reference {
            assert!((f64::from(erf(x as f32)) - expected).abs() < 3e-7, "erf({x})");
            assert!((f64::from(erf(-x as f32)) + expected).abs() < 3e-7, "erf(-{x})");
        }
    }

    #[test]
    fn tanh_matches_the_standard_library() {
        for i in -1500..1500 {
            let x = i as f32 * 0.01;
            let expected = f64::from(x).tanh();
            assert!((f64::from(tanh(x)) - expected).abs() < 3e-7, "tanh({x})");
        }
    }

    #[test]
    fn sums_and_maxima_include_the_elements_after_the_last_full_block() {
        let a: Vec<f32> = (0..37).map(|i| i as f32).collect();
        assert_eq!(sum(&a, |a| a), 666.0);
        assert_eq!(sum2(&a, &a, |a, b| a - b), 0.0);
        assert_eq!(max(&a), 36.0);
        assert_eq!(max(&a[..3]), 2.0);
    }
}
