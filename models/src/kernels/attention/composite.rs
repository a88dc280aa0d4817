//! Attention as candle operations, for other devices and dtypes than f32 on the CPU.
//!
//! Segments of similar lengths form one batch of padded sequences, so that the number of operations
//! does not grow with the number of segments. Padding at most doubles each length.

use std::collections::BTreeMap;

use candle_core::{Result, Tensor};

use super::super::composite::{product, select_rows};
#[cfg(feature = "cuda")]
use super::super::device::{BackwardPass, DeviceKernel, Saved};
use super::super::dropout::Dropout;
use super::super::segments::{Segments, Span};
use super::super::softmax::softmax;
use super::Attention;

/// Queries, keys and values `[T, D]`, and the options.
pub(super) struct Composite<'a> {
    pub q: &'a Tensor,
    pub k: &'a Tensor,
    pub v: &'a Tensor,
    /// The bias, and whether all segments share it.
    pub bias: Option<(&'a Tensor, bool)>,
    pub options: &'a Attention,
}

/// A segment, or some of its queries with the keys that they see, and the index of its first score
/// among the scores of all segments.
#[derive(Clone, Copy)]
struct Segment {
    query: Span,
    key: Span,
    first_score: usize,
    /// The numbers of scores from one head to the next, and from one query to the next.
    strides: [usize; 2],
}

/// Segments that are padded to the same lengths.
struct Batch {
    segments: Vec<Segment>,
    num_heads: usize,
    query_length: usize,
    key_length: usize,
}

impl Composite<'_> {
    /// Computes the attention: `[T_q, D]`.
    pub(super) fn run(&self) -> Result<Tensor> {
        let (rows, width) = self.q.dims2()?;
        let batches = batches(&self.options.segments, self.options.num_heads);
        // Rows outside every segment select the zeros.
        let mut outputs = vec![Tensor::zeros((1, width), self.q.dtype(), self.q.device())?];
        let (mut selection, mut first) = (vec![0; rows], 1);
        for batch in &batches {
            outputs.push(self.batch(batch)?);
            for (i, segment) in batch.segments.iter().enumerate() {
                let output = first + i * batch.query_length;
                for row in 0..segment.query.length {
                    selection[segment.query.start + row] = (output + row) as u32;
                }
            }
            first += batch.segments.len() * batch.query_length;
        }
        if outputs.len() == 2 && selection.iter().copied().eq(1..first as u32) {
            return Ok(outputs.swap_remove(1));
        }
        select_rows(&Tensor::cat(&outputs, 0)?, &selection.into())
    }

    /// Returns the outputs of a batch's segments, padded: `[S L_q, D]`.
    fn batch(&self, batch: &Batch) -> Result<Tensor> {
        let count = batch.segments.len();
        let queries: Vec<Span> = batch.segments.iter().map(|segment| segment.query).collect();
        let keys: Vec<Span> = batch.segments.iter().map(|segment| segment.key).collect();
        let heads = |x: &Tensor, spans: &[Span], length: usize| {
            padded(x, spans, length)?
                .reshape((count, length, batch.num_heads, ()))?
                .transpose(1, 2)?
                .contiguous()
        };
        let q = heads(self.q, &queries, batch.query_length)?;
        let k = heads(self.k, &keys, batch.key_length)?;
        let v = heads(self.v, &keys, batch.key_length)?;
        let mut scores = (product(&q, &k.t()?)? * f64::from(self.options.scale))?;
        match self.bias {
            Some((bias, true)) => {
                let bias = bias.narrow(1, 0, batch.query_length)?;
                scores = scores.broadcast_add(&bias.narrow(2, 0, batch.key_length)?)?;
            }
            Some((bias, false)) => scores = (scores + batch.biases(bias)?)?,
            None => {}
        }
        if let Some(mask) = batch.mask(self.options) {
            let shape = (count, 1, batch.query_length, batch.key_length);
            let mask = Tensor::from_vec(mask, shape, scores.device())?;
            scores = scores.broadcast_add(&mask.to_dtype(scores.dtype())?)?;
        }
        let mut weights = softmax(&scores)?;
        if let Some(dropout) = self.options.dropout {
            weights = batch.masked(&weights, dropout)?;
        }
        let output = product(&weights, &v)?.transpose(1, 2)?.contiguous()?;
        output.flatten(2, 3)?.flatten(0, 1)
    }
}

/// Dropout of padded weights `[S, H, L_q, L_k]` on a GPU.
#[cfg(feature = "cuda")]
struct MaskedScores {
    dropout: Dropout,
    scores: crate::cuda::PaddedScores,
}

#[cfg(feature = "cuda")]
impl DeviceKernel for MaskedScores {
    fn forward(&self, inputs: &[Tensor], _: &[bool]) -> Result<(Tensor, Saved)> {
        let y = crate::cuda::masked(&inputs[0], None, self.dropout, Some(&self.scores))?;
        Ok((y, Saved::default()))
    }

    fn backward(&self, pass: &BackwardPass<'_>) -> Result<Vec<Option<Tensor>>> {
        let scores = Some(&self.scores);
        Ok(vec![Some(crate::cuda::masked(pass.gradient, None, self.dropout, scores)?)])
    }
}

impl Batch {
    /// For each head, query and key of the padded segments, in row-major order: the index of the
    /// score; `None` for padding.
    fn scores(&self) -> impl Iterator<Item = Option<usize>> {
        self.segments.iter().flat_map(move |segment| {
            let (queries, keys) = (segment.query.length, segment.key.length);
            (0..self.num_heads * self.query_length).flat_map(move |row| {
                let (head, i) = (row / self.query_length, row % self.query_length);
                let [of_head, of_query] = segment.strides;
                let first = segment.first_score + head * of_head + i * of_query;
                (0..self.key_length).map(move |j| (i < queries && j < keys).then_some(first + j))
            })
        })
    }

    /// Returns the biases `[S, H, L_q, L_k]` from the blocks of all segments.
    fn biases(&self, blocks: &Tensor) -> Result<Tensor> {
        let shape = (self.segments.len(), self.num_heads, self.query_length, self.key_length);
        let (block, first) =
            (self.num_scores() / self.segments.len(), self.segments[0].first_score);
        let is_adjacent = |(i, segment): (usize, &Segment)| {
            segment.first_score == first + i * block
                && segment.query.length == self.query_length
                && segment.key.length == self.key_length
        };
        // candle's gradient of `index_select` runs on one thread here.
        if self.segments.iter().enumerate().all(is_adjacent) {
            return blocks.flatten_all()?.narrow(0, first, self.num_scores())?.reshape(shape);
        }
        let indices: Vec<u32> = self.scores().map(|i| i.unwrap_or(0) as u32).collect();
        let indices = Tensor::from_vec(indices, self.num_scores(), blocks.device())?;
        blocks.flatten_all()?.index_select(&indices, 0)?.reshape(shape)
    }

    /// Applies a dropout mask to the weights `[S, H, L_q, L_k]`.
    fn masked(&self, weights: &Tensor, dropout: Dropout) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if weights.device().is_cuda() && self.segments.iter().all(Segment::is_whole) {
            let numbers = |segment: &Segment| {
                [segment.first_score, segment.query.length, segment.key.length].map(|n| n as i64)
            };
            let scores = crate::cuda::PaddedScores {
                segments: self.segments.iter().flat_map(numbers).collect(),
                heads: self.num_heads,
                query_length: self.query_length,
                key_length: self.key_length,
            };
            return super::super::device::apply(MaskedScores { dropout, scores }, &[weights]);
        }
        let factor = |score: Option<usize>| score.map_or(0.0, |score| dropout.factor(score));
        let mask: Vec<f32> = self.scores().map(factor).collect();
        let mask = Tensor::from_vec(mask, weights.shape(), weights.device())?;
        weights.mul(&mask.to_dtype(weights.dtype())?)
    }

    fn num_scores(&self) -> usize {
        self.segments.len() * self.num_heads * self.query_length * self.key_length
    }

    /// Returns the mask `[S, L_q, L_k]`, minus infinity for hidden keys; `None` if all keys are
    /// visible.
    fn mask(&self, options: &Attention) -> Option<Vec<f32>> {
        let mut mask = Vec::with_capacity(self.num_scores() / self.num_heads);
        for Segment { query, key, .. } in &self.segments {
            for i in 0..self.query_length {
                let visible = match options.causal {
                    true => (i + 1 + key.length).saturating_sub(query.length).min(key.length),
                    false => key.length,
                };
                let row = mask.len();
                let is_far = |j: usize| {
                    let distance = (key.start + j).abs_diff(query.start + i);
                    options.segments.window().is_some_and(|window| distance > window)
                };
                mask.extend((0..self.key_length).map(|j| hidden(j >= visible || is_far(j))));
                if i < query.length {
                    let keys = key.start..key.start + key.length;
                    let others = options.segments.hidden_keys(query.start + i, keys).enumerate();
                    others
                        .filter(|(_, other)| *other)
                        .for_each(|(j, _)| mask[row + j] = hidden(true));
                }
            }
        }
        mask.iter().any(|value| *value != 0.0).then_some(mask)
    }
}

fn hidden(is_hidden: bool) -> f32 {
    if is_hidden { f32::NEG_INFINITY } else { 0.0 }
}

impl Segment {
    /// Whether all queries and keys of a segment are here.
    #[cfg(feature = "cuda")]
    fn is_whole(&self) -> bool {
        self.strides == [self.query.length * self.key.length, self.key.length]
    }

    /// Splits a segment whose rows see the keys within `window`, so that the number of scores does
    /// not grow with the square of the length.
    fn windows(self, window: usize) -> impl Iterator<Item = Self> {
        let rows = window.max(MIN_ROWS);
        (0..self.query.length).step_by(rows).map(move |i| {
            let (first, length) = (i.saturating_sub(window), rows.min(self.query.length - i));
            let end = (i + length).saturating_add(window).min(self.key.length);
            Self {
                query: Span { start: self.query.start + i, length },
                key: Span { start: self.key.start + first, length: end - first },
                first_score: self.first_score + i * self.strides[1] + first,
                ..self
            }
        })
    }
}

/// The fewest queries of a part of a segment.
const MIN_ROWS: usize = 16;

/// Groups the segments by the powers of two that bound their lengths. Segments without queries or
/// without keys are left out: their outputs are zeros.
fn batches(segments: &Segments, num_heads: usize) -> Vec<Batch> {
    let mut groups: BTreeMap<[usize; 2], Batch> = BTreeMap::new();
    let mut first_score = 0;
    for (query, key) in segments.iter() {
        let strides = [query.length * key.length, key.length];
        let segment = Segment { query, key, first_score, strides };
        first_score += num_heads * strides[0];
        if strides[0] == 0 {
            continue;
        }
        for part in segment.windows(segments.window().unwrap_or(usize::MAX)) {
            let bounds = [part.query.length, part.key.length].map(usize::next_power_of_two);
            let empty = Batch { segments: Vec::new(), num_heads, query_length: 0, key_length: 0 };
            let batch = groups.entry(bounds).or_insert(empty);
            batch.query_length = batch.query_length.max(part.query.length);
            batch.key_length = batch.key_length.max(part.key.length);
            batch.segments.push(part);
        }
    }
    groups.into_values().collect()
}

/// Returns the rows of the spans, each span padded to `length` with copies of its last row:
/// `[T, D]` → `[S length, D]`.
fn padded(x: &Tensor, spans: &[Span], length: usize) -> Result<Tensor> {
    let first = spans.first().map_or(0, |span| span.start);
    let adjacent =
        |(i, span): (usize, &Span)| span.length == length && span.start == first + i * length;
    if spans.iter().enumerate().all(adjacent) {
        return x.narrow(0, first, spans.len() * length)?.contiguous();
    }
    let row = |span: &Span, i: usize| (span.start + i.min(span.length - 1)) as u32;
    let rows: Vec<u32> =
        spans.iter().flat_map(|span| (0..length).map(move |i| row(span, i))).collect();
    select_rows(x, &rows.into())
}
