//! Streaming transcription: text appears while audio arrives.

use engram_data::messages::counted;
use std::collections::VecDeque;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use engram_data::DataError;
use engram_data::audio::file_format;
use engram_data::speech::manifest::Clip;
use engram_infer::InferError;
use engram_infer::asr::{
    AsrModel, Distribution, FinalWord, StreamOptions, StreamResult, StreamUpdate, TranscribeOptions,
};
use engram_models::speech::log_mel::SAMPLE_RATE;
use indicatif::ProgressBar;
use serde::Serialize;

use crate::cli::output;

/// The input name for standard input.
const STDIN: &str = "-";
/// Bytes of standard input to read at once: 0.1 s of audio.
const BLOCK_BYTES: usize = 2 * SAMPLE_RATE as usize / 10;
/// Default seconds of earlier audio that are transcribed again with each chunk.
const DEFAULT_WINDOW_SECONDS: f64 = 15.0;
/// Maximum number of characters of the text that the terminal shows.
const SHOWN_CHARACTERS: usize = 60;

/// Options for streaming.
#[derive(Debug, Args)]
pub struct Streaming {
    /// Transcribe as a stream, in chunks of this length, and report the latency of each word.
    /// The input - is raw audio from standard input (16 kHz, mono, 16 bits, little-endian)
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    stream: Option<f64>,
    /// Maximum length of earlier audio that is transcribed again with each chunk
    /// [default: 15, or the model's maximum minus --stream if that is less]
    #[arg(long, value_name = "SECONDS", requires = "stream", value_parser = parse_seconds)]
    stream_window: Option<f64>,
}

/// The latency of final words, for the summary.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    options: StreamOptions,
    /// Number of passes of the ASR model.
    passes: usize,
    /// Passes that started late because the previous pass was still running.
    late_passes: usize,
    compute_seconds: f64,
    /// Compute time divided by the duration of the audio.
    real_time_factor: f64,
    /// Number of words that were not yet final and that the next hypothesis changed.
    revised_words: usize,
    /// Audio time in seconds from the end of a word until the word is final, without compute time.
    /// Null without words.
    latency_without_compute: Option<Distribution>,
    /// The latency with compute time, for audio that arrives in real time. Null without words.
    latency: Option<Distribution>,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds > 0.0 => Ok(seconds),
        _ => Err("must be a number of seconds above 0".to_string()),
    }
}

impl Streaming {
    /// The chunk and window lengths for a model that takes `max_seconds` at once. Returns `None`
    /// without `--stream`.
    pub(super) fn options(&self, max_seconds: f64) -> anyhow::Result<Option<StreamOptions>> {
        let Some(chunk_seconds) = self.stream else { return Ok(None) };
        let max_window = DEFAULT_WINDOW_SECONDS.min(max_seconds - chunk_seconds);
        let window_seconds = self.stream_window.unwrap_or(max_window);
        let options = StreamOptions { chunk_seconds, window_seconds };
        options.check(max_seconds)?;
        Ok(Some(options))
    }

    /// Whether `--stream` is given.
    pub(super) fn is_on(&self) -> bool {
        self.stream.is_some()
    }
}

/// The clip for standard input, or `None` for another input.
pub(super) fn stdin(input: &Path, streams: bool) -> anyhow::Result<Option<Clip>> {
    if input != Path::new(STDIN) {
        return Ok(None);
    }
    if !streams {
        anyhow::bail!("-: standard input is a stream of audio; give --stream SECONDS");
    }
    Ok(Some(Clip { id: "stdin".to_string(), audio: input.into(), ..Clip::default() }))
}

/// Whether a clip is standard input. A clip from a manifest has a line number.
pub(super) fn is_stdin(clip: &Clip) -> bool {
    clip.audio == Path::new(STDIN) && clip.line == 0
}

/// Transcribes a clip as a stream and shows the text in `bar`. For standard input and `print`, also
/// prints each final piece of text.
pub(super) fn stream(
    asr_model: &AsrModel,
    options: &TranscribeOptions,
    stream: StreamOptions,
    clip: &Clip,
    bar: &ProgressBar,
    print: bool,
) -> Result<StreamResult, InferError> {
    let mut shown_text = VecDeque::new();
    let mut show_update = |pass: &StreamUpdate<'_>, total: Option<f64>| {
        let new_words: Vec<&str> = pass.new.iter().map(|word| word.word.text.as_str()).collect();
        if print && is_stdin(clip) && !new_words.is_empty() {
            // A closed terminal must not stop the transcript.
            let _ = bar.suspend(|| output::print(&new_words.join(" ")));
        }
        shown_text.extend(new_words.join(" ").chars().chain(new_words.last().map(|_| ' ')));
        shown_text.drain(..shown_text.len().saturating_sub(SHOWN_CHARACTERS));
        let text: String = shown_text.iter().collect();
        let total = total.map_or(String::new(), |total| format!(" of {total:.0}"));
        bar.set_message(format!("({:.0}{total} s) {text}", pass.received_seconds));
    };
    if is_stdin(clip) {
        let mut input = raw_samples(std::io::stdin())?;
        let read = |samples: &mut Vec<f32>| Ok(read_samples(&mut input, samples)?);
        let result =
            asr_model.transcribe_stream(options, stream, read, |pass| show_update(pass, None));
        return result.and_then(|result| match result.passes {
            0 => {
                let (path, reason) = ("standard input".into(), "has no samples".to_string());
                Err(DataError::Audio { path, reason }.into())
            }
            _ => Ok(result),
        });
    }
    let mut reader = clip.open(SAMPLE_RATE)?;
    let total = reader.seconds();
    let read = |samples: &mut Vec<f32>| Ok(reader.read(samples)?);
    asr_model.transcribe_stream(options, stream, read, |pass| show_update(pass, total))
}

/// Returns the same input, after a check that it does not begin like a file: the header of a WAV
/// file, or the bytes of an MP3, would be noise as samples.
fn raw_samples(mut input: impl Read) -> Result<impl Read, DataError> {
    let (path, mut head) = (PathBuf::from("standard input"), Vec::new());
    let read = input.by_ref().take(BLOCK_BYTES as u64).read_to_end(&mut head);
    if let Err(source) = read {
        return Err(DataError::Io { path, source });
    }
    match file_format(&head) {
        Some(format) => Err(DataError::NotRaw { path, format }),
        None => Ok(Cursor::new(head).chain(input)),
    }
}

/// Appends the available 16-bit samples. Returns `false` at the end. Ignores half a sample at the
/// end, which a stopped recorder may leave.
fn read_samples(input: &mut impl Read, samples: &mut Vec<f32>) -> Result<bool, DataError> {
    let mut bytes = vec![0; BLOCK_BYTES];
    let mut count = 0;
    // An odd number of bytes ends in half a sample.
    while count == 0 || count % 2 == 1 {
        match input.read(&mut bytes[count..]) {
            Ok(0) => break,
            Ok(bytes_read) => count += bytes_read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(source) => return Err(DataError::Io { path: "standard input".into(), source }),
        }
    }
    let sample = |pair: &[u8]| f32::from(i16::from_le_bytes([pair[0], pair[1]])) / 32_768.0;
    samples.extend(bytes[..count].chunks_exact(2).map(sample));
    Ok(count > 1)
}

impl Report {
    /// The report over all recordings.
    pub(super) fn of(options: StreamOptions, streams: &[StreamResult]) -> Self {
        let words = || streams.iter().flat_map(|stream| &stream.words);
        let sum = |field: fn(&StreamResult) -> usize| streams.iter().map(field).sum::<usize>();
        let compute_seconds: f64 = streams.iter().map(|stream| stream.compute_seconds).sum();
        let audio_seconds: f64 = streams.iter().map(|stream| stream.transcript.seconds).sum();
        let without_compute = |word: &FinalWord| word.final_at - word.word.end;
        Self {
            options,
            passes: sum(|stream| stream.passes),
            late_passes: sum(|stream| stream.late_passes),
            compute_seconds,
            real_time_factor: compute_seconds / audio_seconds.max(1e-9),
            revised_words: sum(|stream| stream.revised_words),
            latency_without_compute: Distribution::of(words().map(without_compute).collect()),
            latency: Distribution::of(words().map(|word| word.latency).collect()),
        }
    }

    /// The report as one line of text.
    pub(super) fn to_text(&self) -> String {
        let Some((latency, without_compute)) = self.latency.zip(self.latency_without_compute)
        else {
            return "no words were transcribed".to_string();
        };
        format!(
            "latency of words: median {:.2} s, mean {:.2} s, 95th percentile {:.2} s; median \
             without compute time {:.2} s; {} of {} started late",
            latency.p50,
            latency.mean,
            latency.p95,
            without_compute.p50,
            self.late_passes,
            counted(self.passes, "pass")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that returns one or three bytes at a time.
    struct SlowReader(Vec<u8>);

    impl Read for SlowReader {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let count = [1, 3][self.0.len() % 2].min(self.0.len()).min(buffer.len());
            self.0.drain(..count).zip(buffer).for_each(|(byte, slot)| *slot = byte);
            Ok(count)
        }
    }

    #[test]
    fn samples_do_not_depend_on_the_read_size() -> Result<(), DataError> {
        let values = [0i16, 1, -1, i16::MAX, i16::MIN, 7, 256];
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let (mut reader, mut samples) = (SlowReader(bytes.clone()), Vec::new());
        while read_samples(&mut reader, &mut samples)? {}
        assert_eq!(samples, values.map(|value| f32::from(value) / 32_768.0));
        let (mut reader, mut samples) = (SlowReader(bytes[..9].to_vec()), Vec::new());
        while read_samples(&mut reader, &mut samples)? {}
        assert_eq!(samples.len(), 4);
        Ok(())
    }

    #[test]
    fn a_file_is_refused_and_raw_samples_are_unchanged() {
        let wav = [&b"RIFF\x24\0\0\0WAVE"[..], &[0; 9000]].concat();
        let Err(error) = raw_samples(SlowReader(wav)) else { panic!("a WAV file is read as raw") };
        let error = error.to_string();
        assert!(error.contains("format WAV") && error.contains("-f s16le -ar 16000"), "{error}");
        for length in [0, 1, 5, BLOCK_BYTES, 9001] {
            let bytes: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            let mut read = Vec::new();
            let input = raw_samples(SlowReader(bytes.clone()));
            input.expect("raw samples").read_to_end(&mut read).expect("all bytes");
            assert!(read == bytes, "{length} bytes");
        }
    }
}
