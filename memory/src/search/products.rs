//! Dot products, compiled for several processors and selected at run time.

/// The number of parallel sums. It is the same on every processor, so that the order of summation
/// is the same, too.
const LANES: usize = 16;

/// The dot product of two vectors in double precision.
#[multiversion::multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512cd+avx512dq+avx512vl+fma",
    "x86_64+avx2+fma"
))]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut sums = [0f64; LANES];
    let (a, b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let remainder = a.remainder().iter().zip(b.remainder());
    let remainder: f64 = remainder.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    for (a, b) in a.zip(b) {
        for lane in 0..LANES {
            sums[lane] += f64::from(a[lane]) * f64::from(b[lane]);
        }
    }
    sums.iter().sum::<f64>() + remainder
}

/// The dot product of two vectors in single precision.
#[multiversion::multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512cd+avx512dq+avx512vl+fma",
    "x86_64+avx2+fma"
))]
pub(super) fn dot_f32(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; LANES];
    let (a, b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let remainder: f32 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a.zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f32>() + remainder
}

/// Prefetches numbers that will soon be read.
#[inline(always)]
pub(super) fn prefetch<T>(numbers: &[T]) {
    /// The size in bytes of a line of the processor's cache.
    const LINE: usize = 64;
    #[cfg(target_arch = "x86_64")]
    for line in numbers.chunks(LINE / size_of::<T>()) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint to the processor and is harmless for every address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (numbers, LINE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dot_products_equal_a_sequential_sum() {
        for width in [1, 7, 16, 17, 100, 384] {
            let a: Vec<f32> = (0..width).map(|i| (i as f32).sin()).collect();
            let b: Vec<f32> = (0..width).map(|i| (i as f32).cos()).collect();
            let expected: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            assert!((dot(&a, &b) - expected).abs() < 1e-14 * width as f64);
            assert!((f64::from(dot_f32(&a, &b)) - expected).abs() < 1e-6 * width as f64);
        }
    }
}
