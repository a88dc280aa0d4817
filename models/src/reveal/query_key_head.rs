//! The query head and the key head. After T5 encoder layers, the first token's state is projected
//! and normalised to unit length.

use candle_core::{D, Tensor};

use super::base_encoder::BaseStates;
use super::config::RevealConfig;
use crate::compute::full_precision;
use crate::error::{Result, bail};
use crate::kernels::Mode;
use crate::layers::{LayerNorm, Linear};
use crate::params::ParameterBuilder;
use crate::t5::blocks::{BlockInputs, PreNormBlock, RelativeBias, encoder_block, run_blocks};

/// Added to the sum of squares before the square root, as in the released code.
const EPSILON: f64 = 1e-10;

/// The layers of the query head or the key head, without the shared projection.
#[derive(Debug, Clone)]
pub(super) struct QueryKeyHead {
    bias: RelativeBias,
    layers: Vec<PreNormBlock>,
    final_norm: LayerNorm,
}

impl QueryKeyHead {
    pub(super) fn new(config: &RevealConfig, builder: &ParameterBuilder) -> Result<Self> {
        let t5 = &config.t5;
        let block = |i| encoder_block(t5, &builder.pp("block").pp(i));
        let norm = builder.pp("final_layer_norm");
        Ok(Self {
            bias: RelativeBias::new(t5, true, &builder.pp("relative_attention_bias"))?,
            layers: (0..config.head_layers).map(block).collect::<Result<_>>()?,
            final_norm: LayerNorm::rms(t5.d_model, t5.layer_norm_epsilon, &norm)?,
        })
    }

    /// Returns a unit vector for each sequence, `[B, key_dim]`, from the state of its first token.
    pub(super) fn forward(
        &self,
        states: &BaseStates,
        projection: &Linear,
        mode: &Mode,
    ) -> Result<Tensor> {
        let Some((last_layer, lower_layers)) = self.layers.split_last() else {
            bail!("the head has no layers");
        };
        let segments = states.segments();
        let bias = self.bias.within(&segments)?;
        let inputs = BlockInputs { bias: Some(&bias), ..BlockInputs::new(&segments) };
        let x = run_blocks(lower_layers, states.states.clone(), inputs, mode)?;
        // Only the first token's state is used.
        let first = last_layer.first_rows(&x, &states.lengths, &bias, mode)?;
        let pooled = self.final_norm.forward(&first)?;
        normalise_rows(&projection.forward(&pooled, mode)?)
    }
}

/// Divides each row by its norm from [`row_norms`].
pub(super) fn normalise_rows(x: &Tensor) -> Result<Tensor> {
    let x = full_precision(x)?;
    Ok(x.broadcast_div(&row_norms(&x)?)?)
}

/// Returns the norm of each row, `[.., D]` → `[.., 1]`: `sqrt(Σ x² + 1e-10)`.
pub(super) fn row_norms(x: &Tensor) -> Result<Tensor> {
    let x = full_precision(x)?;
    Ok((x.sqr()?.sum_keepdim(D::Minus1)? + EPSILON)?.sqrt()?)
}
