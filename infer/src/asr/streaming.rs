//! Streaming: transcribes a recording in chunks as it arrives. Words become final before the
//! recording ends.
//!
//! The ASR models transcribe whole clips. So each pass transcribes a chunk together with the audio
//! before it, up to a window length. The text of a pass, its hypothesis, may change words of the
//! previous hypothesis. The LocalAgreement-2 policy decides which words are final (Macháček, Dabre
//! and Bojar 2023, "Turning Whisper into Real-Time Transcription System", arXiv 2307.14743). A word
//! is final if two consecutive hypotheses agree on the text up to this word. For this policy, an
//! ASR model only has to return words with their times.
//!
//! Departures from the paper's implementation:
//! - The final words are found in the next hypothesis by alignment, not by equality (see
//!   `agreement`).
//! - The previous text is not used as a prompt.
//! - A hypothesis that was truncated, because it repeats itself or is too long, makes no words
//!   final.
//! - Audio is dropped in pauses or at a final word, not only at the end of a sentence. A Conformer
//!   does not write punctuation.
//!
//! The final words depend only on the audio, the chunk length and the window length, not on
//! computing time (see `latency`).

mod agreement;
mod latency;

#[cfg(test)]
mod tests;

use std::time::Instant;

use engram_models::speech::log_mel::{samples_to_seconds, seconds_to_samples};
use serde::Serialize;

use super::transcript::{MeanProbabilities, Segment, Transcript, Word, to_milliseconds};
use super::{AsrModel, TranscribeOptions};
use crate::error::{InferError, Result};
use agreement::{count_agreed, count_known};
use latency::Clock;
pub use latency::Distribution;

/// The minimum chunk length, in seconds. Shorter chunks rarely contain the end of a word.
const MIN_CHUNK_SECONDS: f64 = 0.1;
/// The minimum fraction of the window to keep when audio is dropped, as context for words.
const KEPT_FRACTION: f64 = 1.0 / 3.0;
/// The minimum gap between two words that counts as a pause for dropping audio, in seconds.
const DROP_PAUSE: f64 = 0.3;
/// The length of the seam in seconds: the start of the audio that remains after dropping. Words in
/// the seam may be truncated or transcribed again, so the alignment assigns a low cost to
/// differences there.
const SEAM: f64 = 0.5;
/// At the end of a recording, audio without words is transcribed once more if it has at least this
/// length, in seconds. The pass starts at the last final word.
const MIN_UNTRANSCRIBED_SECONDS: f64 = 1.0;
/// A segment ends at the end of a sentence, at a gap of `SEGMENT_PAUSE` seconds between two words,
/// or before it reaches `SEGMENT_SECONDS`.
const SEGMENT_PAUSE: f64 = 0.6;
const SEGMENT_SECONDS: f64 = 6.0;

/// Chunk and window length of streaming.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StreamOptions {
    /// The chunk length in seconds: the audio to wait for before each pass.
    pub chunk_seconds: f64,
    /// The maximum length of the audio that each pass transcribes, in seconds. While no words
    /// become final, the audio may grow to the ASR model's maximum.
    pub window_seconds: f64,
}

impl StreamOptions {
    /// Checks the lengths for an ASR model with a maximum length of `max_seconds`.
    ///
    /// # Errors
    /// [`InferError::Refused`] for chunks of less than 0.1 s or more than half of the maximum
    /// length, for a window shorter than a chunk, and if chunk and window together exceed the
    /// maximum length.
    pub fn check(&self, max_seconds: f64) -> Result<()> {
        let Self { chunk_seconds: chunk, window_seconds: window } = *self;
        let refuse = |reason: String| Err(InferError::Refused(reason));
        if !(MIN_CHUNK_SECONDS..=max_seconds / 2.0).contains(&chunk) {
            let max_chunk = max_seconds / 2.0;
            return refuse(format!(
                "chunks of {chunk} s are not supported; use {MIN_CHUNK_SECONDS} to \
                 {max_chunk:.0} s with this model"
            ));
        }
        if !(chunk..=max_seconds - chunk).contains(&window) {
            let max_window = max_seconds - chunk;
            return refuse(format!(
                "a window of {window} s is not supported; use {chunk} to \
                 {max_window} s with chunks of {chunk} s and this model"
            ));
        }
        Ok(())
    }
}

/// A word that no longer changes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FinalWord {
    /// The word with its times in the recording.
    #[serde(flatten)]
    pub word: Word,
    /// The seconds of the recording that had arrived when the word became final.
    #[serde(serialize_with = "to_milliseconds")]
    pub final_at: f64,
    /// The seconds from the end of the word until it became final, if the audio arrives in real
    /// time. They include waiting for audio and computing.
    #[serde(serialize_with = "to_milliseconds")]
    pub latency: f64,
}

/// The result of streaming a recording.
#[derive(Debug, Clone)]
pub struct StreamResult {
    /// The transcript with its segments. Its `words` are empty. Its probabilities are means over
    /// the passes with speech.
    pub transcript: Transcript,
    /// The final words with their latencies.
    pub words: Vec<FinalWord>,
    /// The number of passes of the ASR model.
    pub passes: usize,
    /// The number of passes that started late, because the previous pass was still running.
    pub late_passes: usize,
    /// The computing time of all passes in seconds.
    pub compute_seconds: f64,
    /// How often a hypothesis changed or removed a word of the previous hypothesis that was not
    /// final.
    pub revised_words: usize,
}

/// The state after a pass.
pub struct StreamUpdate<'a> {
    /// The seconds of the recording that have arrived.
    pub received_seconds: f64,
    /// The words that became final in this pass.
    pub new: &'a [FinalWord],
    /// The words after the final words, which may still change.
    pub rest: &'a [Word],
}

/// The state of a streamed recording.
struct Stream {
    options: StreamOptions,
    /// The maximum length of the ASR model's input.
    max_seconds: f64,
    /// The audio of the next pass. It starts at sample `first_sample` of the recording.
    samples: Vec<f32>,
    first_sample: usize,
    words: Vec<FinalWord>,
    /// The index in `words` of the first final word whose audio is still in `samples`. The final
    /// words from this index on are the known words.
    known_from: usize,
    /// The words of the last hypothesis after the final words, which may still change.
    provisional: Vec<Word>,
    /// Whether the last hypothesis was truncated.
    provisional_is_truncated: bool,
    /// Whether neither of the last two hypotheses had words after the final words.
    is_quiet: bool,
    clock: Clock,
    revised_words: usize,
    /// Whether a truncated hypothesis gave final words.
    truncated: bool,
    decoded_again: bool,
    means: MeanProbabilities,
}

impl Stream {
    fn new(options: StreamOptions, max_seconds: f64) -> Self {
        Self {
            options,
            max_seconds,
            samples: Vec::new(),
            first_sample: 0,
            words: Vec::new(),
            known_from: 0,
            provisional: Vec::new(),
            provisional_is_truncated: false,
            is_quiet: false,
            clock: Clock::default(),
            revised_words: 0,
            truncated: false,
            decoded_again: false,
            means: MeanProbabilities::default(),
        }
    }

    /// The seconds of the recording that have arrived.
    fn received_seconds(&self) -> f64 {
        samples_to_seconds(self.first_sample + self.samples.len())
    }

    /// Appends a chunk.
    fn add(&mut self, chunk: &[f32]) {
        self.samples.extend_from_slice(chunk);
    }

    /// Processes the transcript of the samples and its computing time.
    fn update(&mut self, transcript: Transcript, compute_seconds: f64) -> StreamUpdate<'_> {
        let (final_count, now) = (self.words.len(), self.received_seconds());
        self.clock.pass(now, compute_seconds);
        self.decoded_again |= transcript.decoded_again;
        self.means.add(transcript.mean_log_probability, transcript.no_speech_probability);
        let from = samples_to_seconds(self.first_sample);
        let mut hypothesis = transcript.words;
        hypothesis = hypothesis.into_iter().map(|word| word.shifted_by(from)).collect();
        let known: Vec<&Word> =
            self.words[self.known_from..].iter().map(|known| &known.word).collect();
        let provisional = hypothesis.split_off(count_known(&known, &hypothesis, from + SEAM));
        let agreed = count_agreed(&self.provisional, &provisional);
        self.revised_words += self.provisional.len() - agreed;
        self.is_quiet = self.provisional.is_empty() && provisional.is_empty();
        self.provisional = provisional;
        self.provisional_is_truncated = transcript.truncated;
        if !transcript.truncated {
            self.finalise(agreed);
        }
        self.drop_audio();
        StreamUpdate {
            received_seconds: now,
            new: &self.words[final_count..],
            rest: &self.provisional,
        }
    }

    /// Makes the first `count` provisional words final.
    fn finalise(&mut self, count: usize) {
        let final_at = self.received_seconds();
        let latency = |word: &Word| self.clock.now - word.end;
        let words = self.provisional.drain(..count);
        self.words.extend(words.map(|word| FinalWord { latency: latency(&word), final_at, word }));
    }

    /// Drops audio at the front if the window is too long.
    fn drop_audio(&mut self) {
        let (now, window) = (self.received_seconds(), self.options.window_seconds);
        // Unless the audio before `earliest` is dropped, the next chunk does not fit the ASR model.
        let earliest = now + self.options.chunk_seconds - self.max_seconds;
        let skipped = self.is_quiet && self.skip_to_untranscribed(window * KEPT_FRACTION);
        if samples_to_seconds(self.samples.len()) <= window
            || skipped && earliest <= samples_to_seconds(self.first_sample)
        {
            return;
        }
        let latest = now - window * KEPT_FRACTION;
        if self.is_quiet && self.words.last().is_none_or(|last| last.word.end <= latest) {
            self.drop_until(latest);
        } else if let Some(time) = self.time_to_drop(earliest, latest) {
            self.drop_until(time);
        } else if earliest > samples_to_seconds(self.first_sample) {
            // No two hypotheses agreed, but audio has to be dropped: its words become final without
            // agreement.
            let count = self.provisional.iter().take_while(|word| word.end <= latest).count();
            self.truncated |= self.provisional_is_truncated && count > 0;
            self.finalise(count);
            let end = self.words.last().map_or(0.0, |last| last.word.end);
            let next = self.provisional.first();
            let time = next.map_or(latest, |next| end.midpoint(next.start));
            self.drop_until(time.clamp(earliest, latest));
        }
    }

    /// Drops all audio before the last final word if the audio after it has at least `min_seconds`
    /// and no words. Whisper may end a text early; it transcribes the later words if little audio
    /// precedes them. Returns true if audio was dropped.
    fn skip_to_untranscribed(&mut self, min_seconds: f64) -> bool {
        let Some(FinalWord { word, .. }) = self.words[self.known_from..].last() else {
            return false;
        };
        let start = word.start;
        let is_untranscribed =
            self.provisional.is_empty() && self.received_seconds() - word.end >= min_seconds;
        let can_drop = is_untranscribed && seconds_to_samples(start) > self.first_sample;
        if can_drop {
            self.drop_until(start);
        }
        can_drop
    }

    /// Returns the last time in seconds, between `earliest` and `latest`, until which audio may be
    /// dropped. It lies in a pause after a final word, or else at the start of a final word. `None`
    /// if there is no such time.
    fn time_to_drop(&self, earliest: f64, latest: f64) -> Option<f64> {
        let from = earliest.max(samples_to_seconds(self.first_sample) + SEAM);
        let known = self.words[self.known_from..].iter().map(|known| &known.word);
        let words: Vec<&Word> = known.chain(self.provisional.first()).collect();
        let pairs = || words.windows(2).map(|pair| (pair[0], pair[1])).rev();
        let is_allowed = |time: &f64| (from..=latest).contains(time);
        let pauses = pairs().filter(|(before, after)| after.start - before.end >= DROP_PAUSE);
        let mut pause_times = pauses.map(|(before, after)| before.end.midpoint(after.start));
        // Without a pause, a word loses its beginning. A final word is already transcribed.
        pause_times
            .find(is_allowed)
            .or_else(|| pairs().map(|(before, _)| before.start).find(is_allowed))
    }

    /// Drops the audio before a time in seconds. Words before this audio are no longer known words.
    fn drop_until(&mut self, time: f64) {
        let excess = seconds_to_samples(time).saturating_sub(self.first_sample);
        let count = excess.min(self.samples.len());
        self.samples.drain(..count);
        self.first_sample += count;
        // The remainder of a truncated word may be transcribed as a word, so the word stays a known
        // word.
        let from = samples_to_seconds(self.first_sample) - SEAM;
        let known = self.words[self.known_from..].iter();
        self.known_from += known.take_while(|known| known.word.end <= from).count();
    }

    /// Makes all words final at the end of the recording.
    fn end(&mut self) -> StreamUpdate<'_> {
        let final_count = self.words.len();
        self.truncated |= self.provisional_is_truncated && !self.provisional.is_empty();
        self.finalise(self.provisional.len());
        StreamUpdate {
            received_seconds: self.received_seconds(),
            new: &self.words[final_count..],
            rest: &[],
        }
    }

    /// The result at the end of the recording.
    fn finish(mut self) -> StreamResult {
        // Two hypotheses may have slightly different word times.
        let mut previous_end = 0.0;
        for FinalWord { word, .. } in &mut self.words {
            word.start = word.start.max(previous_end);
            word.end = word.end.max(word.start);
            previous_end = word.end;
        }
        let texts: Vec<&str> = self.words.iter().map(|word| word.word.text.as_str()).collect();
        StreamResult {
            transcript: Transcript {
                text: texts.join(" "),
                segments: segments(&self.words),
                truncated: self.truncated,
                decoded_again: self.decoded_again,
                ..self.means.transcript(self.first_sample + self.samples.len())
            },
            words: self.words,
            passes: self.clock.passes,
            late_passes: self.clock.late_passes,
            compute_seconds: self.clock.compute_seconds,
            revised_words: self.revised_words,
        }
    }
}

impl AsrModel {
    /// Transcribes a recording in chunks. `read` appends samples at 16 kHz and returns `false` at
    /// the end. `on_update` gets the result of each pass, and at the end the remaining words. Only
    /// the audio of the current pass is held in RAM.
    ///
    /// # Errors
    /// The errors of [`StreamOptions::check`], [`AsrModel::transcribe`] and `read`.
    pub fn transcribe_stream<E: From<InferError>>(
        &self,
        options: &TranscribeOptions,
        stream: StreamOptions,
        read: impl FnMut(&mut Vec<f32>) -> Result<bool, E>,
        on_update: impl FnMut(&StreamUpdate<'_>),
    ) -> Result<StreamResult, E> {
        stream.check(self.max_seconds())?;
        let options = TranscribeOptions { timestamps: false, word_times: true, ..options.clone() };
        let transcribe = |samples: &[f32]| -> Result<Transcript, E> {
            let transcript = self.transcribe(&[samples], &[], &options)?.pop();
            Ok(transcript.unwrap_or_else(|| Transcript::empty(samples.len())))
        };
        run(Stream::new(stream, self.max_seconds()), read, transcribe, on_update)
    }
}

/// Reads and transcribes chunks until the recording ends.
fn run<E>(
    mut stream: Stream,
    mut read: impl FnMut(&mut Vec<f32>) -> Result<bool, E>,
    mut transcribe: impl FnMut(&[f32]) -> Result<Transcript, E>,
    mut on_update: impl FnMut(&StreamUpdate<'_>),
) -> Result<StreamResult, E> {
    let chunk = seconds_to_samples(stream.options.chunk_seconds).max(1);
    let (mut waiting, mut has_more) = (Vec::new(), true);
    loop {
        while has_more && waiting.len() < chunk {
            has_more = read(&mut waiting)?;
        }
        let is_over = waiting.is_empty();
        if !is_over || stream.skip_to_untranscribed(MIN_UNTRANSCRIBED_SECONDS) {
            let length = waiting.len().min(chunk);
            stream.add(&waiting[..length]);
            waiting.drain(..length);
            let start = Instant::now();
            let transcript = transcribe(&stream.samples)?;
            on_update(&stream.update(transcript, start.elapsed().as_secs_f64()));
        }
        if is_over {
            on_update(&stream.end());
            return Ok(stream.finish());
        }
    }
}

/// Splits words into segments at pauses and ends of sentences. A segment of several words is
/// shorter than [`SEGMENT_SECONDS`].
fn segments(words: &[FinalWord]) -> Vec<Segment> {
    let mut segments = Vec::<Segment>::new();
    let mut is_open = false;
    for FinalWord { word, .. } in words {
        let fits = |last: &&mut Segment| {
            word.start - last.end < SEGMENT_PAUSE && word.end - last.start < SEGMENT_SECONDS
        };
        match segments.last_mut().filter(|_| is_open).filter(fits) {
            Some(last) => {
                last.text += " ";
                last.text += &word.text;
                last.end = word.end;
            }
            None => {
                let Word { start, end, text, .. } = word.clone();
                segments.push(Segment { start, end, text });
            }
        }
        is_open = !word.text.ends_with(['.', '?', '!']);
    }
    segments
}
