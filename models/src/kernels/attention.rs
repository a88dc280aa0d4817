//! Tiled scaled dot-product attention over packed sequences, forward and backward.
//!
//! The tokens of a batch are packed one after the other, without padding. A segment pairs a span of
//! query rows with the span of key rows that they attend to. Scores are computed one tile at a
//! time, with a running maximum and sum as in FlashAttention (arXiv 2205.14135). The backward pass
//! recomputes the scores, and computes the weights from the scores and each row's log-sum-exp.

mod composite;
mod device;
mod tiles;

use candle_core::{Result, Shape, Tensor};
use rayon::prelude::*;

use super::device::DeviceKernel;
use super::dropout::Dropout;
use super::operation::{Gradient, Input, Kernel, Output, Pass, apply, dims_of, tensor_dims};
use super::rows::{add, zeros};
use super::segments::{Segments, Span, split_spans};
use composite::Composite;
use tiles::{Head, HeadGradients, Sources, add_head};

/// The options of an attention layer.
#[derive(Debug, Clone)]
pub struct Attention {
    /// The number of heads `H`; it must divide the width `D`.
    pub num_heads: usize,
    /// The factor on `q·k`, usually `1 / sqrt(D / H)`.
    pub scale: f32,
    /// Whether the attention is causal. The last query of a segment attends to all its keys, each
    /// earlier query to one key fewer.
    pub causal: bool,
    /// Which query rows attend to which key rows.
    pub segments: Segments,
    /// Dropout on the attention weights; `None` for no dropout.
    pub dropout: Option<Dropout>,
}

/// A bias added to the scores before the softmax; minus infinity masks a key.
#[derive(Debug, Clone, Copy)]
pub enum AttentionBias<'a> {
    /// `[H, L_q, L_k]`, shared by all segments. A shorter segment uses its first rows and columns.
    Shared(&'a Tensor),
    /// One flattened `[H, L_q, L_k]` block per segment, in order, with that segment's lengths.
    PerSegment(&'a Tensor),
}

impl AttentionBias<'_> {
    pub(super) fn tensor(&self) -> &Tensor {
        match self {
            Self::Shared(tensor) | Self::PerSegment(tensor) => tensor,
        }
    }
}

/// Computes attention: `q` `[T_q, D]`, `k` and `v` `[T_k, D]` → `[T_q, D]`. Query rows outside
/// every segment and rows with all keys masked return zeros.
///
/// # Errors
/// If the shapes, the heads and the segments do not match.
pub fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    bias: Option<AttentionBias<'_>>,
    options: &Attention,
) -> Result<Tensor> {
    run(&[q, k, v], bias, options)
}

/// Computes self-attention from concatenated projections: `qkv` `[T, 3 D]` → `[T, D]`.
///
/// # Errors
/// The same as for [`attention`].
pub fn self_attention(
    qkv: &Tensor,
    bias: Option<AttentionBias<'_>>,
    options: &Attention,
) -> Result<Tensor> {
    run(&[qkv], bias, options)
}

/// Applies the kernel to q, k and v, or to their concatenation.
fn run(
    sources: &[&Tensor],
    bias: Option<AttentionBias<'_>>,
    options: &Attention,
) -> Result<Tensor> {
    let mut inputs = sources.to_vec();
    inputs.extend(bias.iter().map(AttentionBias::tensor));
    apply(AttentionKernel::new(options, sources.len() == 3, bias), &inputs)
}

/// Saves the log-sum-exp of the scores, for each segment, head and query row.
pub(super) struct AttentionKernel {
    options: Attention,
    /// Whether q, k and v are three inputs or one.
    separate: bool,
    /// `Some(true)` for a bias shared by all segments, `Some(false)` for a bias per segment, `None`
    /// without a bias.
    bias: Option<bool>,
}

/// The sizes read from the shapes of the inputs.
struct Sizes {
    query_rows: usize,
    /// Columns of the first input; the first `width` columns are queries.
    columns: usize,
    width: usize,
    /// `[L_q, L_k]` of a shared bias; `None` without a shared bias.
    shared_bias: Option<[usize; 2]>,
}

impl AttentionKernel {
    /// Creates the kernel. Its inputs are q, k and v (`separate`) or their concatenation, then the
    /// bias if there is one.
    pub(super) fn new(
        options: &Attention,
        separate: bool,
        bias: Option<AttentionBias<'_>>,
    ) -> Self {
        let bias = bias.map(|bias| matches!(bias, AttentionBias::Shared(_)));
        Self { options: options.clone(), separate, bias }
    }

    /// Checks the shapes and returns the sizes.
    fn check(&self, dims: &[&[usize]]) -> Result<Sizes> {
        let heads = self.options.num_heads;
        let matrix = |dims: &[usize]| match *dims {
            [rows, columns] => Ok((rows, columns)),
            _ => candle_core::bail!("attention: input {dims:?}, expected [T, D]"),
        };
        let (query_rows, columns) = matrix(dims[0])?;
        let width = if self.separate { columns } else { columns / 3 };
        let key_rows = if self.separate {
            let ((k_rows, k_columns), (v_rows, v_columns)) = (matrix(dims[1])?, matrix(dims[2])?);
            if k_columns != width || v_columns != width || k_rows != v_rows {
                let (q, k, v) = (dims[0], dims[1], dims[2]);
                candle_core::bail!("attention: q {q:?}, k {k:?} and v {v:?} do not match");
            }
            k_rows
        } else {
            query_rows
        };
        let matches_width = self.separate || columns == 3 * width;
        if width == 0 || heads == 0 || width % heads != 0 || !matches_width {
            candle_core::bail!("attention: {heads} heads do not fit input {:?}", dims[0]);
        }
        let segments = &self.options.segments;
        segments.check(query_rows, key_rows)?;
        let is_plain = !self.options.causal && self.bias.is_none();
        if segments.window().is_some() && !(is_plain && segments.queries == segments.keys) {
            candle_core::bail!("attention: a window is for self-attention without mask and bias");
        }
        let shared_bias = match self.bias {
            None => None,
            Some(shared) => self.check_bias(dims[dims.len() - 1], shared)?,
        };
        Ok(Sizes { query_rows, columns, width, shared_bias })
    }

    /// Checks the shape of the bias. Returns `[L_q, L_k]` of a shared bias, `None` for a bias per
    /// segment.
    fn check_bias(&self, dims: &[usize], shared: bool) -> Result<Option<[usize; 2]>> {
        let heads = self.options.num_heads;
        let segments = &self.options.segments;
        if !shared {
            let count: usize = segments.iter().map(|(q, k)| heads * q.length * k.length).sum();
            if dims.iter().product::<usize>() == count {
                return Ok(None);
            }
        } else if let [h, l_q, l_k] = *dims {
            let fits = |(q, k): (Span, Span)| q.length <= l_q && k.length <= l_k;
            if h == heads && segments.iter().all(fits) {
                return Ok(Some([l_q, l_k]));
            }
        }
        candle_core::bail!("attention: a bias of shape {dims:?} does not match heads and segments")
    }

    /// Returns the queries, keys, values and bias as slices.
    fn sources<'a>(&'a self, inputs: &[Input<'a>], sizes: &Sizes) -> Sources<'a> {
        let (q, width) = (inputs[0].data, sizes.width);
        let (k, v) = if self.separate {
            (inputs[1].data, inputs[2].data)
        } else {
            (q.get(width..).unwrap_or(&[]), q.get(2 * width..).unwrap_or(&[]))
        };
        let bias = self.bias.map(|_| inputs[inputs.len() - 1].data);
        Sources { q, k, v, stride: sizes.columns, width, bias, options: &self.options }
    }

    /// Returns the heads of each segment.
    fn heads(&self, sizes: &Sizes) -> Vec<Vec<Head>> {
        let size = sizes.width / self.options.num_heads;
        let mut first_score = 0;
        let mut segment_heads = |(query, key): (Span, Span)| {
            let to_head = |h: usize| {
                let first_score = first_score + h * query.length * key.length;
                let bias = match sizes.shared_bias {
                    Some([l_q, l_k]) => (h * l_q * l_k, l_k),
                    None => (first_score, key.length),
                };
                Head { query, key, column: h * size, size, bias, first_score }
            };
            let heads = (0..self.options.num_heads).map(to_head).collect();
            first_score += self.options.num_heads * query.length * key.length;
            heads
        };
        self.options.segments.iter().map(&mut segment_heads).collect()
    }
}

impl Kernel for AttentionKernel {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output> {
        let sizes = self.check(&dims_of(inputs))?;
        let (rows, width) = (sizes.query_rows, sizes.width);
        let (sources, heads) = (self.sources(inputs, &sizes), self.heads(&sizes));
        let mut output = zeros(rows * width);
        let parts = split_spans(&mut output, width, &self.options.segments.queries);
        // For each segment, head and query row: the log-sum-exp of the scores.
        let log_sums: Vec<Vec<f32>> = parts
            .into_par_iter()
            .zip(&heads)
            .map(|(part, heads)| {
                let results: Vec<_> =
                    heads.par_iter().map(|head| sources.head_forward(*head)).collect();
                let mut log_sums = Vec::new();
                for (head, (values, sums)) in heads.iter().zip(results) {
                    add_head(&values, *head, width, 0, part);
                    log_sums.extend(sums);
                }
                log_sums
            })
            .collect();
        Ok((output, Shape::from((rows, width)), Box::new(log_sums)))
    }

    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()> {
        let (inputs, output, gradient) = (pass.inputs, pass.output, pass.gradient);
        let log_sums = pass.saved::<Vec<Vec<f32>>>()?;
        let sizes = self.check(&dims_of(inputs))?;
        let (sources, heads) = (self.sources(inputs, &sizes), self.heads(&sizes));
        let bias_index = inputs.len() - 1;
        let needs_bias_gradient = sources.bias.is_some() && input_gradients[bias_index].is_some();
        let results: Vec<Vec<HeadGradients>> = heads
            .par_iter()
            .zip(log_sums)
            .map(|(heads, log_sums)| {
                let head_log_sums = |h: usize, head: &Head| &log_sums[h * head.query.length..];
                let head_gradients = |(h, head): (usize, &Head)| {
                    sources.head_backward(
                        *head,
                        head_log_sums(h, head),
                        output,
                        gradient,
                        needs_bias_gradient,
                    )
                };
                heads.par_iter().enumerate().map(head_gradients).collect()
            })
            .collect();
        let segments = &self.options.segments;
        for part in 0..3 {
            let input = if self.separate { part } else { 0 };
            let Some(buffer) = &mut input_gradients[input] else { continue };
            let column = if self.separate { 0 } else { part * sources.width };
            let spans = if part == 0 { &segments.queries } else { &segments.keys };
            let parts = split_spans(buffer.as_sum(), sources.stride, spans);
            parts.into_par_iter().zip(&heads).zip(&results).for_each(|((rows, heads), results)| {
                for (head, gradients) in heads.iter().zip(results) {
                    add_head(
                        [&gradients.q, &gradients.k, &gradients.v][part],
                        *head,
                        sources.stride,
                        column,
                        rows,
                    );
                }
            });
        }
        if let (true, Some(bias)) = (needs_bias_gradient, &mut input_gradients[bias_index]) {
            let sums = bias.as_sum();
            for (head, gradients) in heads.iter().flatten().zip(results.iter().flatten()) {
                for (row, values) in gradients.bias.chunks(head.key.length.max(1)).enumerate() {
                    let start = head.bias.0 + row * head.bias.1;
                    add(values, &mut sums[start..start + values.len()]);
                }
            }
        }
        Ok(())
    }

    fn device(&self) -> Option<&dyn DeviceKernel> {
        let segments = &self.options.segments;
        (segments.branches().is_none() && segments.window().is_none()).then_some(self)
    }

    fn composite(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let width = self.check(&tensor_dims(inputs))?.width;
        let part = |i: usize| {
            if self.separate {
                Ok(inputs[i].clone())
            } else {
                inputs[0].narrow(1, i * width, width)
            }
        };
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let bias = self.bias.map(|shared| (&inputs[inputs.len() - 1], shared));
        Composite { q: &q, k: &k, v: &v, bias, options: &self.options }.run()
    }
}
