//! An ASR model of either architecture.

use std::sync::Arc;

use engram_data::hub::{HubSettings, WeightsLocation};
use engram_models::compute::Compute;
use engram_models::conformer::ConformerAsrConfig;
use engram_models::generation::boosting::BoostTree;
use serde::Deserialize;

use super::conformer::ConformerAsr;
use super::{BoostTreeBuilder, Segment, TranscribeOptions, Transcript, WhisperAsr};
use crate::error::{InferError, Result};
use crate::pretrained::PretrainedFolder;

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
    /// The errors of [`WhisperAsr::open`] and [`ConformerAsr::open`].
    pub fn open(location: &str, compute: &Compute) -> Result<Self> {
        #[derive(Deserialize)]
        struct Config {
            model_type: String,
        }
        let parsed = WeightsLocation::parse(location)?;
        // For a missing or broken file, the Whisper loader reports the error.
        let path = parsed.file("config.json", &HubSettings::from_env()).ok();
        let bytes = path.and_then(|path| std::fs::read(path).ok());
        let config = bytes.and_then(|bytes| serde_json::from_slice::<Config>(&bytes).ok());
        if config.is_some_and(|config| ConformerAsrConfig::is_supported(&config.model_type)) {
            Ok(Self::Conformer(Box::new(ConformerAsr::open(location, compute)?)))
        } else {
            Ok(Self::Whisper(Box::new(WhisperAsr::open(location, compute)?)))
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
        match self {
            Self::Whisper(whisper) => whisper.max_seconds(),
            Self::Conformer(conformer) => conformer.max_seconds(),
        }
    }

    /// Computes the SHA-256 of the weights file.
    ///
    /// # Errors
    /// [`InferError::Io`]
    pub fn weights_sha256(&self) -> Result<String> {
        match self {
            Self::Whisper(whisper) => whisper.weights_sha256(),
            Self::Conformer(conformer) => conformer.weights_sha256(),
        }
    }

    /// Sets the language of speech for options without a language, such as `en`. Multilingual
    /// Whisper models need one.
    ///
    /// # Errors
    /// [`InferError::Transcribe`] for a language that the model does not support, and for a
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
    /// The errors of [`WhisperAsr::check`]; [`InferError::Transcribe`] for options that a Conformer
    /// does not support.
    pub fn check(&self, options: &TranscribeOptions) -> Result<()> {
        if let Self::Whisper(whisper) = self {
            return whisper.check(options);
        }
        let TranscribeOptions { language, task, padding, .. } = TranscribeOptions::default();
        let changed = [
            ("language", options.language != language),
            ("translate", options.task != task),
            ("padding", options.padding != padding),
        ];
        match changed.iter().find(|(_, is_changed)| *is_changed) {
            None => Ok(()),
            Some((option, _)) => Err(not_for_conformers(option)),
        }
    }

    /// Returns a builder for trees of boosted words. `weight` is the bonus of each token of a word,
    /// in nats; the first token gets half of it. `None` means the default, 3 for Whisper and 2 for
    /// a Conformer.
    ///
    /// # Errors
    /// The errors of [`WhisperAsr::boost_builder`] and [`ConformerAsr::boost_builder`].
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
    /// The errors of [`WhisperAsr::transcribe`] and [`ConformerAsr::transcribe`].
    pub fn transcribe(
        &self,
        clips: &[&[f32]],
        boosts: &[Option<Arc<BoostTree>>],
        options: &TranscribeOptions,
    ) -> Result<Vec<Transcript>> {
        match self {
            Self::Whisper(whisper) => whisper.transcribe_each(clips, boosts, options),
            Self::Conformer(conformer) => {
                let mut transcripts = conformer.transcribe(clips, boosts, options)?;
                if !options.timestamps {
                    transcripts.iter_mut().for_each(|transcript| transcript.segments.clear());
                }
                Ok(transcripts)
            }
        }
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
        match self {
            Self::Whisper(whisper) => whisper.transcribe_long(options, read, on_window),
            Self::Conformer(conformer) => {
                conformer.transcribe_long(options, read, |seconds| on_window(&[], seconds))
            }
        }
    }
}

fn not_for_conformers(option: &str) -> InferError {
    let reason = format!("--{option} needs a Whisper model, but this is a Conformer");
    InferError::Transcribe { reason }
}
