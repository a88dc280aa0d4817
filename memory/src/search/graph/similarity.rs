//! Cosines of keys, for building and searching graphs: estimated from one byte per component, or
//! computed in single precision for narrow keys.
//!
//! The codes of exact search are interleaved, for scans. A graph reads the keys of scattered rows,
//! so it has its own codes, one row after the other. Keys are rotated as in
//! [`codes`](crate::codes). The components of a rotated unit vector have a standard deviation of
//! about `1 / sqrt(width)`, so all keys share one scale, and products need no scales of keys.

use rayon::prelude::*;

use super::super::kernels::Kernel;
use super::super::products::{dot_f32, prefetch};
use super::row_products::{CHUNK, products};
use crate::codes::rotation::{LANES, Rotation};
use crate::codes::{MAX_MULTIPLE, MAX_WIDTH, ZERO_CODE, interleave};

/// The smallest width of keys with codes. Narrower keys are as small as codes, and often closer to
/// each other than codes can tell.
const MIN_CODED_WIDTH: usize = 64;
/// The largest code in standard deviations. 4 has nearly the smallest rounding error for normally
/// distributed components.
const RANGE: f64 = 4.0;
/// The bound on errors of codes in standard deviations. The error of a cosine is a sum of many
/// small independent errors.
const ERROR_DEVIATIONS: f64 = 4.0;

/// While a key is scored, the key this many positions later is prefetched.
const PREFETCH_DISTANCE: usize = 2;

/// Cosines with keys.
pub(super) trait Similarity: Sync {
    /// A vector to compare with keys.
    type Query: Sync;

    /// The number of keys.
    fn rows(&self) -> usize;

    /// Replaces a query by the key of a row.
    fn set_row(&self, query: &mut Self::Query, row: u32);

    /// A query for [`Similarity::set_row`].
    fn empty_query(&self) -> Self::Query;

    /// Replaces `cosines` by the cosines of the query with the keys of rows.
    fn cosines(&self, query: &Self::Query, rows: &[u32], cosines: &mut Cosines);
}

/// Cosines, and buffers for their computation.
#[derive(Debug, Default)]
pub(super) struct Cosines {
    pub(super) values: Vec<f32>,
    products: Vec<i32>,
    rows: Vec<u32>,
}

/// Whether keys of this width have codes in a graph.
pub(super) fn has_codes(width: usize) -> bool {
    (MIN_CODED_WIDTH..=MAX_WIDTH).contains(&width)
}

/// The size in bytes of the codes of a key.
pub(super) fn row_bytes(width: usize) -> usize {
    width.next_multiple_of(CHUNK)
}

/// The component of a rotated unit vector that has the code 1.
fn scale(width: usize) -> f64 {
    RANGE / (width as f64).sqrt() / MAX_MULTIPLE
}

/// The largest expected error of a cosine that is computed from codes.
pub(super) fn cosine_error(width: usize) -> f32 {
    // A rounding error is uniformly distributed over a scale, for the query and for the key.
    (ERROR_DEVIATIONS * scale(width) * (2.0f64 / 12.0).sqrt()) as f32
}

/// The largest error of a product of unit vectors in single precision.
pub(super) fn single_precision_error(width: usize) -> f32 {
    // `width` rounding errors of the product of the norms. Eight more cover norms that are not
    // exactly 1.
    (width + 8) as f32 * f32::EPSILON
}

/// Returns the codes of unit vectors `[rows, width]`, `[rows, row_bytes]`.
pub(super) fn encode(keys: &[f32], width: usize) -> Vec<u8> {
    let (rotation, bytes) = (Rotation::new(width), row_bytes(width));
    let inverse = 1.0 / scale(width);
    let mut codes = vec![ZERO_CODE; keys.len() / width * bytes];
    codes.par_chunks_mut(LANES * bytes).zip(keys.par_chunks(LANES * width)).for_each_init(
        || vec![[0.0; LANES]; width],
        |lanes, (codes, keys)| {
            interleave(keys, width, lanes);
            rotation.apply(lanes);
            for (lane, codes) in codes.chunks_mut(bytes).enumerate() {
                for (code, numbers) in codes.iter_mut().zip(lanes.iter()) {
                    let multiple = (numbers[lane] * inverse).round_ties_even();
                    let multiple = multiple.clamp(-MAX_MULTIPLE, MAX_MULTIPLE);
                    *code = (multiple as i32 + i32::from(ZERO_CODE)) as u8;
                }
            }
        },
    );
    codes
}

/// Keys as codes.
pub(super) struct CodedKeys<'a> {
    /// The codes, `[rows, row_bytes]`.
    codes: &'a [u8],
    row_bytes: usize,
    /// The cosine that has the product 1.
    unit: f32,
    kernel: Kernel,
}

/// A query as codes.
pub(super) struct CodedQuery {
    multiples: Vec<i8>,
    /// The sum of products with the code of 0.
    correction: i32,
}

impl<'a> CodedKeys<'a> {
    pub(super) fn new(codes: &'a [u8], width: usize) -> Self {
        let unit = scale(width).powi(2) as f32;
        Self { codes, row_bytes: row_bytes(width), unit, kernel: Kernel::selected() }
    }
}

impl CodedQuery {
    /// A query from its codes.
    pub(super) fn new(codes: &[u8]) -> Self {
        let mut query = Self { multiples: Vec::with_capacity(codes.len()), correction: 0 };
        query.set(codes);
        query
    }

    fn set(&mut self, codes: &[u8]) {
        self.multiples.resize(codes.len(), 0);
        self.correction = i32::from(ZERO_CODE) * to_multiples(codes, &mut self.multiples);
    }
}

/// Converts codes to multiples of the scale. Returns their sum.
#[multiversion::multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512cd+avx512dq+avx512vl",
    "x86_64+avx2"
))]
fn to_multiples(codes: &[u8], multiples: &mut [i8]) -> i32 {
    let mut sum = 0;
    for (multiple, code) in multiples.iter_mut().zip(codes) {
        *multiple = (code ^ ZERO_CODE).cast_signed();
        sum += i32::from(*multiple);
    }
    sum
}

impl Similarity for CodedKeys<'_> {
    type Query = CodedQuery;

    fn rows(&self) -> usize {
        self.codes.len() / self.row_bytes
    }

    fn set_row(&self, query: &mut CodedQuery, row: u32) {
        query.set(&self.codes[row as usize * self.row_bytes..][..self.row_bytes]);
    }

    fn empty_query(&self) -> CodedQuery {
        CodedQuery { multiples: Vec::new(), correction: 0 }
    }

    fn cosines(&self, query: &CodedQuery, rows: &[u32], cosines: &mut Cosines) {
        let Cosines { values, products: sums, .. } = cosines;
        sums.clear();
        products(self.kernel, &query.multiples, self.codes, rows, sums);
        values.clear();
        let cosine = |sum: &i32| sum.wrapping_sub(query.correction) as f32 * self.unit;
        values.extend(sums.iter().map(cosine));
    }
}

/// Unit keys in single precision.
pub(super) struct PlainKeys<'a> {
    /// The keys, `[rows, width]`.
    pub(super) keys: &'a [f32],
    pub(super) width: usize,
}

impl PlainKeys<'_> {
    fn key(&self, row: u32) -> &[f32] {
        &self.keys[row as usize * self.width..][..self.width]
    }
}

impl Similarity for PlainKeys<'_> {
    type Query = Vec<f32>;

    fn rows(&self) -> usize {
        self.keys.len() / self.width
    }

    fn set_row(&self, query: &mut Vec<f32>, row: u32) {
        query.clear();
        query.extend_from_slice(self.key(row));
    }

    fn empty_query(&self) -> Vec<f32> {
        Vec::new()
    }

    fn cosines(&self, query: &Vec<f32>, rows: &[u32], cosines: &mut Cosines) {
        cosines.values.clear();
        for (i, row) in rows.iter().enumerate() {
            if let Some(later) = rows.get(i + PREFETCH_DISTANCE) {
                prefetch(self.key(*later));
            }
            cosines.values.push(dot_f32(query, self.key(*row)));
        }
    }
}

/// Some of the keys. Their numbers are the positions in a list of rows.
pub(super) struct Subset<'a, S> {
    pub(super) all: &'a S,
    pub(super) rows: &'a [u32],
}

impl<S: Similarity> Similarity for Subset<'_, S> {
    type Query = S::Query;

    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn set_row(&self, query: &mut S::Query, row: u32) {
        self.all.set_row(query, self.rows[row as usize]);
    }

    fn empty_query(&self) -> S::Query {
        self.all.empty_query()
    }

    fn cosines(&self, query: &S::Query, rows: &[u32], cosines: &mut Cosines) {
        let mut all_rows = std::mem::take(&mut cosines.rows);
        all_rows.clear();
        all_rows.extend(rows.iter().map(|row| self.rows[*row as usize]));
        self.all.cosines(query, &all_rows, cosines);
        cosines.rows = all_rows;
    }
}
