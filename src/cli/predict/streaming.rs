//! Transcripts of recordings as they come in.

use std::collections::VecDeque;
use std::io::Read;
use std::path::Path;

use clap::Args;
use engram_data::DataError;
use engram_data::speech::manifest::Clip;
use engram_models::speech::log_mel::SAMPLE_RATE;
use engram_train::TrainError;
use engram_train::recognise::{
    AsrModel, Distribution, FinalWord, StreamOptions, StreamResult, StreamUpdate, TranscribeOptions,
};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::cli::output;

/// The input that is standard input.
const STDIN: &str = "-";
/// Bytes of standard input that are read at a time at most: 0.1 s.
const BLOCK: usize = 2 * SAMPLE_RATE as usize / 10;
/// Sound that is heard again with each chunk, in seconds, where the model can.
const WINDOW: f64 = 15.0;
/// Letters of a text that is coming in that the terminal shows.
const SHOWN: usize = 60;

/// How recordings come in.
#[derive(Debug, Args)]
pub struct Streaming {
    /// Transcribe as if the sound came in, a chunk of so many seconds at a time, and say how late each
    /// word is final; --input - is raw sound on standard input (16 kHz, one channel, 16 bits,
    /// little-endian)
    #[arg(long, value_name = "SECONDS", requires = "recogniser", value_parser = seconds)]
    stream: Option<f64>,
    /// Sound that is heard again with each chunk, at most
    /// [default: 15, or what the model hears at once without a chunk]
    #[arg(long, value_name = "SECONDS", requires = "stream", value_parser = seconds)]
    stream_window: Option<f64>,
}

/// How late words were final, in the summary.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    options: StreamOptions,
    passes: usize,
    /// Passes that began late, because the one before was still at work.
    late_passes: usize,
    compute_seconds: f64,
    /// Seconds of computing for a second of sound.
    real_time_factor: f64,
    /// Words behind the final ones that the next hypothesis did not have in their place.
    revised_words: usize,
    /// Of the words, from the end of each until it was final, in seconds of sound alone; null where
    /// nothing is said.
    latency_of_sound: Option<Distribution>,
    /// The same with the time that was computed, for sound that comes in at its own speed.
    latency: Option<Distribution>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds > 0.0 => Ok(seconds),
        _ => Err("is not a number of seconds above 0".to_string()),
    }
}

impl Streaming {
    /// How recordings are divided, if they come in, for a model that hears `max_seconds` at once.
    pub(super) fn options(&self, max_seconds: f64) -> anyhow::Result<Option<StreamOptions>> {
        let Some(chunk_seconds) = self.stream else { return Ok(None) };
        let most = WINDOW.min(max_seconds - chunk_seconds);
        let window_seconds = self.stream_window.unwrap_or(most);
        let options = StreamOptions { chunk_seconds, window_seconds };
        options.check(max_seconds)?;
        Ok(Some(options))
    }

    /// The clip of standard input, if that is the input.
    pub(super) fn stdin(&self, input: &Path) -> anyhow::Result<Option<Clip>> {
        if input != Path::new(STDIN) {
            return Ok(None);
        }
        if self.stream.is_none() {
            anyhow::bail!("--input - is sound that comes in: give --stream SECONDS");
        }
        Ok(Some(Clip { id: "stdin".to_string(), audio: input.into(), ..Clip::default() }))
    }
}

/// Whether a clip is that of standard input; one of a manifest has a line.
fn is_stdin(clip: &Clip) -> bool {
    clip.audio == Path::new(STDIN) && clip.line == 0
}

/// The text of a clip as it comes in. `bar` shows it; of standard input each piece that is final is
/// printed if `print` says so.
pub(super) fn stream(
    recogniser: &AsrModel,
    options: &TranscribeOptions,
    stream: StreamOptions,
    clip: &Clip,
    (bar, print): (&ProgressBar, bool),
) -> Result<StreamResult, TrainError> {
    let mut shown = VecDeque::new();
    let mut tell = |pass: &StreamUpdate<'_>, all: Option<f64>| {
        let new: Vec<&str> = pass.new.iter().map(|word| word.word.text.as_str()).collect();
        if print && is_stdin(clip) && !new.is_empty() {
            // The transcript is written whether somebody reads along or not.
            let _ = bar.suspend(|| output::print(&new.join(" ")));
        }
        shown.extend(new.join(" ").chars().chain(new.last().map(|_| ' ')));
        shown.drain(..shown.len().saturating_sub(SHOWN));
        let text: String = shown.iter().collect();
        let all = all.map_or(String::new(), |all| format!(" of {all:.0}"));
        bar.set_message(format!("({:.0}{all} s) {text}", pass.received_seconds));
    };
    if is_stdin(clip) {
        let read = |samples: &mut Vec<f32>| Ok(read_samples(&mut std::io::stdin(), samples)?);
        let made = recogniser.transcribe_stream(options, stream, read, |pass| tell(pass, None));
        return made.and_then(|made| match made.passes {
            0 => {
                let (path, reason) = ("standard input".into(), "has no samples".to_string());
                Err(DataError::Audio { path, reason }.into())
            }
            _ => Ok(made),
        });
    }
    let mut reader = clip.open(SAMPLE_RATE)?;
    let all = reader.seconds();
    let read = |samples: &mut Vec<f32>| Ok(reader.read(samples)?);
    recogniser.transcribe_stream(options, stream, read, |pass| tell(pass, all))
}

/// Adds samples of 16 bits, as many as are there; `false` at the end. Half a sample at the end is what
/// a recorder that was stopped leaves, and not worth a transcript.
fn read_samples(from: &mut impl Read, samples: &mut Vec<f32>) -> Result<bool, DataError> {
    let mut bytes = vec![0; BLOCK];
    let mut count = 0;
    // An odd byte is half a sample.
    while count == 0 || count % 2 == 1 {
        match from.read(&mut bytes[count..]) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(source) => return Err(DataError::Io { path: "standard input".into(), source }),
        }
    }
    let sample = |pair: &[u8]| f32::from(i16::from_le_bytes([pair[0], pair[1]])) / 32_768.0;
    samples.extend(bytes[..count].chunks_exact(2).map(sample));
    Ok(count > 1)
}

impl Report {
    /// Of all recordings.
    pub(super) fn of(options: StreamOptions, streams: &[StreamResult]) -> Self {
        let words = || streams.iter().flat_map(|stream| &stream.words);
        let sum = |of: fn(&StreamResult) -> usize| streams.iter().map(of).sum::<usize>();
        let compute_seconds: f64 = streams.iter().map(|stream| stream.compute_seconds).sum();
        let sound: f64 = streams.iter().map(|stream| stream.transcript.seconds).sum();
        let of_sound = |word: &FinalWord| word.final_at - word.word.end;
        Self {
            options,
            passes: sum(|stream| stream.passes),
            late_passes: sum(|stream| stream.late_passes),
            compute_seconds,
            real_time_factor: compute_seconds / sound.max(1e-9),
            revised_words: sum(|stream| stream.revised_words),
            latency_of_sound: Distribution::of(words().map(of_sound).collect()),
            latency: Distribution::of(words().map(|word| word.latency).collect()),
        }
    }

    /// A line for people.
    pub(super) fn told(&self) -> String {
        let Some((latency, of_sound)) = self.latency.zip(self.latency_of_sound) else {
            return "no word was said".to_string();
        };
        format!(
            "words were final {:.2} s after their ends (median; mean {:.2}, 95 % within {:.2}, {:.2} without \
             computing); {} of {} passes began late",
            latency.p50, latency.mean, latency.p95, of_sound.p50, self.late_passes, self.passes
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a byte or three at a time.
    struct Slow(Vec<u8>);

    impl Read for Slow {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let count = [1, 3][self.0.len() % 2].min(self.0.len()).min(into.len());
            self.0.drain(..count).zip(into).for_each(|(byte, place)| *place = byte);
            Ok(count)
        }
    }

    #[test]
    fn samples_of_standard_input_are_whole_however_they_come() -> Result<(), DataError> {
        let values = [0i16, 1, -1, i16::MAX, i16::MIN, 7, 256];
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let (mut from, mut samples) = (Slow(bytes.clone()), Vec::new());
        while read_samples(&mut from, &mut samples)? {}
        assert_eq!(samples, values.map(|value| f32::from(value) / 32_768.0));
        let (mut from, mut samples) = (Slow(bytes[..9].to_vec()), Vec::new());
        while read_samples(&mut from, &mut samples)? {}
        assert_eq!(samples.len(), 4);
        Ok(())
    }
}
