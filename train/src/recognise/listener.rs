//! An ASR model of either kind.

use std::sync::Arc;

use engram_data::hub::{HubSettings, WeightsLocation};
use engram_models::speech::boosting::BoostTree;
use serde::Deserialize;

use super::conformer::ConformerRecogniser;
use super::{Booster, RecogniseOptions, Recogniser, Segment, Transcript};
use crate::error::{Result, TrainError};

/// A Whisper model or a Conformer, depending on `model_type` in `config.json`.
pub enum Listener {
    /// A Whisper model.
    Whisper(Box<Recogniser>),
    /// A Conformer with a CTC head.
    Conformer(Box<ConformerRecogniser>),
}

impl Listener {
    /// Opens the model in a folder or at `hf://owner/name`.
    ///
    /// # Errors
    /// The errors of [`Recogniser::open`] and [`ConformerRecogniser::open`].
    pub fn open(location: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Kind {
            model_type: String,
        }
        let place = WeightsLocation::parse(location)?;
        // For a missing or broken file, the Whisper loader reports the error.
        let kind = place.file("config.json", &HubSettings::from_env()).ok();
        let kind = kind.and_then(|file| std::fs::read(file).ok());
        let kind = kind.and_then(|bytes| serde_json::from_slice::<Kind>(&bytes).ok());
        match kind.is_some_and(|kind| kind.model_type == "parakeet_ctc") {
            true => Ok(Self::Conformer(Box::new(ConformerRecogniser::open(location)?))),
            false => Ok(Self::Whisper(Box::new(Recogniser::open(location)?))),
        }
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
    /// [`TrainError::Io`]
    pub fn weights_sha256(&self) -> Result<String> {
        match self {
            Self::Whisper(whisper) => whisper.weights_sha256(),
            Self::Conformer(conformer) => conformer.weights_sha256(),
        }
    }

    /// Checks that the model supports these options.
    ///
    /// # Errors
    /// The errors of [`Recogniser::check`]; [`TrainError::Recognise`] for options that a Conformer
    /// does not support.
    pub fn check(&self, options: &RecogniseOptions) -> Result<()> {
        if let Self::Whisper(whisper) = self {
            return whisper.check(options);
        }
        let RecogniseOptions { language, task, padding, .. } = RecogniseOptions::default();
        let asked = [
            ("language", options.language != language),
            ("translate", options.task != task),
            ("padding", options.padding != padding),
        ];
        match asked.iter().find(|(_, asked)| *asked) {
            None => Ok(()),
            Some((option, _)) => Err(not_for_conformers(option)),
        }
    }

    /// A builder for trees of boosted words. Without `weight`, the model's default weight applies.
    ///
    /// # Errors
    /// The errors of [`Recogniser::booster`] and [`ConformerRecogniser::booster`].
    pub fn booster(&self, weight: Option<f32>) -> Result<Booster<'_>> {
        match self {
            Self::Whisper(whisper) => whisper.booster(weight),
            Self::Conformer(conformer) => conformer.booster(weight),
        }
    }

    /// Transcribes clips of 16 kHz samples in one batch, with boosted words for each clip.
    ///
    /// # Errors
    /// The errors of [`Recogniser::transcribe_each`] and [`ConformerRecogniser::transcribe`].
    pub fn transcribe(
        &self,
        clips: &[&[f32]],
        boosts: &[Option<Arc<BoostTree>>],
        options: &RecogniseOptions,
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
    /// After each window, `heard` gets new segments (from Whisper only) and the seconds done so
    /// far.
    ///
    /// # Errors
    /// The errors of [`Listener::transcribe`] and of `read`.
    pub fn transcribe_long<E: From<TrainError>>(
        &self,
        options: &RecogniseOptions,
        read: impl FnMut(&mut Vec<f32>) -> Result<bool, E>,
        mut heard: impl FnMut(&[Segment], f64),
    ) -> Result<Transcript, E> {
        match self {
            Self::Whisper(whisper) => whisper.transcribe_long(options, read, heard),
            Self::Conformer(conformer) => {
                conformer.transcribe_long(options, read, |done| heard(&[], done))
            }
        }
    }
}

fn not_for_conformers(option: &str) -> TrainError {
    let reason = format!("--{option} needs a Whisper model, but this is a Conformer");
    TrainError::Recognise { reason }
}
