//! Transcribes recordings of any length, in batches or as streams.

use engram_data::messages::counted;
use std::time::{Duration, Instant};

use engram_data::DataError;
use engram_data::speech::manifest::{Clip, ClipReader};
use engram_infer::InferError;
use engram_infer::asr::{AsrModel, Segment, StreamResult, TranscribeOptions, Transcript};
use engram_models::speech::log_mel::SAMPLE_RATE;
use indicatif::HumanDuration;
use rayon::prelude::*;
use serde::Serialize;

use super::inputs::{InputNotes, Inputs, files_of};
use super::streaming::{self, Report};
use super::transcripts::Format;
use super::{Transcribe, check_any_transcribed, skipped_text};
use crate::cli::{Outcome, log, output, paths};

/// The summary that is printed as JSON.
#[derive(Debug, Serialize)]
struct Summary {
    clips: usize,
    /// The errors of clips that could not be decoded.
    skipped: Vec<String>,
    #[serde(flatten)]
    inputs: InputNotes,
    /// Duration of the audio.
    audio_seconds: f64,
    /// Wall time from the loaded model to the last text.
    seconds: f64,
    /// Wall time divided by the duration of the audio.
    real_time_factor: f64,
    /// The SHA-256 of the model's weights; only computed for the JSON output.
    weights_sha256: Option<String>,
    /// Number of clips that were transcribed a second time, padded to 30 seconds.
    decoded_again: usize,
    /// Latency of final words; `None` without `--stream`.
    #[serde(skip_serializing_if = "Option::is_none")]
    streaming: Option<Report>,
}

/// The audio of a clip that waits for transcription.
enum ClipAudio {
    /// All samples.
    Short(Vec<f32>),
    /// The first samples, and a reader of the remaining samples.
    Long(Vec<f32>, Box<ClipReader>),
}

impl Transcribe {
    /// Transcribes the clips.
    pub(super) fn transcribe(&self, inputs: &Inputs) -> anyhow::Result<Outcome> {
        let (clips, format) = (&inputs.clips, self.format());
        if format == Format::Manifest && clips.iter().any(streaming::is_stdin) {
            anyhow::bail!("--format manifest needs audio files, not standard input");
        }
        let subtitles = self.writes_subtitles();
        // Several clips make a folder, unless the path names a file.
        let is_folder = self.names_folder() || clips.len() > 1 && self.out.extension().is_none();
        if subtitles && clips.len() > 1 && (!is_folder || self.out.exists() && !self.out.is_dir()) {
            let (out, count) = (self.out.display(), clips.len());
            anyhow::bail!(
                "{out}: {count} clips need {count} subtitle files; name a folder, with / at its end"
            );
        }
        if !subtitles && self.names_folder() {
            let out = self.out.display();
            anyhow::bail!("{out}: is a folder; name a file for --out, or give --format srt or vtt");
        }
        if subtitles {
            self.check_subtitle_files(clips, (format, is_folder))?;
        } else {
            paths::check_not_overwritten(&self.out, files_of(clips))?;
        }
        if self.decoding.word_times && format != Format::Jsonl && !subtitles {
            anyhow::bail!("--word-times needs --format jsonl, srt or vtt; give one of them");
        }
        let lists = self.boost.read(clips)?;
        let compute = self.compute.open()?;
        let asr_model = log::stage("loaded the model", || AsrModel::open(&self.model, &compute))?;
        let options = self.decoding.options(subtitles);
        asr_model.check(&options)?;
        let stream = self.streaming.options(asr_model.max_seconds())?;
        let trees = self.boost.trees(lists.as_ref(), &asr_model)?;
        let tree = |clip: &Clip| trees.as_ref().map_or(Ok(None), |trees| trees.of(clip));
        let start = Instant::now();
        let bar = output::progress_bar(clips.len(), "clips");
        let mut results: Vec<(&Clip, Transcript)> = Vec::with_capacity(clips.len());
        let mut skipped = Vec::new();
        let mut streams: Vec<StreamResult> = Vec::new();
        for batch in clips.chunks(usize::from(self.batch)) {
            if let Some(stream) = stream {
                for clip in batch {
                    let options = TranscribeOptions { boost: tree(clip)?, ..options.clone() };
                    let print = !self.json && !output::is_quiet();
                    match streaming::stream(&asr_model, &options, stream, clip, &bar, print) {
                        Ok(mut streamed) => {
                            if !options.timestamps {
                                streamed.transcript.segments.clear();
                            }
                            results.push((clip, streamed.transcript.clone()));
                            streams.push(streamed);
                        }
                        Err(InferError::Data(error)) => {
                            skipped.push(self.skip(inputs, clip, *error)?);
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
                batch.par_iter().map(|clip| read_audio(clip, max_samples)).collect();
            let (mut short_clips, mut transcripts) = (Vec::new(), Vec::new());
            for (clip, audio) in batch.iter().zip(audio_of_clips) {
                let result = match audio {
                    Ok(ClipAudio::Short(samples)) => {
                        short_clips.push((clip, samples));
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
                    Err(InferError::Data(error)) => skipped.push(self.skip(inputs, clip, *error)?),
                    Err(error) => return Err(error.into()),
                }
            }
            let samples: Vec<&[f32]> =
                short_clips.iter().map(|(_, samples)| samples.as_slice()).collect();
            let boosts: Vec<_> =
                short_clips.iter().map(|(clip, _)| tree(clip)).collect::<anyhow::Result<_>>()?;
            let short_transcripts = asr_model.transcribe(&samples, &boosts, &options)?;
            transcripts.extend(short_clips.iter().map(|(clip, _)| *clip).zip(short_transcripts));
            // Restores the input order, because long clips are transcribed before short clips.
            transcripts.sort_by_key(|(clip, _)| batch.iter().position(|other| other.id == clip.id));
            results.extend(transcripts);
            bar.set_message("");
            bar.inc(batch.len() as u64);
        }
        bar.finish_and_clear();
        let seconds = start.elapsed().as_secs_f64();
        check_any_transcribed(results.len(), &skipped)?;
        self.write_transcripts((format, is_folder), &results, &streams)?;
        let audio_seconds: f64 = results.iter().map(|(_, transcript)| transcript.seconds).sum();
        let summary = Summary {
            clips: results.len(),
            audio_seconds,
            seconds,
            real_time_factor: seconds / audio_seconds.max(1e-9),
            weights_sha256: self.json.then(|| asr_model.weights_sha256()).transpose()?,
            decoded_again: results
                .iter()
                .filter(|(_, transcript)| transcript.decoded_again)
                .count(),
            skipped,
            inputs: inputs.notes.clone(),
            streaming: stream.map(|options| Report::of(options, &streams)),
        };
        if self.json {
            output::print_json(&summary)?;
        }
        let skipped = skipped_text(summary.skipped.len());
        let message = format!(
            "{}{skipped}, {:.1} s of audio in {:.1} s ({:.1} times real time), written to {}",
            counted(summary.clips, "clip"),
            audio_seconds,
            seconds,
            1.0 / summary.real_time_factor.max(1e-9),
            self.out.display()
        );
        output::note(&message);
        if let Some(report) = &summary.streaming {
            output::note(&report.to_text());
        }
        Ok(Outcome::Done)
    }
}

/// Reads the samples of a clip, or only its first samples if it has more than `max_samples`.
fn read_audio(clip: &Clip, max_samples: usize) -> Result<ClipAudio, DataError> {
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

/// Transcribes a long recording. `first_samples` are already read; `reader` reads the
/// remaining samples.
fn transcribe_long(
    asr_model: &AsrModel,
    options: &TranscribeOptions,
    mut first_samples: Vec<f32>,
    mut reader: ClipReader,
    show_progress: &dyn Fn(&str),
) -> Result<Transcript, InferError> {
    let total = reader.seconds();
    let read = |samples: &mut Vec<f32>| -> Result<bool, InferError> {
        if !first_samples.is_empty() {
            samples.append(&mut first_samples);
            return Ok(true);
        }
        Ok(reader.read(samples)?)
    };
    let start = Instant::now();
    let progress = |_: &[Segment], done: f64| {
        let total_and_time_left = total.map_or(String::new(), |total| {
            let seconds_left =
                start.elapsed().as_secs_f64() / done.max(1e-9) * (total - done).max(0.0);
            format!(
                " of {total:.0} s, {} left",
                HumanDuration(Duration::from_secs_f64(seconds_left))
            )
        });
        show_progress(&format!("(this recording: {done:.0}{total_and_time_left})"));
    };
    asr_model.transcribe_long(options, read, progress)
}
