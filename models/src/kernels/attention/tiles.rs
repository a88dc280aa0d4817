//! One head of one segment, forward and backward, one tile of scores at a time.

use std::ops::Range;

use super::super::dropout::Dropout;
use super::super::math::{exp, max, sum, sum2};
use super::super::matmul::{Matrix, matmul};
use super::super::rows::add;
use super::super::segments::Span;
use super::Attention;

/// Query rows per tile.
const QUERY_TILE: usize = 64;
/// Key rows per tile.
const KEY_TILE: usize = 256;

/// The queries, keys and values in the input slices.
pub(super) struct Sources<'a> {
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    /// The number of elements from one row to the next in `q`, `k` and `v`.
    pub stride: usize,
    pub width: usize,
    pub bias: Option<&'a [f32]>,
    pub options: &'a Attention,
}

/// One head of one segment.
#[derive(Clone, Copy)]
pub(super) struct Head {
    pub query: Span,
    pub key: Span,
    /// The first column of the head.
    pub column: usize,
    /// The number of columns `d` of the head.
    pub size: usize,
    /// The index of the first element of this head's bias, and its row stride.
    pub bias: (usize, usize),
    /// The index of this head's first score in the batch (for dropout).
    pub first_score: usize,
}

/// The gradients of one head of width `d`: q `[L_q, d]`, k `[L_k, d]`, v `[L_k, d]` and bias
/// `[L_q, L_k]` (empty if the bias needs no gradient).
pub(super) struct HeadGradients {
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub bias: Vec<f32>,
}

impl Sources<'_> {
    /// Computes the scores of a tile before the softmax: `[rows, columns]`.
    fn tile_scores(&self, head: Head, tile: Tile, scores: &mut [f32]) {
        let q = head_rows(self.q, self.stride, head.query, head, tile.i, tile.rows);
        let k = head_rows(self.k, self.stride, head.key, head, tile.j, tile.columns);
        matmul(self.options.scale, q, k.t(), 0.0, scores, tile.columns);
        if let Some(bias) = self.bias {
            let (start, stride) = head.bias;
            for (row, scores) in scores.chunks_mut(tile.columns).enumerate() {
                let start = start + (tile.i + row) * stride + tile.j;
                add(&bias[start..start + tile.columns], scores);
            }
        }
        if self.options.causal || self.options.segments.window().is_some() {
            for (row, scores) in scores.chunks_mut(tile.columns).enumerate() {
                let keys = self.keys(head, tile.i + row, 1);
                let column = |key: usize| key.saturating_sub(tile.j).min(tile.columns);
                scores[..column(keys.start)].fill(f32::NEG_INFINITY);
                scores[column(keys.end)..].fill(f32::NEG_INFINITY);
            }
        }
        if self.options.segments.branches().is_some() {
            let first = head.key.start + tile.j;
            for (row, scores) in scores.chunks_mut(tile.columns).enumerate() {
                let query = head.query.start + tile.i + row;
                let hidden = self.options.segments.hidden_keys(query, first..first + tile.columns);
                for (score, hidden) in scores.iter_mut().zip(hidden) {
                    *score = if hidden { f32::NEG_INFINITY } else { *score };
                }
            }
        }
    }

    /// Returns the output `[L_q, d]` and each row's log-sum-exp.
    pub(super) fn head_forward(&self, head: Head) -> (Vec<f32>, Vec<f32>) {
        let (l_q, l_k, size) = (head.query.length, head.key.length, head.size);
        let mut output = vec![0.0; l_q * size];
        let mut log_sums = vec![f32::NEG_INFINITY; l_q];
        let mut scores = vec![0.0; QUERY_TILE.min(l_q) * KEY_TILE.min(l_k)];
        for i in (0..l_q).step_by(QUERY_TILE) {
            let rows = QUERY_TILE.min(l_q - i);
            let output = &mut output[i * size..(i + rows) * size];
            let mut maxima_and_sums = vec![(f32::NEG_INFINITY, 0.0f32); rows];
            let keys = self.keys(head, i, rows);
            for j in keys.clone().step_by(KEY_TILE) {
                let tile = Tile { i, rows, j, columns: KEY_TILE.min(keys.end - j) };
                let scores = &mut scores[..rows * tile.columns];
                self.tile_scores(head, tile, scores);
                scores_to_weights(
                    head,
                    tile,
                    self.options.dropout,
                    scores,
                    &mut maxima_and_sums,
                    output,
                );
                let v = head_rows(self.v, self.stride, head.key, head, j, tile.columns);
                matmul(1.0, Matrix::new(scores, rows, tile.columns), v, 1.0, output, size);
            }
            for (row, (maximum, sum_of_weights)) in maxima_and_sums.iter().enumerate() {
                // The sum is 0 if all keys are masked. A NaN sum gives NaN outputs, which the
                // trainer detects.
                if *sum_of_weights != 0.0 {
                    let scale = 1.0 / sum_of_weights;
                    output[row * size..(row + 1) * size].iter_mut().for_each(|v| *v *= scale);
                    log_sums[i + row] = maximum + sum_of_weights.ln();
                }
            }
        }
        (output, log_sums)
    }

    /// Returns the gradients of a head. `log_sums` holds the log-sum-exps of its rows; `output` and
    /// `gradient` cover all heads.
    pub(super) fn head_backward(
        &self,
        head: Head,
        log_sums: &[f32],
        output: &[f32],
        gradient: &[f32],
        needs_bias_gradient: bool,
    ) -> HeadGradients {
        let (l_q, l_k, size) = (head.query.length, head.key.length, head.size);
        let mut head_gradients = HeadGradients {
            q: vec![0.0; l_q * size],
            k: vec![0.0; l_k * size],
            v: vec![0.0; l_k * size],
            bias: vec![0.0; if needs_bias_gradient { l_q * l_k } else { 0 }],
        };
        let tile_size = QUERY_TILE.min(l_q) * KEY_TILE.min(l_k);
        let mut weights = vec![0.0; tile_size];
        let mut score_gradients = vec![0.0; tile_size];
        for i in (0..l_q).step_by(QUERY_TILE) {
            let rows = QUERY_TILE.min(l_q - i);
            let means = row_products(output, gradient, self.width, head, i, rows);
            let dy = head_rows(gradient, self.width, head.query, head, i, rows);
            let q = head_rows(self.q, self.stride, head.query, head, i, rows);
            let keys = self.keys(head, i, rows);
            for j in keys.clone().step_by(KEY_TILE) {
                let tile = Tile { i, rows, j, columns: KEY_TILE.min(keys.end - j) };
                let columns = tile.columns;
                let (weights, score_gradients) =
                    (&mut weights[..rows * columns], &mut score_gradients[..rows * columns]);
                self.tile_scores(head, tile, weights);
                let k = head_rows(self.k, self.stride, head.key, head, j, columns);
                let v = head_rows(self.v, self.stride, head.key, head, j, columns);
                matmul(1.0, dy, v.t(), 0.0, score_gradients, columns);
                let row_values = RowValues { log_sums: &log_sums[i..], means: &means };
                tile_score_gradients(
                    head,
                    tile,
                    self.options.dropout,
                    row_values,
                    weights,
                    score_gradients,
                );
                let (dk, dv) =
                    (&mut head_gradients.k[j * size..], &mut head_gradients.v[j * size..]);
                matmul(1.0, Matrix::new(weights, rows, columns).t(), dy, 1.0, dv, size);
                if needs_bias_gradient {
                    for (row, score_gradients) in score_gradients.chunks(columns).enumerate() {
                        let start = (i + row) * l_k + j;
                        head_gradients.bias[start..start + columns]
                            .copy_from_slice(score_gradients);
                    }
                }
                let ds = Matrix::new(score_gradients, rows, columns);
                matmul(self.options.scale, ds, k, 1.0, &mut head_gradients.q[i * size..], size);
                matmul(self.options.scale, ds.t(), q, 1.0, dk, size);
            }
        }
        head_gradients
    }

    /// Returns the keys that some of the `rows` query rows from `i` on attend to.
    fn keys(&self, head: Head, i: usize, rows: usize) -> Range<usize> {
        match self.options.segments.window() {
            Some(window) => {
                i.saturating_sub(window)..(i + rows).saturating_add(window).min(head.key.length)
            }
            None if self.options.causal => 0..visible_keys(head, i + rows - 1),
            None => 0..head.key.length,
        }
    }
}

/// Returns the number of keys visible to query row `i` of causal attention. The last query sees all
/// keys.
fn visible_keys(head: Head, i: usize) -> usize {
    (i + 1 + head.key.length).saturating_sub(head.query.length)
}

/// A tile of scores that starts at query row `i` and key row `j` of the segment.
#[derive(Clone, Copy)]
struct Tile {
    i: usize,
    rows: usize,
    j: usize,
    columns: usize,
}

/// One value per query row, for the backward pass.
struct RowValues<'a> {
    log_sums: &'a [f32],
    /// The results of [`row_products`].
    means: &'a [f32],
}

/// Returns `count` rows of a head: `[count, d]`, starting at row `first` of the span.
fn head_rows(
    data: &[f32],
    stride: usize,
    span: Span,
    head: Head,
    first: usize,
    count: usize,
) -> Matrix<'_> {
    let start = (span.start + first) * stride + head.column;
    Matrix::strided(&data[start..], count, head.size, stride)
}

vectorised! {
    /// Replaces scores by unnormalised weights, updates the running maxima and sums, and rescales
    /// the partial output.
    fn scores_to_weights(
        head: Head,
        tile: Tile,
        dropout: Option<Dropout>,
        scores: &mut [f32],
        maxima_and_sums: &mut [(f32, f32)],
        output: &mut [f32],
    ) {
        for (row, (scores, (maximum, sum_of_weights))) in
            scores.chunks_mut(tile.columns).zip(maxima_and_sums).enumerate()
        {
            let new_maximum = maximum.max(max(scores));
            if new_maximum == f32::NEG_INFINITY && scores.iter().all(|s| *s == new_maximum) {
                scores.fill(0.0);
                continue;
            }
            for score in scores.iter_mut() {
                *score = exp(*score - new_maximum);
            }
            let rescale = exp(*maximum - new_maximum);
            if rescale != 1.0 {
                for v in &mut output[row * head.size..(row + 1) * head.size] {
                    *v *= rescale;
                }
            }
            *sum_of_weights = sum_of_weights.mul_add(rescale, sum(scores, |v| v));
            *maximum = new_maximum;
            if let Some(dropout) = dropout {
                let start = head.first_score + (tile.i + row) * head.key.length + tile.j;
                for (j, score) in scores.iter_mut().enumerate() {
                    *score *= dropout.factor(start + j);
                }
            }
        }
    }

    /// Turns scores into weights (with dropout), and gradients of the weights into gradients of the
    /// scores.
    fn tile_score_gradients(
        head: Head,
        tile: Tile,
        dropout: Option<Dropout>,
        row_values: RowValues<'_>,
        weights: &mut [f32],
        score_gradients: &mut [f32],
    ) {
        let rows = weights.chunks_mut(tile.columns).zip(score_gradients.chunks_mut(tile.columns));
        for (row, (weights, score_gradients)) in rows.enumerate() {
            let (log_sum, mean) = (row_values.log_sums[row], row_values.means[row]);
            if log_sum == f32::NEG_INFINITY {
                weights.fill(0.0);
                score_gradients.fill(0.0);
                continue;
            }
            match dropout {
                None => {
                    for (weight, score_gradient) in weights.iter_mut().zip(score_gradients) {
                        *weight = exp(*weight - log_sum);
                        *score_gradient = *weight * (*score_gradient - mean);
                    }
                }
                Some(dropout) => {
                    let start = head.first_score + (tile.i + row) * head.key.length + tile.j;
                    let pairs = weights.iter_mut().zip(score_gradients);
                    for (j, (weight, score_gradient)) in pairs.enumerate() {
                        let factor = dropout.factor(start + j);
                        let undropped = exp(*weight - log_sum);
                        *weight = undropped * factor;
                        *score_gradient = undropped * score_gradient.mul_add(factor, -mean);
                    }
                }
            }
        }
    }

    /// Returns `Σ output * gradient` for each row of a head (`D` in FlashAttention): the mean of
    /// the weights' gradients, weighted by the weights.
    fn row_products(
        output: &[f32],
        gradient: &[f32],
        width: usize,
        head: Head,
        i: usize,
        rows: usize,
    ) -> Vec<f32> {
        let mut products = vec![0.0; rows];
        for (row, product) in products.iter_mut().enumerate() {
            let start = (head.query.start + i + row) * width + head.column;
            let range = start..start + head.size;
            *product = sum2(&output[range.clone()], &gradient[range], |a, b| a * b);
        }
        products
    }
}

/// Adds the rows of a head to its columns in `rows`. The columns of all heads start at `column`.
pub(super) fn add_head(values: &[f32], head: Head, stride: usize, column: usize, rows: &mut [f32]) {
    for (values, row) in values.chunks(head.size).zip(rows.chunks_mut(stride)) {
        let start = column + head.column;
        add(values, &mut row[start..start + head.size]);
    }
}
