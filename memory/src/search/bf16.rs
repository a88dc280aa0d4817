//! Dot products of vectors rounded to bfloat16, on processors with AVX-512 BF16: twice as many per
//! second as in single precision. The exact search uses them to find candidates, with a known error
//! bound.
//!
//! Queries are arranged in groups of [`QUERIES`], keys in panels of [`KEYS`]. Two neighbouring
//! components of a vector form one 32-bit word. The words of all vectors of a group are
//! interleaved.

/// Queries of a group. Their sums with a panel's keys fill 24 of the 32 registers.
const QUERIES: usize = 6;
/// Keys of a panel: four registers of 16 numbers.
const KEYS: usize = 64;

/// Rounded queries.
pub(super) struct Queries {
    words: Vec<u32>,
    /// Words of a vector.
    length: usize,
    count: usize,
}

impl Queries {
    /// Whether this processor has the instructions.
    pub(super) fn is_supported() -> bool {
        #[cfg(target_arch = "x86_64")]
        return is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16");
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Rounds `vectors`, `[queries, width]`.
    pub(super) fn new(vectors: &[f32], width: usize) -> Self {
        let length = width.div_ceil(2);
        let mut words = Vec::new();
        interleave::<QUERIES>(vectors, width, &mut words);
        Self { words, length, count: vectors.len() / width }
    }

    /// Writes the products with keys `[keys, width]` to `scores` `[queries, keys]`. `buffer` can be
    /// reused.
    ///
    /// The products are those of the rounded vectors, summed in single precision.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn products(
        &self,
        keys: &[f32],
        width: usize,
        buffer: &mut Vec<u32>,
        scores: &mut [f32],
    ) {
        assert!(Self::is_supported() && width.div_ceil(2) == self.length);
        let rows = keys.len() / width;
        interleave::<KEYS>(keys, width, buffer);
        let mut sums = [[0f32; KEYS]; QUERIES];
        for (panel, words) in buffer.chunks(self.length * KEYS).enumerate() {
            let first = panel * KEYS;
            let num_keys = KEYS.min(rows - first);
            for (group, queries) in self.words.chunks(self.length * QUERIES).enumerate() {
                // SAFETY: the processor has the instructions.
                unsafe { multiply(queries, words, &mut sums) };
                let in_group = QUERIES.min(self.count - group * QUERIES);
                for (query, sums) in sums.iter().enumerate().take(in_group) {
                    let at = (group * QUERIES + query) * rows + first;
                    scores[at..at + num_keys].copy_from_slice(&sums[..num_keys]);
                }
            }
        }
    }

    /// Never called: [`Queries::is_supported`] is false.
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn products(&self, _: &[f32], _: usize, _: &mut Vec<u32>, _: &mut [f32]) {
        unreachable!("{} words of {} queries", self.words.len() / self.length.max(1), self.count);
    }
}

/// Computes the products of a group of queries with a panel of keys.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
fn multiply(queries: &[u32], keys: &[u32], products: &mut [[f32; KEYS]; QUERIES]) {
    use std::arch::x86_64::*;
    /// The number of sums in one register.
    const LANES: usize = 16;
    let mut sums = [[_mm512_setzero_ps(); KEYS / LANES]; QUERIES];
    for (keys, queries) in keys.chunks_exact(KEYS).zip(queries.chunks_exact(QUERIES)) {
        let mut key_words = [_mm512_setzero_si512(); KEYS / LANES];
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

/// Rounds `vectors` `[rows, width]` into `[groups, words, GROUP]`; padding is 0.
fn interleave<const GROUP: usize>(vectors: &[f32], width: usize, words: &mut Vec<u32>) {
    let length = width.div_ceil(2);
    words.clear();
    words.resize((vectors.len() / width).next_multiple_of(GROUP) * length, 0);
    for (group, words) in vectors.chunks(width * GROUP).zip(words.chunks_mut(length * GROUP)) {
        for (at, vector) in group.chunks(width).enumerate() {
            for (word, pair) in vector.chunks(2).enumerate() {
                let second = pair.get(1).map_or(0, |number| u32::from(bits(*number)));
                words[word * GROUP + at] = u32::from(bits(pair[0])) | second << 16;
            }
        }
    }
}

/// Returns the bits of the nearest bfloat16 number; ties go to the even one. Finite numbers only.
fn bits(number: f32) -> u16 {
    let bits = number.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Returns the norm of a vector's rounding error.
pub(crate) fn rounding(vector: &[f32]) -> f64 {
    let rounding_errors = |number: &f32| {
        let rounded = f32::from_bits(u32::from(bits(*number)) << 16);
        f64::from(*number - rounded).powi(2)
    };
    vector.iter().map(rounding_errors).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    fn vectors(rows: usize, width: usize, shift: f32) -> Vec<f32> {
        (0..rows * width).map(|at| (at as f32 * 0.37 + shift).sin()).collect()
    }

    #[test]
    fn rounding_equals_the_half_crate() {
        for number in vectors(100, 100, 0.3).into_iter().chain([0.0, -0.0, 1.0, 3e38, 1e-40]) {
            assert_eq!(bits(number), bf16::from_f32(number).to_bits(), "{number}");
        }
    }

    #[test]
    fn products_equal_those_of_the_rounded_vectors() {
        if !Queries::is_supported() {
            eprintln!("SKIPPED: this processor has no AVX-512 BF16");
            return;
        }
        for (queries, rows, width) in
            [(1, 1, 1), (6, 64, 2), (7, 65, 3), (20, 130, 33), (13, 5, 384)]
        {
            let (a, b) = (vectors(queries, width, 0.1), vectors(rows, width, 0.7));
            let mut scores = vec![f32::NAN; queries * rows];
            Queries::new(&a, width).products(&b, width, &mut Vec::new(), &mut scores);
            let rounded = |numbers: &[f32]| -> Vec<f64> {
                numbers.iter().map(|number| bf16::from_f32(*number).to_f64()).collect()
            };
            for (query, scores) in a.chunks(width).zip(scores.chunks(rows)) {
                for (key, score) in b.chunks(width).zip(scores) {
                    let pairs = rounded(query).into_iter().zip(rounded(key));
                    let expected: f64 = pairs.map(|(a, b)| a * b).sum();
                    assert!((f64::from(*score) - expected).abs() < 1e-6 * width as f64);
                }
            }
        }
    }

    #[test]
    fn the_rounding_error_is_at_most_a_256th() {
        for vector in vectors(50, 40, 0.2).chunks(40) {
            let length = vector.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>().sqrt();
            let rounding_errors = rounding(vector);
            assert!(
                rounding_errors > 0.0 && rounding_errors <= length / 256.0,
                "{rounding_errors} of {length}"
            );
        }
        assert_eq!(rounding(&[1.0, -0.5, 0.0]), 0.0);
    }
}
