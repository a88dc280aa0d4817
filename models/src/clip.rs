//! CLIP (arXiv 2103.00020): embeds images and texts in one vector space.
//!
//! Reference: `transformers` 5, `models/clip/modeling_clip.py`. Parameter names are the published
//! names; the norm before the vision blocks is spelt `pre_layrnorm` there. As in
//! [`crate::text_encoder`], texts are packed, not padded. Attention is causal in the text encoder,
//! so tokens after the end-of-text token do not affect a text's embedding.

mod config;
mod vision;

use std::sync::Arc;

use candle_core::Tensor;

use crate::adapter::Adapters;
use crate::compute::{Compute, full_precision};
use crate::error::{ModelError, Result};
use crate::kernels::{CrossEntropy, Mode, Span, cross_entropy, embedding_sum, linear};
use crate::layers::{LayerNorm, Linear};
use crate::packed::PackedTokens;
use crate::params::{Init, ParameterBuilder};
use crate::pre_norm::{InitStds, Names, PreNormBlocks, PreNormConfig};
use crate::similarity::normalise;
pub use config::{CLIP_VISION, ClipConfig, ClipTextConfig, ClipVisionConfig};
pub use vision::{ClipImages, ClipVision};

/// The published names of a block's parameters.
const NAMES: Names = Names {
    attention_norm: "layer_norm1",
    query: "self_attn.q_proj",
    key: "self_attn.k_proj",
    value: "self_attn.v_proj",
    output: "self_attn.out_proj",
    cross: None,
    feed_forward_norm: "layer_norm2",
    up: "mlp.fc1",
    down: "mlp.fc2",
};

/// Both encoders, their projections, and the learned scale of the logits.
#[derive(Debug, Clone)]
pub struct Clip {
    /// The configuration.
    pub config: ClipConfig,
    compute: Compute,
    token_embedding: Tensor,
    position_embedding: Tensor,
    blocks: PreNormBlocks,
    final_layer_norm: LayerNorm,
    text_projection: Linear,
    /// The vision encoder.
    pub vision: ClipVision,
    logit_scale: Tensor,
}

/// The output of the text encoder for `S` packed texts of `T` tokens.
#[derive(Debug, Clone)]
pub struct ClipTexts {
    /// States of the tokens after the last norm, `[T, D]`.
    pub last_hidden_state: Tensor,
    /// The text embeddings in the space shared with images, not normalised, `[S, E]`.
    pub embeddings: Tensor,
}

impl Clip {
    /// Builds both encoders with published weights, or with random initial weights.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`], and the errors of [`ParameterBuilder::get`].
    pub fn new(config: &ClipConfig, builder: &ParameterBuilder) -> Result<Self> {
        config.validate()?;
        let text = &config.text_config;
        let (d, projection_dim) = (text.hidden_size, config.projection_dim);
        // Both projections have the width `projection_dim` of the common configuration. The field
        // of the same name in `vision_config` is ignored.
        let vision = ClipVisionConfig { projection_dim, ..config.vision_config.clone() };
        let model = builder.pp("text_model");
        let table = |name: &str, rows: usize| {
            model.pp("embeddings").pp(name).get("weight", &[rows, d], Init::Normal(0.02))
        };
        let (norm, projection) = (model.pp("final_layer_norm"), builder.pp("text_projection"));
        let (std, scale) = ((d as f64).powf(-0.5), Init::Constant(config.logit_scale_init_value));
        Ok(Self {
            compute: builder.compute(),
            token_embedding: table("token_embedding", text.vocab_size)?,
            position_embedding: table("position_embedding", text.max_position_embeddings)?,
            blocks: blocks(text.tower(), &model)?,
            final_layer_norm: LayerNorm::new(d, text.layer_norm_eps, &norm)?,
            vision: ClipVision::new(&vision, builder)?,
            text_projection: Linear::without_bias(d, projection_dim, std, &projection)?,
            logit_scale: builder.get("logit_scale", &[], scale)?,
            config: config.clone(),
        })
    }

    /// Encodes texts, each with an end-of-text token.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] for a text that is empty, too long or without an end-of-text token.
    /// [`ModelError::Candle`] for a token id beyond the table.
    pub fn encode_texts(&self, tokens: &PackedTokens, mode: &Mode) -> Result<ClipTexts> {
        let config = &self.config.text_config;
        tokens.check_positions(config.max_position_embeddings)?;
        let embedded = embedding_sum(&[
            (&self.token_embedding, Arc::clone(&tokens.ids)),
            (&self.position_embedding, Arc::clone(&tokens.positions)),
        ])?;
        let embedded = self.compute.activations(&embedded)?;
        let (blocks, adapters) = (&self.blocks, &Adapters::NONE);
        let states = blocks.forward(embedded, &tokens.segments, true, None, adapters, mode)?;
        let last_hidden_state = self.final_layer_norm.forward(&states)?;
        let ends = end_rows(tokens, config.end_of_text())?;
        let pooled = embedding_sum(&[(&last_hidden_state, ends)])?;
        let embeddings = self.text_projection.forward(&full_precision(&pooled)?, mode)?;
        Ok(ClipTexts { last_hidden_state, embeddings })
    }

    /// Returns the cosines of image and text embeddings, times the learned scale
    /// `exp(logit_scale)`: `images` `[B, E]`, `texts` `[S, E]` → `[B, S]`.
    pub fn logits(&self, images: &Tensor, texts: &Tensor) -> Result<Tensor> {
        let cosines = linear(&normalise(images)?, &normalise(texts)?, None)?;
        Ok(cosines.broadcast_mul(&full_precision(&self.logit_scale)?.exp()?)?)
    }
}

/// CLIP's loss, a scalar: the mean of [`matching_loss`] over both directions of logits `[B, B]`.
/// Image `i` matches text `i`.
///
/// # Errors
/// [`ModelError::Candle`] if the logits are not square.
pub fn contrastive_loss(logits: &Tensor) -> Result<Tensor> {
    let targets: Arc<[u32]> = (0..logits.dim(0)? as u32).collect();
    let directions =
        matching_loss(logits, targets.clone())? + matching_loss(&logits.t()?, targets)?;
    Ok((directions? * 0.5)?)
}

/// The contrastive loss in one direction (image to text, or text to image), a scalar: the mean
/// cross-entropy of logits `[B, N]`. Row `i` matches column `targets[i]`.
///
/// # Errors
/// [`ModelError::Candle`] if the number of targets is not `B`, or a target is `N` or more.
pub fn matching_loss(logits: &Tensor, targets: Arc<[u32]>) -> Result<Tensor> {
    let options = CrossEntropy { targets, ignore_index: None, label_smoothing: 0.0 };
    Ok(cross_entropy(&logits.contiguous()?, options)?.mean_all()?)
}

/// Builds the blocks below `encoder.layers`, with the published initialisation.
fn blocks(config: PreNormConfig, builder: &ParameterBuilder) -> Result<PreNormBlocks> {
    let d = config.hidden_size as f64;
    let residual_std = d.powf(-0.5) * (2.0 * config.num_hidden_layers as f64).powf(-0.5);
    let init_stds = InitStds {
        query_key_value: residual_std,
        output: d.powf(-0.5),
        up: (2.0 * d).powf(-0.5),
        down: residual_std,
    };
    PreNormBlocks::new(config, &NAMES, &init_stds, &builder.pp("encoder.layers"))
}

/// Returns the row of each text's first end-of-text token. With `end_of_text` `None`, this is the
/// token with the text's largest id.
fn end_rows(tokens: &PackedTokens, end_of_text: Option<u32>) -> Result<Arc<[u32]>> {
    let end_of = |span: &Span| {
        let ids = &tokens.ids[span.start..span.start + span.length];
        let end = end_of_text.or(ids.iter().max().copied()).unwrap_or_default();
        let index = ids.iter().position(|id| *id == end);
        index.map(|index| (span.start + index) as u32).ok_or_else(|| {
            ModelError::BadInput(format!(
                "a text of {} tokens lacks the end-of-text token {end}",
                ids.len()
            ))
        })
    };
    tokens.sequences().iter().map(end_of).collect()
}
