//! The bias of disentangled attention (DeBERTa, arXiv 2006.03654, eq. 4), forward and backward:
//! content to position and position to content.
//!
//! Products are computed only for the relative positions that occur in a segment. Short sequences
//! therefore do not pay for the whole table of relative embeddings.

mod composite;

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Result, Shape, Tensor};
use rayon::prelude::*;

use super::matmul::{Matrix, matmul};
use super::operation::{Gradient, Input, Kernel, Output, Pass, apply, dims_of, tensor_dims};
use super::rows::add;
use super::segments::{Segments, Span, split_spans};

/// The options of a disentangled bias.
#[derive(Debug, Clone)]
pub struct Disentangled {
    /// The number of heads `H`; it must divide the width `D`.
    pub num_heads: usize,
    /// The factor on both terms, equal to the attention's scale.
    pub scale: f32,
    /// Which query rows attend to which key rows.
    pub segments: Segments,
    /// For each relative position (query minus key) from `-n` to `n`: the row of the position
    /// projections. `n` must be at least the longest span minus 1, and the rows must not decrease.
    pub rows: Arc<[u32]>,
}

/// Computes `scale (q_i · pos_key[r(i - j)] + k_j · pos_query[r(i - j)])` for each segment, head,
/// query position `i` and key position `j`; `r` is [`Disentangled::rows`].
///
/// Shapes: `qkv` `[T, 3 D]`, the projected relative embeddings `pos_key` and `pos_query` `[R, D]` →
/// flattened, in the layout of [`super::AttentionBias::PerSegment`]. `None` omits the term. Without
/// `pos_query`, `qkv` may be the queries `[T, D]` alone.
///
/// # Errors
/// If shapes, heads, segments or rows do not match, or if both projections are `None`.
pub fn disentangled_bias(
    qkv: &Tensor,
    pos_key: Option<&Tensor>,
    pos_query: Option<&Tensor>,
    options: &Disentangled,
) -> Result<Tensor> {
    let mut inputs = vec![qkv];
    inputs.extend(pos_key);
    inputs.extend(pos_query);
    let mut contents = Vec::new();
    contents.extend(pos_key.map(|_| Content::Query));
    contents.extend(pos_query.map(|_| Content::Key));
    apply(DisentangledBias { options: options.clone(), contents }, &inputs)
}

struct DisentangledBias {
    options: Disentangled,
    /// One term for each input after the first.
    contents: Vec<Content>,
}

/// The part of `qkv` that a term multiplies with its position projections.
#[derive(Clone, Copy, PartialEq)]
enum Content {
    Query,
    Key,
}

/// One head of one segment.
struct Block {
    query: Span,
    key: Span,
    /// The first column of the head.
    column: usize,
    /// The rows of the position projections used by this block.
    rows: Range<usize>,
    /// The span of the block in the flattened bias.
    scores: Span,
}

impl Block {
    fn content(&self, content: Content) -> Span {
        if content == Content::Query { self.query } else { self.key }
    }
}

/// The gradients of one term of one block: content `[L, d]`, positions `[rows, d]`.
struct TermGradients {
    content: Vec<f32>,
    positions: Vec<f32>,
}

impl DisentangledBias {
    /// Checks the inputs and returns the width `D`.
    fn check(&self, dims: &[&[usize]]) -> Result<usize> {
        let Disentangled { num_heads, segments, rows, .. } = &self.options;
        let &[tokens, columns] = dims[0] else {
            candle_core::bail!("disentangled bias: input {:?}, expected [T, 3 D]", dims[0]);
        };
        let queries_only = self.contents == [Content::Query] && dims[1].last() == Some(&columns);
        let width = if queries_only { columns } else { columns / 3 };
        let matches_width = queries_only || columns == 3 * width;
        if *num_heads == 0 || width == 0 || !matches_width || width % num_heads != 0 {
            candle_core::bail!(
                "disentangled bias: {num_heads} heads do not fit input {:?}",
                dims[0]
            );
        }
        segments.check(tokens, tokens)?;
        if self.contents.is_empty() {
            candle_core::bail!("disentangled bias: both position projections are missing");
        }
        let highest_row = rows.iter().max().map_or(0, |row| *row as usize);
        for dims in &dims[1..] {
            if !matches!(dims, [r, d] if *d == width && *r > highest_row) {
                candle_core::bail!(
                    "disentangled bias: positions {dims:?} do not fit width {width}"
                );
            }
        }
        let longest = segments.iter().map(|(q, k)| q.length.max(k.length)).max().unwrap_or(0);
        if rows.len() % 2 == 0 || rows.len() + 1 < 2 * longest || !rows.is_sorted() {
            candle_core::bail!(
                "disentangled bias: {} relative positions do not fit {longest} tokens",
                rows.len()
            );
        }
        Ok(width)
    }

    /// Returns the rows of the position projections for query position `i` and each of the first
    /// `length` keys. The last key comes first.
    fn position_rows(&self, i: usize, length: usize) -> &[u32] {
        let end = self.options.rows.len() / 2 + i + 1;
        &self.options.rows[end - length..end]
    }

    /// Returns the blocks, in the order of the bias.
    fn blocks(&self, width: usize) -> Vec<Block> {
        let (heads, size) = (self.options.num_heads, width / self.options.num_heads);
        let (mut blocks, mut start) = (Vec::new(), 0);
        for (query, key) in self.options.segments.iter() {
            let length = query.length * key.length;
            let rows = if length == 0 {
                0..0
            } else {
                let first = self.position_rows(0, key.length)[0];
                let last = self.position_rows(query.length - 1, 1)[0];
                first as usize..last as usize + 1
            };
            for h in 0..heads {
                let (column, rows, scores) = (h * size, rows.clone(), Span { start, length });
                blocks.push(Block { query, key, column, rows, scores });
                start += length;
            }
        }
        blocks
    }

    /// For each query and key, calls `f` with the index of their element in the block's bias, and
    /// the index of their product in the term's products `[L, rows]`.
    #[inline(always)]
    fn for_each_pair(&self, block: &Block, content: Content, mut f: impl FnMut(usize, usize)) {
        let length = block.key.length;
        for i in 0..block.query.length {
            for (j, row) in self.position_rows(i, length).iter().rev().enumerate() {
                let token = if content == Content::Query { i } else { j };
                f(i * length + j, token * block.rows.len() + *row as usize - block.rows.start);
            }
        }
    }

    /// Adds the terms of a block to its bias.
    fn block_forward(&self, inputs: &[Input<'_>], width: usize, block: &Block, bias: &mut [f32]) {
        for (&content, positions) in self.contents.iter().zip(&inputs[1..]) {
            let (x, p) = self.factors(inputs[0], *positions, width, block, content);
            let mut products = vec![0.0; x.rows * p.rows];
            matmul(self.options.scale, x, p.t(), 0.0, &mut products, p.rows);
            self.for_each_pair(block, content, |i, product| bias[i] += products[product]);
        }
    }

    /// Returns the gradients of each term of the block's bias.
    fn block_backward(
        &self,
        inputs: &[Input<'_>],
        width: usize,
        block: &Block,
        gradient: &[f32],
    ) -> Vec<TermGradients> {
        let size = width / self.options.num_heads;
        let term_gradients = |(&content, positions): (&Content, &Input<'_>)| {
            let (x, p) = self.factors(inputs[0], *positions, width, block, content);
            let mut product_gradients = vec![0.0; x.rows * p.rows];
            self.for_each_pair(block, content, |i, product| {
                product_gradients[product] += gradient[i]
            });
            let product_gradients = Matrix::new(&product_gradients, x.rows, p.rows);
            let mut gradients = TermGradients {
                content: vec![0.0; x.rows * size],
                positions: vec![0.0; p.rows * size],
            };
            matmul(self.options.scale, product_gradients, p, 0.0, &mut gradients.content, size);
            matmul(
                self.options.scale,
                product_gradients.t(),
                x,
                0.0,
                &mut gradients.positions,
                size,
            );
            gradients
        };
        self.contents.iter().zip(&inputs[1..]).map(term_gradients).collect()
    }

    /// Returns a head's content `[L, d]` and positions `[rows, d]`.
    fn factors<'a>(
        &self,
        qkv: Input<'a>,
        positions: Input<'a>,
        width: usize,
        block: &Block,
        content: Content,
    ) -> (Matrix<'a>, Matrix<'a>) {
        let size = width / self.options.num_heads;
        let span = block.content(content);
        let stride = columns(qkv.dims);
        let start = span.start * stride + first_column(content, width) + block.column;
        let x = Matrix::strided(values_from(qkv.data, start), span.length, size, stride);
        let start = block.rows.start * width + block.column;
        (x, Matrix::strided(values_from(positions.data, start), block.rows.len(), size, width))
    }
}

/// Returns the number of columns of an input.
fn columns(dims: &[usize]) -> usize {
    dims.last().copied().unwrap_or_default()
}

/// Returns the first column of the content in `qkv`.
fn first_column(content: Content, width: usize) -> usize {
    if content == Content::Query { 0 } else { width }
}

/// Returns the values from `start` on; empty if `start` is beyond the end.
fn values_from(data: &[f32], start: usize) -> &[f32] {
    data.get(start..).unwrap_or(&[])
}

impl Kernel for DisentangledBias {
    fn name(&self) -> &'static str {
        "disentangled bias"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output> {
        let width = self.check(&dims_of(inputs))?;
        let blocks = self.blocks(width);
        let scores: Vec<Span> = blocks.iter().map(|block| block.scores).collect();
        let mut output = vec![0.0; scores.iter().map(|span| span.length).sum()];
        split_spans(&mut output, 1, &scores)
            .into_par_iter()
            .zip(&blocks)
            .for_each(|(bias, block)| self.block_forward(inputs, width, block, bias));
        let count = output.len();
        Ok((output, Shape::from(count), Box::new(())))
    }

    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()> {
        let (inputs, gradient) = (pass.inputs, pass.gradient);
        let width = self.check(&dims_of(inputs))?;
        let (heads, size) = (self.options.num_heads, width / self.options.num_heads);
        let blocks = self.blocks(width);
        let gradients: Vec<Vec<TermGradients>> = blocks
            .par_iter()
            .map(|block| {
                let Span { start, length } = block.scores;
                self.block_backward(inputs, width, block, &gradient[start..start + length])
            })
            .collect();
        for (term, &content) in self.contents.iter().enumerate() {
            if let Some(buffer) = &mut input_gradients[0] {
                // The heads of a segment share its span of rows.
                let spans: Vec<Span> =
                    blocks.iter().step_by(heads).map(|block| block.content(content)).collect();
                let stride = columns(inputs[0].dims);
                let parts = split_spans(buffer.as_sum(), stride, &spans);
                let segments = blocks.par_chunks(heads).zip(gradients.par_chunks(heads));
                parts.into_par_iter().zip(segments).for_each(|(part, (blocks, gradients))| {
                    for (block, gradients) in blocks.iter().zip(gradients) {
                        let column = first_column(content, width) + block.column;
                        add_rows(&gradients[term].content, size, part, stride, column);
                    }
                });
            }
            if let Some(buffer) = &mut input_gradients[1 + term] {
                let sums = buffer.as_sum();
                for (block, gradients) in blocks.iter().zip(&gradients) {
                    let sums = &mut sums[block.rows.start * width..];
                    add_rows(&gradients[term].positions, size, sums, width, block.column);
                }
            }
        }
        Ok(())
    }

    fn composite(&self, inputs: &[Tensor]) -> Result<Tensor> {
        self.run_composite(inputs, self.check(&tensor_dims(inputs))?)
    }
}

/// Adds rows of `size` values to a matrix with rows `stride` apart, starting at column `column`.
fn add_rows(values: &[f32], size: usize, sums: &mut [f32], stride: usize, column: usize) {
    for (values, row) in values.chunks(size).zip(sums.chunks_mut(stride)) {
        add(values, &mut row[column..column + size]);
    }
}
