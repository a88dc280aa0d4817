//! Transcribes recordings of any length, window by window.
//!
//! Reference: `transcribe` of openai/whisper, `whisper/transcribe.py`, at temperature 0 and without
//! the previous text as a prompt. Each window of 30 seconds starts at the end of the last complete
//! segment before it.
//!
//! Departures: log-mel values are clamped relative to the maximum of the window, not of the
//! recording. The end of a window is padded like the end of a clip, not by reflection.

use engram_models::speech::log_mel::{SAMPLE_RATE, samples_to_seconds, seconds_to_samples};
use engram_models::whisper::WhisperTranscript;

use super::transcript::{Part, mean_log_probability};
use super::{Clip, WhisperAsr};
use crate::asr::speech_detection::is_without_speech;
use crate::asr::transcript::MeanProbabilities;
use crate::asr::{Padding, Segment, TranscribeOptions, Transcript, Word};
use crate::error::{InferError, Result};

/// The minimum length of the last window, in samples: 100 ms. A shorter remainder of the recording
/// is skipped.
const MIN_SAMPLES: usize = SAMPLE_RATE as usize / 10;
/// The minimum step between windows in samples, so that transcription always moves on: 1 s.
const MIN_STEP: usize = SAMPLE_RATE as usize;

impl WhisperAsr {
    /// Transcribes a recording. `read` appends samples at 16 kHz and returns `false` at the end.
    /// After each window, `on_window` gets its segments and the number of seconds transcribed so
    /// far. The result has segments even if the options have no timestamps.
    pub(crate) fn transcribe_long<E: From<InferError>>(
        &self,
        options: &TranscribeOptions,
        mut read: impl FnMut(&mut Vec<f32>) -> Result<bool, E>,
        mut on_window: impl FnMut(&[Segment], f64),
    ) -> Result<Transcript, E> {
        let padding = match options.padding {
            Padding::Zeros => Padding::Zeros,
            Padding::Silence | Padding::Short => Padding::Silence,
        };
        let options = TranscribeOptions { timestamps: true, padding, ..options.clone() };
        let max_samples = self.whisper.config.max_samples();
        // `samples` starts at sample `start` of the recording.
        let (mut samples, mut start, mut has_more) = (Vec::new(), 0usize, true);
        let mut truncated = false;
        let (mut segments, mut words) = (Vec::new(), Vec::new());
        let mut means = MeanProbabilities::default();
        loop {
            while has_more && samples.len() < max_samples {
                has_more = read(&mut samples)?;
            }
            if samples.is_empty() {
                break;
            }
            let window = &samples[..samples.len().min(max_samples)];
            let is_remainder = start > 0 && window.len() < MIN_SAMPLES;
            if is_remainder || is_without_speech(window) {
                start += window.len();
                on_window(&[], samples_to_seconds(start));
                samples.drain(..samples.len().min(max_samples));
                continue;
            }
            let clip = Clip { samples: window, boost: options.boost.as_ref() };
            let (decoded, audio) =
                self.decode(&[clip], options.padding, &options).map_err(E::from)?;
            let (complete, parts) =
                self.complete_parts(window.len(), &decoded[0], &options).map_err(E::from)?;
            if options.word_times {
                let previous_end =
                    words.last().map_or(0.0, |word: &Word| word.end) - samples_to_seconds(start);
                let clips = [(window.len(), parts.as_slice())];
                let window_words =
                    self.words(&audio, &clips, previous_end, &options).map_err(E::from)?;
                words.extend(
                    window_words
                        .into_iter()
                        .flatten()
                        .map(|word| word.shifted_by(samples_to_seconds(start))),
                );
            }
            let window_segments: Vec<Segment> = parts
                .into_iter()
                .map(|part| part.segment.shifted_by(samples_to_seconds(start)))
                .collect();
            means.add(mean_log_probability(&decoded[0]), decoded[0].no_speech_prob);
            truncated |= self.is_truncated(window.len(), &decoded[0], &options);
            samples.drain(..complete);
            start += complete;
            on_window(&window_segments, samples_to_seconds(start));
            segments.extend(window_segments);
        }
        let texts: Vec<&str> =
            segments.iter().map(|segment: &Segment| segment.text.as_str()).collect();
        Ok(Transcript {
            text: texts.join(" "),
            words,
            truncated,
            segments,
            ..means.transcript(start)
        })
    }

    /// Transcribes a whole clip with timestamps.
    pub(super) fn transcribe_whole(
        &self,
        clip: &[f32],
        options: &TranscribeOptions,
    ) -> Result<Transcript> {
        let mut unread = Some(clip);
        let read = |samples: &mut Vec<f32>| -> Result<bool> {
            samples.extend_from_slice(unread.take().unwrap_or_default());
            Ok(false)
        };
        self.transcribe_long(options, read, |_, _| {})
    }

    /// Returns the number of samples whose transcript is complete in a window of `length` samples,
    /// and their text parts. The next window starts after these samples.
    fn complete_parts(
        &self,
        length: usize,
        decoded: &WhisperTranscript,
        options: &TranscribeOptions,
    ) -> Result<(usize, Vec<Part>)> {
        if self.transcript(length, decoded, options)?.segments.is_empty() {
            return Ok((length, Vec::new()));
        }
        let tokens = decoded.generated.without_end();
        let mut parts = self.parts(tokens, samples_to_seconds(length))?;
        let time = |token: Option<&u32>| token.and_then(|token| self.tokens.seconds(*token));
        let mut from_end = tokens.iter().rev();
        // Two timestamps at the end are the end of a segment and the start of the next one, which
        // the window does not contain. After a single timestamp at the end, there is no further
        // speech.
        let end = match (time(from_end.next()), time(from_end.next())) {
            (Some(_), Some(end)) => Some(end),
            _ => self.end_of_last_followed_segment(tokens),
        };
        let complete = end.map_or(length, |end| seconds_to_samples(end).max(MIN_STEP).min(length));
        let is_whole = complete == length;
        parts.retain(|part| is_whole || seconds_to_samples(part.segment.start) < complete);
        Ok((complete, parts))
    }

    /// The end in seconds of the last segment that another segment follows. `None` if there is no
    /// such segment, or if the last token is a timestamp.
    fn end_of_last_followed_segment(&self, tokens: &[u32]) -> Option<f64> {
        let time = |token: &u32| self.tokens.seconds(*token);
        if tokens.last().is_some_and(|token| time(token).is_some()) {
            return None;
        }
        // Two adjacent timestamps are the end of a segment and the start of the next.
        let pairs = tokens.windows(2).rev();
        pairs.filter(|pair| time(&pair[1]).is_some()).find_map(|pair| time(&pair[0]))
    }
}
