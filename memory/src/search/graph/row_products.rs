//! Products of one query with the codes of scattered rows, compiled for several processors. All
//! kernels compute the same integers, so a graph does not depend on the processor.

use super::super::kernels::Kernel;
use super::super::products::prefetch;

/// The size of a chunk of components. Rows of codes are padded to whole chunks.
pub(super) const CHUNK: usize = 64;

/// While a row is multiplied, the row this many positions later is prefetched. The rows of
/// neighbours are scattered in main memory.
const PREFETCH_DISTANCE: usize = 4;

/// Appends the products of a query with rows of `codes`, `[rows, query.len()]`. Codes are unsigned,
/// the query's components are signed.
pub(super) fn products(
    kernel: Kernel,
    query: &[i8],
    codes: &[u8],
    rows: &[u32],
    products: &mut Vec<i32>,
) {
    assert!(query.len().is_multiple_of(CHUNK) && kernel.is_supported());
    match kernel {
        // SAFETY: the assertion shows that the processor has the instructions.
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx512 => unsafe { products_avx512(query, codes, rows, products) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Kernel::Avx2 => unsafe { products_avx2(query, codes, rows, products) },
        _ => products_of_rows(query, codes, rows, products, product),
    }
}

#[inline(always)]
fn products_of_rows(
    query: &[i8],
    codes: &[u8],
    rows: &[u32],
    products: &mut Vec<i32>,
    product: impl Fn(&[u8], &[i8]) -> i32,
) {
    let codes_of = |row: u32| &codes[row as usize * query.len()..][..query.len()];
    for row in rows.iter().take(PREFETCH_DISTANCE) {
        prefetch(codes_of(*row));
    }
    for (i, row) in rows.iter().enumerate() {
        if let Some(later) = rows.get(i + PREFETCH_DISTANCE) {
            prefetch(codes_of(*later));
        }
        products.push(product(codes_of(*row), query));
    }
}

#[inline(always)]
fn product(codes: &[u8], query: &[i8]) -> i32 {
    codes.iter().zip(query).map(|(code, query)| i32::from(*code) * i32::from(*query)).sum()
}

/// # Safety
/// The processor must have the instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn products_avx2(query: &[i8], codes: &[u8], rows: &[u32], products: &mut Vec<i32>) {
    // The compiler turns this sum into AVX2 instructions.
    products_of_rows(query, codes, rows, products, product);
}

/// # Safety
/// The processor must have the instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn products_avx512(query: &[i8], codes: &[u8], rows: &[u32], products: &mut Vec<i32>) {
    use std::arch::x86_64::*;
    products_of_rows(query, codes, rows, products, |codes, query| {
        let (codes, query) = (codes.as_chunks::<CHUNK>().0, query.as_chunks::<CHUNK>().0);
        let mut sums = [_mm512_setzero_si512(); 2];
        for (i, (codes, query)) in codes.iter().zip(query).enumerate() {
            // SAFETY: a chunk has 64 bytes.
            let (codes, query) = unsafe {
                (
                    _mm512_loadu_si512(codes.as_ptr().cast()),
                    _mm512_loadu_si512(query.as_ptr().cast()),
                )
            };
            sums[i % 2] = _mm512_dpbusd_epi32(sums[i % 2], codes, query);
        }
        _mm512_reduce_add_epi32(_mm512_add_epi32(sums[0], sums[1]))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kernels_compute_the_same_products() {
        for width in [CHUNK, 3 * CHUNK, 4096] {
            let byte = |i: usize| (i * 167 + i / 7 * 31) as u8;
            let mut codes: Vec<u8> = (0..9 * width).map(byte).collect();
            codes[..width].fill(255);
            let mut query: Vec<i8> = (0..width).map(|i| byte(i + 5).cast_signed()).collect();
            query[..CHUNK].fill(-127);
            let rows = [3, 0, 8, 8, 1, 2, 7, 4, 5];
            let expected = rows.map(|row: u32| {
                let codes = &codes[row as usize * width..][..width];
                codes.iter().zip(&query).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum::<i32>()
            });
            for kernel in Kernel::ALL.into_iter().filter(|kernel| kernel.is_supported()) {
                let mut found = vec![7];
                products(kernel, &query, &codes, &rows, &mut found);
                assert_eq!(found[0], 7);
                assert_eq!(found[1..], expected, "{kernel:?}, width {width}");
            }
        }
    }
}
