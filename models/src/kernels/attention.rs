//! Scaled dot-product attention over packed sequences, in tiles, forward and backward.
//!
//! Tokens of a batch lie one after the other without padding; a segment pairs a run of query rows
//! with the run of key rows they attend to. A padded batch is the special case in which key runs
//! end before the padding, so a padding mask costs nothing. Scores exist one tile at a time
//! (running maximum and sum as in FlashAttention, arXiv 2205.14135); the backward pass makes them
//! again from the logarithm of each row's sum.

use std::sync::Arc;

use candle_core::{Shape, Tensor};
use rayon::prelude::*;

use super::dropout::Dropout;
use super::math::{exp, max, sum, sum2};
use super::matmul::{Matrix, matmul};
use super::operation::{Gradient, Input, Kernel, apply};
use super::pooling::Span;
use super::rows::add;
use super::softmax::softmax;

/// Rows of queries in a tile.
const QUERY_TILE: usize = 64;
/// Rows of keys in a tile.
const KEY_TILE: usize = 256;

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

    pub(super) fn iter(&self) -> impl Iterator<Item = (Span, Span)> {
        self.queries.iter().copied().zip(self.keys.iter().copied())
    }

    pub(super) fn check(&self, query_rows: usize, key_rows: usize) -> candle_core::Result<()> {
        let in_order = |spans: &[Span], rows: usize| {
            let mut end = 0;
            spans.iter().all(|span| {
                let fits = span.start >= end;
                end = span.start + span.length;
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

/// The options of an attention.
#[derive(Debug, Clone)]
pub struct Attention {
    /// Heads `H`; the width is divided among them.
    pub num_heads: usize,
    /// The factor on `q·k`, usually `1 / sqrt(D / H)`.
    pub scale: f32,
    /// Whether a query sees only keys up to its own place (counted from the end of both runs).
    pub causal: bool,
    /// Who attends to whom.
    pub segments: Segments,
    /// Dropout of attention weights.
    pub dropout: Option<Dropout>,
}

/// What is added to the scores before the softmax; minus infinity masks.
#[derive(Debug, Clone, Copy)]
pub enum AttentionBias<'a> {
    /// `[H, L_q, L_k]`, shared by all segments, whose runs may be shorter.
    Shared(&'a Tensor),
    /// One `[H, L_q, L_k]` block after the other, flat, each of its segment's own lengths.
    PerSegment(&'a Tensor),
}

impl AttentionBias<'_> {
    fn tensor(&self) -> &Tensor {
        match self {
            Self::Shared(tensor) | Self::PerSegment(tensor) => tensor,
        }
    }
}

/// Attention of queries to keys and values: `q` `[T_q, D]`, `k`, `v` `[T_k, D]` → `[T_q, D]`.
/// Query rows outside every segment, and rows all of whose keys are masked, give zeros.
///
/// # Errors
/// If shapes, heads or segments do not fit.
pub fn attention(
    (q, k, v): (&Tensor, &Tensor, &Tensor),
    bias: Option<AttentionBias<'_>>,
    options: &Attention,
) -> candle_core::Result<Tensor> {
    run(&[q, k, v], bias, options)
}

/// Self-attention from projections that lie side by side: `qkv` `[T, 3 D]` → `[T, D]`.
///
/// # Errors
/// As [`attention`].
pub fn self_attention(
    qkv: &Tensor,
    bias: Option<AttentionBias<'_>>,
    options: &Attention,
) -> candle_core::Result<Tensor> {
    run(&[qkv], bias, options)
}

fn run(
    sources: &[&Tensor],
    bias: Option<AttentionBias<'_>>,
    options: &Attention,
) -> candle_core::Result<Tensor> {
    let mut inputs = sources.to_vec();
    inputs.extend(bias.iter().map(AttentionBias::tensor));
    let shared = bias.map(|bias| matches!(bias, AttentionBias::Shared(_)));
    apply(AttentionKernel::new(options, sources.len() == 3, shared), &inputs)
}

pub(super) struct AttentionKernel {
    options: Attention,
    /// Whether q, k and v are three inputs or one.
    separate: bool,
    /// Whether there is a bias, and whether segments share it.
    bias: Option<bool>,
    /// For each segment, head and query row: the logarithm of the sum of exponentials.
    log_sums: Vec<Vec<f32>>,
}

/// Queries, keys and values inside the inputs.
struct Sources<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    stride: usize,
    width: usize,
    bias: Option<Bias<'a>>,
}

#[derive(Clone, Copy)]
struct Bias<'a> {
    data: &'a [f32],
    /// `[L_q, L_k]` of the shared bias.
    shared: Option<[usize; 2]>,
}

/// One head of one segment.
#[derive(Clone, Copy)]
struct Head {
    query: Span,
    key: Span,
    /// The first column of the head.
    column: usize,
    size: usize,
    /// The first element of this head's bias and the distance of its rows.
    bias: (usize, usize),
    /// The first element of this head's scores, counted over the batch (for dropout).
    scores: usize,
}

/// The gradients of one head: `[L_q, d]`, `[L_k, d]`, `[L_k, d]`, and of the bias `[L_q, L_k]`.
struct HeadGradients {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    bias: Vec<f32>,
}

impl AttentionKernel {
    /// The kernel; its inputs are q, k and v (`separate`) or their stack, then the bias if there is
    /// one, which is shared by the segments or not.
    pub(super) fn new(options: &Attention, separate: bool, bias: Option<bool>) -> Self {
        Self { options: options.clone(), separate, bias, log_sums: Vec::new() }
    }

    fn sources<'a>(&self, inputs: &[Input<'a>]) -> candle_core::Result<Sources<'a>> {
        let heads = self.options.num_heads;
        let matrix = |input: &Input<'a>| match *input.dims {
            [rows, columns] => Ok((input.data, rows, columns)),
            _ => candle_core::bail!("attention: input {:?}, wanted [T, D]", input.dims),
        };
        let (q, query_rows, columns) = matrix(&inputs[0])?;
        let width = if self.separate { columns } else { columns / 3 };
        let (k, v, key_rows) = if self.separate {
            let ((k, k_rows, k_columns), (v, v_rows, v_columns)) =
                (matrix(&inputs[1])?, matrix(&inputs[2])?);
            if k_columns != width || v_columns != width || k_rows != v_rows {
                candle_core::bail!(
                    "attention: q {:?}, k {:?}, v {:?}",
                    inputs[0].dims,
                    inputs[1].dims,
                    inputs[2].dims
                );
            }
            (k, v, k_rows)
        } else {
            (q.get(width..).unwrap_or(&[]), q.get(2 * width..).unwrap_or(&[]), query_rows)
        };
        if width == 0
            || heads == 0
            || width % heads != 0
            || (!self.separate && columns != 3 * width)
        {
            candle_core::bail!("attention: {heads} heads for input {:?}", inputs[0].dims);
        }
        self.options.segments.check(query_rows, key_rows)?;
        let bias = match self.bias {
            None => None,
            Some(shared) => Some(self.check_bias(&inputs[inputs.len() - 1], shared)?),
        };
        Ok(Sources { q, k, v, stride: columns, width, bias })
    }

    fn check_bias<'a>(&self, input: &Input<'a>, shared: bool) -> candle_core::Result<Bias<'a>> {
        let heads = self.options.num_heads;
        let segments = &self.options.segments;
        let fits = if shared {
            let reach = |spans: &[Span]| spans.iter().map(|span| span.length).max().unwrap_or(0);
            let (l_q, l_k) = (reach(&segments.queries), reach(&segments.keys));
            matches!(*input.dims, [h, q, k] if h == heads && q >= l_q && k >= l_k)
        } else {
            let count: usize = segments.iter().map(|(q, k)| heads * q.length * k.length).sum();
            input.data.len() == count
        };
        if !fits {
            candle_core::bail!("attention: a bias of shape {:?} does not fit", input.dims);
        }
        let shared = shared.then(|| [input.dims[1], input.dims[2]]);
        Ok(Bias { data: input.data, shared })
    }

    /// The heads of each segment.
    fn heads(&self, sources: &Sources<'_>) -> Vec<Vec<Head>> {
        let size = sources.width / self.options.num_heads;
        let mut scores = 0;
        let mut of_segment = |(query, key): (Span, Span)| {
            let of_head = |h: usize| {
                let bias = match sources.bias {
                    Some(Bias { shared: Some([l_q, l_k]), .. }) => (h * l_q * l_k, l_k),
                    _ => (scores + h * query.length * key.length, key.length),
                };
                let scores = scores + h * query.length * key.length;
                Head { query, key, column: h * size, size, bias, scores }
            };
            let heads = (0..self.options.num_heads).map(of_head).collect();
            scores += self.options.num_heads * query.length * key.length;
            heads
        };
        self.options.segments.iter().map(&mut of_segment).collect()
    }

    /// Scores of a tile, before the softmax: `[rows, columns]` from row `i` and column `j` on.
    fn tile_scores(&self, s: &Sources<'_>, head: Head, tile: Tile, scores: &mut [f32]) {
        let q = rows_of(s.q, s.stride, head.query, head, tile.i, tile.rows);
        let k = rows_of(s.k, s.stride, head.key, head, tile.j, tile.columns);
        matmul(self.options.scale, q, k.t(), 0.0, scores, tile.columns);
        if let Some(bias) = s.bias {
            let (start, stride) = head.bias;
            for (row, scores) in scores.chunks_mut(tile.columns).enumerate() {
                let start = start + (tile.i + row) * stride + tile.j;
                add(&bias.data[start..start + tile.columns], scores);
            }
        }
        if self.options.causal {
            for (row, scores) in scores.chunks_mut(tile.columns).enumerate() {
                let visible = visible_keys(head, tile.i + row).saturating_sub(tile.j);
                scores[visible.min(tile.columns)..].fill(f32::NEG_INFINITY);
            }
        }
    }

    /// The output `[L_q, d]` and the logarithms of the rows' sums.
    fn head_forward(&self, s: &Sources<'_>, head: Head) -> (Vec<f32>, Vec<f32>) {
        let (l_q, l_k, size) = (head.query.length, head.key.length, head.size);
        let mut output = vec![0.0; l_q * size];
        let mut log_sums = vec![f32::NEG_INFINITY; l_q];
        let mut scores = vec![0.0; QUERY_TILE.min(l_q) * KEY_TILE.min(l_k)];
        for i in (0..l_q).step_by(QUERY_TILE) {
            let rows = QUERY_TILE.min(l_q - i);
            let output = &mut output[i * size..(i + rows) * size];
            let mut state = vec![(f32::NEG_INFINITY, 0.0f32); rows];
            let end = self.last_key(head, i + rows - 1);
            for j in (0..end).step_by(KEY_TILE) {
                let tile = Tile { i, rows, j, columns: KEY_TILE.min(end - j) };
                let scores = &mut scores[..rows * tile.columns];
                self.tile_scores(s, head, tile, scores);
                weights_of_tile(head, tile, self.options.dropout, scores, &mut state, output);
                let v = rows_of(s.v, s.stride, head.key, head, j, tile.columns);
                matmul(1.0, Matrix::new(scores, rows, tile.columns), v, 1.0, output, size);
            }
            for (row, (top, total)) in state.iter().enumerate() {
                // A sum that is not a number goes on, so that the trainer sees it.
                if *total != 0.0 {
                    let scale = 1.0 / total;
                    output[row * size..(row + 1) * size].iter_mut().for_each(|v| *v *= scale);
                    log_sums[i + row] = top + total.ln();
                }
            }
        }
        (output, log_sums)
    }

    fn head_backward(
        &self,
        s: &Sources<'_>,
        head: Head,
        log_sums: &[f32],
        output: &[f32],
        gradient: &[f32],
        wants_bias: bool,
    ) -> HeadGradients {
        let (l_q, l_k, size) = (head.query.length, head.key.length, head.size);
        let mut d = HeadGradients {
            q: vec![0.0; l_q * size],
            k: vec![0.0; l_k * size],
            v: vec![0.0; l_k * size],
            bias: vec![0.0; if wants_bias { l_q * l_k } else { 0 }],
        };
        let tile_size = QUERY_TILE.min(l_q) * KEY_TILE.min(l_k);
        let mut weights = vec![0.0; tile_size];
        let mut slopes = vec![0.0; tile_size];
        for i in (0..l_q).step_by(QUERY_TILE) {
            let rows = QUERY_TILE.min(l_q - i);
            let means = row_products(output, gradient, s.width, head, i, rows);
            let dy = rows_of(gradient, s.width, head.query, head, i, rows);
            let q = rows_of(s.q, s.stride, head.query, head, i, rows);
            let end = self.last_key(head, i + rows - 1);
            for j in (0..end).step_by(KEY_TILE) {
                let tile = Tile { i, rows, j, columns: KEY_TILE.min(end - j) };
                let columns = tile.columns;
                let (weights, slopes) =
                    (&mut weights[..rows * columns], &mut slopes[..rows * columns]);
                self.tile_scores(s, head, tile, weights);
                let k = rows_of(s.k, s.stride, head.key, head, j, columns);
                let v = rows_of(s.v, s.stride, head.key, head, j, columns);
                matmul(1.0, dy, v.t(), 0.0, slopes, columns);
                let row_values = RowValues { log_sums: &log_sums[i..], means: &means };
                tile_slopes(head, tile, self.options.dropout, row_values, weights, slopes);
                let (dk, dv) = (&mut d.k[j * size..], &mut d.v[j * size..]);
                matmul(1.0, Matrix::new(weights, rows, columns).t(), dy, 1.0, dv, size);
                if wants_bias {
                    for (row, slopes) in slopes.chunks(columns).enumerate() {
                        let start = (i + row) * l_k + j;
                        d.bias[start..start + columns].copy_from_slice(slopes);
                    }
                }
                let ds = Matrix::new(slopes, rows, columns);
                matmul(self.options.scale, ds, k, 1.0, &mut d.q[i * size..], size);
                matmul(self.options.scale, ds.t(), q, 1.0, dk, size);
            }
        }
        d
    }

    /// One past the last key that query row `i` sees.
    fn last_key(&self, head: Head, i: usize) -> usize {
        if self.options.causal { visible_keys(head, i) } else { head.key.length }
    }
}

/// How many keys row `i` of a causal attention sees: the last query sees all.
fn visible_keys(head: Head, i: usize) -> usize {
    (i + 1 + head.key.length).saturating_sub(head.query.length)
}

/// A tile of scores: rows from `i` on, columns from `j` on.
#[derive(Clone, Copy)]
struct Tile {
    i: usize,
    rows: usize,
    j: usize,
    columns: usize,
}

struct RowValues<'a> {
    log_sums: &'a [f32],
    means: &'a [f32],
}

/// `count` rows of a head from row `first` of its run on.
fn rows_of(
    data: &[f32],
    stride: usize,
    run: Span,
    head: Head,
    first: usize,
    count: usize,
) -> Matrix<'_> {
    let start = (run.start + first) * stride + head.column;
    Matrix::strided(&data[start..], count, head.size, stride)
}

vectorised! {
    /// Turns scores into unnormalised weights, moves the running maxima and sums on, and rescales
    /// the output made so far.
    fn weights_of_tile(
        head: Head,
        tile: Tile,
        dropout: Option<Dropout>,
        scores: &mut [f32],
        state: &mut [(f32, f32)],
        output: &mut [f32],
    ) {
        for (row, (scores, (top, total))) in
            scores.chunks_mut(tile.columns).zip(state).enumerate()
        {
            let new_top = top.max(max(scores));
            if new_top == f32::NEG_INFINITY && scores.iter().all(|s| *s == new_top) {
                scores.fill(0.0);
                continue;
            }
            for score in scores.iter_mut() {
                *score = exp(*score - new_top);
            }
            let shrink = exp(*top - new_top);
            if shrink != 1.0 {
                for v in &mut output[row * head.size..(row + 1) * head.size] {
                    *v *= shrink;
                }
            }
            *total = total.mul_add(shrink, sum(scores, |v| v));
            *top = new_top;
            if let Some(dropout) = dropout {
                let start = head.scores + (tile.i + row) * head.key.length + tile.j;
                for (j, score) in scores.iter_mut().enumerate() {
                    *score *= dropout.factor(start + j);
                }
            }
        }
    }

    /// From scores and the gradients of the weights: the weights (with dropout) and the gradients
    /// of the scores.
    fn tile_slopes(
        head: Head,
        tile: Tile,
        dropout: Option<Dropout>,
        of_row: RowValues<'_>,
        weights: &mut [f32],
        slopes: &mut [f32],
    ) {
        let rows = weights.chunks_mut(tile.columns).zip(slopes.chunks_mut(tile.columns));
        for (row, (weights, slopes)) in rows.enumerate() {
            let (log_sum, mean) = (of_row.log_sums[row], of_row.means[row]);
            if log_sum == f32::NEG_INFINITY {
                weights.fill(0.0);
                slopes.fill(0.0);
                continue;
            }
            match dropout {
                None => {
                    for (weight, slope) in weights.iter_mut().zip(slopes) {
                        *weight = exp(*weight - log_sum);
                        *slope = *weight * (*slope - mean);
                    }
                }
                Some(dropout) => {
                    let start = head.scores + (tile.i + row) * head.key.length + tile.j;
                    for (j, (weight, slope)) in weights.iter_mut().zip(slopes).enumerate() {
                        let factor = dropout.factor(start + j);
                        let full = exp(*weight - log_sum);
                        *weight = full * factor;
                        *slope = full * slope.mul_add(factor, -mean);
                    }
                }
            }
        }
    }

    /// `Σ output * gradient` of each row of a head: the mean of the weights' gradients.
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

impl Kernel for AttentionKernel {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn forward(&mut self, inputs: &[Input<'_>]) -> candle_core::Result<(Vec<f32>, Shape)> {
        let s = self.sources(inputs)?;
        let heads = self.heads(&s);
        let rows = inputs[0].dims[0];
        let mut output = vec![0.0; rows * s.width];
        let runs = split_runs(&mut output, s.width, &self.options.segments.queries);
        let log_sums = runs
            .into_par_iter()
            .zip(&heads)
            .map(|(run, heads)| {
                let made: Vec<_> = heads.par_iter().map(|h| self.head_forward(&s, *h)).collect();
                let mut log_sums = Vec::new();
                for (head, (values, sums)) in heads.iter().zip(made) {
                    place(&values, *head, s.width, 0, run);
                    log_sums.extend(sums);
                }
                log_sums
            })
            .collect();
        self.log_sums = log_sums;
        Ok((output, Shape::from((rows, s.width))))
    }

    fn backward(
        &self,
        inputs: &[Input<'_>],
        output: &[f32],
        gradient: &[f32],
        wanted: &mut [Option<Gradient>],
    ) -> candle_core::Result<()> {
        let s = self.sources(inputs)?;
        let heads = self.heads(&s);
        let at_bias = inputs.len() - 1;
        let wants_bias = s.bias.is_some() && wanted[at_bias].is_some();
        let made: Vec<Vec<HeadGradients>> = heads
            .par_iter()
            .zip(&self.log_sums)
            .map(|(heads, log_sums)| {
                let sums = |h: usize, head: &Head| &log_sums[h * head.query.length..];
                let one = |(h, head): (usize, &Head)| {
                    self.head_backward(&s, *head, sums(h, head), output, gradient, wants_bias)
                };
                heads.par_iter().enumerate().map(one).collect()
            })
            .collect();
        let segments = &self.options.segments;
        for part in 0..3 {
            let input = if self.separate { part } else { 0 };
            let Some(wanted) = &mut wanted[input] else { continue };
            let column = if self.separate { 0 } else { part * s.width };
            let spans = if part == 0 { &segments.queries } else { &segments.keys };
            let runs = split_runs(wanted.as_sum(), s.stride, spans);
            runs.into_par_iter().zip(&heads).zip(&made).for_each(|((run, heads), made)| {
                for (head, d) in heads.iter().zip(made) {
                    place([&d.q, &d.k, &d.v][part], *head, s.stride, column, run);
                }
            });
        }
        if let (true, Some(bias)) = (wants_bias, &mut wanted[at_bias]) {
            let sums = bias.as_sum();
            for (head, d) in heads.iter().flatten().zip(made.iter().flatten()) {
                for (row, values) in d.bias.chunks(head.key.length.max(1)).enumerate() {
                    let start = head.bias.0 + row * head.bias.1;
                    add(values, &mut sums[start..start + values.len()]);
                }
            }
        }
        Ok(())
    }

    fn composite(&self, inputs: &[Tensor]) -> candle_core::Result<Tensor> {
        let width = inputs[0].dim(1)? / if self.separate { 1 } else { 3 };
        let size = width / self.options.num_heads.max(1);
        let part = |i: usize| match self.separate {
            true => Ok(inputs[i].clone()),
            false => inputs[0].narrow(1, i * width, width),
        };
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let rows = q.dim(0)?;
        let device = q.device();
        let (mut outputs, mut end, mut scored) = (Vec::new(), 0, 0);
        for (query, key) in self.options.segments.iter() {
            if query.start > end {
                outputs.push(Tensor::zeros((query.start - end, width), q.dtype(), device)?);
            }
            end = query.start + query.length;
            let heads = |x: &Tensor, span: Span| {
                x.narrow(0, span.start, span.length)?
                    .reshape((span.length, self.options.num_heads, size))?
                    .transpose(0, 1)?
                    .contiguous()
            };
            let (q, k, v) = (heads(&q, query)?, heads(&k, key)?, heads(&v, key)?);
            let mut scores = (q.matmul(&k.t()?)? * f64::from(self.options.scale))?;
            let shape = (self.options.num_heads, query.length, key.length);
            let count = shape.0 * shape.1 * shape.2;
            if let Some(shared) = self.bias {
                let bias = &inputs[inputs.len() - 1];
                let bias = match shared {
                    true => bias.narrow(1, 0, query.length)?.narrow(2, 0, key.length)?,
                    false => bias.flatten_all()?.narrow(0, scored, count)?.reshape(shape)?,
                };
                scores = (scores + bias)?;
            }
            if self.options.causal {
                let hidden =
                    |i: usize| (0..key.length).map(move |j| j + query.length > i + key.length);
                let mask: Vec<f32> = (0..query.length)
                    .flat_map(hidden)
                    .map(|hidden| if hidden { f32::NEG_INFINITY } else { 0.0 })
                    .collect();
                let mask = Tensor::from_vec(mask, (query.length, key.length), device)?;
                scores = scores.broadcast_add(&mask.to_dtype(q.dtype())?)?;
            }
            let mut weights = softmax(&scores)?;
            if let Some(dropout) = self.options.dropout {
                let mask = (0..count).map(|i| dropout.factor(scored + i)).collect::<Vec<_>>();
                let mask = Tensor::from_vec(mask, shape, device)?.to_dtype(q.dtype())?;
                weights = (weights * mask)?;
            }
            scored += count;
            outputs.push(weights.matmul(&v)?.transpose(0, 1)?.reshape((query.length, width))?);
        }
        if end < rows {
            outputs.push(Tensor::zeros((rows - end, width), q.dtype(), device)?);
        }
        Tensor::cat(&outputs, 0)
    }
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

/// Adds a head's rows to its columns of a run.
fn place(values: &[f32], head: Head, stride: usize, column: usize, run: &mut [f32]) {
    for (values, row) in values.chunks(head.size).zip(run.chunks_mut(stride)) {
        let start = column + head.column;
        add(values, &mut row[start..start + head.size]);
    }
}
