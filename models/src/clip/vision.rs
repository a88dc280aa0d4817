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
    compute: Compute,
    class_embedding: Tensor,
    patch_embedding: PatchEmbedding,
    position_embedding: Tensor,
    pre_layer_norm: LayerNorm,
    blocks: PreNormBlocks,
    post_layer_norm: LayerNorm,
    projection: Linear,
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
        let (d, std) = (config.hidden_size, config.initializer_range);
        let model = builder.pp("vision_model");
        let embeddings = model.pp("embeddings");
        let (patches, positions) =
            (embeddings.pp("patch_embedding"), embeddings.pp("position_embedding"));
        let position_shape = [1 + config.num_patches(), d];
        let norm = |name: &str| LayerNorm::new(d, config.layer_norm_eps, &model.pp(name));
        let projection_std = (d as f64).powf(-0.5);
        let class_init = Init::Normal(projection_std);
        let projection = builder.pp("visual_projection");
        Ok(Self {
            compute: builder.compute(),
            class_embedding: embeddings.get("class_embedding", &[d], class_init)?,
            patch_embedding: PatchEmbedding::new(config.patch_grid(), d, std, false, &patches)?,
            position_embedding: positions.get("weight", &position_shape, Init::Normal(std))?,
            pre_layer_norm: norm("pre_layrnorm")?,
            blocks: blocks(config.tower(), &model)?,
            post_layer_norm: norm("post_layernorm")?,
            projection: Linear::without_bias(
                d,
                config.projection_dim,
                projection_std,
                &projection,
            )?,
            config: config.clone(),
        })
    }

    /// Encodes images `[B, num_channels, image_size, image_size]`, normalised with the published
    /// mean and standard deviation.
    ///
    /// # Errors
    /// [`ModelError::BadInput`](crate::ModelError::BadInput) for images of another shape.
    pub fn forward(&self, pixels: &Tensor, mode: &Mode) -> Result<ClipImages> {
        let patches = self.patch_embedding.forward(&self.compute.activations(pixels)?)?;
        let tokens = with_class_token(&self.class_embedding, &patches)?;
        let tokens = tokens.broadcast_add(&self.position_embedding.to_dtype(tokens.dtype())?)?;
        let (batch, rows, d) = tokens.dims3()?;
        let states = self.pre_layer_norm.forward(&tokens.reshape((batch * rows, d))?)?;
        let segments = Segments::packed(&vec![rows; batch]);
        let states = self.blocks.forward(states, &segments, false, None, &Adapters::NONE, mode)?;
        let class_rows: Arc<[u32]> = (0..batch).map(|image| (image * rows) as u32).collect();
        let pooled = self.post_layer_norm.forward(&embedding_sum(&[(&states, class_rows)])?)?;
        let embeddings = self.projection.forward(&full_precision(&pooled)?, mode)?;
        Ok(ClipImages { last_hidden_state: states.reshape((batch, rows, d))?, embeddings })
    }
}
