//! Codes of queries, and the selection of keys that may score above a threshold. See
//! [`codes`](crate::codes) for the bounds.

use super::kernels::{Kernel, MAX_GROUP, Sums, TILE_PANELS, sum_group};
use super::norm;
use crate::codes::rotation::{LANES, Lanes, Rotation};
use crate::codes::{
    INFLATION, MAX_MULTIPLE, PANEL_KEYS, PanelBounds, STEP_COMPONENTS, ZERO_CODE, interleave,
    largest_components, round_up, steps,
};

/// The bound on the relative error of single-precision scores.
const F32_ERROR: f64 = 4e-7;

/// The scale and the bound of a query of norm 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct CodedQuery {
    scale: f32,
    /// The norm of the query's difference from its decoded query.
    error: f32,
    /// The sum of products with the code of 0.
    correction: i32,
}

/// The codes of all queries of a batch, in groups.
pub(super) struct QueryCodes {
    kernel: Kernel,
    /// The words of each group, `[steps, queries]`.
    words: Vec<u32>,
    queries: Vec<CodedQuery>,
    steps: usize,
}

impl QueryCodes {
    /// Encodes queries, `[queries, width]`, divided by their norms.
    pub(super) fn new(vectors: &[f32], width: usize, kernel: Kernel) -> Self {
        let (steps, rotation) = (steps(width), Rotation::new(width));
        let count = vectors.len() / width;
        let mut codes = Self {
            kernel,
            words: vec![0; count * steps],
            queries: Vec::with_capacity(count),
            steps,
        };
        let mut lanes = vec![[0.0; LANES]; width];
        let mut multiples = vec![0.0; width];
        for vectors in vectors.chunks(LANES * width) {
            interleave(vectors, width, &mut lanes);
            rotation.apply(&mut lanes);
            let largest = largest_components(&lanes);
            for (lane, vector) in vectors.chunks(width).enumerate() {
                // A zero query stays zero.
                let norm = Some(norm(vector)).filter(|norm| *norm > 0.0).unwrap_or(1.0);
                let components = || lanes.iter().map(|lanes: &Lanes| lanes[lane] / norm);
                let mut scale = round_up(largest[lane] / norm / MAX_MULTIPLE);
                loop {
                    for (multiple, component) in multiples.iter_mut().zip(components()) {
                        let nearest = (component / f64::from(scale)).round_ties_even();
                        *multiple = nearest.clamp(-MAX_MULTIPLE, MAX_MULTIPLE);
                    }
                    let excess = kernel
                        .max_group_sum()
                        .map_or(0.0, |limit| largest_group_sum(&multiples) / limit);
                    if excess <= 1.0 {
                        break;
                    }
                    scale = (f64::from(scale) * excess.max(1.001)) as f32;
                }
                codes.push(&multiples, components(), scale);
            }
        }
        codes
    }

    fn push(&mut self, multiples: &[f64], components: impl Iterator<Item = f64>, scale: f32) {
        let difference =
            |(multiple, component): (&f64, f64)| (component - multiple * f64::from(scale)).powi(2);
        let error = multiples.iter().zip(components).map(difference).sum::<f64>().sqrt();
        let correction = i32::from(ZERO_CODE) * multiples.iter().sum::<f64>() as i32;
        let error = round_up(error * INFLATION + F32_ERROR * (1.0 + error));
        let (group, position) = (self.queries.len() / self.kernel.group(), self.queries.len());
        self.queries.push(CodedQuery { scale, error, correction });
        let first = group * self.kernel.group();
        let count = self.words.len() / self.steps;
        let in_group = self.kernel.group().min(count - first);
        let words = &mut self.words[first * self.steps..][..in_group * self.steps];
        for (step, components) in multiples.chunks(STEP_COMPONENTS).enumerate() {
            let mut bytes = [0; STEP_COMPONENTS];
            bytes
                .iter_mut()
                .zip(components)
                .for_each(|(byte, n)| *byte = (*n as i8).cast_unsigned());
            words[step * in_group + position - first] = u32::from_le_bytes(bytes);
        }
    }

    /// The groups: the index of the first query, the queries, and their words.
    pub(super) fn groups(&self) -> impl Iterator<Item = (usize, &[CodedQuery], &[u32])> {
        let group = self.kernel.group();
        let words = self.words.chunks(group * self.steps);
        let queries = self.queries.chunks(group).zip(words).enumerate();
        queries.map(move |(number, (queries, words))| (number * group, queries, words))
    }

    /// Computes the products of a tile of panels with a group of queries.
    pub(super) fn sums(
        &self,
        panels: [&[u8]; TILE_PANELS],
        words: &[u32],
        queries: usize,
        sums: &mut Sums,
    ) {
        self.kernel.sums(panels, words, queries, sums);
    }
}

/// Returns the largest sum of positive multiples, or of absolute negative multiples, in any
/// [`sum_group`].
fn largest_group_sum(multiples: &[f64]) -> f64 {
    let groups = sum_group(multiples.len().max(1) - 1) + 2;
    let mut sums = vec![[0.0; 2]; groups];
    for (component, multiple) in multiples.iter().enumerate() {
        sums[sum_group(component)][usize::from(*multiple < 0.0)] += multiple.abs();
    }
    sums.as_flattened().iter().fold(0.0, |largest, sum| largest.max(*sum))
}

/// A key whose score may reach the threshold of a query.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passed {
    /// The index of the query in its group.
    pub(super) query: u8,
    /// The index of the panel in its tile.
    pub(super) panel: u8,
    /// The index of the key in its panel.
    pub(super) lane: u8,
    /// The score of the decoded vectors, for a query of norm 1.
    pub(super) score: f32,
    /// The largest difference from the true score.
    pub(super) error: f32,
}

/// Appends the keys of a tile whose scores may reach the thresholds, `[queries, panels]`.
#[multiversion::multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512cd+avx512dq+avx512vl",
    "x86_64+avx2"
))]
pub(super) fn select(
    sums: &Sums,
    queries: &[CodedQuery],
    panels: &[PanelBounds],
    thresholds: &[[f32; TILE_PANELS]; MAX_GROUP],
    passed: &mut Vec<Passed>,
) {
    for (query, ((sums, coded), thresholds)) in sums.iter().zip(queries).zip(thresholds).enumerate()
    {
        for (panel, ((sums, bounds), threshold)) in
            sums.iter().zip(panels).zip(thresholds).enumerate()
        {
            let score = |lane: usize| {
                let sum = sums[lane].wrapping_sub(coded.correction) as f32;
                sum * coded.scale * bounds.scales[lane]
            };
            let error = |lane: usize| bounds.errors[lane] + coded.error * bounds.norms[lane];
            // Nearly always, no key passes.
            if !(0..PANEL_KEYS)
                .fold(false, |any, lane| any | (score(lane) + error(lane) >= *threshold))
            {
                continue;
            }
            let mut passes = [0u8; PANEL_KEYS];
            for (lane, passes) in passes.iter_mut().enumerate() {
                *passes = u8::from(score(lane) + error(lane) >= *threshold);
            }
            let mut bits = u128::from_le_bytes(passes);
            while bits != 0 {
                let lane = bits.trailing_zeros() as usize / 8;
                bits &= bits - 1;
                let (score, error) = (score(lane), error(lane));
                let (query, panel, lane) = (query as u8, panel as u8, lane as u8);
                passed.push(Passed { query, panel, lane, score, error });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::{Encoder, panel_bytes};

    /// Checks the bounds of all scores of these vectors.
    fn check(queries: &[f32], keys: &[f32], width: usize) {
        let mut encoder = Encoder::new(width);
        let mut panels = encoder.encode(keys);
        panels.extend(encoder.finish());
        let product = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        for kernel in Kernel::ALL.into_iter().filter(|kernel| kernel.is_supported()) {
            let codes = QueryCodes::new(queries, width, kernel);
            for (number, panel) in panels.chunks(panel_bytes(width)).enumerate() {
                let bounds = [PanelBounds::read(panel, width)];
                for (first, coded, words) in codes.groups() {
                    let mut sums = [[[0; PANEL_KEYS]; TILE_PANELS]; MAX_GROUP];
                    codes.sums([panel; TILE_PANELS], words, coded.len(), &mut sums);
                    let thresholds = [[f32::NEG_INFINITY; TILE_PANELS]; MAX_GROUP];
                    let mut passed = Vec::new();
                    select(&sums, coded, &bounds, &thresholds, &mut passed);
                    assert_eq!(passed.len(), coded.len() * PANEL_KEYS);
                    for Passed { query, lane, score, error, .. } in passed {
                        let row = number * PANEL_KEYS + usize::from(lane);
                        let Some(key) = keys.chunks(width).nth(row) else { continue };
                        let query = &queries[(first + usize::from(query)) * width..][..width];
                        let norm = Some(norm(query)).filter(|norm| *norm > 0.0).unwrap_or(1.0);
                        let expected = product(query, key) / norm;
                        let (lower, upper) = (f64::from(score - error), f64::from(score + error));
                        assert!(
                            lower <= expected && expected <= upper,
                            "{kernel:?}, width {width}: {expected} not in {lower}..{upper}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_bounds_of_scores_hold() {
        for width in [1, 2, 3, 4, 7, 16, 17, 64, 100, 384, 1000, 4096] {
            for (query_size, key_size) in [(1.0, 1.0), (1e-30, 1e17), (1e17, 1e-30), (1e-42, 1e-42)]
            {
                let vector = |i: usize| ((i * i) as f32 * 0.37 + i as f32 * 0.11).sin();
                let mut queries: Vec<f32> =
                    (0..8 * width).map(|i| query_size * vector(i)).collect();
                let mut keys: Vec<f32> =
                    (0..37 * width).map(|i| key_size * vector(i + 77)).collect();
                // A zero vector, a vector with one component, a vector with equal components.
                queries[..width].fill(0.0);
                queries[width..2 * width - 1].fill(0.0);
                queries[2 * width..3 * width].fill(query_size);
                keys[..width].fill(0.0);
                keys[width..2 * width - 1].fill(0.0);
                keys[2 * width..3 * width].fill(key_size);
                let (first, last) = keys.split_at_mut(36 * width);
                last.copy_from_slice(&first[3 * width..4 * width]);
                check(&queries, &keys, width);
            }
        }
    }
}
