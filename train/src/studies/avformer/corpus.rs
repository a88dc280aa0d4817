//! Clips that are heard and seen: names of the embedded world, or the clips of manifests.

use std::path::{Path, PathBuf};

use engram_data::DataError;
use engram_data::image::Picture;
use engram_data::speech::manifest::{Clip, read_manifest};
use engram_data::world::audiovisual::{Audiovisual, Hearing};
use engram_data::world::questions::Split;
use engram_data::world::speech::SAMPLE_RATE;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::settings::{AvformerData, AvformerFeed, OnError};
use crate::error::{Result, TrainError};

/// Views of each name's picture in validation and test.
const EVALUATED_VIEWS: usize = 8;
/// What draws which clips are without noise.
const CLEAN_SEED: u64 = 0x636c_6561_6e;

/// A sound with its text and what is seen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SeenClip {
    /// Its name.
    pub id: String,
    /// What is said.
    pub text: String,
    /// At 16 kHz.
    pub samples: Vec<f32>,
    /// The pictures that show it, by their places in [`Corpus::picture`].
    pub frames: Vec<usize>,
    /// The name that is said, of the embedded world.
    pub name: Option<usize>,
}

/// Where clips come from.
pub struct Corpus {
    data: AvformerData,
    clips: Clips,
    rehearsal: Option<Manifest>,
    kept: Option<Manifest>,
    left_out: Vec<String>,
}

enum Clips {
    World(Audiovisual),
    Files {
        train: Manifest,
        validation: Manifest,
        test: Manifest,
        /// The frames of all clips.
        pictures: Vec<PathBuf>,
    },
}

/// The clips of a file, and the places of their frames.
struct Manifest {
    path: String,
    clips: Vec<(Clip, Vec<usize>)>,
}

impl Corpus {
    /// Reads what `[data]` names.
    ///
    /// # Errors
    /// [`TrainError::Data`] for a manifest that cannot be read; [`TrainError::Recognise`] for a clip
    /// without sound, text or frames.
    pub fn load(data: &AvformerData) -> Result<Self> {
        let mut left_out = Vec::new();
        let clips = if data.is_world() {
            Clips::World(Audiovisual::new(data.names, data.world_seed)?)
        } else {
            let mut pictures = Vec::new();
            let mut read = |path: &str| {
                let mut manifest = Manifest::read(path)?;
                if data.frames > 0 {
                    left_out.extend(manifest.find_frames(data.on_error, &mut pictures)?);
                }
                Ok::<_, TrainError>(manifest)
            };
            let (train, validation, test) =
                (read(&data.train)?, read(&data.validation)?, read(&data.test)?);
            Clips::Files { train, validation, test, pictures }
        };
        let optional = |path: &str| (!path.is_empty()).then(|| Manifest::read(path)).transpose();
        let (rehearsal, kept) = (optional(&data.rehearsal)?, optional(&data.kept)?);
        Ok(Self { data: data.clone(), clips, rehearsal, kept, left_out })
    }

    /// Clips that were left out, each with its manifest, its line and the reason.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Leaves clips out whose pictures do not decode.
    ///
    /// # Errors
    /// [`TrainError::Recognise`] naming the first of them, where `data.on_error` says so, or where a
    /// manifest has no other.
    pub fn refuse(&mut self, broken: &[(usize, TrainError)]) -> Result<()> {
        let Clips::Files { train, validation, test, .. } = &mut self.clips else {
            return Ok(());
        };
        for manifest in [train, validation, test] {
            for (place, error) in broken {
                let refused = |(_, frames): &(Clip, Vec<usize>)| frames.contains(place);
                if let Some((clip, _)) = manifest.clips.iter().find(|clip| refused(clip)) {
                    let told = manifest.tell(clip, &error.to_string(), self.data.on_error)?;
                    self.left_out.push(told);
                    manifest.clips.retain(|clip| !refused(clip));
                }
            }
            manifest.check_not_empty()?;
        }
        Ok(())
    }

    /// How many clips there are to train on.
    pub fn training_len(&self) -> usize {
        match &self.clips {
            Clips::World(_) => self.data.clips,
            Clips::Files { train, .. } => train.clips.len(),
        }
    }

    /// A clip to train on, as a phase hears it.
    ///
    /// # Errors
    /// [`TrainError::Data`] for a clip that cannot be read; [`TrainError::Recognise`] for one that is
    /// too long.
    pub fn training(&self, number: usize, feed: &AvformerFeed) -> Result<SeenClip> {
        match &self.clips {
            Clips::World(world) => {
                let mut rng = ChaCha8Rng::seed_from_u64(CLEAN_SEED ^ number as u64);
                let is_clean = rng.random_bool(feed.clean);
                let noise = if is_clean { Vec::new() } else { self.data.noise.clone() };
                let blanked = if is_clean { 0.0 } else { feed.blanked };
                let hearing = Hearing { noise, snr_db: feed.snr_db, blanked };
                Ok(self.of_world(world, (Split::Train, number), &hearing))
            }
            Clips::Files { train, .. } => train.seen(number, self.data.max_seconds),
        }
    }

    /// The clips of validation or test; of the embedded world with noise or `clean`.
    ///
    /// # Errors
    /// As [`Corpus::training`].
    pub fn evaluated(&self, split: Split, clean: bool) -> Result<Vec<SeenClip>> {
        let is_test = split == Split::Test;
        match &self.clips {
            Clips::World(world) => {
                let data = &self.data;
                let (count, noise) = match is_test {
                    true => (data.test_clips, &data.test_noise),
                    false => (data.validation_clips, &data.noise),
                };
                let hearing = if clean { Hearing::clean() } else { data.test_hearing(noise) };
                let clip = |number| self.of_world(world, (split, number), &hearing);
                Ok((0..count).into_par_iter().map(clip).collect())
            }
            Clips::Files { validation, test, .. } => {
                let manifest = if is_test { test } else { validation };
                manifest.all(self.data.max_seconds)
            }
        }
    }

    /// The first clips of the test with noise at one ratio, in dB, or without; none of files.
    pub fn swept(&self, snr_db: Option<f32>) -> Vec<SeenClip> {
        let Clips::World(world) = &self.clips else { return Vec::new() };
        let hearing = snr_db.map_or_else(Hearing::clean, |ratio| Hearing {
            noise: self.data.test_noise.clone(),
            snr_db: [ratio; 2],
            blanked: 0.0,
        });
        let clip = |number| self.of_world(world, (Split::Test, number), &hearing);
        (0..self.data.sweep_clips).into_par_iter().map(clip).collect()
    }

    /// Clean speech to rehearse.
    ///
    /// # Errors
    /// As [`Corpus::training`].
    pub fn rehearsal(&self) -> Result<Vec<SeenClip>> {
        self.rehearsal.as_ref().map_or(Ok(Vec::new()), |one| one.all(self.data.max_seconds))
    }

    /// Other speech that is measured with and without adapters.
    ///
    /// # Errors
    /// As [`Corpus::training`].
    pub fn kept(&self) -> Result<Vec<SeenClip>> {
        self.kept.as_ref().map_or(Ok(Vec::new()), |one| one.all(self.data.max_seconds))
    }

    /// How many pictures there are.
    pub fn pictures(&self) -> usize {
        match &self.clips {
            Clips::World(world) => world.names().len() * self.views_of_name(),
            Clips::Files { pictures, .. } => pictures.len(),
        }
    }

    /// A picture, and its name in messages.
    ///
    /// # Errors
    /// [`TrainError::Data`] for a file that is no picture.
    pub fn picture(&self, place: usize) -> Result<(Picture, PathBuf)> {
        match &self.clips {
            Clips::World(world) => {
                let (name, view) = (place / self.views_of_name(), place % self.views_of_name());
                let (split, view) = match view.checked_sub(self.data.views) {
                    None => (Split::Train, view),
                    Some(view) if view < EVALUATED_VIEWS => (Split::Validation, view),
                    Some(view) => (Split::Test, view - EVALUATED_VIEWS),
                };
                let seen = world.view((split, name), view, self.data.view_size)?;
                let (width, height) = seen.dimensions();
                let path = PathBuf::from(world.names().nth(name).unwrap_or_default());
                let picture = Picture::from_pixels(width, height, seen.into_raw());
                let none = || {
                    let (path, reason) = (path.clone(), "has no pixels".to_string());
                    DataError::Picture { path, reason }
                };
                Ok((picture.ok_or_else(none)?, path))
            }
            Clips::Files { pictures, .. } => {
                Ok((Picture::open(&pictures[place])?, pictures[place].clone()))
            }
        }
    }

    /// The names of the embedded world; none for clips of files.
    pub fn names(&self) -> Vec<&str> {
        match &self.clips {
            Clips::World(world) => world.names().collect(),
            Clips::Files { .. } => Vec::new(),
        }
    }

    fn views_of_name(&self) -> usize {
        self.data.views + 2 * EVALUATED_VIEWS
    }

    fn of_world(
        &self,
        world: &Audiovisual,
        (split, number): (Split, usize),
        hearing: &Hearing,
    ) -> SeenClip {
        let clip = world.clip(split, number, hearing);
        let first = clip.name * self.views_of_name();
        let views = match split {
            Split::Train => 0..self.data.views,
            Split::Validation => self.data.views..self.data.views + EVALUATED_VIEWS,
            Split::Test => self.data.views + EVALUATED_VIEWS..self.views_of_name(),
        };
        SeenClip {
            id: format!("{}-{number:05}", clip.voice),
            text: clip.text,
            samples: clip.samples,
            frames: views.map(|view| first + view).collect(),
            name: Some(clip.name),
        }
    }
}

impl SeenClip {
    /// Whether the frames of `other` show what is not said here.
    pub fn is_other(&self, other: &Self) -> bool {
        match (self.name, other.name) {
            (Some(own), Some(theirs)) => own != theirs,
            _ => self.text != other.text,
        }
    }
}

impl Manifest {
    fn read(path: &str) -> Result<Self> {
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

    fn check_not_empty(&self) -> Result<()> {
        match self.clips.is_empty() {
            true => Err(DataError::EmptyFile { path: self.path.clone().into() }.into()),
            false => Ok(()),
        }
    }

    /// Adds the pictures of all clips to `pictures`; clips without them are left out and told, or end it.
    fn find_frames(
        &mut self,
        on_error: OnError,
        pictures: &mut Vec<PathBuf>,
    ) -> Result<Vec<String>> {
        let (mut kept, mut left_out) = (Vec::with_capacity(self.clips.len()), Vec::new());
        for (clip, _) in &self.clips {
            match clip.pictures() {
                Ok(files) => {
                    let first = pictures.len();
                    pictures.extend(files);
                    kept.push((clip.clone(), (first..pictures.len()).collect()));
                }
                Err(error) => left_out.push(self.tell(clip, &error.to_string(), on_error)?),
            }
        }
        self.clips = kept;
        self.check_not_empty()?;
        Ok(left_out)
    }

    fn all(&self, max_seconds: f64) -> Result<Vec<SeenClip>> {
        (0..self.clips.len()).into_par_iter().map(|i| self.seen(i, max_seconds)).collect()
    }

    fn seen(&self, number: usize, max_seconds: f64) -> Result<SeenClip> {
        let (clip, frames) = &self.clips[number];
        let samples = clip.samples(SAMPLE_RATE)?;
        let seconds = samples.len() as f64 / f64::from(SAMPLE_RATE);
        if seconds > max_seconds {
            let reason = format!(
                "{seconds:.1} s are more than data.max_seconds = {max_seconds}; cut it, leave it out, \
                 or raise that"
            );
            return Err(self.bad(clip, &reason));
        }
        let (id, text) = (clip.id.clone(), clip.text.clone().unwrap_or_default());
        Ok(SeenClip { id, text, samples, frames: frames.clone(), name: None })
    }

    /// What is wrong with a clip, or the end.
    fn tell(&self, clip: &Clip, reason: &str, on_error: OnError) -> Result<String> {
        match on_error {
            OnError::Skip => Ok(self.bad(clip, reason).to_string()),
            OnError::Stop => {
                let remedy = "(data.on_error = \"skip\" leaves such clips out)";
                Err(self.bad(clip, &format!("{reason} {remedy}")))
            }
        }
    }

    fn bad(&self, clip: &Clip, reason: &str) -> TrainError {
        TrainError::Recognise { reason: format!("{}, line {}: {reason}", self.path, clip.line) }
    }
}
