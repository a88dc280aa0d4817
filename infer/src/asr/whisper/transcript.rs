//! Whisper's tokens as transcripts.

use engram_models::speech::log_mel::samples_to_seconds;
use engram_models::whisper::{WhisperTranscript, has_repetition_loop};

use super::WhisperAsr;
use crate::asr::{Segment, TranscribeOptions, Transcript};
use crate::error::Result;

/// A text with a lower mean log-probability of its tokens is unlikely (`logprob_threshold` of
/// openai/whisper).
const MIN_LOG_PROBABILITY: f32 = -1.0;
/// Thresholds on the model's no-speech probability. A clip has no speech if the text is unlikely
/// and either the probability exceeds `NO_SPEECH` or the text has fewer than two words. It also has
/// no speech if the probability exceeds `SURELY_NO_SPEECH` and the text has at most `FEW_WORDS`
/// words. openai/whisper has a single threshold of 0.6, with which it transcribes silence as "you".
const NO_SPEECH: f32 = 0.3;
const SURELY_NO_SPEECH: f32 = 0.85;
const FEW_WORDS: usize = 2;
/// The minimum number of words in a repeated sequence that counts as an error.
const REPEATED_WORDS: usize = 3;

/// A segment with its tokens.
pub(super) struct Part {
    pub segment: Segment,
    pub tokens: Vec<u32>,
}

/// The mean log-probability over the tokens and the end token.
pub(super) fn mean_log_probability(decoded: &WhisperTranscript) -> f32 {
    decoded.generated.log_probability / decoded.generated.tokens.len().max(1) as f32
}

impl Transcript {
    /// Returns the text as one part that spans the clip, because it was decoded without timestamps.
    /// Returns no part for an empty text.
    pub(super) fn as_parts(&self, decoded: &WhisperTranscript) -> Vec<Part> {
        if self.text.is_empty() {
            return Vec::new();
        }
        let segment = Segment { start: 0.0, end: self.seconds, text: self.text.clone() };
        vec![Part { segment, tokens: decoded.generated.without_end().to_vec() }]
    }

    /// Whether the text has a low probability or repeats itself. Such a clip is decoded again.
    pub(super) fn is_doubtful(&self) -> bool {
        self.mean_log_probability < MIN_LOG_PROBABILITY || repeats_itself(&self.text)
    }
}

/// Whether a sequence of at least [`REPEATED_WORDS`] words occurs twice in a row, ignoring case and
/// punctuation.
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
    /// Builds the transcript of a clip with this many samples. The text is empty if the clip
    /// probably has no speech.
    pub(super) fn transcript(
        &self,
        samples: usize,
        decoded: &WhisperTranscript,
        options: &TranscribeOptions,
    ) -> Result<Transcript> {
        let seconds = samples_to_seconds(samples);
        let mean_log_probability = mean_log_probability(decoded);
        let tokens = decoded.generated.without_end();
        let mut text = self.text(tokens)?;
        let is_word = |word: &&str| word.chars().any(char::is_alphanumeric);
        let words = text.split_whitespace().filter(is_word).count();
        let may_be_silent = decoded.no_speech_prob > NO_SPEECH || words < 2;
        let is_silent = (decoded.no_speech_prob > SURELY_NO_SPEECH && words <= FEW_WORDS)
            || (may_be_silent && mean_log_probability < MIN_LOG_PROBABILITY);
        let parts = if is_silent { Vec::new() } else { self.parts(tokens, seconds)? };
        if is_silent {
            text.clear();
        }
        Ok(Transcript {
            text,
            segments: parts.into_iter().map(|part| part.segment).collect(),
            mean_log_probability,
            no_speech_probability: decoded.no_speech_prob,
            truncated: self.is_truncated(samples, decoded, options),
            ..Transcript::empty(samples)
        })
    }

    /// Whether the decoding rules truncated the text.
    pub(super) fn is_truncated(
        &self,
        samples: usize,
        decoded: &WhisperTranscript,
        options: &TranscribeOptions,
    ) -> bool {
        let tokens = decoded.generated.without_end();
        !decoded.generated.ended
            || has_repetition_loop(tokens)
            || tokens.len() >= self.max_tokens(samples, options)
    }

    /// The text of tokens, without timestamps.
    fn text(&self, tokens: &[u32]) -> Result<String> {
        let first_timestamp = self.tokens.first_timestamp();
        let is_text = |token: &u32| *token < first_timestamp;
        let text_tokens: Vec<u32> = tokens.iter().copied().filter(is_text).collect();
        Ok(self.tokenizer.decode(&text_tokens)?.trim().to_string())
    }

    /// Returns the text parts between timestamps. A part without an end lasts until the end of the
    /// clip.
    pub(super) fn parts(&self, tokens: &[u32], seconds: f64) -> Result<Vec<Part>> {
        let (mut parts, mut start, mut part_tokens) = (Vec::new(), None, Vec::new());
        let mut add = |start: f64, end: f64, tokens: &mut Vec<u32>| -> Result<()> {
            let (text, tokens) = (self.text(tokens)?, std::mem::take(tokens));
            // Text after the end of the clip is ignored.
            if !text.is_empty() && start < seconds {
                let segment = Segment { start, end: end.min(seconds), text };
                parts.push(Part { segment, tokens });
            }
            Ok(())
        };
        for token in tokens {
            match (self.tokens.seconds(*token), start) {
                (None, _) => part_tokens.push(*token),
                (Some(end), Some(from)) if !part_tokens.is_empty() => {
                    add(from, end, &mut part_tokens)?;
                    start = None;
                }
                (Some(from), _) => start = Some(from),
            }
        }
        if let Some(from) = start.filter(|_| !part_tokens.is_empty()) {
            add(from, seconds, &mut part_tokens)?;
        }
        Ok(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_word_sequences_are_detected_in_any_case() {
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
