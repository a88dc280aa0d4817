//! Codes of keys: one byte per component. Exact search reads the codes of all keys, and the keys
//! themselves only if their codes cannot rule them out.
//!
//! Keys are [rotated](rotation), and each component is rounded to a multiple of the key's scale.
//! Nothing is fitted to the data, so the code of a key never depends on other keys.
//!
//! # Bounds
//! Let `q` be a query of norm 1 and `k` a key, both rotated; `c` the decoded key, `p` the decoded
//! query. The inner product of the codes, `<p, c>`, is exact in integers. By Cauchy-Schwarz,
//!
//! ```text
//! |<q, k> - <p, c>| = |<q, k - c> + <q - p, c>| <= |k - c| + |q - p| |c|
//! ```
//!
//! A panel holds the interleaved codes of [`PANEL_KEYS`] keys. It stores `|k - c|` (`error`) and
//! `|c|` (`norm`) of each key, and a search computes `|q - p|` of each query. The stored and
//! computed numbers are upper bounds despite rounding:
//!
//! - The rotation, the norm of the query, and the double-precision product that ranks the results
//!   have relative errors of at most 1e-12 each ([`Rotation::apply`]; widths up to [`MAX_WIDTH`]).
//!   `error` has four times 1e-12 of the key's norm added. So the bound holds for the
//!   double-precision product itself.
//! - `|k - c|`, `|c|` and `|q - p|` are computed in double precision, with a relative error far
//!   below 1e-6, then multiplied by 1 + 1e-6 and rounded up to single precision. The scales are
//!   single-precision numbers before any rounding to codes, so decoding has no error.
//! - A search computes `<p, c> = sum * query scale * key scale` and adds `error + |q - p| norm` in
//!   single precision. Six roundings have a relative error of at most 2^-24 each, and `|<p, c>| <=
//!   (1 + |q - p|) norm`. The error of the products is at most 4e-7 times that, which is added to
//!   `|q - p|`. The factor 1 + 1e-6 covers the error of the sum of the bounds.
//! - Products below the smallest normal number lose less than that number, which is added to
//!   `error`.

pub(crate) mod rotation;

use rayon::prelude::*;

use rotation::{LANES, Lanes, Rotation};

/// The number of keys in a panel. Their codes are interleaved.
pub(crate) const PANEL_KEYS: usize = LANES;
/// The number of components of a key in one word. A step has one word of each key of a panel.
pub(crate) const STEP_COMPONENTS: usize = 4;
/// The size in bytes of a step.
pub(crate) const STEP_BYTES: usize = PANEL_KEYS * STEP_COMPONENTS;
/// The code of the number 0. Other codes are the number, in multiples of the scale, plus this.
pub(crate) const ZERO_CODE: u8 = 128;
/// The largest multiple of a scale.
pub(crate) const MAX_MULTIPLE: f64 = 127.0;
/// The largest width of keys. The sum of `MAX_WIDTH` products of codes fits in an i32.
pub(crate) const MAX_WIDTH: usize = 1 << 16;
/// The upper bound of relative errors of double-precision numbers: see the [module](self).
const F64_ERROR: f64 = 1e-12;
/// The factor on bounds before they are rounded up to single precision.
pub(crate) const INFLATION: f64 = 1.0 + 1e-6;

/// The number of steps of a panel.
pub(crate) fn steps(width: usize) -> usize {
    width.div_ceil(STEP_COMPONENTS)
}

/// The size of a panel in bytes: its steps, then a scale, a norm and an error for each key.
pub(crate) fn panel_bytes(width: usize) -> usize {
    steps(width) * STEP_BYTES + PANEL_KEYS * 3 * size_of::<f32>()
}

/// The shape of the column of codes: the number of panels, and the size of a panel.
pub(crate) fn shape(rows: usize, width: usize) -> [usize; 2] {
    [rows.div_ceil(PANEL_KEYS), panel_bytes(width)]
}

/// Rounds up to single precision.
pub(crate) fn round_up(number: f64) -> f32 {
    (number as f32).next_up()
}

/// The scales and bounds of the keys of a panel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PanelBounds {
    /// The scale of each key.
    pub(crate) scales: [f32; PANEL_KEYS],
    /// The norm of each decoded key.
    pub(crate) norms: [f32; PANEL_KEYS],
    /// The norm of each key's difference from its decoded key.
    pub(crate) errors: [f32; PANEL_KEYS],
}

impl PanelBounds {
    /// Reads the bounds at the end of a panel.
    pub(crate) fn read(panel: &[u8], width: usize) -> Self {
        let bytes = &panel[steps(width) * STEP_BYTES..];
        let numbers = |index: usize| {
            let mut numbers = [0f32; PANEL_KEYS];
            let bytes = bytes.as_chunks::<4>().0[index * PANEL_KEYS..].iter();
            numbers
                .iter_mut()
                .zip(bytes)
                .for_each(|(out, bytes)| *out = f32::from_le_bytes(*bytes));
            numbers
        };
        Self { scales: numbers(0), norms: numbers(1), errors: numbers(2) }
    }

    /// Writes the bounds to the end of a panel.
    fn write(&self, panel: &mut [u8], width: usize) {
        let bytes = &mut panel[steps(width) * STEP_BYTES..];
        let numbers = [self.scales, self.norms, self.errors];
        let bytes = bytes.as_chunks_mut::<4>().0.iter_mut();
        bytes.zip(numbers.as_flattened()).for_each(|(out, number)| *out = number.to_le_bytes());
    }
}

/// Encodes the keys of a segment in order.
pub(crate) struct Encoder {
    width: usize,
    rotation: Rotation,
    /// Keys of an unfinished panel.
    waiting: Vec<f32>,
}

impl Encoder {
    pub(crate) fn new(width: usize) -> Self {
        Self { width, rotation: Rotation::new(width), waiting: Vec::new() }
    }

    /// Encodes keys `[rows, width]`. Returns the panels that are complete.
    pub(crate) fn encode(&mut self, keys: &[f32]) -> Vec<u8> {
        self.waiting.extend_from_slice(keys);
        let panel_len = PANEL_KEYS * self.width;
        let complete = self.waiting.len() / panel_len * panel_len;
        let panels = self.panels(&self.waiting[..complete]);
        self.waiting.drain(..complete);
        panels
    }

    /// Returns the last panel, if it is incomplete. Its missing keys are 0.
    pub(crate) fn finish(self) -> Vec<u8> {
        self.panels(&self.waiting)
    }

    fn panels(&self, keys: &[f32]) -> Vec<u8> {
        let (panel_len, bytes) = (PANEL_KEYS * self.width, panel_bytes(self.width));
        let mut panels = vec![0; keys.len().div_ceil(panel_len) * bytes];
        panels.par_chunks_mut(bytes).zip(keys.par_chunks(panel_len)).for_each_init(
            || vec![[0.0; LANES]; self.width],
            |buffer, (panel, keys)| self.encode_panel(keys, buffer, panel),
        );
        panels
    }

    fn encode_panel(&self, keys: &[f32], buffer: &mut [Lanes], panel: &mut [u8]) {
        interleave(keys, self.width, buffer);
        let mut bounds =
            PanelBounds { scales: [0.0; LANES], norms: [0.0; LANES], errors: [0.0; LANES] };
        let key_norms = squared_norms(buffer).map(f64::sqrt);
        self.rotation.apply(buffer);
        let scales = largest_components(buffer).map(|largest| round_up(largest / MAX_MULTIPLE));
        let squares =
            quantise(buffer, &scales.map(f64::from), &mut panel[..steps(self.width) * STEP_BYTES]);
        for lane in 0..LANES {
            let Squares { codes, errors } = &squares;
            bounds.scales[lane] = scales[lane];
            bounds.norms[lane] = round_up(f64::from(scales[lane]) * codes[lane].sqrt() * INFLATION);
            let error = errors[lane].sqrt() + 4.0 * F64_ERROR * key_norms[lane];
            bounds.errors[lane] = round_up(error * INFLATION + f64::from(f32::MIN_POSITIVE));
        }
        bounds.write(panel, self.width);
    }
}

/// Writes up to [`LANES`] vectors `[vectors, width]` to `lanes`, `[width, LANES]`. Missing vectors
/// are 0.
pub(crate) fn interleave(vectors: &[f32], width: usize, lanes: &mut [Lanes]) {
    lanes.fill([0.0; LANES]);
    for (lane, vector) in vectors.chunks(width).enumerate() {
        for (lanes, number) in lanes.iter_mut().zip(vector) {
            lanes[lane] = f64::from(*number);
        }
    }
}

/// Returns the squared norm of each vector.
pub(crate) fn squared_norms(lanes: &[Lanes]) -> Lanes {
    let mut sums = [0.0; LANES];
    for lanes in lanes {
        sums.iter_mut().zip(lanes).for_each(|(sum, number)| *sum += number * number);
    }
    sums
}

/// Returns the largest absolute component of each vector.
pub(crate) fn largest_components(lanes: &[Lanes]) -> Lanes {
    let mut largest = [0f64; LANES];
    for lanes in lanes {
        largest.iter_mut().zip(lanes).for_each(|(max, number)| *max = max.max(number.abs()));
    }
    largest
}

/// For each vector, the sum of squares of its multiples, and of the differences from its decoded
/// components.
struct Squares {
    codes: Lanes,
    errors: Lanes,
}

/// Writes the codes of vectors to the steps of a panel.
#[multiversion::multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512cd+avx512dq+avx512vl",
    "x86_64+avx2"
))]
fn quantise(vectors: &[Lanes], scales: &Lanes, steps: &mut [u8]) -> Squares {
    let inverses = scales.map(|scale| 1.0 / scale);
    let mut squares = Squares { codes: [0.0; LANES], errors: [0.0; LANES] };
    steps.fill(ZERO_CODE);
    for (components, step) in
        vectors.chunks(STEP_COMPONENTS).zip(steps.chunks_exact_mut(STEP_BYTES))
    {
        for (component, numbers) in components.iter().enumerate() {
            let mut multiples = [0.0; LANES];
            for lane in 0..LANES {
                let multiple = (numbers[lane] * inverses[lane]).round_ties_even();
                multiples[lane] = multiple.clamp(-MAX_MULTIPLE, MAX_MULTIPLE);
                let error = numbers[lane] - multiples[lane] * scales[lane];
                squares.codes[lane] += multiples[lane] * multiples[lane];
                squares.errors[lane] += error * error;
            }
            for lane in 0..LANES {
                let code = multiples[lane] as i32 + i32::from(ZERO_CODE);
                step[lane * STEP_COMPONENTS + component] = code as u8;
            }
        }
    }
    squares
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes a key of a panel.
    fn decoded(panel: &[u8], width: usize, lane: usize) -> Vec<f64> {
        let scale = f64::from(PanelBounds::read(panel, width).scales[lane]);
        let code = |i: usize| {
            let step = &panel[i / STEP_COMPONENTS * STEP_BYTES..];
            f64::from(step[lane * STEP_COMPONENTS + i % STEP_COMPONENTS]) - f64::from(ZERO_CODE)
        };
        (0..width).map(|i| scale * code(i)).collect()
    }

    #[test]
    fn the_stored_bounds_hold() {
        for (width, magnitude) in
            [(1, 1.0), (3, 1e-30), (16, 1e17), (33, 1e-40), (384, 1.0), (1000, 1e5)]
        {
            let rows = 21;
            let mut keys: Vec<f32> =
                (0..rows * width).map(|i| magnitude * (i as f32 * 0.37 + 0.2).sin()).collect();
            keys[..width].fill(0.0);
            let mut encoder = Encoder::new(width);
            let mut panels = encoder.encode(&keys[..7 * width]);
            panels.extend(encoder.encode(&keys[7 * width..]));
            panels.extend(encoder.finish());
            assert_eq!(panels.len(), 2 * panel_bytes(width));
            for (row, key) in keys.chunks(width).enumerate() {
                let panel = &panels[row / PANEL_KEYS * panel_bytes(width)..][..panel_bytes(width)];
                let lane = row % PANEL_KEYS;
                let mut lanes = vec![[0.0; LANES]; width];
                interleave(key, width, &mut lanes);
                Rotation::new(width).apply(&mut lanes);
                let decoded = decoded(panel, width, lane);
                let distance: f64 =
                    lanes.iter().zip(&decoded).map(|(lanes, c)| (lanes[0] - c).powi(2)).sum();
                let norm: f64 = decoded.iter().map(|c| c * c).sum();
                let bounds = PanelBounds::read(panel, width);
                let (error, bound) = (distance.sqrt(), f64::from(bounds.errors[lane]));
                let slack = 2.0 * f64::from(f32::MIN_POSITIVE);
                assert!(error <= bound && bound <= 1.0001 * error + slack + 1e-5 * norm.sqrt());
                let (norm, bound) = (norm.sqrt(), f64::from(bounds.norms[lane]));
                assert!(norm <= bound && bound <= 1.0001 * norm + slack);
                if magnitude > 1e-35 {
                    let key_norm = lanes.iter().map(|lanes| lanes[0].powi(2)).sum::<f64>().sqrt();
                    assert!(error <= 0.02 * key_norm, "width {width}: {error} of {key_norm}");
                }
            }
        }
    }
}
