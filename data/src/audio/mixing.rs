//! Noise for speech: mixing at a signal-to-noise ratio, babble noise, white noise.
//!
//! Samples are neither clipped nor scaled: a mix may leave [-1, 1]. The ASR models accept such
//! values. Reduce the gain before you write integers to a file.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::augmentation::Normal;

/// Audio with a mean power below this counts as silent: -100 dB, less than the last bit of 16-bit
/// samples.
const SILENCE: f64 = 1e-10;

/// The root mean square of babble and white noise.
const RMS: f64 = 0.1;

/// Mixes noise into speech at a signal-to-noise ratio of `snr_db` decibels.
///
/// The noise starts at its sample `offset`, and repeats if it is shorter than the speech. Speech
/// power is the mean over the whole clip, including pauses. Noise power is the mean over the part
/// that is mixed. The speech is returned unchanged if speech or noise is silent (below -100 dB), or
/// if the gain of the noise is not finite.
///
/// # Source   `add_noise` of AV-HuBERT (`avhubert/hubert_dataset.py`), which also scales the mix
/// down if it would clip
///
/// ```
/// use engram_data::audio::mixing::add_noise;
///
/// assert_eq!(add_noise(&[0.5, -0.5, 0.5], &[0.1, -0.1], 20.0, 1), [0.45, -0.45, 0.45]);
/// ```
pub fn add_noise(speech: &[f32], noise: &[f32], snr_db: f32, offset: usize) -> Vec<f32> {
    let noise = repeated(noise, offset, speech.len());
    let (speech_power, noise_power) = (power(speech), power(&noise));
    let gain = (speech_power / noise_power / 10f64.powf(f64::from(snr_db) / 10.0)).sqrt();
    if speech_power < SILENCE || noise_power < SILENCE || !gain.is_finite() {
        return speech.to_vec();
    }
    let sum =
        |(speech, noise): (&f32, &f32)| (f64::from(*speech) + gain * f64::from(*noise)) as f32;
    speech.iter().zip(&noise).map(sum).collect()
}

/// Mixes several voices into `samples` samples of babble noise. All voices are scaled to the same
/// power. Each voice starts at a random sample and repeats if it is too short. Silent voices are
/// skipped; if all are silent, the result is silence. The mean power is near -20 dB, unless the
/// voices are correlated.
pub fn babble(voices: &[&[f32]], samples: usize, rng: &mut ChaCha8Rng) -> Vec<f32> {
    let mut sum = vec![0.0; samples];
    let mut voice_count = 0;
    for voice in voices {
        let offset = if voice.is_empty() { 0 } else { rng.random_range(0..voice.len()) };
        let voice = repeated(voice, offset, samples);
        let power = power(&voice);
        if power < SILENCE {
            continue;
        }
        voice_count += 1;
        for (sum, sample) in sum.iter_mut().zip(voice) {
            *sum += f64::from(sample) / power.sqrt();
        }
    }
    let gain = RMS / f64::from(voice_count.max(1)).sqrt();
    sum.into_iter().map(|sample| (gain * sample) as f32).collect()
}

/// Returns normally distributed noise of about -20 dB. The same random state gives the same noise.
pub fn white_noise(samples: usize, rng: &mut ChaCha8Rng) -> Vec<f32> {
    let mut normal = Normal::new(rng);
    (0..samples).map(|_| RMS as f32 * normal.draw()).collect()
}

/// Returns the mean of the squares; 0 for no samples.
pub fn power(samples: &[f32]) -> f64 {
    let sum: f64 = samples.iter().map(|sample| f64::from(*sample).powi(2)).sum();
    sum / samples.len().max(1) as f64
}

fn repeated(audio: &[f32], offset: usize, samples: usize) -> Vec<f32> {
    let offset = offset % audio.len().max(1);
    audio.iter().cycle().skip(offset).take(samples).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn rng(seed: u64) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(seed)
    }

    /// A tone with pauses.
    fn speech(samples: usize) -> Vec<f32> {
        let tone =
            |i: usize| if (i / 800).is_multiple_of(3) { 0.0 } else { (i as f32 * 0.2).sin() * 0.4 };
        (0..samples).map(tone).collect()
    }

    fn decibels(ratio: f64) -> f64 {
        10.0 * ratio.log10()
    }

    #[test]
    fn the_mix_has_the_requested_signal_to_noise_ratio() {
        let speech = speech(16_000);
        for noise in [white_noise(48_000, &mut rng(1)), white_noise(700, &mut rng(2))] {
            for snr_db in [-10.0, -5.0, 0.0, 5.0, 20.0, 40.0] {
                for offset in [0, 699, 20_000, usize::MAX] {
                    let mixed = add_noise(&speech, &noise, snr_db, offset);
                    let added: Vec<f32> = mixed.iter().zip(&speech).map(|(m, s)| m - s).collect();
                    let measured = decibels(power(&speech) / power(&added));
                    assert!((measured - f64::from(snr_db)).abs() < 0.01, "{measured} for {snr_db}");
                    let gain = f64::from(added[0] / noise[offset % noise.len()]);
                    let mismatch = added.iter().enumerate().find(|(i, sample)| {
                        let noise_sample = noise[(offset % noise.len() + i) % noise.len()];
                        (f64::from(**sample) - gain * f64::from(noise_sample)).abs() > 2e-3 * gain
                    });
                    assert_eq!(mismatch, None, "at {offset}");
                }
            }
        }
    }

    #[test]
    fn the_noise_power_is_measured_over_the_part_used() {
        let mut noise = white_noise(2_000, &mut rng(3));
        noise[1_000..].iter_mut().for_each(|sample| *sample *= 30.0);
        let speech = speech(1_000);
        for offset in [0, 1_000] {
            let mixed = add_noise(&speech, &noise, 3.0, offset);
            let added: Vec<f32> = mixed.iter().zip(&speech).map(|(m, s)| m - s).collect();
            assert!((decibels(power(&speech) / power(&added)) - 3.0).abs() < 0.01);
        }
    }

    #[test]
    fn the_mix_is_not_clipped() {
        let mixed = add_noise(&speech(8_000), &white_noise(8_000, &mut rng(4)), -20.0, 0);
        assert!(mixed.iter().any(|sample| sample.abs() > 1.0));
    }

    #[test]
    fn silence_and_infinite_gain_leave_the_speech_unchanged() {
        let (speech, noise) = (speech(4_000), white_noise(4_000, &mut rng(5)));
        for silent in [&[][..], &[0.0; 30], &[1e-6; 30]] {
            assert_eq!(add_noise(&speech, silent, 0.0, 7), speech);
            let offset = if silent.is_empty() { 0 } else { 1 };
            assert_eq!(add_noise(silent, &noise, 0.0, offset), silent);
        }
        for snr_db in [f32::NAN, f32::NEG_INFINITY, f32::INFINITY] {
            assert_eq!(add_noise(&speech, &noise, snr_db, 0), speech);
        }
    }

    #[test]
    fn voices_of_babble_noise_have_equal_power() {
        // Whole periods, so that repeating keeps the phase.
        let tone = |amplitude: f32, period: usize, periods: usize| -> Vec<f32> {
            let phase = |i: usize| (i % period) as f32 / period as f32 * std::f32::consts::TAU;
            (0..period * periods).map(|i| amplitude * phase(i).sin()).collect()
        };
        let (quiet, loud) = (tone(0.01, 20, 400), tone(0.9, 50, 100));
        let voices = [&quiet[..], &loud, &[0.0; 50], &[]];
        let sum = babble(&voices, 16_000, &mut rng(6));
        assert_eq!(sum.len(), 16_000);
        assert!((decibels(power(&sum)) + 20.0).abs() < 0.01, "{}", decibels(power(&sum)));
        // The amplitude of each tone at any phase: each tone has half of the total power.
        for period in [20.0, 50.0] {
            let (mut sin, mut cos) = (0.0, 0.0);
            for (i, sample) in sum.iter().enumerate() {
                let (sine, cosine) = (i as f64 / period * std::f64::consts::TAU).sin_cos();
                sin += sine * f64::from(*sample);
                cos += cosine * f64::from(*sample);
            }
            let amplitude = (sin * sin + cos * cos).sqrt() * 2.0 / 16_000.0;
            assert!((amplitude - 0.1).abs() < 1e-4, "{amplitude} of period {period}");
        }
        assert_eq!(sum, babble(&voices, 16_000, &mut rng(6)));
        assert_ne!(sum, babble(&voices, 16_000, &mut rng(7)));
        assert_eq!(babble(&[&[0.0; 9]], 3, &mut rng(8)), [0.0; 3]);
    }

    #[test]
    fn white_noise_is_normal_and_reproducible() {
        let noise = white_noise(100_000, &mut rng(9));
        assert!((decibels(power(&noise)) + 20.0).abs() < 0.1);
        let mean: f64 = noise.iter().map(|sample| f64::from(*sample)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 2e-3, "{mean}");
        // 68.3 % lie within one standard deviation; neighbouring samples are uncorrelated.
        let within = noise.iter().filter(|sample| sample.abs() < 0.1).count();
        assert!((within as f64 / 1e5 - 0.683).abs() < 0.01, "{within}");
        let covariance_sum: f64 = noise.windows(2).map(|two| f64::from(two[0] * two[1])).sum();
        assert!((covariance_sum / 1e5 / power(&noise)).abs() < 0.02);
        assert_eq!(noise, white_noise(100_000, &mut rng(9)));
        assert_ne!(noise, white_noise(100_000, &mut rng(10)));
    }
}
