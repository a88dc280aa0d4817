//! Tiles and transposes for AVX2 and AVX-512.

use std::arch::x86_64::*;

use super::{Kernels, MAX_ROWS, MAX_WIDTH, TileArguments};

/// The sets of functions that this processor can run, the fastest first.
pub(super) fn kernels() -> [Option<&'static Kernels>; 2] {
    let has_avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let has_avx512 = has_avx2 && is_x86_feature_detected!("avx512f");
    [has_avx512.then_some(&AVX512), has_avx2.then_some(&AVX2)]
}

static AVX2: Kernels = Kernels {
    width: 16,
    tiles: &[avx2::<1>, avx2::<2>, avx2::<3>, avx2::<4>, avx2::<5>, avx2::<6>],
    transpose: transpose_avx2,
};

static AVX512: Kernels = Kernels {
    width: 32,
    tiles: &[
        avx512::<1>,
        avx512::<2>,
        avx512::<3>,
        avx512::<4>,
        avx512::<5>,
        avx512::<6>,
        avx512::<7>,
        avx512::<8>,
        avx512::<9>,
        avx512::<10>,
        avx512::<11>,
        avx512::<12>,
    ],
    transpose: transpose_avx512,
};

/// Defines a [`Tile`] of `$vectors` vectors a row. Each element is one chain of fused additions in
/// the order of the depth, so that all instruction sets compute the same bits.
macro_rules! tile {
    ($name:ident, $features:literal, $lanes:literal x $vectors:literal, $load:ident, $set:ident,
     $fma:ident, $store:ident) => {
        #[target_feature(enable = $features)]
        unsafe fn $name<const R: usize>(t: TileArguments) {
            const { assert!(R <= MAX_ROWS && $vectors * $lanes <= MAX_WIDTH) };
            // SAFETY: the caller's pointers are valid for the elements that the sizes name.
            unsafe {
                let mut sums: [[_; $vectors]; R] = std::array::from_fn(|i| {
                    let init = t.init.add(i * t.init_stride);
                    std::array::from_fn(|v| $load(init.add(v * $lanes)))
                });
                let (mut a, mut b) = (t.a, t.b);
                for _ in 0..t.depth {
                    let columns: [_; $vectors] = std::array::from_fn(|v| $load(b.add(v * $lanes)));
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let factor = $set(*a.add(i * t.a_strides.0));
                        for (sum, column) in sums.iter_mut().zip(columns) {
                            *sum = $fma(factor, column, *sum);
                        }
                    }
                    a = a.add(t.a_strides.1);
                    b = b.add($vectors * $lanes);
                }
                for (i, sums) in sums.into_iter().enumerate() {
                    let out = t.out.add(i * t.out_stride);
                    for (v, sum) in sums.into_iter().enumerate() {
                        $store(out.add(v * $lanes), sum);
                    }
                }
            }
        }
    };
}

tile!(avx2, "avx2,fma", 8 x 2, _mm256_loadu_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_storeu_ps);
tile!(avx512, "avx512f", 16 x 2, _mm512_loadu_ps, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_storeu_ps);

#[target_feature(enable = "avx2,fma")]
unsafe fn transpose_avx2(from: *const f32, stride: usize, to: *mut f32) {
    // SAFETY: the caller's pointers are valid for a block of 16 x 16.
    unsafe { transpose_blocks(from, stride, to, 16) };
}

#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn transpose_avx512(from: *const f32, stride: usize, to: *mut f32) {
    // SAFETY: the caller's pointers are valid for a block of 32 x 32.
    unsafe { transpose_blocks(from, stride, to, 32) };
}

/// Transposes a block of `size` x `size` in blocks of 8 x 8.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn transpose_blocks(from: *const f32, stride: usize, to: *mut f32, size: usize) {
    for i in (0..size).step_by(8) {
        for j in (0..size).step_by(8) {
            // SAFETY: the block is inside the square.
            unsafe {
                let from = from.add(i * stride + j);
                let rows = std::array::from_fn(|row| _mm256_loadu_ps(from.add(row * stride)));
                for (row, values) in transposed(rows).into_iter().enumerate() {
                    _mm256_storeu_ps(to.add((j + row) * size + i), values);
                }
            }
        }
    }
}

/// Transposes 8 rows of 8 values.
#[inline]
#[target_feature(enable = "avx2")]
fn transposed(rows: [__m256; 8]) -> [__m256; 8] {
    let pairs: [_; 4] = std::array::from_fn(|i| {
        let (even, odd) = (rows[2 * i], rows[2 * i + 1]);
        [_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd)]
    });
    // Four rows: columns 0 and 4, 1 and 5, 2 and 6, 3 and 7.
    let quads: [[__m256; 4]; 2] = std::array::from_fn(|i| {
        let (first, second) = (pairs[2 * i], pairs[2 * i + 1]);
        [
            _mm256_shuffle_ps::<0x44>(first[0], second[0]),
            _mm256_shuffle_ps::<0xEE>(first[0], second[0]),
            _mm256_shuffle_ps::<0x44>(first[1], second[1]),
            _mm256_shuffle_ps::<0xEE>(first[1], second[1]),
        ]
    });
    std::array::from_fn(|column| {
        let (upper, lower) = (quads[0][column % 4], quads[1][column % 4]);
        if column < 4 {
            _mm256_permute2f128_ps::<0x20>(upper, lower)
        } else {
            _mm256_permute2f128_ps::<0x31>(upper, lower)
        }
    })
}
