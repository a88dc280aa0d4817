//! AVFormer (arXiv 2303.16501): a frozen ASR model with visual input.
//!
//! A linear layer projects each image embedding to one visual token, and the visual tokens are
//! prepended to the audio tokens. Each frozen block has an adapter. Only the projection and the
//! adapters are trained, so the audio tokens ([`FrozenAsrModel::embed`]) and the image embeddings
//! stay the same: compute them once per clip.
//!
//! | term of the paper | type |
//! |---|---|
//! | frozen BEST-RQ Conformer and decoder | [`FrozenAsrModel`]: Whisper, or a Conformer with a [transducer](crate::transducer), CTC or attention |
//! | visual projection layer | [`VisualProjection`] |
//! | visual tokens, prepended | [`VisualTokens`], [`TokenPosition`] |
//! | adapters | [`Adapters`] |
//!
//! The paper's curriculum is in the recipe of the AVFormer study. Each of its phases sets the
//! trainable parameters and the inputs.

mod frozen;
mod state_distance;
#[cfg(test)]
mod tests;
mod visual_projection;

use candle_core::Tensor;
use serde::{Deserialize, Serialize};

use crate::adapter::{AdapterConfig, Adapters};
use crate::error::Result;
use crate::kernels::Mode;
use crate::params::ParameterBuilder;
use crate::speech::AudioStates;
pub use frozen::FrozenAsrModel;
pub use state_distance::state_distance;
pub use visual_projection::{ProjectionConfig, TokenPosition, VisualProjection};

/// The layers that are added to a frozen ASR model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AvformerConfig {
    /// The adapters of the encoder's blocks.
    pub adapters: AdapterConfig,
    /// The projection of images to tokens.
    pub projection: ProjectionConfig,
    /// See [`FrozenAsrModel::start_at`].
    #[serde(skip_serializing_if = "is_zero")]
    pub first_block: usize,
}

/// Whether to leave out `first_block`.
fn is_zero(first_block: &usize) -> bool {
    *first_block == 0
}

impl AvformerConfig {
    /// Checks that the values are valid and fit together.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`], which names the field.
    pub fn validate(&self) -> Result<()> {
        self.adapters.validate()?;
        self.projection.validate()
    }
}

/// The image embeddings that a batch of clips gets as visual tokens, before their projection.
#[derive(Debug, Clone, Copy)]
pub struct VisualTokens<'a> {
    /// One row per image, clip after clip: `[I, E]`, where `I` is the sum of `counts` and `E` the
    /// width of an embedding.
    pub embeddings: &'a Tensor,
    /// The number of images of each clip; may be 0.
    pub counts: &'a [usize],
}

/// A frozen ASR model with visual projection and adapters.
#[derive(Debug, Clone)]
pub struct Avformer {
    /// The frozen ASR model.
    pub asr_model: FrozenAsrModel,
    adapters: Adapters,
    projection: VisualProjection,
}

impl Avformer {
    /// Adds projection and adapters to an ASR model. `image_width` is the width `E` of the image
    /// embeddings. The parameters are `adapters.N.{norm,down,up}` and `projection`.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`], and the errors of [`ParameterBuilder::get`].
    pub fn new(
        asr_model: FrozenAsrModel,
        config: &AvformerConfig,
        image_width: usize,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let (blocks, width) = (asr_model.blocks(), asr_model.width());
        let adapters = builder.pp("adapters");
        Ok(Self {
            adapters: Adapters::new(&config.adapters, blocks, width, &adapters)?,
            projection: VisualProjection::new(
                &config.projection,
                image_width,
                width,
                &builder.pp("projection"),
            )?,
            asr_model,
        })
    }

    /// Encodes clips from their audio tokens and, if `visual` is given, from their images. If the
    /// decoder attends to the encoder's states, the result includes the states of the visual
    /// tokens; for CTC and the transducer, it has the audio states only.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] if the number of clips or the width of the embeddings in
    /// `visual` does not match, or if a clip with its images is too long.
    pub fn encode(
        &self,
        audio_tokens: AudioStates,
        visual: Option<&VisualTokens<'_>>,
        mode: &Mode,
    ) -> Result<AudioStates> {
        let Some(visual) = visual.filter(|visual| visual.counts.iter().any(|count| *count > 0))
        else {
            let parts = audio_tokens.lengths.clone();
            return self.asr_model.encode(audio_tokens, parts, &self.adapters, mode);
        };
        let joined = self.projection.join(&audio_tokens, visual)?;
        let encoded = self.asr_model.encode(joined.clips, joined.parts, &self.adapters, mode)?;
        if self.asr_model.reads_visual_states() {
            Ok(encoded)
        } else {
            joined.audio_rows.select_from(&encoded, audio_tokens.lengths)
        }
    }

    /// The share of the decoder's cross-attention that goes to the visual tokens, for each token of
    /// each text: the mean over layers and heads. `encoded` is the result of [`Avformer::encode`]
    /// for clips with `counts` images. `None` for a decoder without cross-attention.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] if the numbers of clips, texts and counts differ, or a text
    /// is too long.
    pub fn attention_to_images(
        &self,
        encoded: &AudioStates,
        counts: &[usize],
        texts: &[Vec<u32>],
    ) -> Result<Option<Vec<Vec<f64>>>> {
        let clips = encoded.lengths.iter().zip(counts);
        let visual: Vec<_> =
            clips.map(|(length, count)| self.projection.visual_states(*length, *count)).collect();
        self.asr_model.attention_share(encoded, texts, &visual)
    }
}
