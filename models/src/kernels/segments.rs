//! Which rows of a packed batch belong together: spans, and the pairs of runs of an attention.

use std::sync::Arc;

/// A run of rows in a packed batch: the first and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The first row.
    pub start: usize,
    /// How many rows; at least 1.
    pub length: usize,
}

/// Which query rows attend to which key rows. Runs are in order and do not overlap.
#[derive(Debug, Clone)]
pub struct Segments {
    queries: Arc<[Span]>,
    keys: Arc<[Span]>,
}

impl Segments {
    /// Packed sequences of these lengths that attend to themselves.
    pub fn packed(lengths: &[usize]) -> Self {
        let spans: Arc<[Span]> = consecutive(lengths).into();
        Self { queries: spans.clone(), keys: spans }
    }

    /// Packed queries that attend to packed keys (cross-attention).
    pub fn cross(query_lengths: &[usize], key_lengths: &[usize]) -> Self {
        let queries = consecutive(query_lengths).into();
        Self { queries, keys: consecutive(key_lengths).into() }
    }

    /// One query row for each span of keys (attention pooling).
    pub fn of_spans(spans: Arc<[Span]>) -> Self {
        let queries = (0..spans.len()).map(|start| Span { start, length: 1 }).collect();
        Self { queries, keys: spans }
    }

    /// A padded batch `[B, L]` flattened to `[B L]` rows: every row asks, only the first
    /// `lengths[b]` of sequence `b` answer.
    pub fn padded(length: usize, lengths: &[usize]) -> Self {
        let span = |(b, &real): (usize, &usize)| Span { start: b * length, length: real };
        let keys = lengths.iter().enumerate().map(span).collect();
        let span = |b| Span { start: b * length, length };
        Self { queries: (0..lengths.len()).map(span).collect(), keys }
    }

    /// The runs of query rows.
    pub fn queries(&self) -> &Arc<[Span]> {
        &self.queries
    }

    /// The runs of key rows, one for each of [`Segments::queries`].
    pub fn keys(&self) -> &Arc<[Span]> {
        &self.keys
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Span, Span)> {
        self.queries.iter().copied().zip(self.keys.iter().copied())
    }

    pub(super) fn check(&self, query_rows: usize, key_rows: usize) -> candle_core::Result<()> {
        let in_order = |spans: &[Span], rows: usize| {
            let mut end = 0;
            spans.iter().all(|span| {
                let fits = span.start >= end;
                end = span.start.saturating_add(span.length);
                fits
            }) && end <= rows
        };
        if self.queries.len() != self.keys.len()
            || !in_order(&self.queries, query_rows)
            || !in_order(&self.keys, key_rows)
        {
            candle_core::bail!(
                "attention: segments do not fit {query_rows} query rows and {key_rows} key rows"
            );
        }
        Ok(())
    }
}

fn consecutive(lengths: &[usize]) -> Vec<Span> {
    let mut start = 0;
    let span = |&length: &usize| {
        let span = Span { start, length };
        start += length;
        span
    };
    lengths.iter().map(span).collect()
}

/// The runs of rows of a matrix, each to be written by its own thread.
pub(super) fn split_runs<'a>(
    mut data: &'a mut [f32],
    stride: usize,
    spans: &[Span],
) -> Vec<&'a mut [f32]> {
    let (mut runs, mut position) = (Vec::with_capacity(spans.len()), 0);
    for span in spans {
        let (_, rest) = data.split_at_mut((span.start - position) * stride);
        let (run, rest) = rest.split_at_mut(span.length * stride);
        runs.push(run);
        data = rest;
        position = span.start + span.length;
    }
    runs
}
