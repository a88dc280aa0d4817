//! Clips that are heard and seen: names of the embedded world, or the clips of manifests.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;

use engram_data::DataError;
use engram_data::image::Picture;
use engram_data::world::audiovisual::{Audiovisual, Hearing};
use engram_data::world::questions::Split;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::manifest::{Listed, Manifest};
use super::settings::{AvformerData, AvformerFeed, EVALUATED_VIEWS, OnError};
use crate::digest;
use crate::error::{Result, TrainError};
use crate::recognise::evenly;

/// What draws which clips are without noise.
const CLEAN_SEED: u64 = 0x0063_6c65_616e;

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
    /// Whether that is not heard.
    pub blanked: bool,
}

/// Where clips come from.
pub struct Corpus {
    data: AvformerData,
    clips: Clips,
    rehearsal: Option<Manifest>,
    kept: Option<Manifest>,
}

enum Clips {
    World(Audiovisual),
    Files {
        train: Manifest,
        validation: Manifest,
        test: Manifest,
        /// The frames of all clips.
        pictures: Vec<Candidate>,
    },
}

/// A picture of a file that is chosen from.
struct Candidate {
    file: PathBuf,
    /// Whether any phase or test may show it.
    is_shown: bool,
}

impl Corpus {
    /// Reads what `[data]` names, and each sound once; `fewest_samples` are those of the shortest clip that the recogniser
    /// hears. Frames are looked for where `data.frames` wants some.
    ///
    /// # Errors
    /// [`TrainError::Data`] for a manifest that cannot be read; [`TrainError::Recognise`] for a clip
    /// without sound, text or frames, and for one that is too long or too short.
    pub fn load(data: &AvformerData, fewest_samples: usize, quiet: bool) -> Result<Self> {
        let lengths = (fewest_samples, data.max_seconds);
        let read = |path: &str| Manifest::read(path, lengths, data.on_error, quiet);
        let clips = if data.is_world() {
            Clips::World(Audiovisual::new(data.names, data.world_seed)?)
        } else {
            let mut pictures = Vec::new();
            let mut seen = |path: &str| {
                let mut manifest = read(path)?;
                if data.frames > 0 {
                    manifest.find_frames(data.on_error, &mut pictures)?;
                }
                Ok::<_, TrainError>(manifest)
            };
            let (train, validation, test) =
                (seen(&data.train)?, seen(&data.validation)?, seen(&data.test)?);
            let candidate = |file| Candidate { file, is_shown: false };
            let mut pictures: Vec<Candidate> = pictures.into_iter().map(candidate).collect();
            let every = train.clips().iter().flat_map(|one| one.frames.iter());
            let evaluated = validation.clips().iter().chain(test.clips());
            let evaluated = evaluated.flat_map(|one| evenly(&one.frames, data.frames));
            every.chain(evaluated).for_each(|place| pictures[*place].is_shown = true);
            Clips::Files { train, validation, test, pictures }
        };
        let optional = |path: &str| (!path.is_empty()).then(|| read(path)).transpose();
        let (rehearsal, kept) = (optional(&data.rehearsal)?, optional(&data.kept)?);
        Ok(Self { data: data.clone(), clips, rehearsal, kept })
    }

    /// The manifests, by what their clips are for.
    fn manifests(&self) -> impl Iterator<Item = (&'static str, &Manifest)> {
        let files = match &self.clips {
            Clips::World(_) => [None; 3],
            Clips::Files { train, validation, test, .. } => {
                [Some(("train", train)), Some(("validation", validation)), Some(("test", test))]
            }
        };
        let optional = [("rehearsal", &self.rehearsal), ("kept", &self.kept)];
        let optional = optional.into_iter().filter_map(|(name, one)| Some((name, one.as_ref()?)));
        files.into_iter().flatten().chain(optional)
    }

    /// Clips that were left out, each with its manifest, its line and the reason.
    pub fn left_out(&self) -> Vec<String> {
        self.manifests().flat_map(|(_, manifest)| manifest.left_out()).cloned().collect()
    }

    /// The pictures of files that do not decode, by their places, each with the reason.
    pub fn broken_pictures(&self) -> Vec<(usize, TrainError)> {
        let Clips::Files { pictures, .. } = &self.clips else { return Vec::new() };
        let error = |place: usize| Some((place, self.picture(place).err()?));
        (0..pictures.len()).into_par_iter().filter_map(error).collect()
    }

    /// Leaves clips out whose pictures do not decode.
    ///
    /// # Errors
    /// [`TrainError::Recognise`] naming the first of them, where `data.on_error` says so, or where a
    /// manifest has no other; the reason itself for a picture of the embedded world.
    pub fn refuse(&mut self, broken: Vec<(usize, TrainError)>) -> Result<()> {
        let Clips::Files { train, validation, test, .. } = &mut self.clips else {
            return broken.into_iter().next().map_or(Ok(()), |(_, error)| Err(error));
        };
        let broken: HashMap<usize, TrainError> = broken.into_iter().collect();
        for manifest in [train, validation, test] {
            manifest.keep(self.data.on_error, |one| {
                match one.frames.iter().find_map(|place| broken.get(place)) {
                    None => Ok(()),
                    Some(error) => Err(error.to_string()),
                }
            })?;
        }
        Ok(())
    }

    /// Whether a picture that does not decode ends the run.
    pub fn stops_at_errors(&self) -> bool {
        self.data.on_error == OnError::Stop || matches!(self.clips, Clips::World(_))
    }

    /// Checks the texts of all clips of files that are learnt from.
    ///
    /// # Errors
    /// [`TrainError::Recognise`] naming the first clip that `is_wrong` gives a reason for.
    pub fn check_texts(&self, is_wrong: impl Fn(&str) -> Option<String>) -> Result<()> {
        let train = match &self.clips {
            Clips::World(_) => None,
            Clips::Files { train, .. } => Some(train),
        };
        for manifest in train.into_iter().chain(&self.rehearsal) {
            for Listed { clip, .. } in manifest.clips() {
                let reason = is_wrong(clip.text.as_deref().unwrap_or_default());
                if let Some(reason) = reason {
                    return Err(manifest.bad(clip, &reason));
                }
            }
        }
        Ok(())
    }

    /// What is read of the manifests, by name and SHA-256: what each clip is, the bytes of its audio and of the images
    /// that are shown.
    ///
    /// # Errors
    /// [`TrainError::Io`] for a file that cannot be read.
    pub fn inputs(&self) -> Result<Vec<(String, String)>> {
        let mut inputs = Vec::new();
        for (name, manifest) in self.manifests() {
            let mut hash = Sha256::new();
            manifest.clips().iter().for_each(|one| hash.update(format!("{:?}\n", one.clip)));
            inputs.push((format!("{name} clips"), format!("{:x}", hash.finalize())));
            let audio = manifest.clips().iter().map(|one| one.clip.audio.as_path());
            inputs.push((format!("{name} audio"), digest::of_files(audio)?));
        }
        if let Clips::Files { pictures, .. } = &self.clips {
            let shown = pictures.iter().filter(|one| one.is_shown).map(|one| one.file.as_path());
            inputs.push(("images".to_owned(), digest::of_files(shown)?));
        }
        Ok(inputs)
    }

    /// How many clips there are to train on.
    pub fn training_len(&self) -> usize {
        match &self.clips {
            Clips::World(_) => self.data.clips,
            Clips::Files { train, .. } => train.clips().len(),
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
            Clips::Files { train, .. } => train.seen(number),
        }
    }

    /// The same without its sound, which is not read.
    ///
    /// # Errors
    /// As [`Corpus::training`].
    pub fn described(&self, number: usize, feed: &AvformerFeed) -> Result<SeenClip> {
        match &self.clips {
            Clips::World(_) => Ok(SeenClip { samples: Vec::new(), ..self.training(number, feed)? }),
            Clips::Files { train, .. } => Ok(train.described(number)),
        }
    }

    /// The clips of validation or test; of the embedded world with noise or `clean`.
    ///
    /// # Errors
    /// As [`Corpus::training`].
    pub fn evaluated(&self, split: Split, clean: bool) -> Result<Vec<SeenClip>> {
        let is_test = split == Split::Test;
        match &self.clips {
            Clips::World(_) => {
                let data = &self.data;
                let count = if is_test { data.test_clips } else { data.validation_clips };
                Ok(self.said(split, clean, 0..count))
            }
            Clips::Files { validation, test, .. } => {
                let manifest = if is_test { test } else { validation };
                manifest.all()
            }
        }
    }

    /// Some clips of the embedded world's validation or test, with noise or `clean`; none of files.
    pub fn said(&self, split: Split, clean: bool, numbers: Range<usize>) -> Vec<SeenClip> {
        let Clips::World(world) = &self.clips else { return Vec::new() };
        let data = &self.data;
        let noise = if split == Split::Test { &data.test_noise } else { &data.noise };
        let hearing = if clean { Hearing::clean() } else { data.test_hearing(noise) };
        let clip = |number| self.of_world(world, (split, number), &hearing);
        numbers.into_par_iter().map(clip).collect()
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
        (0..self.data.sweep_clips.min(self.data.test_clips)).into_par_iter().map(clip).collect()
    }

    /// Clean speech to rehearse.
    ///
    /// # Errors
    /// As [`Corpus::training`].
    pub fn rehearsal(&self) -> Result<Vec<SeenClip>> {
        self.rehearsal.as_ref().map_or(Ok(Vec::new()), Manifest::all)
    }

    /// Other speech that is measured with and without adapters.
    ///
    /// # Errors
    /// As [`Corpus::training`].
    pub fn kept(&self) -> Result<Vec<SeenClip>> {
        self.kept.as_ref().map_or(Ok(Vec::new()), Manifest::all)
    }

    /// How many pictures there are.
    pub fn pictures(&self) -> usize {
        match &self.clips {
            Clips::World(world) => world.names().len() * self.views_of_name(),
            Clips::Files { pictures, .. } => pictures.len(),
        }
    }

    /// Whether a picture is ever shown. Of those that are chosen from all have to decode, so that clips do not depend on
    /// how many are shown.
    pub fn is_shown(&self, place: usize) -> bool {
        match &self.clips {
            Clips::World(_) => true,
            Clips::Files { pictures, .. } => pictures[place].is_shown,
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
                let file = &pictures[place].file;
                Ok((Picture::open(file)?, file.clone()))
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
            blanked: clip.blanked,
        }
    }
}

impl SeenClip {
    /// What its frames show: clips of one name, or of one text, show the same.
    pub fn topic(&self) -> String {
        self.name.map_or_else(|| self.text.clone(), |name| name.to_string())
    }
}
