//! Projects images to tokens of an ASR model.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::VisualTokens;
use crate::config::require;
use crate::error::{Result, bail};
use crate::kernels::{Mode, embedding_sum};
use crate::layers::Linear;
use crate::params::{Init, ParameterBuilder};
use crate::speech::AudioStates;

/// The settings of the projection of images to tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProjectionConfig {
    /// Standard deviation of the initial projection weights. At 0, the initial token of every image
    /// equals the bias. A random projection disturbs the frozen blocks, because their norms scale
    /// any token up.
    pub init_std: f64,
    /// The position of the visual tokens.
    pub position: TokenPosition,
}

/// The position of the visual tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenPosition {
    /// Before the audio tokens, as in the paper.
    Before,
    /// After the audio tokens.
    After,
    /// Before the prompt of Whisper's decoder, where the text of an earlier clip is expected. The
    /// encoder does not see them.
    Prompt,
}

/// A linear projection of each image embedding to a token.
#[derive(Debug, Clone)]
pub struct VisualProjection {
    pub(super) linear: Linear,
    pub(super) position: TokenPosition,
}

/// Packed clips whose tokens are audio tokens and visual tokens.
pub(super) struct Joined {
    pub(super) clips: AudioStates,
    /// The lengths of the runs of visual and of audio tokens, without empty runs.
    pub(super) parts: Vec<usize>,
    pub(super) audio_rows: AudioRows,
}

/// The indices of the rows of [`Joined`] that hold audio tokens.
pub(super) struct AudioRows(Arc<[u32]>);

impl Default for ProjectionConfig {
    fn default() -> Self {
        Self { init_std: 0.0, position: TokenPosition::Before }
    }
}

impl ProjectionConfig {
    /// Checks that the values are valid and fit together.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`], which names the field.
    pub fn validate(&self) -> Result<()> {
        let std = self.init_std;
        require(std.is_finite() && std >= 0.0, "init_std", || {
            format!("{std} is negative or not finite")
        })
    }
}

impl VisualProjection {
    /// A projection of embeddings of `image_width` to tokens of `width`, with the parameters
    /// `weight` and `bias`.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`] if the standard deviation is negative or not finite.
    pub fn new(
        config: &ProjectionConfig,
        image_width: usize,
        width: usize,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        config.validate()?;
        let std = config.init_std;
        let init = if std == 0.0 { Init::Zeros } else { Init::Normal(std) };
        let linear = Linear::initialised(image_width, width, init, builder)?;
        Ok(Self { linear, position: config.position })
    }

    /// The indices of a clip's visual tokens among its `length` tokens.
    pub(super) fn visual_states(&self, length: usize, count: usize) -> Range<usize> {
        match self.position {
            TokenPosition::Before => 0..count,
            TokenPosition::After => length.saturating_sub(count)..length,
            TokenPosition::Prompt => 0..0,
        }
    }

    /// Projects the images of each clip to tokens `[I, D]`.
    pub(super) fn tokens(&self, audio: &AudioStates, visual: &VisualTokens<'_>) -> Result<Tensor> {
        let (clips, counts) = (audio.lengths.len(), visual.counts);
        let (found, expected) = (visual.embeddings.dims(), counts.iter().sum::<usize>());
        let width = self.linear.d_in()?;
        if counts.len() != clips || found != [expected, width] {
            bail!(
                "image embeddings {found:?} for {expected} images of {} clips; there are {clips} \
                 clips, and this projection takes embeddings of {width}",
                counts.len()
            );
        }
        let (device, dtype) = (audio.states.device(), audio.states.dtype());
        let embeddings = visual.embeddings.to_device(device)?.to_dtype(dtype)?;
        self.linear.forward(&embeddings, &Mode::evaluate())
    }

    /// Joins the visual tokens of each clip with its audio tokens.
    pub(super) fn join(&self, audio: &AudioStates, visual: &VisualTokens<'_>) -> Result<Joined> {
        let (clips, tokens) = (audio.lengths.len(), self.tokens(audio, visual)?);
        let states = Tensor::cat(&[&audio.states, &tokens], 0)?;
        let (mut first_image, mut first_audio) = (audio.states.dim(0)? as u32, 0);
        let (mut rows, mut audio_rows, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        let mut parts = Vec::with_capacity(2 * clips);
        for (&length, &count) in audio.lengths.iter().zip(visual.counts) {
            let image_rows = first_image..first_image + count as u32;
            let clip_audio = first_audio..first_audio + length as u32;
            (first_image, first_audio) = (image_rows.end, clip_audio.end);
            let (before, after) = match self.position {
                TokenPosition::After => (0..0, image_rows),
                TokenPosition::Before | TokenPosition::Prompt => (image_rows, 0..0),
            };
            parts.extend([before.len(), length, after.len()].into_iter().filter(|part| *part > 0));
            rows.extend(before);
            audio_rows.extend((0..length).map(|i| (rows.len() + i) as u32));
            rows.extend(clip_audio);
            rows.extend(after);
            lengths.push(length + count);
        }
        let states = embedding_sum(&[(&states, rows.into())])?;
        Ok(Joined {
            clips: AudioStates { states, lengths },
            parts,
            audio_rows: AudioRows(audio_rows.into()),
        })
    }
}

impl AudioRows {
    /// Returns the states of the audio tokens. `lengths` holds their number in each clip.
    pub(super) fn select_from(
        self,
        joined: &AudioStates,
        lengths: Vec<usize>,
    ) -> Result<AudioStates> {
        Ok(AudioStates { states: embedding_sum(&[(&joined.states, self.0)])?, lengths })
    }
}
