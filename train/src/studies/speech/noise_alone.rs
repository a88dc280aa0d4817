//! Sound in which nobody speaks, for a recogniser to learn that it has no text.

use std::f32::consts::TAU;

use engram_data::audio::mixing::white_noise;
use engram_data::world::speech::SAMPLE_RATE;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// Its length, in samples: half a second to four.
const LENGTH: std::ops::Range<usize> = SAMPLE_RATE as usize / 2..4 * SAMPLE_RATE as usize;
/// Of each sample so much stays in the next: from white noise to brown.
const COLOURS: [f32; 5] = [0.0, 0.5, 0.9, 0.98, 0.998];
/// How often noise swells in a second.
const SWELLS: std::ops::Range<f32> = 0.3..8.0;
/// Clicks in a second, and the samples after which one has died away by a factor of e.
const CLICKS: std::ops::Range<f32> = 1.0..12.0;
const DECAYS: std::ops::Range<f32> = 5.0..400.0;
/// The frequencies of tones, in Hz, and the most that sound together.
const TONES: std::ops::Range<f32> = 40.0..6_000.0;
const MOST_TONES: usize = 5;

/// Noise of a colour, which may swell, with tones or clicks in some of it.
pub(super) fn noise_alone(rng: &mut ChaCha8Rng) -> Vec<f32> {
    let mut samples = white_noise(rng.random_range(LENGTH), rng);
    let colour = COLOURS[rng.random_range(0..COLOURS.len())];
    let (mut before, scale) = (0.0, (1.0 - colour * colour).sqrt());
    for sample in &mut samples {
        before = colour * before + scale * *sample;
        *sample = before;
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
            let quiet = rng.random_range(0.001..1.0);
            samples.iter_mut().for_each(|sample| *sample *= quiet);
            for _ in 0..rng.random_range(1..=MOST_TONES) {
                let (frequency, loudness) = (rng.random_range(TONES), rng.random_range(0.02..0.3));
                for (i, sample) in samples.iter_mut().enumerate() {
                    *sample += loudness * (TAU * frequency * seconds(i)).sin();
                }
            }
        }
        1 => {
            let quiet = rng.random_range(0.001..0.5);
            samples.iter_mut().for_each(|sample| *sample *= quiet);
            let chance = rng.random_range(CLICKS) / SAMPLE_RATE as f32;
            let (decay, mut click) = ((-1.0 / rng.random_range(DECAYS)).exp(), 0.0f32);
            let ring = rng.random_range(TONES);
            for (i, sample) in samples.iter_mut().enumerate() {
                if rng.random_bool(f64::from(chance)) {
                    click = rng.random_range(0.1..0.8);
                }
                *sample += click * (TAU * ring * seconds(i)).cos();
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
    fn noises_are_finite_heard_and_follow_their_seed() {
        let make = |seed| noise_alone(&mut ChaCha8Rng::seed_from_u64(seed));
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
        for seed in 0..100 {
            let samples = make(seed);
            assert!(LENGTH.contains(&samples.len()) && samples.iter().all(|s| s.is_finite()));
            let loudest = samples.iter().fold(0f32, |loudest, sample| loudest.max(sample.abs()));
            assert!((1e-4..4.0).contains(&loudest), "seed {seed}: {loudest}");
        }
    }
}
