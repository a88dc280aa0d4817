//! A fixed random rotation. It spreads the norm of a vector evenly over its components, so that 8
//! bits per component suffice for any vector.
//!
//! There are three rounds. Each flips random signs, then applies a Hadamard transform to the first
//! `block` components, and to the last `block`. `block` is the largest power of two up to the
//! width. All steps are orthogonal, so inner products do not change. The signs depend only on the
//! width. The files of a memory contain rotated keys: a change here is a change of the format.

/// The number of vectors that are rotated at once.
pub(crate) const LANES: usize = 16;
/// One component of [`LANES`] vectors.
pub(crate) type Lanes = [f64; LANES];

/// The number of rounds.
const ROUNDS: usize = 3;
/// The seed of the signs.
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

/// The rotation of vectors of one width.
#[derive(Debug, Clone)]
pub(crate) struct Rotation {
    /// The largest power of two up to the width.
    block: usize,
    /// The signs of each round, `[ROUNDS, width]`.
    signs: Vec<f64>,
}

impl Rotation {
    pub(crate) fn new(width: usize) -> Self {
        let block = 1 << width.max(1).ilog2();
        let mut state = SEED ^ width as u64;
        let signs = (0..ROUNDS * width).map(|_| if split_mix(&mut state) { 1.0 } else { -1.0 });
        Self { block, signs: signs.collect() }
    }

    /// Rotates vectors, `[width, LANES]`.
    ///
    /// The error of each result has at most 1e-12 times the norm of its vector: each of at most
    /// six transforms has at most 16 additions and one multiplication per component, each with a
    /// relative rounding error of at most 2^-53 of the norm.
    pub(crate) fn apply(&self, vectors: &mut [Lanes]) {
        rotate(self.block, &self.signs, vectors);
    }
}

/// Returns the highest bit of the next number of the generator SplitMix64.
fn split_mix(state: &mut u64) -> bool {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (*state ^ *state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    (mixed ^ mixed >> 31) >> 63 == 1
}

#[multiversion::multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512cd+avx512dq+avx512vl",
    "x86_64+avx2"
))]
fn rotate(block: usize, signs: &[f64], vectors: &mut [Lanes]) {
    let width = vectors.len();
    for signs in signs.chunks_exact(width) {
        for (vector, sign) in vectors.iter_mut().zip(signs) {
            vector.iter_mut().for_each(|number| *number *= sign);
        }
        hadamard(&mut vectors[..block]);
        if block < width {
            hadamard(&mut vectors[width - block..]);
        }
    }
}

/// Applies the orthonormal Hadamard transform. The number of components is a power of two.
#[inline(always)]
fn hadamard(vectors: &mut [Lanes]) {
    let mut half = 1;
    while half < vectors.len() {
        for pair in vectors.chunks_exact_mut(2 * half) {
            let (left, right) = pair.split_at_mut(half);
            for (left, right) in left.iter_mut().zip(right) {
                for lane in 0..LANES {
                    let (a, b) = (left[lane], right[lane]);
                    left[lane] = a + b;
                    right[lane] = a - b;
                }
            }
        }
        half *= 2;
    }
    let scale = 1.0 / (vectors.len() as f64).sqrt();
    for vector in vectors {
        vector.iter_mut().for_each(|number| *number *= scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rotates single vectors of this width.
    fn rotated(vectors: &[Vec<f64>], width: usize) -> Vec<Vec<f64>> {
        let mut lanes = vec![[0.0; LANES]; width];
        for (lane, vector) in vectors.iter().enumerate() {
            vector.iter().zip(&mut lanes).for_each(|(number, lanes)| lanes[lane] = *number);
        }
        Rotation::new(width).apply(&mut lanes);
        (0..vectors.len()).map(|lane| lanes.iter().map(|lanes| lanes[lane]).collect()).collect()
    }

    fn product(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    #[test]
    fn rotations_keep_inner_products() {
        for width in [1, 2, 3, 5, 16, 31, 100, 384, 1000, 4096] {
            let vector = |shift: f64| (0..width).map(|i| (i as f64 * 1.7 + shift).sin()).collect();
            let vectors: Vec<Vec<f64>> = (0..5).map(|i| vector(f64::from(i))).collect();
            let after = rotated(&vectors, width);
            for (a, rotated_a) in vectors.iter().zip(&after) {
                for (b, rotated_b) in vectors.iter().zip(&after) {
                    let error = product(a, b) - product(rotated_a, rotated_b);
                    let norms = (product(a, a) * product(b, b)).sqrt();
                    assert!(error.abs() <= 1e-13 * norms, "width {width}: {error}");
                }
            }
        }
    }

    #[test]
    fn the_norm_of_a_single_component_is_spread_over_all() {
        for width in [64, 100, 256, 384, 700, 768] {
            for position in [0, 1, width / 2, width - 1] {
                let mut vector = vec![0.0; width];
                vector[position] = 1.0;
                let largest = rotated(&[vector], width)[0].iter().fold(0.0, |m, x| x.abs().max(m));
                let flat = 1.0 / (width as f64).sqrt();
                assert!(largest < 6.0 * flat, "width {width}: {largest}, flat {flat}");
            }
        }
    }
}
