//! AVFormer (arXiv 2303.16501): a frozen recogniser of speech that sees.
//!
//! Pictures stand as tokens before those of the sound, by one linear map of their embeddings; behind
//! each frozen block stands an adapter. Map and adapters are all that is trained: about one percent.
//! The sound's tokens ([`FrozenRecogniser::embed`]) and the pictures' embeddings do not depend on
//! either, and are computed once for each clip.
//!
//! | term of the paper | here |
//! |---|---|
//! | frozen BEST-RQ Conformer and decoder | [`FrozenRecogniser`], also Whisper |
//! | visual projection layer | [`VisualProjection`] |
//! | visual tokens, prepended | [`VisualTokens`], [`TokenPosition`] |
//! | adapters | [`Adapters`] |
//! | curriculum | phases of the study, by the parameters that move and what is fed |

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
pub use frozen::FrozenRecogniser;
pub use state_distance::state_distance;
pub use visual_projection::{ProjectionConfig, TokenPosition, VisualProjection};

/// What is added to a frozen recogniser.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AvformerConfig {
    /// The adapters behind the encoder's blocks.
    pub adapters: AdapterConfig,
    /// The map of pictures to tokens.
    pub projection: ProjectionConfig,
}

impl AvformerConfig {
    /// Checks what the types do not.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`] naming the field.
    pub fn validate(&self) -> Result<()> {
        self.adapters.validate()?;
        self.projection.validate()
    }
}

/// Embeddings of the pictures of clips.
#[derive(Debug, Clone, Copy)]
pub struct VisualTokens<'a> {
    /// One row for each picture, clip after clip: `[ΣV, E]`.
    pub embeddings: &'a Tensor,
    /// Pictures of each clip; none is legal.
    pub counts: &'a [usize],
}

/// A frozen recogniser with what is added to it.
#[derive(Debug, Clone)]
pub struct Avformer {
    recogniser: FrozenRecogniser,
    adapters: Adapters,
    projection: VisualProjection,
}

impl Avformer {
    /// Adds to a recogniser; `image_width` `E` is that of the pictures' embeddings. Parameters
    /// `adapters.N.{norm,down,up}` and `projection`.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`], and those of [`ParameterBuilder::get`].
    pub fn new(
        recogniser: FrozenRecogniser,
        config: &AvformerConfig,
        image_width: usize,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let (blocks, width) = (recogniser.blocks(), recogniser.width());
        let adapters = builder.pp("adapters");
        let widths = (image_width, width);
        Ok(Self {
            adapters: Adapters::new(&config.adapters, (blocks, width), &adapters)?,
            projection: VisualProjection::new(
                &config.projection,
                widths,
                &builder.pp("projection"),
            )?,
            recogniser,
        })
    }

    /// The recogniser as it was.
    pub fn recogniser(&self) -> &FrozenRecogniser {
        &self.recogniser
    }

    /// The encoder's states of clips whose tokens are embedded; with `visual`, of clips that are seen.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] for pictures of another number of clips or another width, and
    /// for clips that are too long with them.
    pub fn encode(
        &self,
        embedded: AudioStates,
        visual: Option<&VisualTokens<'_>>,
        mode: &Mode,
    ) -> Result<AudioStates> {
        let Some(visual) = visual.filter(|visual| visual.counts.iter().any(|count| *count > 0))
        else {
            return self.recogniser.encode(embedded, &self.adapters, mode);
        };
        let joined = self.projection.join(&embedded, visual)?;
        let encoded = self.recogniser.encode(joined.clips, &self.adapters, mode)?;
        match self.recogniser.reads_visual_states() {
            true => Ok(encoded),
            false => joined.sound_rows.of(&encoded, embedded.lengths),
        }
    }
}
