//! The clips of a manifest, with the pictures that show them.

use std::path::{Path, PathBuf};

use engram_data::DataError;
use engram_data::speech::manifest::{Clip, read_manifest};
use engram_data::world::speech::SAMPLE_RATE;
use rayon::prelude::*;

use super::corpus::SeenClip;
use super::settings::{AvformerData, OnError};
use crate::error::{Result, TrainError};
use crate::recognise::evenly;

/// Pictures of a clip that training chooses from, as a multiple of those that are shown.
const MOST_FRAMES: usize = 8;

/// The clips of a file, and the places of their frames.
pub(super) struct Manifest {
    pub(super) path: String,
    pub(super) clips: Vec<(Clip, Vec<usize>)>,
}

impl Manifest {
    pub(super) fn read(path: &str) -> Result<Self> {
        let clips = read_manifest(Path::new(path))?;
        let clips = clips.into_iter().map(|clip| (clip, Vec::new())).collect();
        let manifest = Self { path: path.to_string(), clips };
        manifest.check_not_empty()?;
        for (clip, _) in &manifest.clips {
            if !clip.audio.is_file() {
                let reason = format!("{}: there is no such sound file", clip.audio.display());
                return Err(manifest.bad(clip, &reason));
            }
            if clip.text.is_none() {
                let reason = "has no `text`; write one with `engram predict --recogniser`";
                return Err(manifest.bad(clip, reason));
            }
        }
        Ok(manifest)
    }

    pub(super) fn check_not_empty(&self) -> Result<()> {
        match self.clips.is_empty() {
            true => Err(DataError::EmptyFile { path: self.path.clone().into() }.into()),
            false => Ok(()),
        }
    }

    /// Adds the pictures of all clips to `pictures`; clips without them are left out and told, or end it.
    /// Of a clip with very many, some of them, evenly.
    pub(super) fn find_frames(
        &mut self,
        data: &AvformerData,
        pictures: &mut Vec<PathBuf>,
    ) -> Result<Vec<String>> {
        let (mut kept, mut left_out) = (Vec::with_capacity(self.clips.len()), Vec::new());
        for (clip, _) in &self.clips {
            match clip.pictures() {
                Ok(files) => {
                    let first = pictures.len();
                    pictures.extend(evenly(&files, MOST_FRAMES * data.frames).cloned());
                    kept.push((clip.clone(), (first..pictures.len()).collect()));
                }
                Err(error) => left_out.push(self.tell(clip, &error.to_string(), data.on_error)?),
            }
        }
        self.clips = kept;
        self.check_not_empty()?;
        Ok(left_out)
    }

    pub(super) fn all(&self, max_seconds: f64) -> Result<Vec<SeenClip>> {
        (0..self.clips.len()).into_par_iter().map(|i| self.seen(i, max_seconds)).collect()
    }

    pub(super) fn seen(&self, number: usize, max_seconds: f64) -> Result<SeenClip> {
        let clip = &self.clips[number].0;
        let samples = clip.samples(SAMPLE_RATE)?;
        // Not every file says how long it is before it is read.
        self.check_length(clip, samples.len() as f64 / f64::from(SAMPLE_RATE), (1, max_seconds))?;
        Ok(SeenClip { samples, ..self.described(number) })
    }

    /// A clip without its sound.
    pub(super) fn described(&self, number: usize) -> SeenClip {
        let (clip, frames) = &self.clips[number];
        let (id, text) = (clip.id.clone(), clip.text.clone().unwrap_or_default());
        SeenClip { id, text, frames: frames.clone(), ..SeenClip::default() }
    }

    pub(super) fn check_lengths(&self, fewest_samples: usize, max_seconds: f64) -> Result<()> {
        self.clips.par_iter().try_for_each(|(clip, _)| {
            let seconds =
                clip.open(SAMPLE_RATE).map_err(|error| self.bad(clip, &error.to_string()))?;
            match seconds.seconds() {
                None => Ok(()),
                Some(seconds) => self.check_length(clip, seconds, (fewest_samples, max_seconds)),
            }
        })
    }

    fn check_length(
        &self,
        clip: &Clip,
        seconds: f64,
        (fewest_samples, max_seconds): (usize, f64),
    ) -> Result<()> {
        if seconds > max_seconds {
            let reason = format!(
                "{seconds:.1} s are more than data.max_seconds = {max_seconds}; cut it, leave it out, \
                 or raise that"
            );
            return Err(self.bad(clip, &reason));
        }
        let fewest = fewest_samples as f64 / f64::from(SAMPLE_RATE);
        match seconds < fewest {
            true => {
                Err(self.bad(clip, &format!("has {seconds:.3} s, less than a token; leave it out")))
            }
            false => Ok(()),
        }
    }

    /// What is wrong with a clip, or the end.
    pub(super) fn tell(&self, clip: &Clip, reason: &str, on_error: OnError) -> Result<String> {
        match on_error {
            OnError::Skip => Ok(self.bad(clip, reason).to_string()),
            OnError::Stop => {
                let remedy = "(data.on_error = \"skip\" leaves such clips out)";
                Err(self.bad(clip, &format!("{reason} {remedy}")))
            }
        }
    }

    pub(super) fn bad(&self, clip: &Clip, reason: &str) -> TrainError {
        TrainError::Recognise { reason: format!("{}, line {}: {reason}", self.path, clip.line) }
    }
}
