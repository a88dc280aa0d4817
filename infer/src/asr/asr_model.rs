//! An ASR model of either architecture.

use std::sync::Arc;

use engram_models::compute::Compute;
use engram_models::conformer::ConformerAsrConfig;
use engram_models::generation::boosting::BoostTree;
use engram_models::speech::log_mel::samples_to_seconds;
use serde::Deserialize;

use super::conformer::{ConformerAsr, WINDOW};
use super::{BoostTreeBuilder, Segment, TranscribeOptions, Transcript, WhisperAsr};
use crate::error::{InferError, Result};
use crate::pretrained::{self, PretrainedFolder};

/// A Whisper model or a Conformer, depending on `model_type` in `config.json`.
pub enum AsrModel {
    /// A Whisper model.
    Whisper(Box<WhisperAsr>),
    /// A Conformer with any of its decoders.
    Conformer(Box<ConformerAsr>),
}

impl AsrModel {
    /// Opens the model in a folder or at `hf://owner/name`.
    ///
    /// # Errors
    /// [`InferError::Data`] for missing files; [`InferError::Model`] for a model that is unknown or
    /// does not match its weights; [`InferError::Refused`] for the tokenizer of another model, for
    /// a CTranslate2 folder, with the remedy, and for an invalid `generation_config.json`.
    pub fn open(location: &str, compute: &Compute) -> Result<Self> {
        #[derive(Deserialize)]
        struct Config {
            model_type: String,
        }
        let folder = PretrainedFolder::open(location)?;
        // For a missing or broken file, the Whisper loader reports the error.
        let path = folder.file("config.json").ok();
        let bytes = path.and_then(|path| engram_durable::read_file(path).ok());
        let config = bytes.and_then(|bytes| serde_json::from_slice::<Config>(&bytes).ok());
        if config.is_some_and(|config| ConformerAsrConfig::is_supported(&config.model_type)) {
            Ok(Self::Conformer(Box::new(ConformerAsr::open(&folder, compute)?)))
        } else {
            Ok(Self::Whisper(Box::new(WhisperAsr::open(&folder, compute)?)))
        }
    }

    /// Computes the SHA-256 of the weights file of the model in a folder or at `hf://owner/name`,
    /// without loading the model.
    ///
    /// # Errors
    /// [`InferError::Data`] for missing files; [`InferError::Io`]
    pub fn weights_sha256_of(location: &str) -> Result<String> {
        Ok(PretrainedFolder::open(location)?.weights()?.sha256)
    }

    /// The maximum length of a clip in seconds.
    pub fn max_seconds(&self) -> f64 {
        samples_to_seconds(match self {
            Self::Whisper(whisper) => whisper.whisper.config.max_samples(),
            Self::Conformer(_) => WINDOW,
        })
    }

    /// Computes the SHA-256 of the weights file.
    ///
    /// # Errors
    /// [`InferError::Io`]
    pub fn weights_sha256(&self) -> Result<String> {
        pretrained::weights_sha256(match self {
            Self::Whisper(whisper) => &whisper.weights,
            Self::Conformer(conformer) => &conformer.weights,
        })
    }

    /// Sets the language of speech for options without a language, such as `en`. Multilingual
    /// Whisper models need one.
    ///
    /// # Errors
    /// [`InferError::Refused`] for a language that the model does not support, and for a
    /// Conformer.
    pub fn set_language(&mut self, language: &str) -> Result<()> {
        let options = TranscribeOptions {
            language: Some(language.to_owned()),
            ..TranscribeOptions::default()
        };
        self.check(&options)?;
        if let Self::Whisper(whisper) = self {
            whisper.language = options.language;
        }
        Ok(())
    }

    /// The language of [`AsrModel::set_language`]; `None` if it was not set.
    pub fn language(&self) -> Option<&str> {
        match self {
            Self::Whisper(whisper) => whisper.language.as_deref(),
            Self::Conformer(_) => None,
        }
    }

    /// Checks that the model supports these options.
    ///
    /// # Errors
    /// [`InferError::Refused`] for an option that the model does not support, and for a missing
    /// language of a multilingual model.
    pub fn check(&self, options: &TranscribeOptions) -> Result<()> {
        if let Self::Whisper(whisper) = self {
            return whisper.language(options).map(drop);
        }
        let TranscribeOptions { language, task, padding, .. } = TranscribeOptions::default();
        let changed = [
            ("language", options.language != language),
            ("translate", options.task != task),
            ("padding", options.padding != padding),
        ];
        match changed.iter().find(|(_, is_changed)| *is_changed) {
            None => Ok(()),
            Some((option, _)) => {
                Err(format!("`{option}` needs a Whisper model, but this is a Conformer").into())
            }
        }
    }

    /// Returns a builder for trees of boosted words. `weight` is the bonus of each token of a word,
    /// in nats; the first token gets half of it. `None` means the default, 3 for Whisper and 2 for
    /// a Conformer.
    ///
    /// # Errors
    /// [`InferError::Refused`] for a weight that is negative or not finite; [`InferError::Data`]
    /// for tokens that cannot be decoded.
    pub fn boost_builder(&self, weight: Option<f32>) -> Result<BoostTreeBuilder<'_>> {
        match self {
            Self::Whisper(whisper) => whisper.boost_builder(weight),
            Self::Conformer(conformer) => conformer.boost_builder(weight),
        }
    }

    /// Transcribes clips of 16 kHz samples in one batch, with the boosted words `boosts[i]` for
    /// clip `i`. Clips beyond the end of `boosts` use the words of the options.
    ///
    /// # Errors
    /// The errors of [`AsrModel::check`]; [`InferError::Refused`] for a clip that is too long for
    /// Whisper; [`InferError::Model`]; [`InferError::Data`] for tokens that cannot be decoded.
    pub fn transcribe(
        &self,
        clips: &[&[f32]],
        boosts: &[Option<Arc<BoostTree>>],
        options: &TranscribeOptions,
    ) -> Result<Vec<Transcript>> {
        let mut transcripts = match self {
            Self::Whisper(whisper) => whisper.transcribe(clips, boosts, options)?,
            Self::Conformer(conformer) => {
                let mut transcripts = conformer.transcribe(clips, boosts, options)?;
                if !options.timestamps {
                    transcripts.iter_mut().for_each(|transcript| transcript.segments.clear());
                }
                transcripts
            }
        };
        transcripts.iter_mut().for_each(Transcript::align_segments);
        Ok(transcripts)
    }

    /// Transcribes a recording. `read` appends samples at 16 kHz and returns `false` at the end.
    /// After each window, `on_window` gets the new segments and the number of seconds transcribed
    /// so far. With a Conformer, the segments are always empty.
    ///
    /// # Errors
    /// The errors of [`AsrModel::transcribe`] and of `read`.
    pub fn transcribe_long<E: From<InferError>>(
        &self,
        options: &TranscribeOptions,
        read: impl FnMut(&mut Vec<f32>) -> Result<bool, E>,
        mut on_window: impl FnMut(&[Segment], f64),
    ) -> Result<Transcript, E> {
        let mut transcript = match self {
            Self::Whisper(whisper) => whisper.transcribe_long(options, read, on_window)?,
            Self::Conformer(conformer) => {
                conformer.transcribe_long(options, read, |seconds| on_window(&[], seconds))?
            }
        };
        transcript.align_segments();
        Ok(transcript)
    }
}
