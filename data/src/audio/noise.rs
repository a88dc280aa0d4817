//! Background noise without speech: coloured noise, and band noise as from a machine, traffic or
//! wind.

use std::f32::consts::{PI, TAU};

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::mixing::{power, white_noise};

/// The sample rate in Hz.
const SAMPLE_RATE: u32 = 16_000;

/// Coefficients of the first-order filter, from white to brown noise.
const COLOURS: [f32; 5] = [0.0, 0.5, 0.9, 0.98, 0.998];
/// The number of swells (slow changes of loudness) per second.
const SWELLS: std::ops::Range<f32> = 0.3..8.0;
/// Clicks per second, and the samples in which a click decays by a factor of e.
const CLICKS: std::ops::Range<f32> = 1.0..12.0;
const DECAYS: std::ops::Range<f32> = 5.0..400.0;
/// The frequencies of tones in Hz, and the maximum number of simultaneous tones.
const TONES: std::ops::Range<f32> = 40.0..6_000.0;
const MAX_TONES: usize = 5;

/// The number of frequency bands that are mixed.
const BANDS: std::ops::RangeInclusive<usize> = 2..=6;
/// The centre of a band in octaves above 50 Hz, and its width as a fraction of the centre.
const OCTAVES: std::ops::Range<f32> = 0.0..7.0;
const LOWEST_HZ: f32 = 50.0;
const WIDTHS: std::ops::Range<f32> = 0.05..1.0;
/// The attenuation per octave, in decibels.
const TILTS: std::ops::Range<f32> = 0.0..9.0;
/// Strokes of a machine per second.
const STROKES: std::ops::Range<f32> = 4.0..60.0;
/// Loudness changes of a band per second, and the range of its loudness in decibels.
const CHANGES: std::ops::Range<f32> = 0.5..10.0;
const DEPTHS: std::ops::Range<f32> = 0.0..25.0;

/// A kind of noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoiseKind {
    /// From white to brown noise. Half of the signals swell, and some have tones or clicks.
    Coloured,
    /// Bands of noise or of strokes. The loudness of each band varies independently, and low bands
    /// are louder.
    Bands,
}

impl NoiseKind {
    /// Makes `samples` samples of noise at 16 kHz, with a random loudness. The same random state
    /// gives the same noise.
    pub fn make(self, samples: usize, rng: &mut ChaCha8Rng) -> Vec<f32> {
        match self {
            Self::Coloured => coloured(samples, rng),
            Self::Bands => bands(samples, rng),
        }
    }
}

fn bands(length: usize, rng: &mut ChaCha8Rng) -> Vec<f32> {
    let mut samples = vec![0.0; length];
    let tilt = rng.random_range(TILTS);
    for _ in 0..rng.random_range(BANDS) {
        let octave = rng.random_range(OCTAVES);
        let mut band =
            if rng.random_bool(0.25) { strokes(length, rng) } else { white_noise(length, rng) };
        resonate(&mut band, LOWEST_HZ * octave.exp2(), rng.random_range(WIDTHS));
        let gain = amplitude(-tilt * octave) / (power(&band).sqrt() as f32).max(1e-6);
        let loudness_db = loudness_curve(length, rng);
        for ((sum, sample), loudness_db) in samples.iter_mut().zip(band).zip(loudness_db) {
            *sum += gain * amplitude(loudness_db) * sample;
        }
    }
    let scale = rng.random_range(0.02..0.2) / (power(&samples).sqrt() as f32).max(1e-6);
    samples.iter_mut().for_each(|sample| *sample *= scale);
    samples
}

/// Returns a pulse for each stroke, at slightly irregular intervals.
fn strokes(length: usize, rng: &mut ChaCha8Rng) -> Vec<f32> {
    let (mut samples, mut position) = (vec![0.0; length], 0.0);
    let interval = SAMPLE_RATE as f32 / rng.random_range(STROKES);
    while (position as usize) < length {
        samples[position as usize] = rng.random_range(0.5..1.0);
        position += interval * rng.random_range(0.8..1.2);
    }
    samples
}

/// Applies a two-pole band-pass filter. `centre` is in Hz, and `width` is a fraction of it.
fn resonate(samples: &mut [f32], centre: f32, width: f32) {
    let radius = (-PI * width * centre / SAMPLE_RATE as f32).exp();
    let (coefficient_1, coefficient_2) =
        (2.0 * radius * (TAU * centre / SAMPLE_RATE as f32).cos(), radius * radius);
    let (mut second_last, mut last) = (0.0, 0.0);
    for sample in samples {
        (second_last, last) = (last, *sample + coefficient_1 * last - coefficient_2 * second_last);
        *sample = last;
    }
}

/// Returns a loudness in decibels for each sample, interpolated between random values.
fn loudness_curve(length: usize, rng: &mut ChaCha8Rng) -> Vec<f32> {
    let interval = SAMPLE_RATE as f32 / rng.random_range(CHANGES);
    let depth = rng.random_range(DEPTHS);
    let points: Vec<f32> =
        (0..length / interval as usize + 2).map(|_| depth * rng.random_range(-0.5..=0.5)).collect();
    let loudness_at = |i: usize| {
        let position = i as f32 / interval;
        let (left, fraction) = (position as usize, position.fract());
        points[left] * (1.0 - fraction) + points[left + 1] * fraction
    };
    (0..length).map(loudness_at).collect()
}

/// Returns the amplitude factor of a gain in decibels.
fn amplitude(decibels: f32) -> f32 {
    10f32.powf(decibels / 20.0)
}

fn coloured(length: usize, rng: &mut ChaCha8Rng) -> Vec<f32> {
    let mut samples = white_noise(length, rng);
    let coefficient = COLOURS[rng.random_range(0..COLOURS.len())];
    let (mut previous, scale) = (0.0, (1.0 - coefficient * coefficient).sqrt());
    for sample in &mut samples {
        previous = coefficient * previous + scale * *sample;
        *sample = previous;
    }
    if rng.random_bool(0.5) {
        let (rate, depth) = (rng.random_range(SWELLS), rng.random_range(0.0..1.0));
        let phase = rng.random_range(0.0..TAU);
        for (i, sample) in samples.iter_mut().enumerate() {
            *sample *= 1.0 + depth * (phase + TAU * rate * seconds(i)).sin();
        }
    }
    match rng.random_range(0..4) {
        0 => {
            let gain = rng.random_range(0.001..1.0);
            samples.iter_mut().for_each(|sample| *sample *= gain);
            for _ in 0..rng.random_range(1..=MAX_TONES) {
                let (frequency, amplitude) = (rng.random_range(TONES), rng.random_range(0.02..0.3));
                for (i, sample) in samples.iter_mut().enumerate() {
                    *sample += amplitude * (TAU * frequency * seconds(i)).sin();
                }
            }
        }
        1 => {
            let gain = rng.random_range(0.001..0.5);
            samples.iter_mut().for_each(|sample| *sample *= gain);
            let probability = rng.random_range(CLICKS) / SAMPLE_RATE as f32;
            let (decay, mut click) = ((-1.0 / rng.random_range(DECAYS)).exp(), 0.0f32);
            let frequency = rng.random_range(TONES);
            for (i, sample) in samples.iter_mut().enumerate() {
                if rng.random_bool(f64::from(probability)) {
                    click = rng.random_range(0.1..0.8);
                }
                *sample += click * (TAU * frequency * seconds(i)).cos();
                click *= decay;
            }
        }
        _ => {}
    }
    samples
}

fn seconds(sample: usize) -> f32 {
    sample as f32 / SAMPLE_RATE as f32
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn noise_is_finite_audible_and_reproducible() {
        for kind in [NoiseKind::Coloured, NoiseKind::Bands] {
            let make = |seed, samples| kind.make(samples, &mut ChaCha8Rng::seed_from_u64(seed));
            assert_eq!(make(1, 9_000), make(1, 9_000));
            assert_ne!(make(1, 9_000), make(2, 9_000));
            assert!(make(1, 0).is_empty() && make(1, 1).len() == 1);
            for seed in 0..100 {
                let samples = make(seed, 9_000 + 500 * seed as usize);
                assert!(samples.iter().all(|s| s.is_finite()));
                let peak = samples.iter().fold(0f32, |peak, sample| peak.max(sample.abs()));
                assert!((1e-4..10.0).contains(&peak), "{kind:?}, seed {seed}: {peak}");
            }
        }
    }
}
