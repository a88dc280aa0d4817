//! Transcription of speech.

use std::path::Path;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use engram_data::DataError;
use engram_data::folder::SkippedFiles;
use engram_data::speech::manifest::{Clip, ClipReader, clips_and_skipped};
use engram_infer::InferError;
use engram_infer::asr::{AsrModel, Padding, Segment, StreamResult, TranscribeOptions, Transcript};
use engram_models::speech::log_mel::SAMPLE_RATE;
use engram_models::whisper::Task;
use indicatif::HumanDuration;
use rayon::prelude::*;
use serde::Serialize;

use super::Predict;
use super::boost::Boost;
use super::streaming::{self, Report, Streaming};
use super::transcripts::{Format, files_of};
use crate::cli::{Outcome, output, paths};

/// Options for transcription.
#[derive(Debug, Args)]
#[command(next_help_heading = "Speech")]
pub struct Speech {
    /// Transcribe with this Whisper or Conformer model: `hf://owner/name`, a folder or a run.
    /// --input is an audio file, a folder of audio files, or a manifest (JSON lines with audio,
    /// start, end)
    #[arg(long, value_name = "WEIGHTS", conflicts_with_all = ["run", "encoder", "vectors"])]
    pub(super) asr_model: Option<String>,
    /// Format of --output; default: from the file extension, otherwise JSON lines
    #[arg(long, requires = "asr_model")]
    format: Option<Format>,
    /// Beam size; a Conformer with --boost uses 8 instead of 1
    #[arg(long, value_name = "N", default_value_t = 1, requires = "asr_model",
        value_parser = clap::value_parser!(u16).range(1..=64))]
    beams: u16,
    /// Spoken language, for multilingual models, for example en
    #[arg(long, value_name = "CODE", requires = "asr_model")]
    language: Option<String>,
    /// Translate speech to English
    #[arg(long, requires = "asr_model")]
    translate: bool,
    /// Add start and end times of segments (always on for subtitles)
    #[arg(long, requires = "asr_model")]
    timestamps: bool,
    /// Add start, end, text and probability of each word, in JSON lines
    #[arg(long, requires = "asr_model")]
    word_times: bool,
    /// Padding after each clip
    #[arg(long, value_name = "PADDING", default_value = "zeros", requires = "asr_model")]
    padding: PaddingName,
    /// Number of clips in a batch
    #[arg(long, value_name = "N", default_value_t = 8, requires = "asr_model",
        value_parser = clap::value_parser!(u16).range(1..=256))]
    batch: u16,
    /// How to treat a clip that cannot be decoded
    #[arg(long, value_name = "ACTION", default_value = "stop", requires = "asr_model")]
    on_error: OnError,
    /// Print a summary as JSON
    #[arg(long, requires = "asr_model")]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) boost: Boost,
    #[command(flatten)]
    streaming: Streaming,
}

/// How to treat clips that cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum OnError {
    /// Stop with an error and write nothing
    Stop,
    /// Skip the clip with a warning
    Skip,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PaddingName {
    /// Zero frames up to 30 seconds, as in faster-whisper
    Zeros,
    /// Silence up to 30 seconds, as in openai-whisper
    Silence,
    /// Five seconds of silence, or 30 seconds if the text is doubtful; faster for short clips
    Short,
}

/// The summary that is printed as JSON.
#[derive(Debug, Serialize)]
struct Summary {
    clips: usize,
    /// The errors of clips that could not be decoded.
    skipped: Vec<String>,
    /// Duration of the audio.
    audio_seconds: f64,
    /// Wall time from the loaded model to the last text.
    seconds: f64,
    /// Wall time divided by the duration of the audio.
    real_time_factor: f64,
    /// Computed only for the JSON output.
    weights_sha256: Option<String>,
    /// Number of clips that were transcribed a second time, padded to 30 seconds.
    decoded_again: usize,
    /// Latency of final words, with `--stream`.
    #[serde(skip_serializing_if = "Option::is_none")]
    streaming: Option<Report>,
}

/// The audio of a clip that waits for transcription.
enum ClipAudio {
    Short(Vec<f32>),
    Long(Vec<f32>, Box<ClipReader>),
}

impl Predict {
    /// Transcribes the clips in the input.
    pub(super) fn transcribe(&self, asr_model: &str, input: &Path) -> anyhow::Result<Outcome> {
        let clips = match self.speech.streaming.stdin(input)? {
            Some(clip) => vec![clip],
            None => read_clips(input, self.quiet)?,
        };
        let format = self.speech.format(&self.output);
        if format == Format::Manifest && input == Path::new("-") {
            anyhow::bail!(
                "--format manifest needs audio files, not standard input; give --input FILE"
            );
        }
        let subtitles = matches!(format, Format::Srt | Format::Vtt);
        if subtitles && clips.len() > 1 && !self.output.is_dir() {
            let (output, count) = (self.output.display(), clips.len());
            anyhow::bail!(
                "{output}: {count} clips need {count} subtitle files; give an existing folder"
            );
        }
        if !subtitles && self.output.is_dir() {
            let output = self.output.display();
            anyhow::bail!(
                "{output}: is a folder; name a file for --output, or give --format srt or vtt"
            );
        }
        if subtitles {
            self.check_subtitle_files(&clips, format)?;
        } else {
            paths::check_not_overwritten(&self.output, files_of(&clips))?;
        }
        if self.speech.word_times && format != Format::Jsonl {
            anyhow::bail!("--word-times needs --format jsonl; give both, or leave it out");
        }
        let lists = self.speech.boost.read(&clips, self.quiet)?;
        let asr_model = AsrModel::open(asr_model)?;
        let options = self.speech.options(subtitles);
        asr_model.check(&options)?;
        let stream = self.speech.streaming.options(asr_model.max_seconds())?;
        let trees = self.speech.boost.trees(lists.as_ref(), &asr_model)?;
        let tree = |clip: &Clip| trees.as_ref().map_or(Ok(None), |trees| trees.of(clip));
        let started = Instant::now();
        let bar = output::progress_bar(clips.len(), "clips", self.quiet);
        let mut results: Vec<(&Clip, Transcript)> = Vec::with_capacity(clips.len());
        let mut skipped = Vec::new();
        let mut streams: Vec<StreamResult> = Vec::new();
        for batch in clips.chunks(self.speech.batch()) {
            if let Some(stream) = stream {
                for clip in batch {
                    let options = TranscribeOptions { boost: tree(clip)?, ..options.clone() };
                    let progress_output = (&bar, !self.speech.json && !self.quiet);
                    match streaming::stream(&asr_model, &options, stream, clip, progress_output) {
                        Ok(mut streamed) => {
                            if !options.timestamps {
                                streamed.transcript.segments.clear();
                            }
                            results.push((clip, streamed.transcript.clone()));
                            streams.push(streamed);
                        }
                        Err(InferError::Data(error)) => {
                            skipped.push(self.skip(clip, input, *error)?);
                        }
                        Err(error) => return Err(error.into()),
                    }
                    bar.set_message("");
                    bar.inc(1);
                }
                continue;
            }
            let max_samples = (asr_model.max_seconds() * f64::from(SAMPLE_RATE)) as usize;
            let audio_of_clips: Vec<Result<ClipAudio, DataError>> =
                batch.par_iter().map(|clip| open(clip, max_samples)).collect();
            let (mut short, mut transcripts) = (Vec::new(), Vec::new());
            for (clip, audio) in batch.iter().zip(audio_of_clips) {
                let result = match audio {
                    Ok(ClipAudio::Short(samples)) => {
                        short.push((clip, samples));
                        continue;
                    }
                    Ok(ClipAudio::Long(samples, reader)) => {
                        let show_progress = |text: &str| bar.set_message(text.to_string());
                        let boost = tree(clip)?;
                        let options = TranscribeOptions { boost, ..options.clone() };
                        transcribe_long(&asr_model, &options, samples, *reader, &show_progress)
                    }
                    Err(error) => Err(error.into()),
                };
                match result {
                    Ok(transcript) => transcripts.push((clip, transcript)),
                    Err(InferError::Data(error)) => skipped.push(self.skip(clip, input, *error)?),
                    Err(error) => return Err(error.into()),
                }
            }
            let samples: Vec<&[f32]> =
                short.iter().map(|(_, samples)| samples.as_slice()).collect();
            let boosts: Vec<_> =
                short.iter().map(|(clip, _)| tree(clip)).collect::<anyhow::Result<_>>()?;
            let texts = asr_model.transcribe(&samples, &boosts, &options)?;
            transcripts.extend(short.iter().map(|(clip, _)| *clip).zip(texts));
            // Long clips finish before short clips: restore the input order.
            transcripts.sort_by_key(|(clip, _)| batch.iter().position(|other| other.id == clip.id));
            results.extend(transcripts);
            bar.set_message("");
            bar.inc(batch.len() as u64);
        }
        bar.finish_and_clear();
        let seconds = started.elapsed().as_secs_f64();
        check_any_transcribed(results.len(), &skipped, input)?;
        self.write_transcripts(format, &results, &streams)?;
        let audio_seconds: f64 = results.iter().map(|(_, transcript)| transcript.seconds).sum();
        let summary = Summary {
            clips: results.len(),
            audio_seconds,
            seconds,
            real_time_factor: seconds / audio_seconds.max(1e-9),
            weights_sha256: self.speech.json.then(|| asr_model.weights_sha256()).transpose()?,
            decoded_again: results
                .iter()
                .filter(|(_, transcript)| transcript.decoded_again)
                .count(),
            skipped,
            streaming: stream.map(|options| Report::of(options, &streams)),
        };
        if self.speech.json {
            output::print_json(&summary)?;
        }
        let skipped = match summary.skipped.len() {
            0 => String::new(),
            count => format!(", {count} skipped"),
        };
        let message = format!(
            "{} clips{skipped}, {:.1} s of audio in {:.1} s ({:.1} times real time), written to {}",
            summary.clips,
            audio_seconds,
            seconds,
            1.0 / summary.real_time_factor.max(1e-9),
            self.output.display()
        );
        output::note(&message, self.quiet);
        if let Some(report) = &summary.streaming {
            output::note(&report.to_text(), self.quiet);
        }
        Ok(Outcome::Done)
    }

    /// Warns of a clip that cannot be transcribed, or returns an error with `--on-error stop`.
    pub(super) fn skip(
        &self,
        clip: &Clip,
        input: &Path,
        error: DataError,
    ) -> anyhow::Result<String> {
        let message = match clip.line {
            0 => error.to_string(),
            line => format!("{}, line {line}: {error}", input.display()),
        };
        if self.speech.on_error == OnError::Stop {
            anyhow::bail!("{message} (--on-error skip skips such clips)");
        }
        output::note(&format!("skipped: {message}"), false);
        Ok(message)
    }
}

impl Speech {
    /// Number of clips in a batch.
    pub(super) fn batch(&self) -> usize {
        usize::from(self.batch)
    }

    pub(super) fn format(&self, output: &Path) -> Format {
        self.format.unwrap_or_else(|| match output.extension().and_then(|e| e.to_str()) {
            Some("tsv") => Format::Tsv,
            Some("txt") => Format::Txt,
            Some("srt") => Format::Srt,
            Some("vtt") => Format::Vtt,
            _ => Format::Jsonl,
        })
    }

    fn options(&self, subtitles: bool) -> TranscribeOptions {
        TranscribeOptions {
            num_beams: usize::from(self.beams),
            timestamps: self.timestamps || subtitles,
            word_times: self.word_times,
            language: self.language.clone(),
            task: if self.translate { Task::Translate } else { Task::Transcribe },
            padding: match self.padding {
                PaddingName::Zeros => Padding::Zeros,
                PaddingName::Silence => Padding::Silence,
                PaddingName::Short => Padding::Short,
            },
            boost: None,
        }
    }
}

/// Returns an error if all clips are skipped, because an output file without text would look like a
/// result.
pub(super) fn check_any_transcribed(
    transcribed: usize,
    skipped: &[String],
    input: &Path,
) -> anyhow::Result<()> {
    match skipped.first().filter(|_| transcribed == 0) {
        None => Ok(()),
        Some(first) => {
            let (input, count) = (input.display(), skipped.len());
            anyhow::bail!("{input}: all {count} clips are skipped, and nothing is written; {first}")
        }
    }
}

/// Reads the samples of a clip, or only its first samples if it has more than `max_samples`.
fn open(clip: &Clip, max_samples: usize) -> Result<ClipAudio, DataError> {
    let (mut reader, mut samples) = (clip.open(SAMPLE_RATE)?, Vec::new());
    while reader.read(&mut samples)? {
        if samples.len() > max_samples {
            return Ok(ClipAudio::Long(samples, Box::new(reader)));
        }
    }
    Ok(if samples.len() > max_samples {
        ClipAudio::Long(samples, Box::new(reader))
    } else {
        ClipAudio::Short(samples)
    })
}

/// Transcribes a long recording. `first` has the samples that are already read; `reader` gives the
/// rest.
fn transcribe_long(
    asr_model: &AsrModel,
    options: &TranscribeOptions,
    mut first: Vec<f32>,
    mut reader: ClipReader,
    show_progress: &dyn Fn(&str),
) -> Result<Transcript, InferError> {
    let total = reader.seconds();
    let read = |samples: &mut Vec<f32>| -> Result<bool, InferError> {
        if !first.is_empty() {
            samples.append(&mut first);
            return Ok(true);
        }
        Ok(reader.read(samples)?)
    };
    let started = Instant::now();
    let progress = |_: &[Segment], done: f64| {
        let rest = total.map_or(String::new(), |total| {
            let left = started.elapsed().as_secs_f64() / done.max(1e-9) * (total - done).max(0.0);
            format!(" of {total:.0} s, {} left", HumanDuration(Duration::from_secs_f64(left)))
        });
        show_progress(&format!("(this recording: {done:.0}{rest})"));
    };
    asr_model.transcribe_long(options, read, progress)
}

/// Reads the clips in the input and prints how many files of a folder were skipped.
pub(super) fn read_clips(input: &Path, quiet: bool) -> Result<Vec<Clip>, DataError> {
    let (clips, SkippedFiles { hidden, others }) = clips_and_skipped(input)?;
    if hidden + others > 0 {
        let input = input.display();
        output::note(
            &format!(
                "{input}: skipped {hidden} hidden files and {others} files that are not audio"
            ),
            quiet,
        );
    }
    Ok(clips)
}
