//! The clips of a manifest, with their frames.

use engram_data::messages::counted;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use engram_data::speech::manifest::{Clip, InputClips, read_list};
use engram_data::world::speech::SAMPLE_RATE;
use engram_infer::asr::{MAX_FRAMES, sample_evenly};
use rayon::prelude::*;

use super::corpus::ClipWithFrames;
use super::settings::OnError;
use crate::error::{Result, TrainError};
use crate::log::Progress;

/// Audio files that are read together.
const FILES_PER_BATCH: usize = 64;

/// The clips of a manifest file.
pub(super) struct Manifest {
    path: String,
    /// What was taken for what in a list of another program.
    pub(super) taken_as: Option<String>,
    /// The usable clips.
    pub(super) clips: Vec<ManifestClip>,
    /// Skipped clips, each with its line and the reason.
    pub(super) skipped: Vec<String>,
}

pub(super) struct ManifestClip {
    pub(super) clip: Clip,
    /// The duration of the audio.
    seconds: f64,
    /// The indices of the frames, for [`super::corpus::Corpus::image`].
    pub(super) frames: Vec<usize>,
}

/// Limits on the length of clips: the minimum in samples, the maximum in seconds.
pub(super) type LengthLimits = (usize, f64);

impl Manifest {
    /// Reads a manifest or another list, and each of its audio files once, so that bad clips are
    /// found before training.
    pub(super) fn read(
        path: &str,
        lengths: LengthLimits,
        on_error: OnError,
        quiet: bool,
    ) -> Result<Self> {
        let InputClips { clips, taken_as, .. } = read_list(Path::new(path))?;
        let manifest_clip = |clip| ManifestClip { clip, seconds: 0.0, frames: Vec::new() };
        let clips: Vec<ManifestClip> = clips.into_iter().map(manifest_clip).collect();
        let mut manifest = Self { path: path.to_string(), taken_as, clips, skipped: Vec::new() };
        if let Some(ManifestClip { clip, .. }) =
            manifest.clips.iter().find(|listed| listed.clip.text.is_none())
        {
            let reason = "has no `text`; write one with `engram transcribe`";
            return Err(manifest.clip_error(clip, reason));
        }
        manifest.read_durations(lengths, on_error, quiet)?;
        Ok(manifest)
    }

    /// Reads all durations. `on_error` decides whether a clip with unreadable audio is skipped or
    /// is an error. A clip that is too short or too long is always an error.
    fn read_durations(
        &mut self,
        lengths: LengthLimits,
        on_error: OnError,
        quiet: bool,
    ) -> Result<()> {
        let mut progress = Progress::new(quiet, "audio files", 0, self.clips.len() as u64);
        let mut seconds = Vec::with_capacity(self.clips.len());
        for clips in self.clips.chunks(FILES_PER_BATCH) {
            let durations = clips.par_iter().map(|listed| self.seconds(&listed.clip, lengths));
            seconds.extend(durations.collect::<Result<Vec<_>>>()?);
            progress.count(seconds.len() as u64);
        }
        let mut seconds = seconds.into_iter();
        self.retain_usable(on_error, |listed| {
            listed.seconds = seconds.next().unwrap_or(Ok(0.0))?;
            Ok(())
        })
    }

    /// The duration of a clip's audio, or the reason why it cannot be read.
    fn seconds(
        &self,
        clip: &Clip,
        lengths: LengthLimits,
    ) -> Result<std::result::Result<f64, String>> {
        if !clip.audio.is_file() {
            return Ok(Err(format!("audio file not found: {}", clip.audio.display())));
        }
        // A file whose header gives too long a duration is not read.
        let header_seconds = clip.open(SAMPLE_RATE).map(|reader| reader.seconds());
        if let Ok(Some(seconds)) = header_seconds {
            self.check_length(clip, seconds, (0, lengths.1))?;
        }
        let samples = match clip.samples(SAMPLE_RATE) {
            Ok(samples) => samples.len(),
            Err(error) => return Ok(Err(error.to_string())),
        };
        let seconds = samples as f64 / f64::from(SAMPLE_RATE);
        self.check_length(clip, seconds, lengths)?;
        Ok(Ok(seconds))
    }

    /// Adds the images of all clips to `images`, which has each file once, at most [`MAX_FRAMES`]
    /// per clip. `on_error` decides whether a clip without images is skipped or is an error.
    pub(super) fn find_frames(
        &mut self,
        on_error: OnError,
        images: &mut HashMap<PathBuf, usize>,
    ) -> Result<()> {
        self.retain_usable(on_error, |listed| {
            let files =
                listed.clip.frame_files(listed.seconds).map_err(|error| error.to_string())?;
            let index = |file: &PathBuf| {
                let next = images.len();
                *images.entry(file.clone()).or_insert(next)
            };
            listed.frames = sample_evenly(&files, MAX_FRAMES).map(index).collect();
            Ok(())
        })
    }

    /// Retains the clips for which `check` finds no fault. `on_error` decides whether other clips
    /// are skipped and counted or are an error. It is also an error if no clip remains.
    pub(super) fn retain_usable(
        &mut self,
        on_error: OnError,
        mut check: impl FnMut(&mut ManifestClip) -> std::result::Result<(), String>,
    ) -> Result<()> {
        let clips = std::mem::take(&mut self.clips);
        for mut listed in clips {
            match (check(&mut listed), on_error) {
                (Ok(()), _) => self.clips.push(listed),
                (Err(reason), OnError::Skip) => {
                    self.skipped.push(self.clip_error(&listed.clip, &reason).to_string());
                }
                (Err(reason), OnError::Stop) => {
                    let remedy = "(data.on_error = \"skip\" skips such clips)";
                    return Err(self.clip_error(&listed.clip, &format!("{reason} {remedy}")));
                }
            }
        }
        match self.skipped.first().filter(|_| self.clips.is_empty()) {
            None => Ok(()),
            Some(first) => {
                let (path, clips) = (&self.path, counted(self.skipped.len(), "clip"));
                let reason =
                    format!("{path}: no clip is left ({clips} skipped); the first: {first}");
                Err(TrainError::Refused(reason))
            }
        }
    }

    /// Reads all clips with their audio.
    pub(super) fn read_all(&self) -> Result<Vec<ClipWithFrames>> {
        (0..self.clips.len()).into_par_iter().map(|index| self.read_clip(index)).collect()
    }

    /// Reads a clip with its audio.
    pub(super) fn read_clip(&self, index: usize) -> Result<ClipWithFrames> {
        let clip = &self.clips[index].clip;
        // The file was readable when the manifest was read, so an error means that it has changed.
        let samples = clip.samples(SAMPLE_RATE);
        let samples = samples.map_err(|error| self.clip_error(clip, &error.to_string()))?;
        Ok(ClipWithFrames { samples, ..self.without_audio(index) })
    }

    /// A clip without its audio.
    pub(super) fn without_audio(&self, index: usize) -> ClipWithFrames {
        let ManifestClip { clip, frames, .. } = &self.clips[index];
        let (id, text) = (clip.id.clone(), clip.text.clone().unwrap_or_default());
        ClipWithFrames { id, text, frames: frames.clone(), ..ClipWithFrames::default() }
    }

    /// Returns an error for a clip that is too long or too short.
    fn check_length(
        &self,
        clip: &Clip,
        seconds: f64,
        (min_samples, max_seconds): LengthLimits,
    ) -> Result<()> {
        if seconds > max_seconds {
            let reason = format!(
                "{seconds:.1} s are more than data.max_seconds = {max_seconds}; shorten the clip, \
                 remove it, or raise the limit"
            );
            return Err(self.clip_error(clip, &reason));
        }
        let min_seconds = min_samples as f64 / f64::from(SAMPLE_RATE);
        if seconds < min_seconds {
            Err(self.clip_error(
                clip,
                &format!("{seconds:.3} s are too short for one token; remove the clip"),
            ))
        } else {
            Ok(())
        }
    }

    /// An error with the line of a clip.
    pub(super) fn clip_error(&self, clip: &Clip, reason: &str) -> TrainError {
        TrainError::Refused(format!("{}, line {}: {reason}", self.path, clip.line))
    }
}
