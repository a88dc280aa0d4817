//! Rules for the next token of a text.
//!
//! Reference: the logit filters of openai/whisper, `whisper/decoding.py` (`SuppressBlank`,
//! `SuppressTokens`, `ApplyTimestampRules`).

use std::sync::Arc;

use super::tokens::{TIMESTAMP_STEP, WhisperTokens};
use crate::generation::boosting::BoostTree;
use crate::kernels::log_sum_exp;

/// The first timestamp of a clip is at most this many seconds.
const MAX_FIRST_TIMESTAMP: f64 = 1.0;

/// The number of repetitions that counts as a loop; twice as many for a part of one or two tokens.
const MIN_REPEATS: usize = 5;

/// The maximum length of a repeated part, in tokens.
const MAX_REPEATED_TOKENS: usize = 12;

/// The decoding rules of a batch.
#[derive(Debug, Clone)]
pub struct DecodingRules {
    /// The special tokens.
    pub tokens: WhisperTokens,
    /// Tokens that are never generated, such as brackets and music symbols (`suppress_tokens`).
    pub suppress_tokens: Vec<u32>,
    /// Tokens that are never generated first: a blank and the end token (`begin_suppress_tokens`).
    pub begin_suppress_tokens: Vec<u32>,
    /// Whether to generate timestamps around each segment of speech.
    pub timestamps: bool,
    /// The maximum number of tokens of each clip's text, before the end token. Clips beyond the end
    /// of the list have no limit.
    pub max_tokens: Vec<usize>,
    /// The boosted words of each clip. Clips beyond the end of the list have none.
    pub boosts: Vec<Option<Arc<BoostTree>>>,
}

/// The rules of a search for the next token.
pub(super) struct TokenRules<'a> {
    /// The end token.
    pub end: u32,
    /// The maximum number of tokens of each clip's text. Clips beyond the end of the list have no
    /// limit.
    pub max_tokens: &'a [usize],
    /// The rules of Whisper's special tokens; `None` only ends texts that are too long or repeat
    /// themselves.
    pub special: Option<&'a DecodingRules>,
}

impl<'a> TokenRules<'a> {
    /// Masks the tokens that must not follow `tokens` in the text of a clip.
    pub fn apply(&self, clip: usize, tokens: &[u32], logits: &mut [f32]) {
        let too_long = self.max_tokens.get(clip).is_some_and(|limit| tokens.len() >= *limit);
        if too_long || has_repetition_loop(tokens) {
            mask_all_but(self.end, logits);
        } else if let Some(rules) = self.special {
            rules.apply(tokens, logits);
        }
    }

    /// The boosted words of a clip; `None` boosts none.
    pub fn boost(&self, clip: usize) -> Option<&'a BoostTree> {
        self.special?.boosts.get(clip)?.as_deref()
    }
}

impl DecodingRules {
    /// All rules of a search.
    pub(super) fn all(&self) -> TokenRules<'_> {
        let (end, max_tokens) = (self.tokens.end, self.max_tokens.as_slice());
        TokenRules { end, max_tokens, special: Some(self) }
    }

    /// Masks special tokens, suppressed tokens and, with timestamps, tokens out of order.
    fn apply(&self, tokens: &[u32], logits: &mut [f32]) {
        for token in self.suppress_tokens.iter().copied().chain(self.tokens.never_text()) {
            mask(logits.get_mut(token as usize));
        }
        if tokens.is_empty() {
            for token in &self.begin_suppress_tokens {
                mask(logits.get_mut(*token as usize));
            }
        }
        if self.timestamps {
            self.apply_to_timestamps(tokens, logits);
        }
    }

    /// Masks tokens so that a text starts with a timestamp, segments are separated by a pair of
    /// timestamps, and timestamps never decrease. If all timestamps together are likelier than any
    /// other token, the next token is a timestamp.
    fn apply_to_timestamps(&self, tokens: &[u32], logits: &mut [f32]) {
        let first = (self.tokens.first_timestamp() as usize).min(logits.len());
        let end = (self.tokens.end as usize).min(first);
        let is_timestamp = |token: &u32| *token as usize >= first;
        let last_is_timestamp = tokens.last().is_some_and(is_timestamp);
        let second_last_is_timestamp = tokens.len() < 2 || is_timestamp(&tokens[tokens.len() - 2]);
        if last_is_timestamp && second_last_is_timestamp {
            mask(&mut logits[first..]);
        } else if last_is_timestamp {
            mask(&mut logits[..end]);
        }
        if let Some(latest) = tokens.iter().rfind(|token| is_timestamp(token)) {
            // Only the second timestamp of a pair may equal the first.
            let next =
                *latest as usize + usize::from(!last_is_timestamp || second_last_is_timestamp);
            let next = next.min(logits.len());
            mask(&mut logits[first..next]);
        }
        if tokens.is_empty() {
            mask(&mut logits[..first]);
            let last_allowed = first + (MAX_FIRST_TIMESTAMP / TIMESTAMP_STEP) as usize + 1;
            mask(logits.iter_mut().skip(last_allowed));
        }
        let (texts, timestamps) = logits.split_at(first);
        let max_text_logit = texts.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if log_sum_exp(timestamps) > max_text_logit {
            mask(&mut logits[..first]);
        }
    }
}

/// Sets logits to minus infinity.
fn mask<'a>(logits: impl IntoIterator<Item = &'a mut f32>) {
    logits.into_iter().for_each(|logit| *logit = f32::NEG_INFINITY);
}

/// Masks all tokens but one.
fn mask_all_but(token: u32, logits: &mut [f32]) {
    let others = logits.iter_mut().enumerate().filter(|(i, _)| *i != token as usize);
    mask(others.map(|(_, logit)| logit));
}

/// Whether a text ends with 10 repetitions of the same one or two tokens, or with 5 repetitions of
/// the same 3 to 12 tokens.
pub fn has_repetition_loop(tokens: &[u32]) -> bool {
    (1..=MAX_REPEATED_TOKENS).any(|part| {
        // One or two tokens may repeat several times, as in "no, no, no" or a long number.
        let count = part * if part < 3 { 2 * MIN_REPEATS } else { MIN_REPEATS };
        tokens.len() >= count && {
            let end = &tokens[tokens.len() - count..];
            end[part..].iter().zip(end).all(|(later, earlier)| later == earlier)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A vocabulary of 4 words, the special tokens from 4 on, and 60 timestamps from 13 on.
    fn rules(timestamps: bool) -> DecodingRules {
        let tokens = WhisperTokens {
            end: 4,
            start: 5,
            no_speech: Some(6),
            previous: Some(7),
            transcribe: Some(8),
            translate: Some(9),
            language_model: Some(10),
            no_timestamps: 12,
        };
        let (suppress_tokens, begin_suppress_tokens) = (vec![3], vec![0, 4]);
        let (max_tokens, boosts) = (vec![30], Vec::new());
        DecodingRules {
            tokens,
            suppress_tokens,
            begin_suppress_tokens,
            timestamps,
            max_tokens,
            boosts,
        }
    }

    /// Returns the tokens that the rules allow after `tokens`. Logits are 0, except for `changed`.
    fn allowed_tokens(
        rules: &DecodingRules,
        tokens: &[u32],
        changed: &[(usize, f32)],
    ) -> Vec<usize> {
        let mut logits = vec![0.0; 73];
        changed.iter().for_each(|(token, logit)| logits[*token] = *logit);
        rules.all().apply(0, tokens, &mut logits);
        (0..73).filter(|token| logits[*token].is_finite()).collect()
    }

    #[test]
    fn texts_contain_only_words_and_the_end_token() {
        let rules = rules(false);
        assert_eq!(allowed_tokens(&rules, &[], &[])[..3], [1, 2, 11]);
        assert_eq!(allowed_tokens(&rules, &[1], &[])[..5], [0, 1, 2, 4, 11]);
    }

    #[test]
    fn timestamps_come_in_pairs_and_never_decrease() {
        let rules = rules(true);
        // A text begins with a timestamp of at most one second.
        assert_eq!(allowed_tokens(&rules, &[], &[]), (13..=63).collect::<Vec<_>>());
        // A word follows the first timestamp. Here the word is likelier than all timestamps
        // together.
        assert_eq!(allowed_tokens(&rules, &[20], &[(1, 9.0)]), [0, 1, 2, 4, 11]);
        // A later timestamp follows words.
        assert_eq!(allowed_tokens(&rules, &[20, 1], &[]), (21..73).collect::<Vec<_>>());
        // The next token is the same timestamp, a later one, or the end.
        let after_two_timestamps = allowed_tokens(&rules, &[20, 1, 30], &[(4, 9.0)]);
        assert_eq!(after_two_timestamps, [&[4, 11][..], &(30..73).collect::<Vec<_>>()].concat());
        // A word follows a pair.
        assert_eq!(allowed_tokens(&rules, &[20, 1, 30, 30], &[])[..5], [0, 1, 2, 4, 11]);
        // Timestamps that are together likelier than any word mask all words.
        let below_timestamps = [(1, 3.9), (0, -9.0), (2, -9.0), (4, -9.0), (11, -9.0)];
        assert_eq!(
            allowed_tokens(&rules, &[20, 1], &below_timestamps),
            (21..73).collect::<Vec<_>>()
        );
        let above_timestamps = [(1, 4.1), (0, -9.0), (2, -9.0), (4, -9.0), (11, -9.0)];
        assert!(allowed_tokens(&rules, &[20, 1], &above_timestamps).contains(&1));
    }

    #[test]
    fn a_text_ends_if_it_is_too_long_or_loops() {
        let rules = rules(false);
        let long_text: Vec<u32> = (0..30).map(|i| i % 13 % 3).collect();
        assert_eq!(allowed_tokens(&rules, &long_text, &[]), [4]);
        let looping_text = [1, 2, 0].repeat(5);
        assert_eq!(allowed_tokens(&rules, &looping_text, &[]), [4]);
        assert!(
            !has_repetition_loop(&looping_text[1..])
                && !has_repetition_loop(&[1, 1, 1, 1, 1])
                && has_repetition_loop(&[1; 10])
        );
    }
}
