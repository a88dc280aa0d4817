//! The Vision Transformer (arXiv 2010.11929): encodes an image as states of its patches.
//!
//! Reference: `ViTModel` of `transformers` 5, `models/vit/modeling_vit.py`. Parameter names are the
//! names in published files (`transformers` 5 uses other names for some of them in memory). In
//! files of a model with a head, names start with `vit.`: open them with
//! [`Weights::with_optional_prefix`](crate::weights::Weights::with_optional_prefix). The pooler is
//! omitted, because no study uses it.
//!
//! REVEAL's image encoder (google-research/scenic at 0cce82d,
//! `projects/knowledge_visual_language/models/vit.py`) is a ViT without a class token
//! ([`ViTConfig::class_token`]). It uses the tanh approximation of GELU and `layer_norm_eps` 1e-6.
//! Its first blocks get no gradient (`stop_gradient_after` of [`ViT::forward`]). Its weights were
//! not published.
//!
//! ViT and REVEAL's encoder take pixels from -1 to 1. `Preprocessing` of `engram-data` computes
//! them according to `preprocessor_config.json`.

mod config;
mod convolution_stem;

use candle_core::Tensor;

use crate::adapter::Adapters;
use crate::compute::Compute;
use crate::error::Result;
use crate::kernels::{Mode, Segments, dropout, residual};
use crate::layers::LayerNorm;
use crate::params::{Init, ParameterBuilder};
use crate::patch_embedding::{PatchEmbedding, with_class_token};
use crate::pre_norm::{InitStds, Names, PreNormBlocks};
pub use config::ViTConfig;
use convolution_stem::ConvolutionStem;

/// The published names of a block's parameters.
const NAMES: Names = Names {
    attention_norm: "layernorm_before",
    query: "attention.attention.query",
    key: "attention.attention.key",
    value: "attention.attention.value",
    output: "attention.output.dense",
    cross: None,
    feed_forward_norm: "layernorm_after",
    up: "intermediate.dense",
    down: "output.dense",
};

/// The encoder.
#[derive(Debug, Clone)]
pub struct ViT {
    /// The configuration.
    pub config: ViTConfig,
    compute: Compute,
    class_token: Option<Tensor>,
    patch_embeddings: PatchEmbedding,
    /// A convolutional stem whose output is added to the patch embeddings; `None` if
    /// [`ViTConfig::stem_channels`] is empty.
    stem: Option<ConvolutionStem>,
    position_embeddings: Tensor,
    blocks: PreNormBlocks,
    layer_norm: LayerNorm,
}

/// The output of the encoder for `B` images of `P` patches, after the last norm.
#[derive(Debug, Clone)]
pub struct ViTOutput {
    /// The patches row by row, `[B, P, D]`.
    pub patch_tokens: Tensor,
    /// The class token, `[B, D]`; `None` for a model without one.
    pub class_token: Option<Tensor>,
}

impl ViT {
    /// Builds the encoder with published weights, or with random initial weights.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig), and the errors of
    /// [`ParameterBuilder::get`].
    pub fn new(config: &ViTConfig, builder: &ParameterBuilder) -> Result<Self> {
        config.validate()?;
        let (d, std) = (config.hidden_size, config.initializer_range);
        let embeddings = builder.pp("embeddings");
        let class = || embeddings.get("cls_token", &[1, 1, d], Init::Normal(std));
        let patches = embeddings.pp("patch_embeddings.projection");
        let stem = || ConvolutionStem::new(config, &embeddings.pp("stem"));
        let positions = [1, config.num_tokens(), d];

        let layers = builder.pp("encoder.layer");
        let last_norm = builder.pp("layernorm");
        Ok(Self {
            class_token: config.class_token.then(class).transpose()?,
            patch_embeddings: PatchEmbedding::new(config.patch_grid(), d, std, true, &patches)?,
            stem: (!config.stem_channels.is_empty()).then(stem).transpose()?,
            position_embeddings: embeddings.get(
                "position_embeddings",
                &positions,
                Init::Normal(std),
            )?,
            blocks: PreNormBlocks::new(config.blocks(), &NAMES, &InitStds::all(std), &layers)?,
            layer_norm: LayerNorm::new(d, config.layer_norm_eps, &last_norm)?,
            config: config.clone(),
            compute: builder.compute(),
        })
    }

    /// Encodes images `[B, C, S, S]` with pixels from -1 to 1.
    ///
    /// With `stop_gradient_after`, the embeddings and the first `stop_gradient_after` blocks get no
    /// gradient and store nothing for the backward pass. The output does not change. With `None`,
    /// all blocks and the embeddings get gradients.
    ///
    /// # Errors
    /// [`ModelError::BadInput`](crate::ModelError::BadInput) for images of another shape, or if
    /// `stop_gradient_after` exceeds the number of blocks.
    pub fn forward(
        &self,
        pixels: &Tensor,
        stop_gradient_after: Option<usize>,
        mode: &Mode,
    ) -> Result<ViTOutput> {
        let pixels = &self.compute.activations(pixels)?;
        let patches = self.patch_embeddings.forward(pixels)?;
        let patches = match &self.stem {
            Some(stem) => residual(&patches, &stem.forward(pixels, mode)?, None)?,
            None => patches,
        };
        let tokens = match &self.class_token {
            Some(class) => with_class_token(class, &patches)?,
            None => patches,
        };
        let tokens = tokens.broadcast_add(&self.position_embeddings.to_dtype(tokens.dtype())?)?;
        let (batch, rows, d) = tokens.dims3()?;
        let embedded = tokens.reshape((batch * rows, d))?;
        let embedded = dropout(&embedded, mode.dropout(self.config.hidden_dropout_prob))?;
        let segments = Segments::packed(&vec![rows; batch]);
        let (blocks, adapters) = (&self.blocks, &Adapters::NONE);
        let states =
            blocks.forward(embedded, &segments, false, stop_gradient_after, adapters, mode)?;
        let states = self.layer_norm.forward(&states)?.reshape((batch, rows, d))?;
        let first = usize::from(self.class_token.is_some());
        let class_token = match first {
            0 => None,
            _ => Some(states.narrow(1, 0, 1)?.squeeze(1)?.contiguous()?),
        };
        Ok(ViTOutput {
            patch_tokens: states.narrow(1, first, rows - first)?.contiguous()?,
            class_token,
        })
    }
}
