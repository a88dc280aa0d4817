//! Sound with texts: sentences of the embedded world's voices, or the clips of manifests.

use std::path::Path;

use engram_data::audio::at_speed;
use engram_data::audio::mixing::{babble, mix, white_noise};
use engram_data::speech::manifest::{Clip, read_manifest};
use engram_data::world::questions::Split;
use engram_data::world::speech::{SAMPLE_RATE, Sentence, Spoken, Voice, voices};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::settings::SpeechData;
use crate::error::{Result, TrainError};

/// Voices that speak at once in a babble, at least and at most.
const TALKERS: std::ops::RangeInclusive<usize> = 2..=5;

/// A sound with its text.
#[derive(Debug, Clone, PartialEq)]
pub struct Utterance {
    /// Its name.
    pub id: String,
    /// What is said.
    pub text: String,
    /// At 16 kHz.
    pub samples: Vec<f32>,
    /// Names of pictures in the text; empty for clips of files.
    pub names: Vec<&'static str>,
}

/// Where utterances come from.
pub struct Corpus {
    data: SpeechData,
    sounds: Sounds,
}

enum Sounds {
    World {
        /// The voices to train on, at each speed.
        train: Vec<Vec<Voice>>,
        validation: Vec<Voice>,
        test: Vec<Voice>,
    },
    Files {
        train: Vec<Clip>,
        validation: Vec<Clip>,
        test: Vec<Clip>,
    },
}

impl Corpus {
    /// Reads what `[data]` names.
    ///
    /// # Errors
    /// [`TrainError::Data`] for a manifest that cannot be read, or has a clip without a text.
    pub fn load(data: &SpeechData) -> Result<Self> {
        let sounds = if data.is_world() {
            let (mut train, mut validation, mut test) = (Vec::new(), Vec::new(), Vec::new());
            for voice in voices()? {
                match voice.split {
                    Split::Train => train.push(voice),
                    Split::Validation => validation.push(voice),
                    Split::Test => test.push(voice),
                }
            }
            let train = data.speeds.iter().map(|speed| all_at_speed(&train, *speed));
            Sounds::World { train: train.collect::<Result<_>>()?, validation, test }
        } else {
            Sounds::Files {
                train: clips(&data.train)?,
                validation: clips(&data.validation)?,
                test: clips(&data.test)?,
            }
        };
        Ok(Self { data: data.clone(), sounds })
    }

    /// How many utterances an epoch has.
    pub fn epoch_len(&self) -> usize {
        match &self.sounds {
            Sounds::World { .. } => self.data.sentences,
            Sounds::Files { train, .. } => train.len(),
        }
    }

    /// The texts of the clips to train on, each with its line; none of the embedded world, whose texts
    /// are known.
    pub fn texts(&self) -> Vec<(usize, &str)> {
        match &self.sounds {
            Sounds::World { .. } => Vec::new(),
            Sounds::Files { train, validation, test } => [train, validation, test]
                .into_iter()
                .flatten()
                .map(|clip| (clip.line, clip.text.as_deref().unwrap_or_default()))
                .collect(),
        }
    }

    /// An utterance to train on, at a speed and with noise that are drawn, and its samples without the
    /// noise. Of the embedded world `clip` means nothing, and the first `voices` of the voices speak,
    /// or all if that is 0.
    ///
    /// # Errors
    /// [`TrainError::Data`] for a clip that cannot be read.
    pub fn training(
        &self,
        clip: usize,
        voices: usize,
        rng: &mut ChaCha8Rng,
    ) -> Result<(Utterance, Vec<f32>)> {
        let speed = rng.random_range(0..self.data.speeds.len());
        let utterance = match &self.sounds {
            Sounds::World { train, .. } => {
                let all = &train[speed];
                let heard = if voices == 0 { all.len() } else { voices.min(all.len()) };
                spoken(all[rng.random_range(0..heard)].sentence(rng), String::new())
            }
            Sounds::Files { train, .. } => {
                let heard = read(&train[clip])?;
                let samples = at_speed(&heard.samples, SAMPLE_RATE, self.data.speeds[speed])?;
                Utterance { samples, ..heard }
            }
        };
        let clean = utterance.samples.clone();
        let &[low, high] = self.data.snr_db.as_slice() else { return Ok((utterance, clean)) };
        let ratio = rng.random_range(low..=high);
        let noise = self.noise(clean.len(), rng);
        Ok((Utterance { samples: mix(&clean, &noise, ratio, 0), ..utterance }, clean))
    }

    /// Other voices, or white noise.
    fn noise(&self, samples: usize, rng: &mut ChaCha8Rng) -> Vec<f32> {
        let Sounds::World { train, .. } = &self.sounds else {
            return white_noise(samples, rng);
        };
        if !rng.random_bool(self.data.babble) {
            return white_noise(samples, rng);
        }
        let voices = &train[rng.random_range(0..train.len())];
        let talkers: Vec<Vec<f32>> = (0..rng.random_range(TALKERS))
            .map(|_| voices[rng.random_range(0..voices.len())].sentence(rng).samples)
            .collect();
        let talkers: Vec<&[f32]> = talkers.iter().map(Vec::as_slice).collect();
        babble(&talkers, samples, rng)
    }

    /// The utterances of validation or test; of the embedded world the same for every run.
    ///
    /// # Errors
    /// [`TrainError::Data`] for a clip that cannot be read.
    pub fn evaluated(&self, split: Split) -> Result<Vec<Utterance>> {
        match &self.sounds {
            Sounds::World { validation, test, .. } => {
                let voices = if split == Split::Test { test } else { validation };
                let make = |i: usize| {
                    let voice = &voices[i % voices.len().max(1)];
                    let mut rng = ChaCha8Rng::seed_from_u64(i as u64);
                    let id = format!("{}-{i:04}", voice.name);
                    let utterance = spoken(voice.sentence(&mut rng), id);
                    let noise = white_noise(utterance.samples.len(), &mut rng);
                    let samples = mix(&utterance.samples, &noise, self.data.evaluated_snr_db, 0);
                    Utterance { samples, ..utterance }
                };
                Ok((0..self.data.evaluated).into_par_iter().map(make).collect())
            }
            Sounds::Files { validation, test, .. } => {
                let clips = if split == Split::Test { test } else { validation };
                clips.par_iter().map(read).collect()
            }
        }
    }
}

/// The clips of a manifest, all of which have a text.
fn clips(path: &str) -> Result<Vec<Clip>> {
    let clips = read_manifest(Path::new(path))?;
    match clips.iter().find(|clip| clip.text.is_none()) {
        None => Ok(clips),
        Some(clip) => Err(TrainError::Recognise {
            reason: format!(
                "{path}, line {}: has no `text` to learn or to compare with",
                clip.line
            ),
        }),
    }
}

fn read(clip: &Clip) -> Result<Utterance> {
    let (id, text) = (clip.id.clone(), clip.text.clone().unwrap_or_default());
    Ok(Utterance { id, text, samples: clip.samples(SAMPLE_RATE)?, names: Vec::new() })
}

fn spoken(sentence: Sentence, id: String) -> Utterance {
    let Sentence { text, names, samples } = sentence;
    Utterance { id, text, samples, names }
}

fn all_at_speed(voices: &[Voice], speed: f64) -> Result<Vec<Voice>> {
    let clips = |clips: &[Spoken]| {
        let played = |clip: &Spoken| {
            Ok(Spoken { text: clip.text, samples: at_speed(&clip.samples, SAMPLE_RATE, speed)? })
        };
        clips.par_iter().map(played).collect::<Result<Vec<_>>>()
    };
    let voice = |voice: &Voice| {
        Ok(Voice {
            name: voice.name,
            split: voice.split,
            openers: clips(&voice.openers)?,
            joiners: clips(&voice.joiners)?,
            names: clips(&voice.names)?,
        })
    };
    voices.iter().map(voice).collect()
}
