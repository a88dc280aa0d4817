//! Transcripts of clips.

use engram_models::speech::log_mel::samples_to_seconds;
use engram_models::whisper::{WhisperTranscript, has_repetition_loop};
use serde::{Serialize, Serializer};

use super::{
    FEW_WORDS, MIN_LOG_PROBABILITY, NO_SPEECH, SURELY_NO_SPEECH, TranscribeOptions, WhisperAsr,
};
use crate::error::Result;

/// The transcript of a clip.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Transcript {
    /// The text; empty without speech.
    pub text: String,
    /// Its segments with times; empty without timestamps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<Segment>,
    /// Its words with times; empty unless requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<Word>,
    /// The length of the clip, in seconds.
    pub seconds: f64,
    /// The mean log-probability of the tokens, in nats.
    pub mean_log_probability: f32,
    /// The no-speech probability.
    pub no_speech_probability: f32,
    /// Whether the text was truncated because it repeated itself or was longer than possible
    /// speech. Later speech is missing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// Whether the clip was decoded a second time, with silence up to 30 seconds.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub decoded_again: bool,
}

/// A segment of a transcript.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Segment {
    /// Its start in seconds from the start of the clip.
    #[serde(serialize_with = "to_milliseconds")]
    pub start: f64,
    /// Its end in seconds.
    #[serde(serialize_with = "to_milliseconds")]
    pub end: f64,
    /// Its text.
    pub text: String,
}

/// A word of a transcript.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Word {
    /// Its start in seconds from the start of the clip.
    #[serde(serialize_with = "to_milliseconds")]
    pub start: f64,
    /// Its end in seconds.
    #[serde(serialize_with = "to_milliseconds")]
    pub end: f64,
    /// The word with its punctuation.
    pub text: String,
    /// The mean probability of its tokens.
    pub probability: f32,
}

impl Segment {
    /// Shifts the times by `seconds`.
    pub(super) fn behind(self, seconds: f64) -> Self {
        Self { start: self.start + seconds, end: self.end + seconds, ..self }
    }
}

impl Word {
    /// Shifts the times by `seconds`.
    pub(super) fn behind(self, seconds: f64) -> Self {
        Self { start: self.start + seconds, end: self.end + seconds, ..self }
    }
}

/// A segment with its text tokens.
pub(super) struct Part {
    pub segment: Segment,
    pub tokens: Vec<u32>,
}

/// Rounds to milliseconds: further digits are rounding errors.
pub(super) fn to_milliseconds<S: Serializer>(
    seconds: &f64,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((seconds * 1e3).round() / 1e3)
}

/// The mean log-probability over the tokens and the end token.
pub(super) fn mean_log_probability(heard: &WhisperTranscript) -> f32 {
    heard.generated.log_probability / heard.generated.tokens.len().max(1) as f32
}

/// The minimum number of words in a repetition that counts as an error.
const REPEATED_WORDS: usize = 3;

impl Transcript {
    /// The empty transcript of a clip without speech, with this many samples.
    pub(super) fn nothing(samples: usize) -> Self {
        Self {
            text: String::new(),
            segments: Vec::new(),
            words: Vec::new(),
            seconds: samples_to_seconds(samples),
            mean_log_probability: 0.0,
            no_speech_probability: 1.0,
            decoded_again: false,
            truncated: false,
        }
    }

    /// A text without timestamps as one part with the length of its clip. Empty for an empty text.
    pub(super) fn as_part(&self, heard: &WhisperTranscript) -> Vec<Part> {
        if self.text.is_empty() {
            return Vec::new();
        }
        let segment = Segment { start: 0.0, end: self.seconds, text: self.text.clone() };
        vec![Part { segment, tokens: heard.generated.without_end().to_vec() }]
    }

    /// Whether the clip has to be decoded again with more silence.
    pub(super) fn is_doubtful(&self) -> bool {
        self.mean_log_probability < MIN_LOG_PROBABILITY || repeats_itself(&self.text)
    }
}

/// Whether a word sequence is directly repeated, ignoring case and punctuation.
fn repeats_itself(text: &str) -> bool {
    let word = |word: &str| -> String {
        word.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    };
    let words: Vec<String> =
        text.split_whitespace().map(word).filter(|word| !word.is_empty()).collect();
    (REPEATED_WORDS..=words.len() / 2)
        .any(|count| words.windows(2 * count).any(|part| part[..count] == part[count..]))
}

impl WhisperAsr {
    /// Builds the transcript of a clip with this many samples.
    pub(super) fn transcript(
        &self,
        samples: usize,
        heard: &WhisperTranscript,
        options: &TranscribeOptions,
    ) -> Result<Transcript> {
        let seconds = samples_to_seconds(samples);
        let mean_log_probability = mean_log_probability(heard);
        let tokens = heard.generated.without_end();
        let mut text = self.text(tokens)?;
        let is_word = |word: &&str| word.chars().any(char::is_alphanumeric);
        let words = text.split_whitespace().filter(is_word).count();
        let is_doubtful = heard.no_speech_prob > NO_SPEECH || words < 2;
        let silent = (heard.no_speech_prob > SURELY_NO_SPEECH && words <= FEW_WORDS)
            || (is_doubtful && mean_log_probability < MIN_LOG_PROBABILITY);
        let parts = if silent { Vec::new() } else { self.parts(tokens, seconds)? };
        if silent {
            text.clear();
        }
        Ok(Transcript {
            text,
            segments: parts.into_iter().map(|part| part.segment).collect(),
            words: Vec::new(),
            seconds,
            mean_log_probability,
            no_speech_probability: heard.no_speech_prob,
            decoded_again: false,
            truncated: self.is_truncated(samples, heard, options),
        })
    }

    /// Whether the decoding rules truncated the text.
    pub(super) fn is_truncated(
        &self,
        samples: usize,
        heard: &WhisperTranscript,
        options: &TranscribeOptions,
    ) -> bool {
        let tokens = heard.generated.without_end();
        !heard.generated.ended
            || has_repetition_loop(tokens)
            || tokens.len() >= self.max_tokens(samples, options)
    }

    fn text(&self, tokens: &[u32]) -> Result<String> {
        let first = self.tokens.first_timestamp();
        let words: Vec<u32> = tokens.iter().copied().filter(|token| *token < first).collect();
        Ok(self.tokeniser.decode(&words)?.trim().to_string())
    }

    /// The parts between timestamps. A part without an end lasts until the end of the clip.
    pub(super) fn parts(&self, tokens: &[u32], seconds: f64) -> Result<Vec<Part>> {
        let (mut parts, mut start, mut words) = (Vec::new(), None, Vec::new());
        let mut add = |start: f64, end: f64, words: &mut Vec<u32>| -> Result<()> {
            let (text, tokens) = (self.text(words)?, std::mem::take(words));
            // Text after the end of the clip is ignored.
            if !text.is_empty() && start < seconds {
                let segment = Segment { start, end: end.min(seconds), text };
                parts.push(Part { segment, tokens });
            }
            Ok(())
        };
        for token in tokens {
            match (self.tokens.seconds(*token), start) {
                (None, _) => words.push(*token),
                (Some(end), Some(from)) if !words.is_empty() => {
                    add(from, end, &mut words)?;
                    start = None;
                }
                (Some(from), _) => start = Some(from),
            }
        }
        if let Some(from) = start.filter(|_| !words.is_empty()) {
            add(from, seconds, &mut words)?;
        }
        Ok(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_said_twice_in_a_row_are_found_whatever_their_case() {
        for text in [
            "Hold on, hold fast. Hold on hold fast",
            "and so say I, SO say I.",
            "a b c d e f a b c a b c",
        ] {
            assert!(repeats_itself(text), "{text}");
        }
        for text in ["", "no, no, no", "a b a b", "a b c, a b d", "it is what it is, I say"] {
            assert!(!repeats_itself(text), "{text}");
        }
    }
}
