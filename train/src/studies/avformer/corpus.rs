//! Clips with audio and frames: names from the embedded world, or clips from manifests.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;

use engram_data::DataError;
use engram_data::image::DecodedImage;
use engram_data::world::audiovisual::{Audiovisual, NoiseSettings};
use engram_data::world::questions::Split;
use engram_data::world::seeded_rng;
use engram_infer::asr::sample_evenly;
use engram_infer::digest;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::manifest::{Manifest, ManifestClip};
use super::settings::{AvformerData, AvformerFeed, NUM_EVALUATION_VIEWS, OnError};
use crate::error::{Result, TrainError};

/// The seed for the random choice of clips without noise.
const CLEAN_SEED: u64 = 0x0063_6c65_616e;

/// An audio clip with its text and frames.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClipWithFrames {
    /// The id.
    pub id: String,
    /// The reference text.
    pub text: String,
    /// Audio samples at 16 kHz.
    pub samples: Vec<f32>,
    /// The images that show the clip's content, as indices for [`Corpus::image`].
    pub frames: Vec<usize>,
    /// The index of the spoken name in the embedded world; `None` for clips from files.
    pub name: Option<usize>,
    /// Whether noise replaces the spoken name.
    pub masked: bool,
}

/// The source of the clips.
pub struct Corpus {
    data: AvformerData,
    clips: Clips,
    rehearsal: Option<Manifest>,
    general_speech: Option<Manifest>,
}

#[allow(clippy::large_enum_variant)] // A run has only one.
enum Clips {
    /// Spoken names of the embedded world.
    World(Audiovisual),
    /// Clips of manifests.
    Files {
        train: Manifest,
        validation: Manifest,
        test: Manifest,
        /// The frames of all clips, which [`ClipWithFrames::frames`] index.
        images: Vec<Candidate>,
    },
}

/// An image file of a clip. Only some of a clip's images are shown as its frames.
struct Candidate {
    /// The image file.
    file: PathBuf,
    /// Whether training or the test may show it.
    is_shown: bool,
}

impl Corpus {
    /// Reads the manifests named in `[data]`, and checks each audio file by reading it once.
    /// `min_samples` is the length of the shortest clip that the ASR model accepts. Frames are
    /// searched only if `data.frames` is above 0.
    ///
    /// # Errors
    /// [`TrainError::Data`] if a manifest cannot be read; [`TrainError::Refused`] for a clip
    /// without audio, text or frames, and for a clip that is too long or too short.
    pub fn load(data: &AvformerData, min_samples: usize, quiet: bool) -> Result<Self> {
        let lengths = (min_samples, data.max_seconds);
        let read = |path: &str| Manifest::read(path, lengths, data.on_error, quiet);
        let clips = if data.is_world() {
            Clips::World(Audiovisual::new(data.names, data.world_seed)?)
        } else {
            let mut images = HashMap::new();
            let mut read_with_frames = |path: &str| {
                let mut manifest = read(path)?;
                if data.frames > 0 {
                    manifest.find_frames(data.on_error, &mut images)?;
                }
                Ok::<_, TrainError>(manifest)
            };
            let (train, validation, test) = (
                read_with_frames(&data.train)?,
                read_with_frames(&data.validation)?,
                read_with_frames(&data.test)?,
            );
            let mut images: Vec<(PathBuf, usize)> = images.into_iter().collect();
            images.sort_unstable_by_key(|(_, index)| *index);
            let candidate = |(file, _)| Candidate { file, is_shown: false };
            let mut images: Vec<Candidate> = images.into_iter().map(candidate).collect();
            let training_frames = train.clips.iter().flat_map(|listed| listed.frames.iter());
            let evaluation_frames = validation.clips.iter().chain(&test.clips);
            let evaluation_frames =
                evaluation_frames.flat_map(|listed| sample_evenly(&listed.frames, data.frames));
            training_frames
                .chain(evaluation_frames)
                .for_each(|index| images[*index].is_shown = true);
            Clips::Files { train, validation, test, images }
        };
        let optional = |path: &str| (!path.is_empty()).then(|| read(path)).transpose();
        let (rehearsal, general_speech) =
            (optional(&data.rehearsal)?, optional(&data.general_speech)?);
        Ok(Self { data: data.clone(), clips, rehearsal, general_speech })
    }

    /// The manifests, each with the name of its purpose.
    fn manifests(&self) -> impl Iterator<Item = (&'static str, &Manifest)> {
        let files = match &self.clips {
            Clips::World(_) => [None; 3],
            Clips::Files { train, validation, test, .. } => {
                [Some(("train", train)), Some(("validation", validation)), Some(("test", test))]
            }
        };
        let optional = [("rehearsal", &self.rehearsal), ("general_speech", &self.general_speech)];
        let optional =
            optional.into_iter().filter_map(|(name, manifest)| Some((name, manifest.as_ref()?)));
        files.into_iter().flatten().chain(optional)
    }

    /// The skipped clips, each with its manifest, line and reason.
    pub fn skipped(&self) -> Vec<String> {
        self.manifests().flat_map(|(_, manifest)| &manifest.skipped).cloned().collect()
    }

    /// The image files that do not decode, by index, each with the error.
    pub fn broken_images(&self) -> Vec<(usize, TrainError)> {
        let Clips::Files { images, .. } = &self.clips else { return Vec::new() };
        let error = |index: usize| Some((index, self.image(index).err()?));
        (0..images.len()).into_par_iter().filter_map(error).collect()
    }

    /// Removes the clips whose images do not decode.
    ///
    /// # Errors
    /// [`TrainError::Refused`] naming the first such clip, if `data.on_error` is `stop` or a
    /// manifest has no other clip. For the embedded world, the error of its first image.
    pub fn skip_broken_images(&mut self, broken: Vec<(usize, TrainError)>) -> Result<()> {
        let Clips::Files { train, validation, test, .. } = &mut self.clips else {
            return broken.into_iter().next().map_or(Ok(()), |(_, error)| Err(error));
        };
        let broken: HashMap<usize, TrainError> = broken.into_iter().collect();
        for manifest in [train, validation, test] {
            manifest.retain_usable(self.data.on_error, |listed| {
                match listed.frames.iter().find_map(|index| broken.get(index)) {
                    None => Ok(()),
                    Some(error) => Err(error.to_string()),
                }
            })?;
        }
        Ok(())
    }

    /// Whether an image that does not decode ends the run.
    pub(crate) fn stops_at_errors(&self) -> bool {
        self.data.on_error == OnError::Stop || matches!(self.clips, Clips::World(_))
    }

    /// Checks the texts of all training clips that come from files.
    ///
    /// # Errors
    /// [`TrainError::Refused`] naming the first clip for which `is_wrong` returns a reason.
    pub(crate) fn check_texts(&self, is_wrong: impl Fn(&str) -> Option<String>) -> Result<()> {
        let train = match &self.clips {
            Clips::World(_) => None,
            Clips::Files { train, .. } => Some(train),
        };
        for manifest in train.into_iter().chain(&self.rehearsal) {
            for ManifestClip { clip, .. } in &manifest.clips {
                let reason = is_wrong(clip.text.as_deref().unwrap_or_default());
                if let Some(reason) = reason {
                    return Err(manifest.clip_error(clip, &reason));
                }
            }
        }
        Ok(())
    }

    /// Names and SHA-256 digests of the clips' metadata and audio bytes. Images are covered by the
    /// digest of their embeddings.
    ///
    /// # Errors
    /// [`TrainError::Io`] if a file cannot be read.
    pub fn inputs(&self) -> Result<Vec<(String, String)>> {
        let mut inputs = Vec::new();
        for (name, manifest) in self.manifests() {
            let mut hash = Sha256::new();
            manifest.clips.iter().for_each(|listed| hash.update(format!("{:?}\n", listed.clip)));
            let taken_as = manifest.taken_as.as_ref();
            let taken_as = taken_as.map_or_else(String::new, |taken| format!(", read as {taken}"));
            inputs.push((format!("{name} clips{taken_as}"), format!("{:x}", hash.finalize())));
            let audio = manifest.clips.iter().map(|listed| listed.clip.audio.as_path());
            inputs.push((format!("{name} audio"), digest::of_files(audio)?));
        }
        Ok(inputs)
    }

    /// The number of training clips.
    pub(crate) fn training_len(&self) -> usize {
        match &self.clips {
            Clips::World(_) => self.data.clips,
            Clips::Files { train, .. } => train.clips.len(),
        }
    }

    /// A training clip with the noise of a phase.
    ///
    /// # Errors
    /// [`TrainError::Data`] for a clip that cannot be read; [`TrainError::Refused`] for a clip
    /// that is too long.
    pub fn training(&self, index: usize, feed: &AvformerFeed) -> Result<ClipWithFrames> {
        match &self.clips {
            Clips::World(world) => {
                let noise_settings = self.training_noise(index, feed);
                Ok(self.world_clip(world, Split::Train, index, &noise_settings))
            }
            Clips::Files { train, .. } => {
                let mut clip = train.read_clip(index)?;
                if self.data.add_noise {
                    let names = ["noise", &index.to_string()];
                    let mut rng = seeded_rng(self.data.world_seed, &names);
                    let name = 0..clip.samples.len();
                    let noise_settings = self.training_noise(index, feed);
                    (_, clip.masked) = noise_settings.add_to(&mut clip.samples, name, &mut rng);
                }
                Ok(clip)
            }
        }
    }

    /// Like [`Corpus::training`], without the audio, which is not read.
    pub(crate) fn training_without_audio(
        &self,
        index: usize,
        feed: &AvformerFeed,
    ) -> Result<ClipWithFrames> {
        match &self.clips {
            Clips::Files { train, .. } if !self.data.add_noise => Ok(train.without_audio(index)),
            _ => Ok(ClipWithFrames { samples: Vec::new(), ..self.training(index, feed)? }),
        }
    }

    /// The noise of a training clip in a phase.
    fn training_noise(&self, index: usize, feed: &AvformerFeed) -> NoiseSettings {
        let mut rng = ChaCha8Rng::seed_from_u64(CLEAN_SEED ^ index as u64);
        let is_clean = rng.random_bool(feed.clean);
        let noise = if is_clean { Vec::new() } else { self.data.noise.clone() };
        let masked = if is_clean { 0.0 } else { feed.masked };
        NoiseSettings { noise, snr_db: feed.snr_db, masked }
    }

    /// The clips of validation or test. In the embedded world, they have noise unless `clean`.
    ///
    /// # Errors
    /// The errors of [`Corpus::training`].
    pub fn evaluated(&self, split: Split, clean: bool) -> Result<Vec<ClipWithFrames>> {
        let is_test = split == Split::Test;
        match &self.clips {
            Clips::World(_) => {
                let data = &self.data;
                let count = if is_test { data.test_clips } else { data.validation_clips };
                Ok(self.world_clips(split, clean, 0..count))
            }
            Clips::Files { validation, test, .. } => {
                let manifest = if is_test { test } else { validation };
                manifest.read_all()
            }
        }
    }

    /// A range of the embedded world's validation or test clips, with noise unless `clean`. Empty
    /// for a corpus of files.
    pub fn world_clips(
        &self,
        split: Split,
        clean: bool,
        range: Range<usize>,
    ) -> Vec<ClipWithFrames> {
        let Clips::World(world) = &self.clips else { return Vec::new() };
        let data = &self.data;
        let noise = if split == Split::Test { &data.test_noise } else { &data.noise };
        let noise_settings =
            if clean { NoiseSettings::clean() } else { data.test_noise_settings(noise) };
        let clip = |index| self.world_clip(world, split, index, &noise_settings);
        range.into_par_iter().map(clip).collect()
    }

    /// The first `data.sweep_clips` test clips at a signal-to-noise ratio in dB; without noise for
    /// `None`. Empty for a corpus of files.
    pub fn sweep_clips(&self, snr_db: Option<f32>) -> Vec<ClipWithFrames> {
        let Clips::World(world) = &self.clips else { return Vec::new() };
        let noise_settings = snr_db.map_or_else(NoiseSettings::clean, |snr_db| NoiseSettings {
            noise: self.data.test_noise.clone(),
            snr_db: [snr_db; 2],
            masked: 0.0,
        });
        let clip = |index| self.world_clip(world, Split::Test, index, &noise_settings);
        (0..self.data.sweep_clips.min(self.data.test_clips)).into_par_iter().map(clip).collect()
    }

    /// The clean speech for rehearsal.
    ///
    /// # Errors
    /// The errors of [`Corpus::training`].
    pub fn rehearsal(&self) -> Result<Vec<ClipWithFrames>> {
        self.rehearsal.as_ref().map_or(Ok(Vec::new()), Manifest::read_all)
    }

    /// The clips of `data.general_speech`: other speech, to measure the effect of adapters there.
    ///
    /// # Errors
    /// The errors of [`Corpus::training`].
    pub fn general_speech(&self) -> Result<Vec<ClipWithFrames>> {
        self.general_speech.as_ref().map_or(Ok(Vec::new()), Manifest::read_all)
    }

    /// The number of images.
    pub(crate) fn num_images(&self) -> usize {
        match &self.clips {
            Clips::World(world) => world.names().len() * self.views_of_name(),
            Clips::Files { images, .. } => images.len(),
        }
    }

    /// Whether training or the test may show an image. All images of a clip must decode, shown or
    /// not, so that the set of clips does not depend on `data.frames`.
    pub(crate) fn is_shown(&self, index: usize) -> bool {
        match &self.clips {
            Clips::World(_) => true,
            Clips::Files { images, .. } => images[index].is_shown,
        }
    }

    /// An image, and its name for error texts.
    ///
    /// # Errors
    /// [`TrainError::Data`] for a file that is not an image.
    pub fn image(&self, index: usize) -> Result<(DecodedImage, PathBuf)> {
        match &self.clips {
            Clips::World(world) => {
                let (name, view) = (index / self.views_of_name(), index % self.views_of_name());
                let (split, view) = match view.checked_sub(self.data.views) {
                    None => (Split::Train, view),
                    Some(view) if view < NUM_EVALUATION_VIEWS => (Split::Validation, view),
                    Some(view) => (Split::Test, view - NUM_EVALUATION_VIEWS),
                };
                let view_pixels = world.view(split, name, view, self.data.view_size)?;
                let (width, height) = view_pixels.dimensions();
                let path = PathBuf::from(world.names().nth(name).unwrap_or_default());
                let image = DecodedImage::from_pixels(width, height, view_pixels.into_raw());
                let no_pixels = || {
                    let (path, reason) = (path.clone(), "has no pixels".to_string());
                    DataError::Image { path, reason }
                };
                Ok((image.ok_or_else(no_pixels)?, path))
            }
            Clips::Files { images, .. } => {
                let file = &images[index].file;
                Ok((DecodedImage::open(file)?, file.clone()))
            }
        }
    }

    /// The names of the embedded world; empty for clips from files.
    pub fn names(&self) -> Vec<&str> {
        match &self.clips {
            Clips::World(world) => world.names().collect(),
            Clips::Files { .. } => Vec::new(),
        }
    }

    /// The number of views of each name: training, validation and test views.
    fn views_of_name(&self) -> usize {
        self.data.views + 2 * NUM_EVALUATION_VIEWS
    }

    /// A clip of the embedded world, with all views of its split as frames.
    fn world_clip(
        &self,
        world: &Audiovisual,
        split: Split,
        index: usize,
        noise_settings: &NoiseSettings,
    ) -> ClipWithFrames {
        let clip = world.clip(split, index, noise_settings);
        let first_image = clip.name * self.views_of_name();
        let views = match split {
            Split::Train => 0..self.data.views,
            Split::Validation => self.data.views..self.data.views + NUM_EVALUATION_VIEWS,
            Split::Test => self.data.views + NUM_EVALUATION_VIEWS..self.views_of_name(),
        };
        ClipWithFrames {
            id: format!("{}-{index:05}", clip.voice),
            text: clip.text,
            samples: clip.samples,
            frames: views.map(|view| first_image + view).collect(),
            name: Some(clip.name),
            masked: clip.masked,
        }
    }
}

impl ClipWithFrames {
    /// An identifier of the spoken name, or of the text of a clip from files. Clips with the same
    /// topic have frames of the same subject.
    pub fn topic(&self) -> String {
        self.name.map_or_else(|| self.text.clone(), |name| name.to_string())
    }
}
