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
    branches: Option<Arc<[u32]>>,
}

impl Segments {
    /// Packed sequences of these lengths that attend to themselves.
    pub fn packed(lengths: &[usize]) -> Self {
        let spans: Arc<[Span]> = consecutive(lengths).into();
        Self { queries: spans.clone(), keys: spans, branches: None }
    }

    /// Packed queries that attend to packed keys (cross-attention).
    pub fn cross(query_lengths: &[usize], key_lengths: &[usize]) -> Self {
        let queries = consecutive(query_lengths).into();
        Self { queries, keys: consecutive(key_lengths).into(), branches: None }
    }

    /// Packed queries that attend to these runs of keys, between which rows may be left out.
    pub fn to_runs(query_lengths: &[usize], keys: Arc<[Span]>) -> Self {
        Self { queries: consecutive(query_lengths).into(), keys, branches: None }
    }

    /// One query row for each span of keys (attention pooling).
    pub fn of_spans(spans: Arc<[Span]>) -> Self {
        let queries = (0..spans.len()).map(|start| Span { start, length: 1 }).collect();
        Self { queries, keys: spans, branches: None }
    }

    /// A padded batch `[B, L]` flattened to `[B L]` rows: every row asks, only the first
    /// `lengths[b]` of sequence `b` answer.
    pub fn padded(length: usize, lengths: &[usize]) -> Self {
        let span = |(b, &real): (usize, &usize)| Span { start: b * length, length: real };
        let keys = lengths.iter().enumerate().map(span).collect();
        let span = |b| Span { start: b * length, length };
        Self { queries: (0..lengths.len()).map(span).collect(), keys, branches: None }
    }

    /// The same segments with rows that branch, for self-attention: `branches` `[T]` says the
    /// branch of each row, 0 for the trunk. A row sees its own branch and the trunk of its segment,
    /// so that branches share the trunk without seeing each other.
    pub fn with_branches(self, branches: Arc<[u32]>) -> Self {
        Self { branches: Some(branches), ..self }
    }

    /// The runs of query rows.
    pub fn queries(&self) -> &Arc<[Span]> {
        &self.queries
    }

    /// The runs of key rows, one for each of [`Segments::queries`].
    pub fn keys(&self) -> &Arc<[Span]> {
        &self.keys
    }

    /// The branch of each row, where rows branch.
    pub fn branches(&self) -> Option<&[u32]> {
        self.branches.as_deref()
    }

    /// Of the keys in `keys`, those that query row `query` does not see because they are of another
    /// branch.
    pub(super) fn hidden_keys(
        &self,
        query: usize,
        keys: std::ops::Range<usize>,
    ) -> impl Iterator<Item = bool> {
        let branches = self.branches.as_deref();
        let own = branches.map_or(0, |branches| branches[query]);
        let keys = branches.map_or(&[][..], |branches| &branches[keys]);
        keys.iter().map(move |key| *key != 0 && *key != own)
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
        if let Some(branches) = &self.branches
            && (branches.len() != query_rows || branches.len() != key_rows)
        {
            candle_core::bail!(
                "attention: branches of {} rows for {query_rows} query rows and {key_rows} key rows",
                branches.len()
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
