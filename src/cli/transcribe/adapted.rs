//! Transcribes clips with the adapters of an AVFormer run and the clips' video frames.

use engram_data::messages::counted;
use std::path::Path;
use std::time::Instant;

use clap::{Args, ValueEnum};
use engram_data::DataError;
use engram_data::speech::manifest::Clip;
use engram_infer::InferError;
use engram_infer::asr::{AdaptedAsrModel, AdaptedClip, AsrModel};
use engram_models::speech::log_mel::SAMPLE_RATE;
use serde::Serialize;

use super::inputs::{InputNotes, Inputs, files_of};
use super::{Transcribe, check_any_transcribed, skipped_text};
use crate::cli::paths::{self, InputFolder, ModelName};
use crate::cli::{Outcome, output};

/// Options for an adapted ASR model.
#[derive(Debug, Args)]
#[command(next_help_heading = "AVFormer")]
pub struct Adapted {
    /// Use the adapters of this `engram train avformer` run and the frames in the manifest; greedy
    /// decoding, one text per clip
    #[arg(long, value_name = "RUN", conflicts_with_all = ["Decoding", "Boost", "Streaming"])]
    pub(super) adapters: Option<InputFolder>,
    /// The run's image encoder, if it has moved
    #[arg(long, value_name = "WEIGHTS", requires = "adapters")]
    image_encoder: Option<ModelName>,
    /// The frames that the model uses
    #[arg(long, value_name = "FRAMES", default_value = "own", requires = "adapters")]
    frames: FramesName,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FramesName {
    /// The frames of each clip
    Own,
    /// No frames; the image encoder is not loaded
    None,
}

/// One line of the JSON lines output.
#[derive(Serialize)]
struct Line<'a> {
    id: &'a str,
    audio: &'a Path,
    start: f64,
    seconds: f64,
    /// Number of frames that the model used.
    frames: usize,
    text: &'a str,
}

/// The summary that is printed as JSON.
#[derive(Serialize)]
struct Summary {
    clips: usize,
    with_frames: usize,
    /// The errors of clips that could not be decoded or are too short or too long.
    skipped: Vec<String>,
    #[serde(flatten)]
    inputs: InputNotes,
    audio_seconds: f64,
    /// Wall time from the loaded models to the last text.
    seconds: f64,
}

impl Transcribe {
    /// Transcribes the clips with the adapters of a run.
    pub(super) fn transcribe_adapted(
        &self,
        run: &Path,
        inputs: &Inputs,
    ) -> anyhow::Result<Outcome> {
        let format = self.format();
        if self.writes_subtitles() {
            anyhow::bail!(
                "--adapters gives no subtitle times; use --format jsonl, tsv, txt or manifest"
            );
        }
        if self.names_folder() {
            anyhow::bail!("{}: is a folder; name a file for --out", self.out.display());
        }
        let clips = &inputs.clips;
        paths::check_not_overwritten(&self.out, files_of(clips))?;
        let mut adapted = AdaptedAsrModel::new(AsrModel::open(&self.model, &self.compute.open()?)?);
        let name = run.display().to_string();
        match self.adapted.frames {
            FramesName::Own => adapted.add(&name, run, self.adapted.image_encoder.as_deref())?,
            FramesName::None => adapted.add_without_images(&name, run)?,
        }
        adapted.activate(Some(&name))?;
        let uses_images = adapted.frames() > 0;
        let (start_time, mut results) = (Instant::now(), Vec::new());
        let bar = output::progress_bar(clips.len(), "clips");
        let mut summary = Summary {
            clips: 0,
            with_frames: 0,
            skipped: Vec::new(),
            inputs: inputs.notes.clone(),
            audio_seconds: 0.0,
            seconds: 0.0,
        };
        for batch in clips.chunks(usize::from(self.batch)) {
            let (mut decoded, mut adapted_clips) = (Vec::new(), Vec::new());
            for clip in batch {
                match read_clip(&adapted, clip, uses_images) {
                    Ok(adapted_clip) => {
                        decoded.push(clip);
                        adapted_clips.push(adapted_clip);
                    }
                    Err(InferError::Data(error)) => {
                        summary.skipped.push(self.skip(inputs, clip, *error)?);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            let texts = if adapted_clips.is_empty() {
                Vec::new()
            } else {
                adapted.transcribe(&adapted_clips)?
            };
            for ((clip, adapted_clip), text) in decoded.into_iter().zip(&adapted_clips).zip(texts) {
                let seconds = adapted_clip.samples.len() as f64 / f64::from(SAMPLE_RATE);
                let frames = adapted.image_count(adapted_clip);
                summary.clips += 1;
                summary.with_frames += usize::from(frames > 0);
                summary.audio_seconds += seconds;
                results.push((clip, seconds, frames, text));
            }
            bar.inc(batch.len() as u64);
        }
        bar.finish_and_clear();
        summary.seconds = start_time.elapsed().as_secs_f64();
        check_any_transcribed(summary.clips, &summary.skipped)?;
        let lines = results.iter().map(|(clip, seconds, frames, text)| {
            let (id, audio, start) = (clip.id.as_str(), clip.audio.as_path(), clip.start);
            (*clip, &**text, Line { id, audio, start, seconds: *seconds, frames: *frames, text })
        });
        self.write_lines(format, lines)?;
        if self.json {
            output::print_json(&summary)?;
        }
        let skipped = skipped_text(summary.skipped.len());
        let message = format!(
            "{}{skipped}, {} with frames, {:.1} s of audio in {:.1} s, written to {}",
            counted(summary.clips, "clip"),
            summary.with_frames,
            summary.audio_seconds,
            summary.seconds,
            self.out.display()
        );
        output::note(&message);
        Ok(Outcome::Done)
    }
}

/// Reads a clip's samples and computes the embeddings of its frames.
fn read_clip(
    adapted: &AdaptedAsrModel,
    clip: &Clip,
    uses_images: bool,
) -> Result<AdaptedClip, InferError> {
    let samples = clip.samples(SAMPLE_RATE)?;
    let seconds = samples.len() as f64 / f64::from(SAMPLE_RATE);
    let max_seconds = adapted.asr_model().max_seconds();
    if seconds > max_seconds || samples.len() < adapted.asr_model().min_samples() {
        let min_seconds = adapted.asr_model().min_samples() as f64 / f64::from(SAMPLE_RATE);
        let reason = format!(
            "has {seconds:.2} s; adapters take clips of {min_seconds} to {max_seconds:.0} s"
        );
        let (path, remedy) = (clip.audio.clone(), "split the clip, or remove it");
        return Err(DataError::Malformed { path, place: None, reason, remedy }.into());
    }
    let embeddings =
        if uses_images { adapted.embed_images(&clip.frame_files(seconds)?)? } else { Vec::new() };
    Ok(AdaptedClip { samples, embeddings })
}
