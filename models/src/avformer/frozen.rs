//! The ASR models that AVFormer supports.

use std::ops::Range;

use candle_core::Tensor;

use super::EncodedClips;
use crate::adapter::Adapters;
use crate::compute::Compute;
use crate::config::require;
use crate::conformer::{ConformerAsrModel, ConformerDecoder};
use crate::error::Result;
use crate::kernels::Mode;
use crate::packed::PackedTokens;
use crate::speech::AudioStates;
use crate::speech::text_losses::mean_text_losses;
use crate::whisper::Whisper;

/// An ASR model with frozen parameters.
#[derive(Debug, Clone)]
pub enum FrozenAsrModel {
    /// Whisper. The decoder attends to all encoder states, including those of visual tokens.
    Whisper {
        /// The model.
        model: Box<Whisper>,
        /// The tokens before each text.
        prompt: Vec<u32>,
        /// The end token.
        end: u32,
        /// `<|startofprev|>`, which comes before visual tokens in the prompt.
        previous: Option<u32>,
    },
    /// A Conformer. CTC and the transducer read only the encoder states of audio tokens, because
    /// each state is a time step. An attention decoder reads all encoder states.
    Conformer(Box<ConformerAsrModel>),
}

impl FrozenAsrModel {
    /// Width of the encoder's tokens.
    pub fn width(&self) -> usize {
        match self {
            Self::Whisper { model, .. } => model.config.d_model,
            Self::Conformer(model) => model.encoder.config.hidden_size,
        }
    }

    /// Moves the blocks before `first` into [`FrozenAsrModel::embed`]: they get no adapters and no
    /// visual tokens, so their output can be computed once per clip.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`] if no block would remain, and for a Conformer unless
    /// `first` is 0.
    pub fn start_at(mut self, first: usize) -> Result<Self> {
        let blocks = self.blocks();
        match &mut self {
            Self::Whisper { model, .. } if first < blocks => model.encoder.start_at(first),
            Self::Conformer(_) if first == 0 => (),
            _ => require(false, "first_block", || {
                format!(
                    "{first} leaves no block, or needs a Whisper model; this one has {blocks} blocks: use 0"
                )
            })?,
        }
        Ok(self)
    }

    /// Number of blocks in the encoder, from the first with an adapter.
    pub fn blocks(&self) -> usize {
        match self {
            Self::Whisper { model, .. } => model.encoder.num_blocks(),
            Self::Conformer(model) => model.encoder.config.num_hidden_layers,
        }
    }

    /// The device and the dtype of the model's computation.
    pub fn compute(&self) -> &Compute {
        match self {
            Self::Whisper { model, .. } => &model.encoder.compute,
            Self::Conformer(model) => &model.encoder.compute,
        }
    }

    /// The token before visual tokens in the prompt; `None` for a model without such a prompt.
    pub(super) fn context_start(&self) -> Option<u32> {
        match self {
            Self::Whisper { previous, .. } => *previous,
            Self::Conformer(_) => None,
        }
    }

    /// Whether the decoder attends to the encoder states of visual tokens.
    pub(super) fn reads_visual_states(&self) -> bool {
        match self {
            Self::Whisper { .. } => true,
            Self::Conformer(model) => matches!(model.decoder, ConformerDecoder::Attention(_)),
        }
    }

    /// Returns the audio tokens of packed clips: the output of the encoder part before the first
    /// block with an adapter. `frames` `[F, M]` are log-mel frames, and `lengths` is the number of
    /// frames of each clip.
    ///
    /// # Errors
    /// The errors of the encoder.
    pub fn embed(&self, frames: &Tensor, lengths: &[usize]) -> Result<AudioStates> {
        match self {
            Self::Whisper { model, .. } => model.encoder.embed(frames, lengths),
            Self::Conformer(model) => model.encoder.embed(frames, lengths),
        }
    }

    /// Runs the blocks with these adapters. `parts` are the lengths of the runs of visual and of
    /// audio tokens; a Conformer convolves them separately.
    pub(super) fn encode(
        &self,
        tokens: AudioStates,
        parts: Vec<usize>,
        adapters: &Adapters,
        mode: &Mode,
    ) -> Result<AudioStates> {
        match self {
            Self::Whisper { model, .. } => model.encoder.forward(tokens, adapters, mode),
            Self::Conformer(model) => model.encoder.forward_parts(tokens, parts, adapters, mode),
        }
    }

    /// Runs the encoder's blocks without adapters and images.
    ///
    /// # Errors
    /// The errors of the encoder.
    pub fn encode_unadapted(&self, audio_tokens: AudioStates, mode: &Mode) -> Result<AudioStates> {
        let parts = audio_tokens.lengths.clone();
        self.encode(audio_tokens, parts, &Adapters::NONE, mode)
    }

    /// Returns the loss of each clip's text `[B]`, in nats per token. `texts` are tokens without
    /// prompt and end token. Whisper adds the end token and counts it. A Conformer with an
    /// attention decoder has the loss of the decoder alone. With CTC, a text that is too long for
    /// its clip has infinite loss and zero gradient.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] if the number of texts and clips differs, or a text has more
    /// tokens than Whisper has positions.
    pub fn text_losses(
        &self,
        encoded: &EncodedClips,
        texts: &[Vec<u32>],
        mode: &Mode,
    ) -> Result<Tensor> {
        let EncodedClips { audio, context } = encoded;
        audio.check_texts(texts)?;
        match self {
            Self::Whisper { model, prompt, end, .. } => {
                let prompts = match context {
                    Some(context) => context.prompts(prompt, model.config.vocab_size),
                    None => vec![prompt.clone(); texts.len()],
                };
                let with_prompt =
                    |(prompt, text): (&Vec<u32>, &Vec<u32>)| [&**prompt, text].concat();
                let inputs: Vec<Vec<u32>> = prompts.iter().zip(texts).map(with_prompt).collect();
                let extra = context.as_ref().map(|context| &context.embeddings);
                let logits = model.decode(&PackedTokens::new(&inputs), extra, audio, mode)?;
                let lengths: Vec<usize> = prompts.iter().map(Vec::len).collect();
                mean_text_losses(&logits, texts, &lengths, *end)
            }
            Self::Conformer(model) => {
                let losses = match &model.decoder {
                    // The CTC loss is left out, because CTC has no part that could write a word
                    // from an image.
                    ConformerDecoder::Attention(decoder) => {
                        decoder.decoder_losses(audio, texts, mode)?
                    }
                    _ => model.losses(audio, texts, mode)?,
                };
                let factors: Vec<f64> =
                    texts.iter().map(|text| 1.0 / text.len().max(1) as f64).collect();
                let factors = Tensor::from_vec(factors, texts.len(), losses.device())?;
                Ok((&losses * factors.to_dtype(losses.dtype())?)?)
            }
        }
    }

    /// The share of the decoder's cross-attention that goes to the encoder states `selected` of
    /// each clip, for each token of its text; `None` for a decoder without cross-attention.
    pub(super) fn attention_share(
        &self,
        audio: &AudioStates,
        texts: &[Vec<u32>],
        selected: &[Range<usize>],
    ) -> Result<Option<Vec<Vec<f64>>>> {
        Ok(match self {
            Self::Whisper { model, prompt, .. } => {
                Some(model.decoder.attention_share(audio, texts, prompt, selected)?)
            }
            Self::Conformer(model) => match &model.decoder {
                ConformerDecoder::Attention(decoder) => {
                    Some(decoder.attention_share(audio, texts, selected)?)
                }
                ConformerDecoder::Ctc(_) | ConformerDecoder::Transducer(_) => None,
            },
        })
    }
}
