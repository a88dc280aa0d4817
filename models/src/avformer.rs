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

use std::collections::BTreeMap;

use candle_core::Tensor;
use serde::{Deserialize, Serialize};

use crate::adapter::{AdapterConfig, Adapters};
use crate::config::require;
use crate::error::Result;
use crate::kernels::{Mode, packed_spans};
use crate::params::ParameterBuilder;
use crate::speech::AudioStates;
use crate::whisper::EarlierContext;
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

/// A batch of clips, as the decoder reads them.
#[derive(Debug, Clone)]
pub struct EncodedClips {
    /// The encoder's states.
    pub audio: AudioStates,
    /// The visual tokens before the decoder's prompt ([`TokenPosition::Prompt`]).
    pub context: Option<EarlierContext>,
}

impl EncodedClips {
    /// Groups the clips by their number of visual tokens in the prompt, because a decoder generates
    /// texts after prompts of equal length. Each group has the indices of its clips.
    ///
    /// # Errors
    /// The errors of candle if there are fewer states than the lengths sum to.
    pub fn by_context_length(&self) -> Result<Vec<(Vec<usize>, Self)>> {
        let indices = 0..self.audio.lengths.len();
        let Some(context) = &self.context else {
            return Ok(vec![(indices.collect(), self.clone())]);
        };
        let mut clips_of: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, count) in indices.zip(&context.counts) {
            clips_of.entry(*count).or_default().push(index);
        }
        let (clips, embeddings) = (self.audio.clips()?, packed_spans(&context.counts));
        let group = |(count, indices): (usize, Vec<usize>)| {
            let states: Vec<_> = indices.iter().map(|index| &clips[*index].states).collect();
            let lengths = indices.iter().map(|index| self.audio.lengths[*index]).collect();
            let audio = AudioStates { states: Tensor::cat(&states, 0)?, lengths };
            if count == 0 {
                return Ok((indices, audio.into()));
            }
            let rows = indices.iter().map(|index| {
                let span = embeddings[*index];
                context.embeddings.narrow(0, span.start, span.length)
            });
            let rows = rows.collect::<candle_core::Result<Vec<_>>>()?;
            let context = EarlierContext {
                embeddings: Tensor::cat(&rows, 0)?,
                counts: vec![count; indices.len()],
                start: context.start,
            };
            Ok((indices, Self { audio, context: Some(context) }))
        };
        clips_of.into_iter().map(group).collect()
    }
}

impl From<AudioStates> for EncodedClips {
    fn from(audio: AudioStates) -> Self {
        Self { audio, context: None }
    }
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
        let has_place = config.projection.position != TokenPosition::Prompt
            || asr_model.context_start().is_some();
        require(has_place, "projection.position", || {
            "`prompt` needs a Whisper model with the token `<|startofprev|>`; use `before`"
                .to_owned()
        })?;
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
    /// tokens before or after the audio; for CTC and the transducer, it has the audio states only.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] if the number of clips or the width of the embeddings in
    /// `visual` does not match, or if a clip with its images is too long.
    pub fn encode(
        &self,
        audio_tokens: AudioStates,
        visual: Option<&VisualTokens<'_>>,
        mode: &Mode,
    ) -> Result<EncodedClips> {
        let visual = visual.filter(|visual| visual.counts.iter().any(|count| *count > 0));
        let context = match (visual, self.projection.position, self.asr_model.context_start()) {
            (Some(visual), TokenPosition::Prompt, Some(start)) => {
                let embeddings = self.projection.tokens(&audio_tokens, visual)?;
                Some(EarlierContext { embeddings, counts: visual.counts.to_vec(), start })
            }
            _ => None,
        };
        let Some(visual) = visual.filter(|_| context.is_none()) else {
            let parts = audio_tokens.lengths.clone();
            let audio = self.asr_model.encode(audio_tokens, parts, &self.adapters, mode)?;
            return Ok(EncodedClips { audio, context });
        };
        let joined = self.projection.join(&audio_tokens, visual)?;
        let encoded = self.asr_model.encode(joined.clips, joined.parts, &self.adapters, mode)?;
        let audio = if self.asr_model.reads_visual_states() {
            encoded
        } else {
            joined.audio_rows.select_from(&encoded, audio_tokens.lengths)?
        };
        Ok(audio.into())
    }

    /// The share of the decoder's cross-attention that goes to the visual tokens, for each token of
    /// each text: the mean over layers and heads. `encoded` is the result of [`Avformer::encode`]
    /// for clips with `counts` images. `None` for a decoder without cross-attention, and for visual
    /// tokens in the prompt.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] if the numbers of clips, texts and counts differ, or a text
    /// is too long.
    pub fn attention_to_images(
        &self,
        encoded: &EncodedClips,
        counts: &[usize],
        texts: &[Vec<u32>],
    ) -> Result<Option<Vec<Vec<f64>>>> {
        if encoded.context.is_some() {
            return Ok(None);
        }
        let clips = encoded.audio.lengths.iter().zip(counts);
        let visual: Vec<_> =
            clips.map(|(length, count)| self.projection.visual_states(*length, *count)).collect();
        self.asr_model.attention_share(&encoded.audio, texts, &visual)
    }
}
