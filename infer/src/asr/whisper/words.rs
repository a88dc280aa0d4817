//! The words of Whisper's transcripts, with their times.
//!
//! Reference: `split_to_word_tokens` in `whisper/tokenizer.py` and `add_word_timestamps` in
//! `whisper/timing.py` of openai/whisper; faster-whisper does the same. A word starts with its
//! first token and ends where the token after its last token starts. Attention assigns a pause to
//! the word before or after the pause. So words that are much longer than the others are shortened
//! in three cases: after a sentence, after a pause, and outside of the segment's times.
//!
//! Departures:
//! - Text without spaces is one word (`well-known`, `3.5`). The reference makes two words.
//! - `;` ends a word like `,`.
//! - No word starts before the end of the previous word, and shortening never makes a word longer.
//! - Word times do not affect the next window.

use engram_data::speech::tokenizer::SpeechTokenizer;
use engram_models::speech::AudioStates;
use engram_models::speech::log_mel::{HOP, samples_to_seconds};
use engram_models::whisper::{Alignment, AlignmentText, Task};

use super::WhisperAsr;
use super::transcript::Part;
use crate::asr::{Segment, TranscribeOptions, Word};
use crate::error::Result;

/// The number of samples per encoder state.
const SAMPLES_PER_STATE: usize = 2 * HOP;
/// Punctuation that belongs to the next word.
const OPENING: &str = "\"'“¿([{-";
/// Punctuation that belongs to the previous word.
const CLOSING: &str = "\"'.。,，!！?？:：”)]}、;";
/// Punctuation that ends a sentence.
const SENTENCE_ENDS: &str = ".。!！?？";
/// Languages without spaces: each character is a word.
const LANGUAGES_WITHOUT_SPACES: [&str; 6] = ["zh", "ja", "th", "lo", "my", "yue"];
/// The maximum of the typical duration, in seconds.
const MAX_TYPICAL_DURATION: f64 = 0.7;
/// A word that exceeds its segment by more than this number of seconds is limited to the segment.
const MAX_EXCESS: f64 = 0.5;

/// Consecutive tokens with one start and end: a word, a part of a word, or punctuation.
#[derive(Debug, Clone, PartialEq)]
struct Piece {
    /// The text with its leading space.
    text: String,
    /// The start and the end, in seconds from the start of the clip.
    start: f64,
    end: f64,
    /// The sum of the probabilities of the tokens.
    probability: f32,
    /// The number of tokens.
    tokens: usize,
}

impl WhisperAsr {
    /// Returns the words of clips. `clips` holds the number of samples and the text parts of each
    /// clip. `previous_end` is the end of the previous speech, in seconds from the start of a clip;
    /// negative if it ended before the clip.
    pub(super) fn words(
        &self,
        audio: &AudioStates,
        clips: &[(usize, &[Part])],
        previous_end: f64,
        options: &TranscribeOptions,
    ) -> Result<Vec<Vec<Word>>> {
        let end = self.tokens.end;
        let is_word = |token: &u32| *token < end;
        let word_tokens =
            |part: &Part| part.tokens.iter().copied().filter(is_word).collect::<Vec<u32>>();
        let texts: Vec<Vec<Vec<u32>>> =
            clips.iter().map(|(_, parts)| parts.iter().map(word_tokens).collect()).collect();
        let concatenated: Vec<Vec<u32>> = texts.iter().map(|parts| parts.concat()).collect();
        let to_align: Vec<AlignmentText<'_>> = clips
            .iter()
            .zip(&concatenated)
            .map(|((samples, _), text)| AlignmentText {
                tokens: text,
                num_states: samples / SAMPLES_PER_STATE,
            })
            .collect();
        let prompt = self.tokens.prompt(self.language(options)?, false)?;
        let aligned =
            self.whisper.decoder.align(audio, &to_align, &prompt, end, &self.alignment_heads)?;
        let is_without_spaces =
            |language: &String| LANGUAGES_WITHOUT_SPACES.contains(&language.as_str());
        let by_character = options.task == Task::Transcribe
            && options.language.as_ref().is_some_and(is_without_spaces);
        let mut words = Vec::with_capacity(clips.len());
        for (((samples, parts), texts), alignment) in clips.iter().zip(&texts).zip(&aligned) {
            let mut pieces = Vec::with_capacity(texts.len());
            let mut first = 0;
            for text in texts {
                pieces.push(pieces_of(&self.tokenizer, text, (alignment, first), by_character)?);
                first += text.len();
            }
            let segments: Vec<&Segment> = parts.iter().map(|part| &part.segment).collect();
            let length = samples_to_seconds(*samples);
            words.push(words_of(&segments, pieces, (previous_end, length), by_character));
        }
        Ok(words)
    }
}

/// The pieces of a text part. The first token of the part has index `first` in the alignment. With
/// `by_character`, each character is a piece.
fn pieces_of(
    tokenizer: &SpeechTokenizer,
    tokens: &[u32],
    (alignment, first): (&Alignment, usize),
    by_character: bool,
) -> Result<Vec<Piece>> {
    let seconds = |token: usize| {
        let state = alignment.starts.get(first + token).copied().unwrap_or_default();
        samples_to_seconds(state * SAMPLES_PER_STATE)
    };
    let mut texts = tokenizer.pieces(tokens)?;
    // The last tokens may be an incomplete character, which `pieces` omits.
    let whole = tokenizer.decode(tokens)?;
    let omitted = whole.strip_prefix(&texts.concat()).unwrap_or_default();
    if let Some(last) = texts.last_mut() {
        *last += omitted;
    }
    let mut pieces: Vec<Piece> = Vec::new();
    // The index of the first of several tokens that form a character.
    let mut from = 0;
    for (i, text) in texts.into_iter().enumerate() {
        if text.is_empty() {
            continue;
        }
        let (start, end, tokens) = (seconds(from), seconds(i + 1), i + 1 - from);
        let probabilities = alignment.probabilities.iter().skip(first + from).take(tokens);
        let probability = probabilities.sum();
        from = i + 1;
        let begins = by_character || text.starts_with(char::is_whitespace) || is_mark(&text);
        match pieces.last_mut().filter(|_| !begins) {
            Some(piece) => {
                piece.text += &text;
                piece.end = end;
                piece.probability += probability;
                piece.tokens += tokens;
            }
            None => pieces.push(Piece { text, start, end, probability, tokens }),
        }
    }
    Ok(pieces)
}

/// The words of a clip's segments. `pieces` holds the pieces of each segment. `previous_end` is the
/// end of the previous speech, and `length` is the length of the clip, both in seconds from the
/// start of the clip.
fn words_of(
    segments: &[&Segment],
    mut pieces: Vec<Vec<Piece>>,
    (mut previous_end, length): (f64, f64),
    by_character: bool,
) -> Vec<Word> {
    let typical = typical_duration(&pieces);
    let mut earliest = previous_end.max(0.0);
    let mut is_first_of_sentence = false;
    for piece in pieces.iter_mut().flatten() {
        if is_first_of_sentence && typical > 0.0 {
            piece.start = piece.start.max(piece.end - 2.0 * typical);
        }
        is_first_of_sentence = is_one_of(&piece.text, SENTENCE_ENDS);
    }
    let mut words: Vec<Word> = Vec::new();
    for (segment, pieces) in segments.iter().zip(pieces) {
        let mut segment_words = join_pieces(pieces, by_character);
        shorten_after_pause(&mut segment_words, previous_end, typical);
        shorten_beyond_segment(&mut segment_words, segment, typical);
        previous_end = segment_words.last().map_or(previous_end, |word| word.end);
        words.extend(segment_words);
    }
    for word in &mut words {
        word.start = round_to_milliseconds(word.start).min(length).max(earliest);
        word.end = round_to_milliseconds(word.end).min(length).max(word.start);
        earliest = word.end;
    }
    words
}

/// The typical duration of a word in seconds: the median duration of the pieces with a positive
/// duration, at most [`MAX_TYPICAL_DURATION`]; 0 if there are none.
fn typical_duration(pieces: &[Vec<Piece>]) -> f64 {
    let durations = pieces.iter().flatten().map(|piece| piece.end - piece.start);
    let mut durations: Vec<f64> = durations.filter(|duration| *duration > 0.0).collect();
    durations.sort_unstable_by(f64::total_cmp);
    let duration = |i: usize| durations.get(i).copied().unwrap_or_default();
    let count = durations.len();
    let median = 0.5 * (duration(count.saturating_sub(1) / 2) + duration(count / 2));
    median.min(MAX_TYPICAL_DURATION)
}

/// Joins the pieces of a segment to words. Punctuation does not affect the times or the probability
/// of a word with letters.
fn join_pieces(pieces: Vec<Piece>, by_character: bool) -> Vec<Word> {
    let mut words: Vec<(Word, usize)> = Vec::new();
    // Whether the last word has only opening punctuation so far.
    let mut is_opening = false;
    for piece in pieces {
        let is_punctuation = is_one_of(&piece.text, OPENING) || is_one_of(&piece.text, CLOSING);
        let continues_word = if by_character {
            is_one_of(&piece.text, CLOSING)
        } else {
            !piece.text.starts_with(char::is_whitespace)
        };
        let Piece { text, start, end, probability, tokens } = piece;
        match words.last_mut().filter(|_| continues_word || is_opening) {
            Some((word, count)) => {
                let has_letters = word.text.contains(|c: char| !is_opening_mark(c));
                word.text += &text;
                if !is_punctuation && has_letters {
                    word.end = end;
                    word.probability += probability;
                    *count += tokens;
                } else if !is_punctuation {
                    (word.start, word.end, word.probability, *count) =
                        (start, end, probability, tokens);
                }
                is_opening = word.text.chars().all(is_opening_mark);
            }
            None => {
                is_opening = text.chars().all(is_opening_mark);
                words.push((Word { start, end, text, probability }, tokens));
            }
        }
    }
    let trimmed = |(word, count): (Word, usize)| Word {
        text: word.text.trim().to_string(),
        probability: word.probability / count.max(1) as f32,
        ..word
    };
    words.into_iter().map(trimmed).filter(|word| !word.text.is_empty()).collect()
}

/// Limits the first two words after a pause to twice the typical duration. `previous_end` is the
/// end of the previous speech, in seconds.
fn shorten_after_pause(words: &mut [Word], previous_end: f64, typical: f64) {
    let max_duration = 2.0 * typical;
    let (Some(first), second) = (words.first().cloned(), words.get(1).cloned()) else { return };
    let is_long = |word: &Word| word.end - word.start > max_duration;
    let are_long =
        second.as_ref().is_some_and(|second| second.end - first.start > 2.0 * max_duration);
    if first.end - previous_end <= 2.0 * max_duration || !(is_long(&first) || are_long) {
        return;
    }
    let mut end = first.end;
    if let Some(second) = second.filter(is_long) {
        end = (second.end / 2.0).max(second.end - max_duration);
        words[1].start = end;
    }
    words[0] = Word { start: first.start.max(end - max_duration), end, ..first };
}

/// Limits the first and the last word to the segment's times if they exceed the segment by more
/// than [`MAX_EXCESS`].
fn shorten_beyond_segment(words: &mut [Word], segment: &Segment, typical: f64) {
    if let Some(first) = words.first_mut()
        && segment.start < first.end
        && segment.start - MAX_EXCESS > first.start
    {
        first.start = first.start.max(segment.start.min(first.end - typical));
    }
    if let Some(last) = words.last_mut()
        && segment.end > last.start
        && segment.end + MAX_EXCESS < last.end
    {
        last.end = last.end.min(segment.end.max(last.start + typical));
    }
}

/// Whether a piece is exactly one of these punctuation marks.
fn is_one_of(piece: &str, marks: &str) -> bool {
    let mut characters = piece.trim().chars();
    characters.next().is_some_and(|mark| marks.contains(mark)) && characters.next().is_none()
}

/// Whether a piece is a single punctuation mark, or only spaces.
fn is_mark(piece: &str) -> bool {
    let mut characters = piece.trim().chars();
    let is_mark = |c: char| c.is_ascii_punctuation() || OPENING.contains(c) || CLOSING.contains(c);
    characters.next().is_none_or(is_mark) && characters.next().is_none()
}

fn is_opening_mark(c: char) -> bool {
    c.is_whitespace() || OPENING.contains(c)
}

fn round_to_milliseconds(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(list: &[(&str, f64, f64)]) -> Vec<Piece> {
        let piece = |(text, start, end): &(&str, f64, f64)| Piece {
            text: text.to_string(),
            start: *start,
            end: *end,
            probability: 0.5,
            tokens: 1,
        };
        list.iter().map(piece).collect()
    }

    fn segment(start: f64, end: f64) -> Segment {
        Segment { start, end, text: String::new() }
    }

    fn texts_and_times(words: &[Word]) -> Vec<(&str, f64, f64)> {
        words.iter().map(|word| (word.text.as_str(), word.start, word.end)).collect()
    }

    #[test]
    fn text_between_spaces_is_a_word_and_punctuation_does_not_change_its_times() {
        let list = [
            (" \"", 0.0, 0.1),
            (" Well", 0.1, 0.2),
            ("-", 0.2, 0.3),
            ("known", 0.3, 0.4),
            (",", 0.4, 0.8),
            ("\"", 0.8, 0.9),
            (" 50", 1.0, 1.1),
            ("%", 1.1, 1.2),
            (" -", 1.3, 1.4),
        ];
        let words = join_pieces(pieces(&list), false);
        let expected = [("\" Well-known,\"", 0.1, 0.4), ("50%", 1.0, 1.2), ("-", 1.3, 1.4)];
        assert_eq!(texts_and_times(&words), expected);
        assert!(words.iter().all(|word| word.probability == 0.5));
        let list = [("你", 0.0, 0.1), ("好", 0.1, 0.2), ("。", 0.2, 0.9), (" ", 0.9, 1.0)];
        assert_eq!(
            texts_and_times(&join_pieces(pieces(&list), true)),
            [("你", 0.0, 0.1), ("好。", 0.1, 0.2)]
        );
    }

    /// The median duration of the pieces is 0.25 s.
    #[test]
    fn the_first_word_of_a_sentence_is_shortened() {
        let list = [
            (" I", 0.0, 0.2),
            (" am", 0.2, 0.4),
            (".", 0.4, 0.4),
            (" You", 0.4, 2.0),
            (" are", 2.0, 2.3),
            (" it", 2.3, 2.6),
            (" too", 2.6, 2.8),
        ];
        assert!((typical_duration(&[pieces(&list)]) - 0.25).abs() < 0.06);
        let whole_clip = segment(0.0, 3.0);
        let words = words_of(&[&whole_clip], vec![pieces(&list)], (0.0, 3.0), false);
        let typical = typical_duration(&[pieces(&list)]);
        assert_eq!(words[2].text, "You");
        assert!((words[2].start - (2.0 - 2.0 * typical)).abs() < 1e-3, "{words:?}");
        assert_eq!((words[1].end, words[2].end, words[5].end), (0.4, 2.0, 2.8));
    }

    #[test]
    fn words_after_a_pause_and_beyond_their_segment_are_shortened() {
        let list = [(" So", 0.0, 2.0), (" it", 2.0, 2.2), (" is", 2.2, 2.4)];
        let whole = segment(0.0, 9.0);
        let words = words_of(&[&whole], vec![pieces(&list)], (0.0, 9.0), false);
        assert_eq!(texts_and_times(&words)[0], ("So", 1.6, 2.0));
        // Speech ended just before: there is no pause, and no word starts earlier.
        let words = words_of(&[&whole], vec![pieces(&list)], (1.3, 9.0), false);
        assert_eq!(texts_and_times(&words)[0], ("So", 1.3, 2.0));
        // The segment starts later than the word.
        let late_segment = segment(1.7, 2.4);
        let words = words_of(&[&late_segment], vec![pieces(&list)], (1.3, 9.0), false);
        assert_eq!(texts_and_times(&words)[0], ("So", 1.7, 2.0));
        let list = [(" it", 0.0, 0.2), (" is", 0.2, 0.4), (" so", 0.4, 3.0)];
        let words = words_of(&[&segment(0.0, 0.9)], vec![pieces(&list)], (0.0, 9.0), false);
        assert_eq!(texts_and_times(&words)[2], ("so", 0.4, 0.9));
        // Both long words get the maximum length. The typical duration is limited to 0.7 seconds.
        let list = [(" So", 0.0, 3.0), (" it", 3.0, 6.0), (" is", 6.0, 6.2), (" so", 6.2, 6.4)];
        let words = words_of(&[&whole], vec![pieces(&list)], (0.0, 9.0), false);
        assert_eq!(texts_and_times(&words)[..2], [("So", 3.2, 4.6), ("it", 4.6, 6.0)]);
    }

    #[test]
    fn times_stay_in_the_clip_and_in_order() {
        let list = [(" a", 0.0, 0.5), (" b", 0.4, 0.3), (" c", 0.6, 9.0)];
        let whole = segment(0.0, 1.0);
        let words = words_of(&[&whole], vec![pieces(&list)], (0.0, 1.0), false);
        assert!(words.iter().all(|word| word.start <= word.end && word.end <= 1.0), "{words:?}");
        assert!(words.windows(2).all(|pair| pair[0].end <= pair[1].start), "{words:?}");
        assert!(words_of(&[], Vec::new(), (0.0, 0.0), false).is_empty());
    }
}
