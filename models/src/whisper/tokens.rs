//! The special tokens of Whisper's vocabularies, and the decoder's prompt.

use crate::config::{bad_field, require};
use crate::error::{Result, bail};

/// The ids of the special tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WhisperTokens {
    /// `<|startoftranscript|>`.
    pub start: u32,
    /// `<|endoftext|>`.
    pub end: u32,
    /// `<|notimestamps|>`; the next id is the timestamp of 0 seconds.
    pub no_timestamps: u32,
    /// `<|nospeech|>`, in older vocabularies `<|nocaptions|>`.
    pub no_speech: Option<u32>,
    /// `<|startofprev|>`, which precedes the text of the previous clip.
    pub previous: Option<u32>,
    /// `<|transcribe|>`.
    pub transcribe: Option<u32>,
    /// `<|translate|>`.
    pub translate: Option<u32>,
    /// `<|startoflm|>`.
    pub language_model: Option<u32>,
}

/// Seconds between consecutive timestamps.
pub(crate) const TIMESTAMP_STEP: f64 = 0.02;

impl WhisperTokens {
    /// Looks up the ids by token name in a vocabulary.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`] if the vocabulary is not Whisper's.
    pub fn find(id_of: impl Fn(&str) -> Option<u32>) -> Result<Self> {
        let required = |name: &str| {
            let reason = || format!("has no token `{name}`; is this a Whisper tokenizer?");
            id_of(name).ok_or_else(|| bad_field("the tokenizer", reason()))
        };
        Ok(Self {
            start: required("<|startoftranscript|>")?,
            end: required("<|endoftext|>")?,
            no_timestamps: required("<|notimestamps|>")?,
            no_speech: id_of("<|nospeech|>").or_else(|| id_of("<|nocaptions|>")),
            previous: id_of("<|startofprev|>"),
            transcribe: id_of("<|transcribe|>"),
            translate: id_of("<|translate|>"),
            language_model: id_of("<|startoflm|>"),
        })
    }

    /// Checks that a model with `vocab_size` embeddings has an embedding for each special token and
    /// for timestamps.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`] if the vocabulary belongs to another model.
    pub fn check_fits(&self, vocab_size: usize) -> Result<()> {
        let special = self.never_text().chain([self.end, self.first_timestamp()]);
        let highest = special.max().unwrap_or(0);
        require((highest as usize) < vocab_size, "the tokenizer", || {
            format!(
                "has the special token {highest}, but the model has {vocab_size} embeddings; \
                 use the tokenizer in the model's folder"
            )
        })
    }

    /// Whether a special token may be a language token. Language tokens are between the start and
    /// task tokens.
    pub fn is_language(&self, token: u32) -> bool {
        let first_task = [self.transcribe, self.translate].into_iter().flatten().min();
        token > self.start && first_task.is_some_and(|task| token < task)
    }

    /// Returns the timestamp of 0 seconds. The other timestamps follow in steps of 20 ms.
    pub fn first_timestamp(&self) -> u32 {
        self.no_timestamps + 1
    }

    /// Returns the time of a timestamp token in seconds, or `None` for other tokens.
    pub fn seconds(&self, token: u32) -> Option<f64> {
        Some(f64::from(token.checked_sub(self.first_timestamp())?) * TIMESTAMP_STEP)
    }

    /// Returns the decoder's prompt. `language` holds the language token and the task; `None` for
    /// an English-only model.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] if the vocabulary does not have the task's token.
    pub fn prompt(&self, language: Option<(u32, Task)>, timestamps: bool) -> Result<Vec<u32>> {
        let mut prompt = vec![self.start];
        if let Some((language, task)) = language {
            let task_token = match task {
                Task::Transcribe => self.transcribe,
                Task::Translate => self.translate,
            };
            let Some(task_token) = task_token else {
                bail!("the tokenizer has no token for the task {task:?}");
            };
            prompt.extend([language, task_token]);
        }
        if !timestamps {
            prompt.push(self.no_timestamps);
        }
        Ok(prompt)
    }

    /// Returns the tokens that are never part of a text.
    pub(super) fn never_text(&self) -> impl Iterator<Item = u32> {
        let optional =
            [self.no_speech, self.previous, self.transcribe, self.translate, self.language_model];
        optional.into_iter().flatten().chain([self.start, self.no_timestamps])
    }
}

/// The task of a multilingual model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Task {
    /// Transcribe in the spoken language.
    #[default]
    Transcribe,
    /// Translate to English.
    Translate,
}
