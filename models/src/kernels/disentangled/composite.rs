//! The disentangled bias as candle operations. Segments of equal lengths form one batch, so that
//! the number of operations does not grow with the number of segments.

use candle_core::{Result, Tensor};

use super::super::composite::{product, select_rows};
use super::super::segments::Span;
use super::{Content, DisentangledBias, first_column};

impl DisentangledBias {
    /// Computes the bias, flattened.
    pub(super) fn run_composite(&self, inputs: &[Tensor], width: usize) -> Result<Tensor> {
        let segments: Vec<(Span, Span)> = self.options.segments.iter().collect();
        let mut parts: Vec<Option<Tensor>> = vec![None; segments.len()];
        for first in 0..segments.len() {
            if parts[first].is_some() {
                continue;
            }
            let lengths = |i: usize| (segments[i].0.length, segments[i].1.length);
            let batch: Vec<usize> =
                (first..segments.len()).filter(|i| lengths(*i) == lengths(first)).collect();
            let spans: Vec<(Span, Span)> = batch.iter().map(|i| segments[*i]).collect();
            let biases = self.batch(inputs, width, &spans)?;
            if batch.len() == segments.len() {
                return biases.flatten_all();
            }
            for (row, segment) in batch.into_iter().enumerate() {
                parts[segment] = Some(biases.get(row)?.flatten_all()?);
            }
        }
        Tensor::cat(&parts.into_iter().flatten().collect::<Vec<_>>(), 0)
    }

    /// Returns the biases `[S, H, L_q, L_k]` of segments with equal lengths.
    fn batch(&self, inputs: &[Tensor], width: usize, spans: &[(Span, Span)]) -> Result<Tensor> {
        let (heads, size) = (self.options.num_heads, width / self.options.num_heads);
        let by_head = |x: &Tensor| x.reshape(((), heads, size))?.transpose(0, 1)?.contiguous();
        let (queries, keys) = (spans[0].0.length, spans[0].1.length);
        let rows: Vec<u32> =
            (0..queries).flat_map(|i| self.position_rows(i, keys).iter().rev().copied()).collect();
        let rows = Tensor::from_vec(rows, (queries, keys), inputs[0].device())?;
        let mut bias: Option<Tensor> = None;
        for (&content, positions) in self.contents.iter().zip(&inputs[1..]) {
            let spans = spans.iter();
            let spans: Vec<Span> = match content {
                Content::Query => spans.map(|(query, _)| *query).collect(),
                Content::Key => spans.map(|(_, key)| *key).collect(),
            };
            let x = inputs[0].narrow(1, first_column(content, width), width)?;
            let x = by_head(&rows_of(&x, &spans)?)?;
            let products = product(&x, &by_head(positions)?.t()?)?;
            let rows = if content == Content::Query { rows.clone() } else { rows.t()? };
            let (length, others) = rows.dims2()?;
            let rows = rows.broadcast_left((heads, spans.len()))?.contiguous()?;
            let rows = rows.reshape((heads, spans.len() * length, others))?;
            let term = products.gather(&rows, 2)?.reshape((heads, spans.len(), length, others))?;
            let term = if content == Content::Query { term } else { term.transpose(2, 3)? };
            bias = Some(match bias {
                Some(bias) => (bias + term)?,
                None => term,
            });
        }
        match bias {
            Some(bias) => (bias * f64::from(self.options.scale))?.transpose(0, 1)?.contiguous(),
            None => candle_core::bail!("disentangled bias: no position projections"),
        }
    }
}

/// Returns the rows of spans of equal lengths: `[T, D]` → `[S L, D]`.
fn rows_of(x: &Tensor, spans: &[Span]) -> Result<Tensor> {
    let (first, length) = (spans[0].start, spans[0].length);
    let is_adjacent = |(i, span): (usize, &Span)| span.start == first + i * length;
    if spans.iter().enumerate().all(is_adjacent) {
        return x.narrow(0, first, spans.len() * length);
    }
    let rows = spans.iter().flat_map(|span| span.start as u32..(span.start + span.length) as u32);
    select_rows(x, &rows.collect())
}
