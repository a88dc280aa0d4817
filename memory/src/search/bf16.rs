//! Dot products of vectors rounded to bfloat16. On processors with AVX-512 BF16 they are faster
//! than products in single precision. Exact search finds candidates with them, with a known error
//! bound.
//!
//! Queries are arranged in groups of [`GROUP_QUERIES`], keys in panels of [`PANEL_KEYS`]. Two
//! neighbouring components of a vector form one 32-bit word. The words of all vectors of a group or
//! panel are interleaved.

/// The number of queries in a group. The sums of their products with a panel's keys fill 24 of the
/// 32 vector registers.
const GROUP_QUERIES: usize = 6;
/// The number of keys in a panel: four registers of 16 numbers.
const PANEL_KEYS: usize = 64;

/// Rounded queries.
pub(super) struct RoundedQueries {
    words: Vec<u32>,
    /// The number of words of a vector.
    vector_words: usize,
    /// The number of queries.
    count: usize,
}

impl RoundedQueries {
    /// Whether this processor has AVX-512 BF16.
    pub(super) fn is_supported() -> bool {
        #[cfg(target_arch = "x86_64")]
        return is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16");
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Rounds `vectors`, `[queries, width]`.
    pub(super) fn new(vectors: &[f32], width: usize) -> Self {
        let vector_words = width.div_ceil(2);
        let mut words = Vec::new();
        interleave::<GROUP_QUERIES>(vectors, width, &mut words);
        Self { words, vector_words, count: vectors.len() / width }
    }

    /// Writes the products of the queries with keys `[keys, width]` to `scores` `[queries, keys]`.
    /// Both factors are rounded, and products are summed in single precision. `buffer` can be
    /// reused.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn products(
        &self,
        keys: &[f32],
        width: usize,
        buffer: &mut Vec<u32>,
        scores: &mut [f32],
    ) {
        assert!(Self::is_supported() && width.div_ceil(2) == self.vector_words);
        let rows = keys.len() / width;
        interleave::<PANEL_KEYS>(keys, width, buffer);
        let mut sums = [[0f32; PANEL_KEYS]; GROUP_QUERIES];
        for (panel, words) in buffer.chunks(self.vector_words * PANEL_KEYS).enumerate() {
            let first_key = panel * PANEL_KEYS;
            let num_keys = PANEL_KEYS.min(rows - first_key);
            let groups = self.words.chunks(self.vector_words * GROUP_QUERIES);
            for (group, queries) in groups.enumerate() {
                // SAFETY: the assertion above shows that the processor has the instructions.
                unsafe { multiply(queries, words, &mut sums) };
                let num_queries = GROUP_QUERIES.min(self.count - group * GROUP_QUERIES);
                for (query, sums) in sums.iter().enumerate().take(num_queries) {
                    let start = (group * GROUP_QUERIES + query) * rows + first_key;
                    scores[start..start + num_keys].copy_from_slice(&sums[..num_keys]);
                }
            }
        }
    }

    /// Never called: [`RoundedQueries::is_supported`] is false.
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn products(&self, _: &[f32], _: usize, _: &mut Vec<u32>, _: &mut [f32]) {
        let vectors = self.words.len() / self.vector_words.max(1);
        unreachable!("{} queries in {vectors} padded vectors", self.count);
    }
}

/// Computes the products of a group of queries with a panel of keys.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
fn multiply(queries: &[u32], keys: &[u32], products: &mut [[f32; PANEL_KEYS]; GROUP_QUERIES]) {
    use std::arch::x86_64::*;
    /// The number of sums in one register.
    const LANES: usize = 16;
    let mut sums = [[_mm512_setzero_ps(); PANEL_KEYS / LANES]; GROUP_QUERIES];
    for (keys, queries) in keys.chunks_exact(PANEL_KEYS).zip(queries.chunks_exact(GROUP_QUERIES)) {
        let mut key_words = [_mm512_setzero_si512(); PANEL_KEYS / LANES];
        for (register, keys) in key_words.iter_mut().zip(keys.chunks_exact(LANES)) {
            // SAFETY: the slice has 16 words.
            *register = unsafe { _mm512_loadu_si512(keys.as_ptr().cast()) };
        }
        for (sums, query) in sums.iter_mut().zip(queries) {
            let query = _mm512_set1_epi32(query.cast_signed());
            for (sum, keys) in sums.iter_mut().zip(key_words) {
                // SAFETY: a register of 16 words has the layout of a register of 32 bfloat16
                // numbers.
                let (query, keys) = unsafe {
                    (
                        std::mem::transmute::<__m512i, __m512bh>(query),
                        std::mem::transmute::<__m512i, __m512bh>(keys),
                    )
                };
                *sum = _mm512_dpbf16_ps(*sum, query, keys);
            }
        }
    }
    for (sums, products) in sums.iter().zip(products) {
        for (sum, products) in sums.iter().zip(products.chunks_exact_mut(LANES)) {
            // SAFETY: the slice has room for 16 numbers.
            unsafe { _mm512_storeu_ps(products.as_mut_ptr(), *sum) };
        }
    }
}

/// Rounds `vectors` `[rows, width]` into words `[groups, vector_words, GROUP]`; padding is 0.
fn interleave<const GROUP: usize>(vectors: &[f32], width: usize, words: &mut Vec<u32>) {
    let vector_words = width.div_ceil(2);
    words.clear();
    words.resize((vectors.len() / width).next_multiple_of(GROUP) * vector_words, 0);
    let groups = words.chunks_mut(vector_words * GROUP);
    for (group, words) in vectors.chunks(width * GROUP).zip(groups) {
        for (i, vector) in group.chunks(width).enumerate() {
            for (word, pair) in vector.chunks(2).enumerate() {
                let second = pair.get(1).map_or(0, |number| u32::from(bf16_bits(*number)));
                words[word * GROUP + i] = u32::from(bf16_bits(pair[0])) | second << 16;
            }
        }
    }
}

/// Returns the bits of the nearest bfloat16 number. Ties are rounded to even. `number` must be
/// finite.
fn bf16_bits(number: f32) -> u16 {
    let bits = number.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Returns the norm of the error of rounding a vector to bfloat16.
pub(crate) fn rounding_error(vector: &[f32]) -> f64 {
    let squared_error = |number: &f32| {
        let rounded = f32::from_bits(u32::from(bf16_bits(*number)) << 16);
        f64::from(*number - rounded).powi(2)
    };
    vector.iter().map(squared_error).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    fn vectors(rows: usize, width: usize, shift: f32) -> Vec<f32> {
        (0..rows * width).map(|i| (i as f32 * 0.37 + shift).sin()).collect()
    }

    #[test]
    fn rounding_equals_the_half_crate() {
        for number in vectors(100, 100, 0.3).into_iter().chain([0.0, -0.0, 1.0, 3e38, 1e-40]) {
            assert_eq!(bf16_bits(number), bf16::from_f32(number).to_bits(), "{number}");
        }
    }

    #[test]
    fn products_equal_those_of_the_rounded_vectors() {
        if !RoundedQueries::is_supported() {
            eprintln!("SKIPPED: this processor has no AVX-512 BF16");
            return;
        }
        for (num_queries, rows, width) in
            [(1, 1, 1), (6, 64, 2), (7, 65, 3), (20, 130, 33), (13, 5, 384)]
        {
            let (queries, keys) = (vectors(num_queries, width, 0.1), vectors(rows, width, 0.7));
            let mut scores = vec![f32::NAN; num_queries * rows];
            let rounded_queries = RoundedQueries::new(&queries, width);
            rounded_queries.products(&keys, width, &mut Vec::new(), &mut scores);
            let rounded = |numbers: &[f32]| -> Vec<f64> {
                numbers.iter().map(|number| bf16::from_f32(*number).to_f64()).collect()
            };
            for (query, scores) in queries.chunks(width).zip(scores.chunks(rows)) {
                for (key, score) in keys.chunks(width).zip(scores) {
                    let pairs = rounded(query).into_iter().zip(rounded(key));
                    let expected: f64 = pairs.map(|(a, b)| a * b).sum();
                    assert!((f64::from(*score) - expected).abs() < 1e-6 * width as f64);
                }
            }
        }
    }

    #[test]
    fn the_rounding_error_is_at_most_a_256th_of_the_norm() {
        for vector in vectors(50, 40, 0.2).chunks(40) {
            let norm = vector.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>().sqrt();
            let error = rounding_error(vector);
            assert!(error > 0.0 && error <= norm / 256.0, "{error} of {norm}");
        }
        assert_eq!(rounding_error(&[1.0, -0.5, 0.0]), 0.0);
    }
}
