//! The recognisers that can be added to.

use std::sync::Arc;

use candle_core::Tensor;

use crate::adapter::Adapters;
use crate::conformer::ConformerCtc;
use crate::error::{ModelError, Result};
use crate::kernels::{CrossEntropy, Mode, Span, cross_entropy, span_mean};
use crate::packed::PackedTokens;
use crate::speech::AudioStates;
use crate::speech::ctc::{Ctc, ctc_loss};
use crate::whisper::Whisper;

/// The target of rows whose next token is given.
const GIVEN: u32 = u32::MAX;

/// A recogniser whose own parameters do not move.
#[derive(Debug, Clone)]
pub enum FrozenRecogniser {
    /// Whisper: the decoder reads all states, those of pictures among them.
    Whisper {
        /// The model.
        model: Box<Whisper>,
        /// What stands before each text.
        prompt: Vec<u32>,
        /// What ends it.
        end: u32,
    },
    /// A Conformer with a head for CTC, which reads the states of the sound alone: each of them is a
    /// moment.
    Conformer(Box<ConformerCtc>),
}

impl FrozenRecogniser {
    /// Channels of a token of the encoder.
    pub fn width(&self) -> usize {
        match self {
            Self::Whisper { model, .. } => model.config().d_model,
            Self::Conformer(model) => model.config().encoder_config.hidden_size,
        }
    }

    /// Blocks of the encoder.
    pub fn blocks(&self) -> usize {
        match self {
            Self::Whisper { model, .. } => model.config().encoder_layers,
            Self::Conformer(model) => model.config().encoder_config.num_hidden_layers,
        }
    }

    /// Whether texts are made of the states of pictures too.
    pub(super) fn reads_visual_states(&self) -> bool {
        matches!(self, Self::Whisper { .. })
    }

    /// The tokens of frames `[F, M]` of packed clips, each of `lengths` of them: what lies before the
    /// first block.
    ///
    /// # Errors
    /// Those of the encoder.
    pub fn embed(&self, frames: &Tensor, lengths: &[usize]) -> Result<AudioStates> {
        match self {
            Self::Whisper { model, .. } => model.encoder().embed(frames, lengths),
            Self::Conformer(model) => model.encoder().embed(frames, lengths),
        }
    }

    /// The blocks with these adapters.
    pub(super) fn encode(
        &self,
        embedded: AudioStates,
        adapters: &Adapters,
        mode: &Mode,
    ) -> Result<AudioStates> {
        match self {
            Self::Whisper { model, .. } => model.encoder().forward(embedded, adapters, mode),
            Self::Conformer(model) => model.encoder().forward(embedded, adapters, mode),
        }
    }

    /// The blocks as they are: no adapter, no picture.
    ///
    /// # Errors
    /// Those of the encoder.
    pub fn encode_alone(&self, embedded: AudioStates, mode: &Mode) -> Result<AudioStates> {
        self.encode(embedded, &Adapters::NONE, mode)
    }

    /// The loss of each clip's text `[B]`, in nats a token (of Whisper, the end is one): tokens
    /// without prompt and end. A text that a Conformer has too few states for has an infinite loss and
    /// no gradient.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] for texts of another number of clips, and those that are too long.
    pub fn text_losses(
        &self,
        audio: &AudioStates,
        texts: &[Vec<u32>],
        mode: &Mode,
    ) -> Result<Tensor> {
        let (clips, found) = (audio.lengths.len(), texts.len());
        if clips != found {
            return Err(ModelError::BadInput(format!("{found} texts for {clips} clips")));
        }
        match self {
            Self::Whisper { model, prompt, end } => {
                let whole = |text: &Vec<u32>| [prompt.as_slice(), text].concat();
                let read: Vec<Vec<u32>> = texts.iter().map(whole).collect();
                let logits = model.decode(&PackedTokens::new(&read), audio, mode)?;
                let (mut targets, mut own) = (Vec::new(), Vec::new());
                for text in texts {
                    targets.resize(targets.len() + prompt.len().saturating_sub(1), GIVEN);
                    own.push(Span { start: targets.len(), length: text.len() + 1 });
                    targets.extend(text);
                    targets.push(*end);
                }
                let options = CrossEntropy {
                    targets: targets.into(),
                    ignored: Some(GIVEN),
                    label_smoothing: 0.0,
                };
                let losses = cross_entropy(&logits, options)?.unsqueeze(1)?;
                Ok(span_mean(&losses, Arc::from(own))?.squeeze(1)?)
            }
            Self::Conformer(model) => {
                let ctc = Ctc {
                    lengths: audio.lengths.clone(),
                    targets: texts.to_vec(),
                    blank: model.config().blank,
                };
                let losses = ctc_loss(&model.logits(audio)?, ctc)?;
                let shares: Vec<f64> =
                    texts.iter().map(|text| 1.0 / text.len().max(1) as f64).collect();
                let shares = Tensor::from_vec(shares, clips, losses.device())?;
                Ok((&losses * shares.to_dtype(losses.dtype())?)?)
            }
        }
    }
}
