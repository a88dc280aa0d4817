//! Fused operations, each with its backward pass.
//!
//! Every operation takes candle tensors. If an input needs a gradient, the operation becomes a node
//! of candle's graph. In f32 on the CPU it runs as one fused kernel with vector instructions chosen
//! at run time, on all cores. The result is bit-identical for any number of threads. On a GPU and
//! in bf16, most operations have explicit passes over tensors. The others, and all operations in
//! other dtypes, run as composites of candle operations.

/// Compiles each function for several instruction sets and picks the best at run time. Functions
/// called inside must be `#[inline(always)]`.
macro_rules! vectorised {
    ($($function:item)*) => {$(
        #[multiversion::multiversion(targets(
            "x86_64+avx512f+avx512bw+avx512cd+avx512dq+avx512vl+fma",
            "x86_64+avx2+fma"
        ))]
        $function
    )*};
}

mod activation;
mod attention;
mod chain;
mod composite;
mod convolution;
mod cross_entropy;
mod depthwise;
mod device;
mod disentangled;
mod dropout;
mod embedding;
mod feed_forward;
mod gated;
pub(crate) mod graph;
pub(crate) mod lattice;
mod linear;
mod lstm;
mod math;
mod matmul;
mod mode;
mod nf4;
mod norm;
mod operation;
mod pairwise;
mod pooling;
mod residual;
mod rotary;
mod rows;
mod scaled_rows;
mod segments;
mod softmax;
mod unfold;
pub(crate) mod wide;
mod windows;

pub use activation::{Activation, activation, bias_activation};
pub use attention::{Attention, AttentionBias, attention, self_attention};
pub use chain::{Chain, Value};
pub use convolution::{Convolution, convolution};
pub use cross_entropy::{CrossEntropy, cross_entropy};
pub use depthwise::depthwise;
pub use device::{begin_profile, end_profile};
pub use disentangled::{Disentangled, disentangled_bias};
pub use dropout::{Dropout, dropout};
pub use embedding::embedding_sum;
pub use feed_forward::feed_forward;
pub use gated::{gated, glu};
pub use linear::{LinearParameters, LowRankParameters, Weight, linear, stacked_linear};
pub use lstm::lstm;
pub(crate) use matmul::{Matrix, matmul};
pub use mode::Mode;
pub use nf4::{Nf4, QuantisedMatrix};
pub use norm::{Norm, norm, residual_norm};
pub(crate) use operation::without_fused_kernels;
pub use pairwise::pairwise;
pub use pooling::span_mean;
pub use residual::residual;
pub use rotary::rotary;
pub(crate) use rotary::rotary_angles;
pub use scaled_rows::scaled_rows;
pub(crate) use segments::packed_spans;
pub use segments::{Segments, Span};
pub(crate) use softmax::log_sum_exp;
pub use softmax::softmax;
pub use unfold::unfold;
pub use windows::Windows;
