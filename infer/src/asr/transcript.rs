//! Transcripts of clips.

use engram_models::speech::log_mel::samples_to_seconds;
use serde::{Serialize, Serializer};

/// The transcript of a clip.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Transcript {
    /// The text; empty without speech.
    pub text: String,
    /// The segments with times; may be empty without
    /// [`TranscribeOptions::timestamps`](super::TranscribeOptions::timestamps).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<Segment>,
    /// The words with times; empty unless requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<Word>,
    /// The length of the clip, in seconds.
    pub seconds: f64,
    /// The mean log-probability of the tokens, in nats. For several windows or passes, the mean of
    /// their means.
    pub mean_log_probability: f32,
    /// The probability that the clip has no speech, 0 to 1. For a Conformer, the lowest probability
    /// of the blank token over all encoder states.
    pub no_speech_probability: f32,
    /// Whether decoding stopped early because the text repeated itself or was too long for the
    /// clip. The text of later speech is missing then.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// Whether the clip was decoded a second time, padded with silence to 30 seconds
    /// ([`Padding::Short`](super::Padding::Short)).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub decoded_again: bool,
}

/// A segment of a transcript.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Segment {
    /// The start, in seconds from the start of the clip.
    #[serde(serialize_with = "to_milliseconds")]
    pub start: f64,
    /// The end, in seconds from the start of the clip.
    #[serde(serialize_with = "to_milliseconds")]
    pub end: f64,
    /// The text of the segment.
    pub text: String,
}

/// A word of a transcript.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Word {
    /// The start, in seconds from the start of the clip.
    #[serde(serialize_with = "to_milliseconds")]
    pub start: f64,
    /// The end, in seconds from the start of the clip.
    #[serde(serialize_with = "to_milliseconds")]
    pub end: f64,
    /// The word with its punctuation.
    pub text: String,
    /// The mean probability of the tokens of the word.
    pub probability: f32,
}

impl Segment {
    /// Shifts the times by `seconds`.
    pub(super) fn shifted_by(self, seconds: f64) -> Self {
        Self { start: self.start + seconds, end: self.end + seconds, ..self }
    }
}

impl Word {
    /// Shifts the times by `seconds`.
    pub(super) fn shifted_by(self, seconds: f64) -> Self {
        Self { start: self.start + seconds, end: self.end + seconds, ..self }
    }
}

/// Divides the words of a transcript into the words of each segment, by the letters of their texts.
pub fn words_of_segments<'w>(segments: &[Segment], mut words: &'w [Word]) -> Vec<&'w [Word]> {
    let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).count();
    let words_of = |segment: &Segment| {
        let (mut missing, mut count) = (letters(&segment.text), 0);
        while let Some(word) = words.get(count).filter(|_| missing > 0) {
            missing = missing.saturating_sub(letters(&word.text));
            count += 1;
        }
        words.split_off(..count).unwrap_or_default()
    };
    segments.iter().map(words_of).collect()
}

impl Transcript {
    /// Gives each segment the start of its first word and the end of its last word, if there are
    /// words. No segment starts before the end of the previous segment.
    pub(super) fn align_segments(&mut self) {
        let (words, mut previous_end) = (words_of_segments(&self.segments, &self.words), 0.0);
        for (segment, words) in self.segments.iter_mut().zip(words) {
            if let (Some(first), Some(last)) = (words.first(), words.last()) {
                (segment.start, segment.end) = (first.start, last.end);
            }
            segment.start = segment.start.max(previous_end);
            segment.end = segment.end.max(segment.start);
            previous_end = segment.end;
        }
    }

    /// The empty transcript of a clip without speech, with this many samples.
    pub(super) fn empty(samples: usize) -> Self {
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
}

/// The mean probabilities of the parts of a recording that were decoded. A silent part is not
/// decoded, so it says nothing about the text.
#[derive(Debug, Default)]
pub(super) struct MeanProbabilities {
    log_probability_sum: f64,
    no_speech_sum: f64,
    count: usize,
}

impl MeanProbabilities {
    /// Adds a part. A no-speech probability of 1 marks a part that was not decoded.
    pub(super) fn add(&mut self, mean_log_probability: f32, no_speech_probability: f32) {
        if no_speech_probability < 1.0 {
            self.log_probability_sum += f64::from(mean_log_probability);
            self.no_speech_sum += f64::from(no_speech_probability);
            self.count += 1;
        }
    }

    /// The empty transcript with these means. If no part was decoded, it surely has no speech.
    pub(super) fn transcript(&self, samples: usize) -> Transcript {
        let mean = |sum: f64| (sum / self.count as f64) as f32;
        match self.count {
            0 => Transcript::empty(samples),
            _ => Transcript {
                mean_log_probability: mean(self.log_probability_sum),
                no_speech_probability: mean(self.no_speech_sum),
                ..Transcript::empty(samples)
            },
        }
    }
}

/// Rounds to milliseconds, because further digits are rounding errors.
pub(super) fn to_milliseconds<S: Serializer>(
    seconds: &f64,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((seconds * 1e3).round() / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_have_the_times_of_their_words() {
        let word =
            |start, end, text: &str| Word { start, end, text: text.into(), probability: 1.0 };
        let segment = |start, end, text: &str| Segment { start, end, text: text.into() };
        let words = vec![word(0.2, 0.5, "a,"), word(0.5, 1.4, "well-known"), word(1.4, 1.6, "c")];
        for (words, expected) in
            [(words, [(0.2, 1.4), (1.4, 1.6)]), (Vec::new(), [(0.0, 2.0), (2.0, 3.0)])]
        {
            let segments = vec![segment(0.0, 2.0, "a, well-known"), segment(1.0, 3.0, "c")];
            let mut transcript = Transcript { words, segments, ..Transcript::empty(48_000) };
            transcript.align_segments();
            let times = transcript.segments.iter().map(|segment| (segment.start, segment.end));
            assert_eq!(times.collect::<Vec<_>>(), expected);
        }
    }
}
