//! Parts of a frozen ASR model for AVFormer: its network, its input frames, its tokens, and its
//! decoding.

use engram_data::DataError;
use engram_models::avformer::{EncodedClips, FrozenAsrModel};
use engram_models::params::Parameters;
use engram_models::speech::AudioStates;
use engram_models::speech::log_mel::{Frames, HOP, seconds_to_samples};
use rayon::prelude::*;

use super::whisper::SHORT_SILENCE;
use super::{AsrModel, packed};
use crate::error::Result;

impl AsrModel {
    /// The network, with frozen parameters.
    ///
    /// # Errors
    /// [`Refused`](crate::InferError::Refused) for a multilingual Whisper model without a
    /// [language](AsrModel::set_language).
    pub fn frozen(&self) -> Result<FrozenAsrModel> {
        Ok(match self {
            Self::Whisper(whisper) => FrozenAsrModel::Whisper {
                model: Box::new(whisper.whisper.clone()),
                prompt: whisper.prompt()?,
                end: whisper.tokens.end,
                previous: whisper.tokens.previous,
            },
            Self::Conformer(conformer) => {
                FrozenAsrModel::Conformer(Box::new(conformer.model.clone()))
            }
        })
    }

    /// The parameters, all frozen.
    pub fn parameters(&self) -> &Parameters {
        match self {
            Self::Whisper(whisper) => &whisper.parameters,
            Self::Conformer(conformer) => &conformer.parameters,
        }
    }

    /// The length of the shortest clip that gives an audio token, in samples.
    pub fn min_samples(&self) -> usize {
        match self {
            Self::Whisper(_) => HOP,
            Self::Conformer(conformer) => HOP * conformer.model.encoder.config.subsampling_factor,
        }
    }

    /// The silence to append to a clip, in samples. Whisper was trained on clips of 30 seconds.
    /// With this silence, it is about as accurate as with padding to 30 seconds. A Conformer needs
    /// no silence.
    pub fn trailing_silence_samples(&self) -> usize {
        match self {
            Self::Whisper(_) => SHORT_SILENCE,
            Self::Conformer(_) => 0,
        }
    }

    /// The log-mel frames of a clip, followed by `silence` samples of silence.
    fn frames(&self, samples: &[f32], silence: usize) -> Frames {
        let length = (samples.len() + silence).min(seconds_to_samples(self.max_seconds()));
        match self {
            Self::Whisper(whisper) => whisper.mel.frames(samples, length),
            Self::Conformer(conformer) => conformer.mel.frames(samples, length),
        }
    }

    /// Returns the audio tokens of a batch of clips: the input of the first encoder block.
    /// `silence` samples of silence are appended to each clip, up to the model's maximum length.
    ///
    /// # Errors
    /// [`Model`](crate::InferError::Model) for a clip shorter than
    /// [`min_samples`](Self::min_samples).
    pub fn embed<C: AsRef<[f32]> + Sync>(
        &self,
        asr_model: &FrozenAsrModel,
        clips: &[C],
        silence: usize,
    ) -> Result<AudioStates> {
        let frames = clips.par_iter().map(|clip| self.frames(clip.as_ref(), silence));
        let (frames, lengths) = packed(frames.collect())?;
        Ok(asr_model.embed(&frames, &lengths)?)
    }

    /// The tokens of a text in the model's format.
    ///
    /// # Errors
    /// [`DataError::Tokenizer`] for a character that is not in the vocabulary.
    pub fn tokens_of(&self, text: &str) -> Result<Vec<u32>, DataError> {
        match self {
            // Whisper's texts start with a space.
            Self::Whisper(whisper) => whisper.tokenizer.encode_strict(&format!(" {}", text.trim())),
            Self::Conformer(conformer) => conformer.tokenizer.encode_strict(text.trim()),
        }
    }

    /// The reason why the model cannot generate this text; `None` if it can.
    pub fn text_error(&self, text: &str) -> Option<String> {
        match (self.tokens_of(text), self) {
            (Err(DataError::Tokenizer { reason, .. }), _) => Some(format!(
                "its text cannot be tokenized: {reason}; correct the text, or remove the clip"
            )),
            (Err(error), _) => Some(error.to_string()),
            (Ok(tokens), Self::Whisper(whisper)) => {
                let positions = whisper.whisper.config.max_target_positions;
                let count = tokens.len() + whisper.prompt().map_or(0, |prompt| prompt.len());
                (count > positions).then(|| {
                    format!(
                        "its text has {count} tokens with the prompt, but the model has {positions} \
                         positions: shorten it, or remove the clip"
                    )
                })
            }
            (Ok(_), Self::Conformer(_)) => None,
        }
    }

    /// Returns greedy transcripts of clips from their encoder states. `samples` holds the clip
    /// lengths, which limit the number of tokens of Whisper's texts.
    ///
    /// # Errors
    /// [`Model`](crate::InferError::Model) for a failed decoder;
    /// [`Data`](crate::InferError::Data) for tokens that cannot be decoded.
    pub fn texts_of(&self, clips: &EncodedClips, samples: &[usize]) -> Result<Vec<String>> {
        match self {
            Self::Whisper(whisper) => whisper.texts_of(clips, samples),
            Self::Conformer(conformer) => {
                let paths = conformer.model.greedy_paths(&clips.audio)?;
                let text = |tokens: &[u32]| Ok(conformer.tokenizer.decode(tokens)?.trim().into());
                paths.iter().map(|path| text(&path.tokens)).collect()
            }
        }
    }
}
