//! Audio with texts: sentences spoken by the embedded world's voices, or clips from manifests.

use std::path::Path;

use engram_data::audio::change_speed;
use engram_data::audio::mixing::{add_noise, babble, white_noise};
use engram_data::audio::noise::NoiseKind;
use engram_data::speech::manifest::{Clip, InputClips, read_list};
use engram_data::speech::tokenizer::SpeechTokenizer;
use engram_data::world::questions::Split;
use engram_data::world::speech::{SAMPLE_RATE, Sentence, SpokenClip, Voice, voices};
use engram_infer::digest;
use engram_models::speech::log_mel::HOP;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::settings::SpeechData;
use crate::error::{Result, TrainError};

/// The number of voices that speak at once in babble noise.
const BABBLE_VOICES: std::ops::RangeInclusive<usize> = 2..=5;
/// The first seed for the sentences of [`Corpus::evaluated`] in the training voices. These
/// sentences are not used for training. The seeds for validation start at 0, for the test at 1.
const TRAIN_SEED: u64 = 1 << 32;

/// An audio clip with its text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Utterance {
    /// The id.
    pub id: String,
    /// The reference text.
    pub text: String,
    /// Audio samples at 16 kHz.
    pub samples: Vec<f32>,
    /// The samples without the added noise; `None` if no noise was added.
    pub before_noise: Option<Vec<f32>>,
    /// The names of the embedded world's images in the text; empty for clips from files.
    pub names: Vec<&'static str>,
}

/// The source of the utterances.
pub struct Corpus {
    data: SpeechData,
    source: Source,
}

enum Source {
    /// The embedded world.
    World {
        /// The training voices, at each speed.
        train: Vec<Vec<Voice>>,
        validation: Vec<Voice>,
        test: Vec<Voice>,
    },
    /// Clips from files.
    Files { train: Manifest, validation: Manifest, test: Manifest },
}

/// The clips of a manifest file.
struct Manifest {
    path: String,
    clips: Vec<Clip>,
    /// What was taken for what in a list of another program.
    taken_as: Option<String>,
}

impl Utterance {
    /// The samples without added noise.
    pub fn clean(&self) -> &[f32] {
        self.before_noise.as_deref().unwrap_or(&self.samples)
    }

    /// Adds noise at a signal-to-noise ratio in dB.
    fn with_noise(self, noise: &[f32], snr_db: f32) -> Self {
        let samples = add_noise(&self.samples, noise, snr_db, 0);
        Self { samples, before_noise: Some(self.samples), ..self }
    }
}

impl Corpus {
    /// Reads the data named in `[data]`.
    ///
    /// # Errors
    /// [`TrainError::Data`] for a manifest that cannot be read, or that names a missing audio file.
    pub fn load(data: &SpeechData) -> Result<Self> {
        let source = if data.is_world() {
            let (mut train, mut validation, mut test) = (Vec::new(), Vec::new(), Vec::new());
            for voice in voices()? {
                match voice.split {
                    Split::Train => train.push(voice),
                    Split::Validation => validation.push(voice),
                    Split::Test => test.push(voice),
                }
            }
            let train = data.speeds.iter().map(|speed| change_speed_of_voices(&train, *speed));
            Source::World { train: train.collect::<Result<_>>()?, validation, test }
        } else {
            Source::Files {
                train: Manifest::read(&data.train)?,
                validation: Manifest::read(&data.validation)?,
                test: Manifest::read(&data.test)?,
            }
        };
        Ok(Self { data: data.clone(), source })
    }

    /// Names and SHA-256 digests of the training and test files: manifests and audio.
    ///
    /// # Errors
    /// [`TrainError::Io`] if a file cannot be read.
    pub fn inputs(&self) -> Result<Vec<(String, String)>> {
        let Source::Files { train, test, .. } = &self.source else { return Ok(Vec::new()) };
        let mut inputs = Vec::new();
        for (name, manifest) in [("train", train), ("test", test)] {
            let path = std::iter::once(Path::new(&manifest.path));
            let taken_as = manifest.taken_as.as_ref();
            let taken_as = taken_as.map_or_else(String::new, |taken| format!(", read as {taken}"));
            inputs.push((format!("{name} manifest{taken_as}"), digest::of_files(path)?));
            let audio = manifest.clips.iter().map(|clip| clip.audio.as_path());
            inputs.push((format!("{name} audio"), digest::of_files(audio)?));
        }
        Ok(inputs)
    }

    /// The number of utterances in an epoch.
    pub(crate) fn epoch_len(&self) -> usize {
        match &self.source {
            Source::World { .. } => self.data.sentences,
            Source::Files { train, .. } => train.clips.len(),
        }
    }

    /// The texts of the training clips, from which word pieces are learned. Embedded world: all
    /// phrases and names of one voice, because all voices speak the same texts.
    pub(crate) fn training_texts(&self) -> Vec<&str> {
        match &self.source {
            Source::World { train, .. } => {
                let voice = train.first().and_then(|voices| voices.first());
                let clips = voice.into_iter().flat_map(|voice| {
                    voice.openers.iter().chain(&voice.joiners).chain(&voice.names)
                });
                clips.map(|clip| clip.text).collect()
            }
            Source::Files { train, .. } => {
                train.clips.iter().filter_map(|clip| clip.text.as_deref()).collect()
            }
        }
    }

    /// Checks that clips from files have texts, and that the vocabulary covers them.
    ///
    /// # Errors
    /// [`TrainError::Refused`] naming the manifest and the line.
    pub(crate) fn check_texts(&self, tokenizer: &SpeechTokenizer) -> Result<()> {
        let Source::Files { train, validation, test } = &self.source else { return Ok(()) };
        for manifest in [train, validation, test] {
            for clip in &manifest.clips {
                let Some(text) = &clip.text else {
                    let reason = "has no `text`; only `best_rq` can train without one";
                    return Err(manifest.clip_error(clip, reason));
                };
                tokenizer.encode_strict(text).map_err(|error| {
                    let remedy = "spell it with known letters, or set `data.tokenizer`";
                    manifest.clip_error(clip, &format!("{error}; {remedy}"))
                })?;
            }
        }
        Ok(())
    }

    /// Returns a training utterance at a random speed and with random noise. For files it is the
    /// clip with the index `clip`. For the embedded world it is a random sentence in one of the
    /// first `voices` voices, or in any voice if `voices` is 0.
    ///
    /// # Errors
    /// [`TrainError::Data`] for a clip that cannot be read; [`TrainError::Refused`] for a clip
    /// that is too long or shorter than one frame.
    pub fn training(&self, clip: usize, voices: usize, rng: &mut ChaCha8Rng) -> Result<Utterance> {
        let speed = rng.random_range(0..self.data.speeds.len());
        let utterance = match &self.source {
            Source::World { train, .. } => {
                let voices_at_speed = &train[speed];
                let total = voices_at_speed.len();
                let voice_count = if voices == 0 { total } else { voices.min(total) };
                let voice = &voices_at_speed[rng.random_range(0..voice_count)];
                from_sentence(voice.sentence(rng), String::new())
            }
            Source::Files { train, .. } => {
                train.utterance(&train.clips[clip], self.data.speeds[speed], &self.data)?
            }
        };
        let &[low, high] = self.data.snr_db.as_slice() else { return Ok(utterance) };
        let snr_db = rng.random_range(low..=high);
        let noise = self.noise(utterance.samples.len(), rng);
        Ok(utterance.with_noise(&noise, snr_db))
    }

    /// Random noise of `sample_count` samples. In the embedded world it is babble with the
    /// probability `data.babble`. Otherwise it is white, coloured or band-limited.
    fn noise(&self, sample_count: usize, rng: &mut ChaCha8Rng) -> Vec<f32> {
        let babble_source = match &self.source {
            Source::World { train, .. } if rng.random_bool(self.data.babble) => Some(train),
            _ => None,
        };
        let Some(train) = babble_source else {
            return match rng.random_range(0..3) {
                0 => white_noise(sample_count, rng),
                1 => NoiseKind::Coloured.make(sample_count, rng),
                _ => NoiseKind::Bands.make(sample_count, rng),
            };
        };
        let voices = &train[rng.random_range(0..train.len())];
        let sentences: Vec<Vec<f32>> = (0..rng.random_range(BABBLE_VOICES))
            .map(|_| voices[rng.random_range(0..voices.len())].sentence(rng).samples)
            .collect();
        let sentences: Vec<&[f32]> = sentences.iter().map(Vec::as_slice).collect();
        babble(&sentences, sample_count, rng)
    }

    /// The utterances of a split. Files: all clips at their own speed. Embedded world: the same
    /// sentences in every run; training voices speak at the first speed in `data.speeds`.
    ///
    /// # Errors
    /// The errors of [`Corpus::training`].
    pub fn evaluated(&self, split: Split) -> Result<Vec<Utterance>> {
        match &self.source {
            Source::World { train, validation, test } => {
                let (voices, first_seed) = match split {
                    Split::Train => (&train[0], TRAIN_SEED),
                    Split::Validation => (validation, 0),
                    Split::Test => (test, 1),
                };
                let utterance = |i: usize| {
                    let voice = &voices[i % voices.len().max(1)];
                    // All voices speak the same names, so equal seeds would give equal sentences.
                    let mut rng = ChaCha8Rng::seed_from_u64(2 * i as u64 + first_seed);
                    let id = format!("{}-{i:04}", voice.name);
                    let utterance = from_sentence(voice.sentence(&mut rng), id);
                    let noise = white_noise(utterance.samples.len(), &mut rng);
                    utterance.with_noise(&noise, self.data.evaluated_snr_db)
                };
                Ok((0..self.data.evaluation_sentences).into_par_iter().map(utterance).collect())
            }
            Source::Files { train, validation, test } => {
                let manifest = match split {
                    Split::Train => train,
                    Split::Validation => validation,
                    Split::Test => test,
                };
                let clips = manifest.clips.par_iter();
                clips.map(|clip| manifest.utterance(clip, 1.0, &self.data)).collect()
            }
        }
    }
}

impl Manifest {
    /// Reads a manifest or another list, and checks that its audio files exist.
    fn read(path: &str) -> Result<Self> {
        let InputClips { clips, taken_as, .. } = read_list(Path::new(path))?;
        let manifest = Self { path: path.to_string(), clips, taken_as };
        match manifest.clips.iter().find(|clip| !clip.audio.is_file()) {
            None => Ok(manifest),
            Some(clip) => {
                let reason = format!("audio file not found: {}", clip.audio.display());
                Err(manifest.clip_error(clip, &reason))
            }
        }
    }

    /// Reads a clip at a speed.
    fn utterance(&self, clip: &Clip, speed: f64, data: &SpeechData) -> Result<Utterance> {
        let samples = clip.samples(SAMPLE_RATE);
        let samples = samples.map_err(|error| self.clip_error(clip, &error.to_string()))?;
        let seconds = samples.len() as f64 / f64::from(SAMPLE_RATE);
        if seconds > data.max_seconds {
            let max_seconds = data.max_seconds;
            let reason = format!(
                "{seconds:.1} s are more than data.max_seconds = {max_seconds}; shorten or remove \
                 the clip, or raise the limit"
            );
            return Err(self.clip_error(clip, &reason));
        }
        let samples =
            if speed == 1.0 { samples } else { change_speed(&samples, SAMPLE_RATE, speed)? };
        if samples.len() < HOP {
            return Err(
                self.clip_error(clip, "the clip is shorter than one frame (10 ms); remove it")
            );
        }
        let (id, text) = (clip.id.clone(), clip.text.clone().unwrap_or_default());
        Ok(Utterance { id, text, samples, ..Utterance::default() })
    }

    /// An error with the line of a clip.
    fn clip_error(&self, clip: &Clip, reason: &str) -> TrainError {
        TrainError::Refused(format!("{}, line {}: {reason}", self.path, clip.line))
    }
}

fn from_sentence(sentence: Sentence, id: String) -> Utterance {
    let Sentence { text, names, samples } = sentence;
    Utterance { id, text, samples, names, ..Utterance::default() }
}

/// The voices with all their clips played at another speed.
fn change_speed_of_voices(voices: &[Voice], speed: f64) -> Result<Vec<Voice>> {
    let change_speed_of_clips = |clips: &[SpokenClip]| {
        let change_speed_of_clip = |clip: &SpokenClip| {
            Ok(SpokenClip {
                text: clip.text,
                samples: change_speed(&clip.samples, SAMPLE_RATE, speed)?,
            })
        };
        clips.par_iter().map(change_speed_of_clip).collect::<Result<Vec<_>>>()
    };
    let voice = |voice: &Voice| {
        Ok(Voice {
            name: voice.name,
            split: voice.split,
            openers: change_speed_of_clips(&voice.openers)?,
            joiners: change_speed_of_clips(&voice.joiners)?,
            names: change_speed_of_clips(&voice.names)?,
        })
    };
    voices.iter().map(voice).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world() -> Result<Corpus> {
        Corpus::load(&SpeechData {
            speeds: vec![1.0],
            evaluation_sentences: 60,
            ..SpeechData::default()
        })
    }

    /// The validation sentences select the checkpoint, so the test must not repeat them.
    #[test]
    fn the_test_repeats_few_sentences_of_validation() -> Result<()> {
        let corpus = world()?;
        let texts = |split| -> Result<Vec<String>> {
            Ok(corpus.evaluated(split)?.into_iter().map(|utterance| utterance.text).collect())
        };
        let (validation, test) = (texts(Split::Validation)?, texts(Split::Test)?);
        let num_equal = validation.iter().zip(&test).filter(|(a, b)| a == b).count();
        assert!(num_equal < 6, "{num_equal} of 60");
        assert_eq!(validation, texts(Split::Validation)?);
        Ok(())
    }

    #[test]
    fn one_voice_is_the_first_voice_and_noise_is_added() -> Result<()> {
        let corpus = world()?;
        let Source::World { train, .. } = &corpus.source else { panic!("the embedded world") };
        let first_voice = &train[0][0];
        for seed in 0..20 {
            let utterance = corpus.training(0, 1, &mut ChaCha8Rng::seed_from_u64(seed))?;
            let clean = utterance.clean();
            let name = first_voice
                .names
                .iter()
                .find(|clip| clip.text == utterance.names[0])
                .expect("the name");
            assert!(clean.windows(name.samples.len()).any(|part| part == name.samples));
            assert_ne!(clean, utterance.samples);
        }
        Ok(())
    }
}
