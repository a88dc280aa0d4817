//! The second half of an encoder block, shared by BERT and DeBERTa: residual sum and norm after
//! attention, then feed-forward, residual sum and norm.
//!
//! Reference: `BertSelfOutput`, `BertIntermediate` and `BertOutput` of `transformers` 5.

use crate::error::Result;
use crate::kernels::{Activation, Chain, Mode, Value};
use crate::layers::{LayerNorm, Linear};
use crate::params::ParameterBuilder;

/// The sizes of this half of the block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockShape {
    pub(crate) hidden_size: usize,
    pub(crate) intermediate_size: usize,
    pub(crate) hidden_act: Activation,
    pub(crate) hidden_dropout: f64,
    pub(crate) layer_norm_eps: f64,
    pub(crate) initializer_range: f64,
}

/// The second half of an encoder block.
#[derive(Debug, Clone)]
pub(crate) struct BlockOutput {
    shape: BlockShape,
    attention_norm: LayerNorm,
    intermediate: Linear,
    output: Linear,
    output_norm: LayerNorm,
}

impl BlockOutput {
    /// Creates the layers. The parameters have their published names, below the block's path.
    pub(crate) fn new(shape: BlockShape, builder: &ParameterBuilder) -> Result<Self> {
        let BlockShape { hidden_size: d, intermediate_size: m, .. } = shape;
        let (std, eps) = (shape.initializer_range, shape.layer_norm_eps);
        Ok(Self {
            shape,
            attention_norm: LayerNorm::new(d, eps, &builder.pp("attention.output.LayerNorm"))?,
            intermediate: Linear::new(d, m, std, &builder.pp("intermediate.dense"))?,
            output: Linear::new(m, d, std, &builder.pp("output.dense"))?,
            output_norm: LayerNorm::new(d, eps, &builder.pp("output.LayerNorm"))?,
        })
    }

    /// Appends this half to a block's chain: the output of attention `attended` and the block's
    /// input `x`, both `[T, D]` → the block's output `[T, D]`.
    pub(crate) fn append(&self, chain: &mut Chain, attended: Value, x: Value, mode: &Mode) {
        let dropout = mode.dropout(self.shape.hidden_dropout);
        let x = chain.residual_norm(attended, x, self.attention_norm.as_norm(), dropout);
        let (up, down) = (self.intermediate.parameters(mode), self.output.parameters(mode));
        let y = chain.feed_forward(x, up, down, self.shape.hidden_act);
        let dropout = mode.dropout(self.shape.hidden_dropout);
        chain.residual_norm(y, x, self.output_norm.as_norm(), dropout);
    }
}
