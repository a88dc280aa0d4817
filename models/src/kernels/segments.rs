//! The layout of a packed batch: spans of rows, and the pairs of spans used by attention.

use std::sync::Arc;

/// A contiguous span of rows in a packed batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The first row.
    pub start: usize,
    /// The number of rows.
    pub length: usize,
}

/// Which query rows attend to which key rows. Spans are in order and do not overlap.
#[derive(Debug, Clone)]
pub struct Segments {
    /// The spans of query rows.
    pub(crate) queries: Arc<[Span]>,
    /// The spans of key rows, one for each of `queries`.
    pub(crate) keys: Arc<[Span]>,
    branches: Option<Arc<[u32]>>,
    window: Option<usize>,
}

impl Segments {
    /// Self-attention within packed sequences of these lengths.
    pub fn packed(lengths: &[usize]) -> Self {
        let spans: Arc<[Span]> = packed_spans(lengths).into();
        Self::new(spans.clone(), spans)
    }

    /// Cross-attention from packed queries to packed keys. Query sequence `i` attends to key
    /// sequence `i`.
    pub fn cross(query_lengths: &[usize], key_lengths: &[usize]) -> Self {
        Self::new(packed_spans(query_lengths).into(), packed_spans(key_lengths).into())
    }

    /// Cross-attention from packed queries: query sequence `i` attends to span `i` of the keys.
    /// There may be unused rows between spans.
    pub(crate) fn to_key_spans(query_lengths: &[usize], keys: Arc<[Span]>) -> Self {
        Self::new(packed_spans(query_lengths).into(), keys)
    }

    /// Attention pooling: query row `i` attends to span `i` of the keys.
    pub fn pooling(spans: Arc<[Span]>) -> Self {
        let queries = (0..spans.len()).map(|start| Span { start, length: 1 }).collect();
        Self::new(queries, spans)
    }

    fn new(queries: Arc<[Span]>, keys: Arc<[Span]>) -> Self {
        Self { queries, keys, branches: None, window: None }
    }

    /// Adds branches to self-attention segments: `branches` `[T]` holds the branch of each row.
    /// Branch 0 is the shared prefix. A row sees the shared prefix of its segment and its own
    /// branch, but no other branch.
    pub fn with_branches(self, branches: Arc<[u32]>) -> Self {
        Self { branches: Some(branches), ..self }
    }

    /// Makes self-attention local: a row sees the rows of its segment at most `distance` rows away.
    pub fn with_window(self, distance: usize) -> Self {
        let hides = self.queries.iter().any(|span| span.length > distance.saturating_add(1));
        Self { window: hides.then_some(distance), ..self }
    }

    /// Returns the largest distance that a row sees, if a row does not see its whole segment.
    pub(super) fn window(&self) -> Option<usize> {
        self.window
    }

    /// Returns the branch of each row, if there are branches.
    pub fn branches(&self) -> Option<&[u32]> {
        self.branches.as_deref()
    }

    /// For each key in `keys`: whether it is hidden from row `query` because it belongs to another
    /// branch. Empty without branches.
    pub(super) fn hidden_keys(
        &self,
        query: usize,
        keys: std::ops::Range<usize>,
    ) -> impl Iterator<Item = bool> {
        let branches = self.branches.as_deref();
        let query_branch = branches.map_or(0, |branches| branches[query]);
        let keys = branches.map_or(&[][..], |branches| &branches[keys]);
        keys.iter().map(move |key| *key != 0 && *key != query_branch)
    }

    /// Returns the query span and the key span of each segment.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Span, Span)> {
        self.queries.iter().copied().zip(self.keys.iter().copied())
    }

    /// Checks that the spans and branches fit inputs with these numbers of rows.
    pub(super) fn check(&self, query_rows: usize, key_rows: usize) -> candle_core::Result<()> {
        let in_order = |spans: &[Span], rows: usize| {
            let mut end = 0;
            spans.iter().all(|span| {
                let is_in_order = span.start >= end;
                end = span.start.saturating_add(span.length);
                is_in_order
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
                "attention: {} branches do not fit {query_rows} query rows and {key_rows} key rows",
                branches.len()
            );
        }
        Ok(())
    }
}

/// Returns the spans of packed sequences.
pub(crate) fn packed_spans(lengths: &[usize]) -> Vec<Span> {
    let mut start = 0;
    let span = |&length: &usize| {
        let span = Span { start, length };
        start += length;
        span
    };
    lengths.iter().map(span).collect()
}

/// Returns the rows of each span of a matrix with `stride` columns. Each thread can then write one
/// span.
pub(super) fn split_spans<'a>(
    mut data: &'a mut [f32],
    stride: usize,
    spans: &[Span],
) -> Vec<&'a mut [f32]> {
    let (mut parts, mut row) = (Vec::with_capacity(spans.len()), 0);
    for span in spans {
        let (_, from_span) = data.split_at_mut((span.start - row) * stride);
        let (part, after_span) = from_span.split_at_mut(span.length * stride);
        parts.push(part);
        data = after_span;
        row = span.start + span.length;
    }
    parts
}
