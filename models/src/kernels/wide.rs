//! Probabilities of any magnitude, without logarithms.
//!
//! The probability of a path through thousands of frames is outside the range of f64. A
//! [`WideFloat`] stores its exponent separately. A sum or product costs a few vectorisable
//! instructions. A sum in the log domain would cost three exponentials and a logarithm.

use std::ops::{Add, Mul};

/// The number `mantissa 2^exponent`, never negative. After a product, the mantissa is 0 or in
/// `[1, 2)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct WideFloat {
    mantissa: f64,
    exponent: i64,
}

/// Logarithms below this are treated as minus infinity, so that exponents never overflow.
const MIN_LOG: f64 = -1e12;
/// A mask of the bits of an f64 mantissa.
const MANTISSA_BITS: u64 = (1 << 52) - 1;

impl WideFloat {
    /// Zero. Its exponent is below the exponent of any product of probabilities.
    pub const ZERO: Self = Self { mantissa: 0.0, exponent: -(1 << 61) };
    pub const ONE: Self = Self { mantissa: 1.0, exponent: 0 };

    /// Returns `e^x` with a relative error of about 1e-16; 0 below -1e12. `x` must be at most about
    /// 0 and not NaN.
    #[inline(always)]
    pub fn exp(x: f64) -> Self {
        const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52: adding it rounds to an integer
        const LN2_HIGH: f64 = 0.693_147_180_369_123_8;
        const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
        let shifted = x.mul_add(std::f64::consts::LOG2_E, ROUND);
        let n = shifted - ROUND;
        let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
        // The Taylor series of the exponential up to r^13 / 13!, |r| < 0.35.
        let mut mantissa = 1.0 / 6_227_020_800.0;
        for coefficient in [
            1.0 / 479_001_600.0,
            1.0 / 39_916_800.0,
            1.0 / 3_628_800.0,
            1.0 / 362_880.0,
            1.0 / 40_320.0,
            1.0 / 5_040.0,
            1.0 / 720.0,
            1.0 / 120.0,
            1.0 / 24.0,
            1.0 / 6.0,
            0.5,
            1.0,
            1.0,
        ] {
            mantissa = r.mul_add(mantissa, coefficient);
        }
        let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i64;
        if x < MIN_LOG { Self::ZERO } else { Self { mantissa, exponent } }
    }

    /// Returns the natural logarithm; minus infinity for 0.
    pub fn ln(self) -> f64 {
        if self.is_zero() {
            f64::NEG_INFINITY
        } else {
            (self.exponent as f64).mul_add(std::f64::consts::LN_2, self.mantissa.ln())
        }
    }

    pub fn is_zero(self) -> bool {
        self.mantissa == 0.0
    }

    /// Returns `self / total`. `total` must not be 0, and the quotient must be at most about 1.
    #[inline(always)]
    pub fn ratio(self, total: Self) -> f64 {
        self.mantissa / total.mantissa * power_of_two(self.exponent - total.exponent)
    }
}

/// Returns `2^n` for `n` up to 1000, or the smallest normal number if `n` is below -1022.
#[inline(always)]
fn power_of_two(n: i64) -> f64 {
    let n = if n < -1022 { -1022 } else { n };
    f64::from_bits(((n + 1023) as u64) << 52)
}

impl Add for WideFloat {
    type Output = Self;

    /// Returns the sum. Its mantissa may leave the range from 1 to 2 until the next product.
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        let exponent = if self.exponent > other.exponent { self.exponent } else { other.exponent };
        let mantissa = self.mantissa * power_of_two(self.exponent - exponent)
            + other.mantissa * power_of_two(other.exponent - exponent);
        Self { mantissa, exponent }
    }
}

impl Mul for WideFloat {
    type Output = Self;

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        let mantissa = self.mantissa * other.mantissa;
        let bits = mantissa.to_bits();
        let exponent = self.exponent + other.exponent + (bits >> 52) as i64 - 1023;
        let scaled = f64::from_bits(bits & MANTISSA_BITS | 1.0f64.to_bits());
        if mantissa == 0.0 { Self::ZERO } else { Self { mantissa: scaled, exponent } }
    }
}

vectorised! {
    /// Computes the exponentials of logarithms.
    pub(crate) fn exponentials(logarithms: &[f64], out: &mut [WideFloat]) {
        for (out, x) in out.iter_mut().zip(logarithms) {
            *out = WideFloat::exp(*x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_inverts_the_exponential_and_underflow_gives_zero() {
        for x in [0.0, -1e-9, -0.3, -0.35, -1.0, -87.4, -745.2, -123_456.7, -1e9, -9e11] {
            let logarithm = WideFloat::exp(x).ln();
            assert!((logarithm - x).abs() <= 1e-15 * x.abs().max(1.0), "{x}: {logarithm}");
        }
        for x in [-1.1e12, f64::from(f32::MIN), f64::MIN, f64::NEG_INFINITY] {
            assert_eq!(WideFloat::exp(x), WideFloat::ZERO);
        }
        assert_eq!(WideFloat::ZERO.ln(), f64::NEG_INFINITY);
    }

    #[test]
    fn sums_products_and_ratios_match_f64_and_work_beyond_its_range() {
        let to_wide = |x: f64| WideFloat::exp(x.ln());
        let (a, b) = (to_wide(0.3), to_wide(0.001));
        assert!(((a + b).ln() - 0.301f64.ln()).abs() < 1e-15);
        assert!(((a * b).ln() - 0.0003f64.ln()).abs() < 1e-15);
        assert!(((a * b).ratio(a) - 0.001).abs() < 1e-17);
        // Numbers of very different size, and zero.
        let tiny = WideFloat::exp(-1e11);
        assert_eq!((tiny + a).ratio(a), 1.0);
        assert_eq!(((tiny + tiny) * WideFloat::ONE).ratio(tiny), 2.0);
        assert_eq!(WideFloat::ZERO.ratio(tiny), 0.0);
        for zero in [
            WideFloat::ZERO * a,
            WideFloat::ZERO * WideFloat::ZERO,
            (WideFloat::ZERO + WideFloat::ZERO) * tiny,
        ] {
            assert_eq!(zero, WideFloat::ZERO);
        }
        assert_eq!((WideFloat::ZERO + tiny) * WideFloat::ONE, tiny * WideFloat::ONE);
        assert!(tiny.ratio(a) < 1e-300);
    }

    /// The product of a path of a million improbable steps.
    #[test]
    fn a_long_product_does_not_underflow_or_lose_accuracy() {
        let step = WideFloat::exp(-50.3);
        let product = (0..1_000_000).fold(WideFloat::ONE, |product, _| product * step);
        let relative_error = product.ln() / -50.3e6 - 1.0;
        assert!(relative_error.abs() < 1e-14, "{relative_error:e}");
    }
}
