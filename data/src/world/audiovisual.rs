//! Spoken names in noise, with their images: the data of AVFormer in the embedded world.
//!
//! The voices and the noise of the test split are not in training. The names and images are the
//! same as in training, in other views.

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
const AROUND: std::ops::Range<usize> = SAMPLE_RATE as usize / 20..SAMPLE_RATE as usize / 5;
/// The pause between opener and name, in samples: 30 to 150 ms.
const PAUSE: std::ops::Range<usize> = 480..2_400;

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
    /// The fraction of clips in which the name is replaced by noise.
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
    /// Whether the name is replaced by noise.
    pub masked: bool,
}

impl NoiseSettings {
    /// Returns the settings of clean speech.
    pub fn clean() -> Self {
        Self { noise: Vec::new(), snr_db: [0.0; 2], masked: 0.0 }
    }
}

impl Audiovisual {
    /// Loads `names` names, evenly spread over all names, with their images.
    ///
    /// # Errors
    /// [`DataError::OutOfRange`] for no names, or more names than exist
    pub fn new(names: usize, seed: u64) -> Result<Self, DataError> {
        let mut voices = speech::voices()?;
        let all = voices.first().map_or(0, |voice| voice.names.len());
        if !(1..=all).contains(&names) {
            let (what, value) = ("the number of names", names.to_string());
            return Err(DataError::OutOfRange { what, value, wanted: "use 1 to 138" });
        }
        for voice in &mut voices {
            let mut indices = 0..all;
            // Keep one name in each of `names` equal intervals.
            voice.names.retain(|_| {
                indices.next().is_some_and(|i| i == 0 || i * names / all != (i - 1) * names / all)
            });
        }
        let all_images = images::images()?;
        let spoken_names = voices.first().map(|voice| voice.names.as_slice()).unwrap_or_default();
        let of_name = |spoken: &SpokenClip| {
            all_images.iter().find(|image| image.name == spoken.text).cloned().ok_or_else(|| {
                DataError::Image {
                    path: spoken.text.into(),
                    reason: "no image has this name".into(),
                }
            })
        };
        let images = spoken_names.par_iter().map(of_name).collect::<Result<_, _>>()?;
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
        let spoken = &voice.names[name];
        let (mut text, mut samples) = (String::new(), vec![0.0; rng.random_range(AROUND)]);
        if rng.random_bool(0.5) && !voice.openers.is_empty() {
            let opener = &voice.openers[rng.random_range(0..voice.openers.len())];
            samples.extend_from_slice(&opener.samples);
            samples.resize(samples.len() + rng.random_range(PAUSE), 0.0);
            text = format!("{} ", opener.text);
        }
        text += spoken.text;
        let start = samples.len();
        samples.extend_from_slice(&spoken.samples);
        let end = samples.len();
        samples.resize(end + rng.random_range(AROUND), 0.0);
        // The noise has its own random generator, so it does not change the speech.
        let mut rng = self.rng("noise", split, number);
        let masked = rng.random_bool(noise_settings.masked);
        let loudness = power(&samples);
        if masked {
            samples[start..end].fill(0.0);
        }
        let mut clip =
            AudiovisualClip { text, name, voice: voice.name, samples, snr_db: None, masked };
        if let Some(kind) = pick(&noise_settings.noise, &mut rng) {
            let [low, high] =
                noise_settings.snr_db.map(|ratio| ratio.clamp(-MAX_SNR_DB, MAX_SNR_DB));
            let ratio = rng.random_range(low.min(high)..=high.max(low));
            let noise = kind.make(clip.samples.len(), &mut rng);
            clip.samples = if masked {
                with_loudness(&clip.samples, loudness, &noise, ratio)
            } else {
                add_noise(&clip.samples, &noise, ratio, 0)
            };
            clip.snr_db = Some(ratio);
        }
        clip
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
            let (what, value) = ("the name", name.to_string());
            return Err(DataError::OutOfRange {
                what,
                value,
                wanted: "use an index below the number of names",
            });
        };
        image.view(self.seed, split, number, size)
    }

    fn rng(&self, what: &str, split: Split, number: usize) -> ChaCha8Rng {
        split_rng(self.seed, split, what, number)
    }
}

fn pick<T: Copy>(list: &[T], rng: &mut ChaCha8Rng) -> Option<T> {
    let drawn = rng.next_u32() as usize;
    list.get(drawn % list.len().max(1)).copied()
}

/// Adds noise to a clip whose name was silenced. `loudness` is the power of the clip before this,
/// so that silencing does not make the noise weaker.
fn with_loudness(samples: &[f32], loudness: f64, noise: &[f32], ratio: f32) -> Vec<f32> {
    let gain = (loudness / power(noise).max(1e-12) / 10f64.powf(f64::from(ratio) / 10.0)).sqrt();
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
        let again = Audiovisual::new(16, 1)?;
        let other = Audiovisual::new(16, 2)?;
        for number in [0, 5, 17, 200] {
            let clip = world.clip(Split::Train, number, &noise_settings());
            assert_eq!(clip, again.clip(Split::Train, number, &noise_settings()));
            assert_ne!(clip, other.clip(Split::Train, number, &noise_settings()));
            assert_eq!(clip.name, number % 16);
            assert!(clip.text.ends_with(names[clip.name]), "{}", clip.text);
            assert!(clip.snr_db.is_some_and(|ratio| (-8.0..=-4.0).contains(&ratio)));
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
            let added: Vec<f32> =
                noisy.samples.iter().zip(&clean.samples).map(|(n, c)| n - c).collect();
            let ratio = 10.0 * (power(&clean.samples) / power(&added)).log10();
            assert!((ratio - f64::from(noisy.snr_db.expect("noise"))).abs() < 0.05);
            let blank = NoiseSettings { masked: 1.0, ..noise_settings() };
            let blank = world.clip(Split::Test, number, &blank);
            assert!(blank.masked && blank.text == clean.text);
            assert_eq!(blank.samples.len(), clean.samples.len());
            let quiet = NoiseSettings { masked: 1.0, ..NoiseSettings::clean() };
            let quiet = world.clip(Split::Test, number, &quiet);
            assert_eq!(power(&quiet.samples) == 0.0, clean.text == names(&world)[clean.name]);
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
