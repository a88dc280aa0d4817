//! A recording as it comes in: chunk by chunk, with words that are final while it goes on.
//!
//! Both recognisers hear whole clips, so what has come in is heard again with each chunk, and a text
//! changes while it grows. The policy for which words are final is LocalAgreement-2 (Macháček, Dabre
//! and Bojar 2023, "Turning Whisper into Real-Time Transcription System", arXiv 2307.14743): those at
//! the start of the text that two hypotheses in a row agree on. It asks nothing of the model but words
//! with times, waits one chunk more where the text still changes, and is the one whose figures others
//! compare with. Departures: final words are found in the next hypothesis by an alignment and not by
//! words that are the same (see `agreement`); the text before is not a prompt, as for long
//! recordings; a hypothesis that was cut confirms nothing, or loops would; sound is dropped in pauses,
//! or at a final word, not at the ends of sentences alone, which a Conformer does not write.
//!
//! Which words are final depends on the sound and the length of the chunks alone. How long that took
//! is the clock's affair (see `latency`).

mod agreement;
mod latency;

#[cfg(test)]
mod tests;

use std::time::Instant;

use engram_models::speech::log_mel::{samples_of, seconds};
use serde::Serialize;

use super::transcript::{Segment, Transcript, Word, to_milliseconds};
use super::{Listener, RecogniseOptions};
use crate::error::{Result, TrainError};
use agreement::{agreed, known_words};
use latency::Clock;
pub use latency::Distribution;

/// The shortest chunk, in seconds: nine of ten that are shorter hold no end of a word.
const SHORTEST_CHUNK: f64 = 0.1;
/// Sound behind a place where it is dropped, in parts of the window, so that words have context.
const KEPT: f64 = 1.0 / 3.0;
/// A gap between two words where sound is dropped rather than elsewhere, in seconds.
const PAUSE: f64 = 0.3;
/// Words near the start of the sound that is left, in seconds, may be heard again or be cut off: that they
/// differ counts nothing.
const SEAM: f64 = 0.5;
/// What is left at the end of a recording is heard once more by itself if it is longer, in seconds.
const LEAST_UNHEARD: f64 = 1.0;
/// A segment is ended by a gap between two words, and by its length, in seconds.
const SEGMENT_PAUSE: f64 = 0.6;
const SEGMENT_SECONDS: f64 = 6.0;

/// How a recording is divided.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StreamOptions {
    /// Sound that is waited for before it is heard, in seconds.
    pub chunk_seconds: f64,
    /// Sound that is heard again with each chunk at most, in seconds, while words can be agreed on.
    pub window_seconds: f64,
}

impl StreamOptions {
    /// Checks the lengths for a recogniser that hears `max_seconds` at once.
    ///
    /// # Errors
    /// [`TrainError::Recognise`] for chunks of less than 0.1 s, a window that is shorter than a chunk,
    /// and both together longer than that.
    pub fn check(&self, max_seconds: f64) -> Result<()> {
        let Self { chunk_seconds: chunk, window_seconds: window } = *self;
        let refuse = |reason: String| Err(TrainError::Recognise { reason });
        if !(SHORTEST_CHUNK..=max_seconds / 2.0).contains(&chunk) {
            let longest = max_seconds / 2.0;
            return refuse(format!(
                "chunks of {chunk} s (--stream); this model takes {SHORTEST_CHUNK} to {longest:.0} s"
            ));
        }
        if !(chunk..=max_seconds - chunk).contains(&window) {
            let longest = max_seconds - chunk;
            return refuse(format!(
                "a window of {window} s (--stream-window); with chunks of {chunk} s this model takes \
                 {chunk} to {longest} s"
            ));
        }
        Ok(())
    }
}

/// A word that is not changed any more.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FinalWord {
    /// The word with its times in the recording.
    #[serde(flatten)]
    pub word: Word,
    /// How much of the recording had come in when it was final, in seconds.
    #[serde(serialize_with = "to_milliseconds")]
    pub final_at: f64,
    /// Seconds from the word's end until it was final, for sound that comes in at its own speed:
    /// waiting and computing.
    #[serde(serialize_with = "to_milliseconds")]
    pub latency: f64,
}

/// What a recording came to.
#[derive(Debug, Clone)]
pub struct Streamed {
    /// The text with its segments. Probabilities are means over the passes.
    pub transcript: Transcript,
    /// The words, which the transcript leaves out.
    pub words: Vec<FinalWord>,
    /// How often the recogniser listened.
    pub passes: usize,
    /// Passes that began late, because the one before was still at work.
    pub late_passes: usize,
    /// Time of all passes.
    pub compute_seconds: f64,
    /// Words that stood behind the final ones and that the next hypothesis did not have in their place.
    pub revised_words: usize,
}

/// What is known after a pass.
pub struct Pass<'a> {
    /// How much of the recording has come in, in seconds.
    pub heard_seconds: f64,
    /// Words that are final now and were not before.
    pub new: &'a [FinalWord],
    /// Words behind them that may change.
    pub rest: &'a [Word],
}

/// A recording that is coming in.
struct Stream {
    options: StreamOptions,
    max_seconds: f64,
    /// What is heard in each pass; it begins at sample `first` of the recording.
    samples: Vec<f32>,
    first: usize,
    words: Vec<FinalWord>,
    /// Final words before this one are not in `samples`.
    known_from: usize,
    /// The last hypothesis behind the final words.
    rest: Vec<Word>,
    rest_is_cut: bool,
    /// Whether the last two hypotheses had nothing behind the final words.
    is_quiet: bool,
    clock: Clock,
    revised_words: usize,
    cut: bool,
    padded: bool,
    /// Sums over the passes.
    log_probability: f64,
    no_speech: f64,
}

impl Stream {
    fn new(options: StreamOptions, max_seconds: f64) -> Self {
        Self {
            options,
            max_seconds,
            samples: Vec::new(),
            first: 0,
            words: Vec::new(),
            known_from: 0,
            rest: Vec::new(),
            rest_is_cut: false,
            is_quiet: false,
            clock: Clock::default(),
            revised_words: 0,
            cut: false,
            padded: false,
            log_probability: 0.0,
            no_speech: 0.0,
        }
    }

    /// How much of the recording has come in, in seconds.
    fn heard_seconds(&self) -> f64 {
        seconds(self.first + self.samples.len())
    }

    /// Adds a chunk.
    fn add(&mut self, chunk: &[f32]) {
        self.samples.extend_from_slice(chunk);
    }

    /// Takes what was heard in the samples, and how long that took.
    fn hear(&mut self, heard: Transcript, compute_seconds: f64) -> Pass<'_> {
        let (before, now) = (self.words.len(), self.heard_seconds());
        self.clock.pass(now, compute_seconds);
        self.padded |= heard.padded;
        self.log_probability += f64::from(heard.mean_log_probability);
        self.no_speech += f64::from(heard.no_speech_probability);
        let from = seconds(self.first);
        let mut hypothesis = heard.words;
        hypothesis = hypothesis.into_iter().map(|word| word.behind(from)).collect();
        let known: Vec<&Word> =
            self.words[self.known_from..].iter().map(|known| &known.word).collect();
        let rest = hypothesis.split_off(known_words(&known, &hypothesis, from + SEAM));
        let same = agreed(&self.rest, &rest);
        self.revised_words += self.rest.len() - same;
        self.is_quiet = self.rest.is_empty() && rest.is_empty();
        (self.rest, self.rest_is_cut) = (rest, heard.cut);
        if !heard.cut {
            self.finalise(same);
        }
        self.drop_sound();
        Pass { heard_seconds: now, new: &self.words[before..], rest: &self.rest }
    }

    /// Makes the first words of the rest final.
    fn finalise(&mut self, count: usize) {
        let final_at = self.heard_seconds();
        let latency = |word: &Word| self.clock.now - word.end;
        let words = self.rest.drain(..count);
        self.words.extend(words.map(|word| FinalWord { latency: latency(&word), final_at, word }));
    }

    /// Drops sound at the front if the window is longer than it should be.
    fn drop_sound(&mut self) {
        let (now, window) = (self.heard_seconds(), self.options.window_seconds);
        // What is before `needed` has to go, or the next chunk has no place.
        let needed = now + self.options.chunk_seconds - self.max_seconds;
        let skipped = self.is_quiet && self.skip_to_unheard(window * KEPT);
        if seconds(self.samples.len()) <= window || skipped && needed <= seconds(self.first) {
            return;
        }
        let latest = now - window * KEPT;
        if self.is_quiet && self.words.last().is_none_or(|last| last.word.end <= latest) {
            self.drop_until(latest);
        } else if let Some(place) = self.place_to_drop(needed, latest) {
            self.drop_until(place);
        } else if needed > seconds(self.first) {
            // No two hypotheses agreed: what is said is final all the same.
            let count = self.rest.iter().take_while(|word| word.end <= latest).count();
            self.cut |= self.rest_is_cut && count > 0;
            self.finalise(count);
            let said = self.words.last().map_or(0.0, |last| last.word.end);
            let next = self.rest.first().map_or(latest, |next| said.midpoint(next.start));
            self.drop_until(next.clamp(needed, latest));
        }
    }

    /// Drops all before the last final word if nothing was heard in so many seconds behind it: Whisper
    /// may end a text early, and hears what is left if little is before it. `false` if nothing was
    /// dropped.
    fn skip_to_unheard(&mut self, least: f64) -> bool {
        let Some(FinalWord { word, .. }) = self.words[self.known_from..].last() else {
            return false;
        };
        let start = word.start;
        let is_left = self.rest.is_empty() && self.heard_seconds() - word.end >= least;
        let drops = is_left && samples_of(start) > self.first;
        if drops {
            self.drop_until(start);
        }
        drops
    }

    /// The last place between two times behind a final word: in a pause, or else where a final word
    /// begins.
    fn place_to_drop(&self, needed: f64, latest: f64) -> Option<f64> {
        let from = needed.max(seconds(self.first) + SEAM);
        let known = self.words[self.known_from..].iter().map(|known| &known.word);
        let words: Vec<&Word> = known.chain(self.rest.first()).collect();
        let pairs = || words.windows(2).map(|pair| (pair[0], pair[1])).rev();
        let is_place = |place: &f64| (from..=latest).contains(place);
        let pauses = pairs().filter(|(before, behind)| behind.start - before.end >= PAUSE);
        let mut places = pauses.map(|(before, behind)| before.end.midpoint(behind.start));
        // In no pause a word loses its beginning: better one that is final already.
        places.find(is_place).or_else(|| pairs().map(|(before, _)| before.start).find(is_place))
    }

    /// Drops the sound before a time in seconds, and forgets the words that are not in the rest of it.
    fn drop_until(&mut self, time: f64) {
        let count = samples_of(time).saturating_sub(self.first).min(self.samples.len());
        self.samples.drain(..count);
        self.first += count;
        // What is left of a word that was cut may be heard as one.
        let from = seconds(self.first) - SEAM;
        let known = self.words[self.known_from..].iter();
        self.known_from += known.take_while(|known| known.word.end <= from).count();
    }

    /// The recording is over: all words are final.
    fn end(&mut self) -> Pass<'_> {
        let before = self.words.len();
        self.cut |= self.rest_is_cut && !self.rest.is_empty();
        self.finalise(self.rest.len());
        Pass { heard_seconds: self.heard_seconds(), new: &self.words[before..], rest: &[] }
    }

    /// What the recording came to, at its end.
    fn finish(self) -> Streamed {
        let passes = self.clock.passes;
        let mean = |sum: f64| (sum / passes.max(1) as f64) as f32;
        let texts: Vec<&str> = self.words.iter().map(|word| word.word.text.as_str()).collect();
        Streamed {
            transcript: Transcript {
                text: texts.join(" "),
                segments: segments(&self.words),
                mean_log_probability: mean(self.log_probability),
                no_speech_probability: mean(self.no_speech),
                cut: self.cut,
                padded: self.padded,
                ..Transcript::nothing(self.first + self.samples.len())
            },
            words: self.words,
            passes,
            late_passes: self.clock.late_passes,
            compute_seconds: self.clock.compute_seconds,
            revised_words: self.revised_words,
        }
    }
}

impl Listener {
    /// The text of a recording that comes in by chunks. `read` adds samples at 16 kHz and gives `false`
    /// at the end; `tell` is told what each pass came to, and at the end what is left. In memory are
    /// the window, a chunk, a block of `read` and the words.
    ///
    /// # Errors
    /// As [`StreamOptions::check`] and [`Listener::transcribe`], and those of `read`.
    pub fn transcribe_stream<E: From<TrainError>>(
        &self,
        options: &RecogniseOptions,
        stream: StreamOptions,
        read: impl FnMut(&mut Vec<f32>) -> Result<bool, E>,
        tell: impl FnMut(&Pass<'_>),
    ) -> Result<Streamed, E> {
        stream.check(self.max_seconds())?;
        let options = RecogniseOptions { timestamps: false, word_times: true, ..options.clone() };
        let hear = |samples: &[f32]| -> Result<Transcript, E> {
            let heard = self.transcribe(&[samples], &[], &options)?.pop();
            Ok(heard.unwrap_or_else(|| Transcript::nothing(samples.len())))
        };
        listen(Stream::new(stream, self.max_seconds()), read, hear, tell)
    }
}

/// Reads chunks and hears them until the recording ends.
fn listen<E>(
    mut stream: Stream,
    mut read: impl FnMut(&mut Vec<f32>) -> Result<bool, E>,
    mut hear: impl FnMut(&[f32]) -> Result<Transcript, E>,
    mut tell: impl FnMut(&Pass<'_>),
) -> Result<Streamed, E> {
    let chunk = samples_of(stream.options.chunk_seconds).max(1);
    let (mut waiting, mut more) = (Vec::new(), true);
    loop {
        while more && waiting.len() < chunk {
            more = read(&mut waiting)?;
        }
        let is_over = waiting.is_empty();
        if !is_over || stream.skip_to_unheard(LEAST_UNHEARD) {
            let length = waiting.len().min(chunk);
            stream.add(&waiting[..length]);
            waiting.drain(..length);
            let started = Instant::now();
            let heard = hear(&stream.samples)?;
            tell(&stream.hear(heard, started.elapsed().as_secs_f64()));
        }
        if is_over {
            tell(&stream.end());
            return Ok(stream.finish());
        }
    }
}

/// The parts of a text between pauses and ends of sentences, and of few seconds.
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
                last.end = word.end.max(last.end);
            }
            None => {
                // Two hypotheses may differ by a little about where a word is.
                let start = segments.last().map_or(word.start, |last| word.start.max(last.end));
                segments.push(Segment { start, end: word.end.max(start), text: word.text.clone() });
            }
        }
        is_open = !word.text.ends_with(['.', '?', '!']);
    }
    segments
}
