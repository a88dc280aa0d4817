//! Spoken names in noise, with their images: the data of AVFormer in the embedded world.
//!
//! The voices and the noise of the test split are not in training. The names and images are the
//! same as in training, in other views.

use std::ops::Range;

use image::RgbImage;
use rand::{Rng, RngCore};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::images::{self, WorldImage};
use super::questions::Split;
use super::speech::{self, SAMPLE_RATE, SpokenClip, Voice};
use super::split_rng;
use crate::DataError;
use crate::audio::mixing::{add_noise, power};
use crate::audio::noise::NoiseKind;

/// Silence before and after the speech, in samples: 50 to 200 ms.
const SILENCE: Range<usize> = SAMPLE_RATE as usize / 20..SAMPLE_RATE as usize / 5;
/// The pause between opener and name, in samples: 30 to 150 ms.
const PAUSE: Range<usize> = 480..2_400;

/// The voices, with the images whose names they speak.
#[derive(Debug, Clone)]
pub struct Audiovisual {
    seed: u64,
    voices: Vec<Voice>,
    images: Vec<WorldImage>,
}

/// The maximum absolute signal-to-noise ratio, in dB.
pub const MAX_SNR_DB: f32 = 100.0;

/// The noise of the clips.
#[derive(Debug, Clone, PartialEq)]
pub struct NoiseSettings {
    /// The kinds of noise to draw from; empty for clean speech.
    pub noise: Vec<NoiseKind>,
    /// The minimum and maximum signal-to-noise ratio, in dB.
    pub snr_db: [f32; 2],
    /// The fraction of clips in which noise replaces the name.
    pub masked: f64,
}

/// A spoken name, with or without words before it.
#[derive(Debug, Clone, PartialEq)]
pub struct AudiovisualClip {
    /// The transcript.
    pub text: String,
    /// The index of the name in [`Audiovisual::names`].
    pub name: usize,
    /// The name of the voice.
    pub voice: &'static str,
    /// Samples at [`SAMPLE_RATE`], with noise.
    pub samples: Vec<f32>,
    /// The signal-to-noise ratio in dB; `None` without noise.
    pub snr_db: Option<f32>,
    /// Whether noise replaces the name; without noise, silence does.
    pub masked: bool,
}

impl NoiseSettings {
    /// Returns the settings of clean speech.
    pub fn clean() -> Self {
        Self { noise: Vec::new(), snr_db: [0.0; 2], masked: 0.0 }
    }

    /// Adds noise to a clip whose samples `name` are the spoken name. Returns the signal-to-noise
    /// ratio, and whether the noise replaces the name.
    pub fn add_to(
        &self,
        samples: &mut Vec<f32>,
        name: Range<usize>,
        rng: &mut ChaCha8Rng,
    ) -> (Option<f32>, bool) {
        let masked = rng.random_bool(self.masked);
        let clean_power = power(samples);
        if masked {
            samples[name].fill(0.0);
        }
        let Some(kind) = draw_item(&self.noise, rng) else { return (None, masked) };
        let [low, high] = self.snr_db.map(|snr_db| snr_db.clamp(-MAX_SNR_DB, MAX_SNR_DB));
        let snr_db = rng.random_range(low.min(high)..=high.max(low));
        let noise = kind.make(samples.len(), rng);
        *samples = if masked {
            add_noise_to_masked(samples, clean_power, &noise, snr_db)
        } else {
            add_noise(samples, &noise, snr_db, 0)
        };
        (Some(snr_db), masked)
    }
}

impl Audiovisual {
    /// Loads `num_names` names, evenly spread over all names, with their images.
    ///
    /// # Errors
    /// [`DataError::OutOfRange`] for 0 names, or more names than exist
    pub fn new(num_names: usize, seed: u64) -> Result<Self, DataError> {
        let mut voices = speech::voices()?;
        let total = voices.first().map_or(0, |voice| voice.names.len());
        if !(1..=total).contains(&num_names) {
            return Err(DataError::out_of_range("the number of names", num_names, "use 1 to 138"));
        }
        for voice in &mut voices {
            let mut indices = 0..total;
            // Keep one name in each of `num_names` equal intervals.
            voice.names.retain(|_| {
                let interval = |index: usize| index * num_names / total;
                indices.next().is_some_and(|i| i == 0 || interval(i) != interval(i - 1))
            });
        }
        let all_images = images::images()?;
        let spoken_names = voices.first().map(|voice| voice.names.as_slice()).unwrap_or_default();
        let image_of = |spoken_name: &SpokenClip| {
            all_images.iter().find(|image| image.name == spoken_name.text).cloned().ok_or_else(
                || DataError::Image {
                    path: spoken_name.text.into(),
                    reason: "no image has this name".into(),
                },
            )
        };
        let images = spoken_names.par_iter().map(image_of).collect::<Result<_, _>>()?;
        Ok(Self { seed, voices, images })
    }

    /// Returns the names, as spoken and written.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.images.iter().map(|image| image.name.as_str())
    }

    /// Returns clip `number` of a split, independent of other calls. Consecutive numbers cycle
    /// through names, then voices.
    pub fn clip(
        &self,
        split: Split,
        number: usize,
        noise_settings: &NoiseSettings,
    ) -> AudiovisualClip {
        let mut rng = self.rng("clip", split, number);
        let voices: Vec<&Voice> = self.voices.iter().filter(|voice| voice.split == split).collect();
        let name = number % self.images.len();
        let voice = voices[number / self.images.len() % voices.len()];
        let spoken_name = &voice.names[name];
        let (mut text, mut samples) = (String::new(), vec![0.0; rng.random_range(SILENCE)]);
        if rng.random_bool(0.5) && !voice.openers.is_empty() {
            let opener = &voice.openers[rng.random_range(0..voice.openers.len())];
            samples.extend_from_slice(&opener.samples);
            samples.resize(samples.len() + rng.random_range(PAUSE), 0.0);
            text = format!("{} ", opener.text);
        }
        text += spoken_name.text;
        let start = samples.len();
        samples.extend_from_slice(&spoken_name.samples);
        let end = samples.len();
        samples.resize(end + rng.random_range(SILENCE), 0.0);
        // The noise has its own random generator, so it does not change the speech.
        let mut rng = self.rng("noise", split, number);
        let (snr_db, masked) = noise_settings.add_to(&mut samples, start..end, &mut rng);
        AudiovisualClip { text, name, voice: voice.name, samples, snr_db, masked }
    }

    /// Returns view `number` of a name's image in a split, `size` x `size` pixels. Views differ
    /// between splits.
    ///
    /// # Errors
    /// [`DataError::OutOfRange`]
    pub fn view(
        &self,
        split: Split,
        name: usize,
        number: usize,
        size: u32,
    ) -> Result<RgbImage, DataError> {
        let Some(image) = self.images.get(name) else {
            let wanted = "use an index below the number of names";
            return Err(DataError::out_of_range("the name", name, wanted));
        };
        image.view(self.seed, split, number, size)
    }

    fn rng(&self, purpose: &str, split: Split, number: usize) -> ChaCha8Rng {
        split_rng(self.seed, split, purpose, number)
    }
}

/// Draws an item of a list; returns `None` for an empty list. Every call draws one random number.
fn draw_item<T: Copy>(list: &[T], rng: &mut ChaCha8Rng) -> Option<T> {
    let drawn = rng.next_u32() as usize;
    list.get(drawn % list.len().max(1)).copied()
}

/// Adds noise to a clip whose name was silenced. `clean_power` is the power of the clip with the
/// name, so that silencing does not make the noise weaker.
fn add_noise_to_masked(samples: &[f32], clean_power: f64, noise: &[f32], snr_db: f32) -> Vec<f32> {
    let gain =
        (clean_power / power(noise).max(1e-12) / 10f64.powf(f64::from(snr_db) / 10.0)).sqrt();
    let sum = |(sample, noise): (&f32, &f32)| sample + gain as f32 * noise;
    samples.iter().zip(noise).map(sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise_settings() -> NoiseSettings {
        NoiseSettings { noise: vec![NoiseKind::Bands], snr_db: [-8.0, -4.0], masked: 0.0 }
    }

    #[test]
    fn clips_are_reproducible_and_cycle_through_the_names() -> Result<(), DataError> {
        let world = Audiovisual::new(16, 1)?;
        assert_eq!(world.names().len(), 16);
        let names: Vec<&str> = world.names().collect();
        let same_seed = Audiovisual::new(16, 1)?;
        let other_seed = Audiovisual::new(16, 2)?;
        for number in [0, 5, 17, 200] {
            let clip = world.clip(Split::Train, number, &noise_settings());
            assert_eq!(clip, same_seed.clip(Split::Train, number, &noise_settings()));
            assert_ne!(clip, other_seed.clip(Split::Train, number, &noise_settings()));
            assert_eq!(clip.name, number % 16);
            assert!(clip.text.ends_with(names[clip.name]), "{}", clip.text);
            assert!(clip.snr_db.is_some_and(|snr_db| (-8.0..=-4.0).contains(&snr_db)));
            assert!((0.2..4.0).contains(&(clip.samples.len() as f64 / 16_000.0)));
        }
        let voices = |split| -> std::collections::BTreeSet<&str> {
            (0..16 * 9).map(|i| world.clip(split, i, &NoiseSettings::clean()).voice).collect()
        };
        assert_eq!(voices(Split::Train).len(), 8);
        assert!(voices(Split::Train).is_disjoint(&voices(Split::Test)));
        Ok(())
    }

    #[test]
    fn noise_keeps_the_speech_and_masking_replaces_only_the_name() -> Result<(), DataError> {
        let world = Audiovisual::new(138, 1)?;
        for number in 0..40 {
            let clean = world.clip(Split::Test, number, &NoiseSettings::clean());
            let noisy = world.clip(Split::Test, number, &noise_settings());
            assert_eq!((&clean.text, clean.samples.len()), (&noisy.text, noisy.samples.len()));
            let added: Vec<f32> = noisy
                .samples
                .iter()
                .zip(&clean.samples)
                .map(|(noisy, clean)| noisy - clean)
                .collect();
            let measured_snr_db = 10.0 * (power(&clean.samples) / power(&added)).log10();
            assert!((measured_snr_db - f64::from(noisy.snr_db.expect("noise"))).abs() < 0.05);
            let mask_all = NoiseSettings { masked: 1.0, ..noise_settings() };
            let masked = world.clip(Split::Test, number, &mask_all);
            assert!(masked.masked && masked.text == clean.text);
            assert_eq!(masked.samples.len(), clean.samples.len());
            let mask_only = NoiseSettings { masked: 1.0, ..NoiseSettings::clean() };
            let silenced = world.clip(Split::Test, number, &mask_only);
            assert_eq!(power(&silenced.samples) == 0.0, clean.text == names(&world)[clean.name]);
        }
        Ok(())
    }

    fn names(world: &Audiovisual) -> Vec<&str> {
        world.names().collect()
    }

    #[test]
    fn views_differ_by_split_and_number() -> Result<(), DataError> {
        let world = Audiovisual::new(4, 1)?;
        let view = |split, number| world.view(split, 2, number, 24);
        assert_eq!(view(Split::Train, 0)?, view(Split::Train, 0)?);
        assert_ne!(view(Split::Train, 0)?, view(Split::Train, 1)?);
        assert_ne!(view(Split::Train, 0)?, view(Split::Test, 0)?);
        assert_eq!(view(Split::Test, 3)?.dimensions(), (24, 24));
        assert!(world.view(Split::Test, 4, 0, 24).is_err());
        assert!(Audiovisual::new(0, 1).is_err() && Audiovisual::new(139, 1).is_err());
        Ok(())
    }
}
