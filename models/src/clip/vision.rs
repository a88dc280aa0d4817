//! CLIP's vision encoder with its projection: `CLIPVisionModelWithProjection` of `transformers` 5,
//! alone or within CLIP.

use std::sync::Arc;

use candle_core::Tensor;

use super::{ClipVisionConfig, blocks};
use crate::adapter::Adapters;
use crate::compute::{Compute, full_precision};
use crate::error::Result;
use crate::kernels::{Mode, Segments, embedding_sum};
use crate::layers::{LayerNorm, Linear};
use crate::params::{Init, ParameterBuilder};
use crate::patch_embedding::{PatchEmbedding, with_class_token};
use crate::pre_norm::PreNormBlocks;

/// The vision encoder; its parameters are below `vision_model` and `visual_projection`.
#[derive(Debug, Clone)]
pub struct ClipVision {
    /// The configuration.
    pub config: ClipVisionConfig,
    tower: VisionTower,
    projection: Linear,
}

/// The vision encoder without its projection.
#[derive(Debug, Clone)]
struct VisionTower {
    compute: Compute,
    class_embedding: Tensor,
    patch_embedding: PatchEmbedding,
    position_embedding: Tensor,
    pre_layer_norm: LayerNorm,
    blocks: PreNormBlocks,
    post_layer_norm: LayerNorm,
}

/// The output of the vision encoder for `B` images of `P` patches.
#[derive(Debug, Clone)]
pub struct ClipImages {
    /// States of the class token and the patches before the last norm, `[B, 1 + P, D]`.
    pub last_hidden_state: Tensor,
    /// The image embeddings in the space shared with texts, not normalised, `[B, E]`.
    pub embeddings: Tensor,
}

impl ClipVision {
    /// Builds the encoder with published weights, or with random initial weights.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig), and the errors of
    /// [`ParameterBuilder::get`].
    pub fn new(config: &ClipVisionConfig, builder: &ParameterBuilder) -> Result<Self> {
        config.validate()?;
        let width = config.hidden_size;
        let std = (width as f64).powf(-0.5);
        let projection = builder.pp("visual_projection");
        Ok(Self {
            tower: VisionTower::new(config, &builder.pp("vision_model"))?,
            projection: Linear::without_bias(width, config.projection_dim, std, &projection)?,
            config: config.clone(),
        })
    }

    /// Encodes images `[B, num_channels, image_size, image_size]`, normalised with the published
    /// mean and standard deviation.
    ///
    /// # Errors
    /// [`ModelError::BadInput`](crate::ModelError::BadInput) for images of another shape.
    pub fn forward(&self, pixels: &Tensor, mode: &Mode) -> Result<ClipImages> {
        let last_hidden_state = self.tower.forward(pixels, mode)?;
        let (batch, rows, width) = last_hidden_state.dims3()?;
        let class_rows: Arc<[u32]> = (0..batch).map(|image| (image * rows) as u32).collect();
        let states = last_hidden_state.reshape((batch * rows, width))?;
        let pooled = embedding_sum(&[(&states, class_rows)])?;
        let pooled = self.tower.post_layer_norm.forward(&pooled)?;
        let embeddings = self.projection.forward(&full_precision(&pooled)?, mode)?;
        Ok(ClipImages { last_hidden_state, embeddings })
    }
}

impl VisionTower {
    fn new(config: &ClipVisionConfig, builder: &ParameterBuilder) -> Result<Self> {
        let d = config.tower().hidden_size;
        let std = config.initializer_range;
        let embeddings = builder.pp("embeddings");
        let norm = |name: &str| LayerNorm::new(d, config.tower().layer_norm_eps, &builder.pp(name));
        let class_std = (d as f64).powf(-0.5);
        Ok(Self {
            compute: builder.compute(),
            class_embedding: embeddings.get("class_embedding", &[d], Init::Normal(class_std))?,
            patch_embedding: PatchEmbedding::new(
                config.patch_grid(),
                d,
                std,
                false,
                &embeddings.pp("patch_embedding"),
            )?,
            position_embedding: embeddings.pp("position_embedding").get(
                "weight",
                &[1 + config.num_patches(), d],
                Init::Normal(std),
            )?,
            pre_layer_norm: norm("pre_layrnorm")?,
            blocks: blocks(config.tower(), builder)?,
            post_layer_norm: norm("post_layernorm")?,
        })
    }

    /// Returns the states before the last norm: `[B, C, S, S]` → `[B, 1 + P, D]`.
    fn forward(&self, pixels: &Tensor, mode: &Mode) -> Result<Tensor> {
        let patches = self.patch_embedding.forward(&self.compute.activations(pixels)?)?;
        let tokens = with_class_token(&self.class_embedding, &patches)?;
        let tokens = tokens.broadcast_add(&self.position_embedding.to_dtype(tokens.dtype())?)?;
        let (batch, rows, d) = tokens.dims3()?;
        let states = self.pre_layer_norm.forward(&tokens.reshape((batch * rows, d))?)?;
        let segments = Segments::packed(&vec![rows; batch]);
        let states = self.blocks.forward(states, &segments, false, None, &Adapters::NONE, mode)?;
        Ok(states.reshape((batch, rows, d))?)
    }
}
