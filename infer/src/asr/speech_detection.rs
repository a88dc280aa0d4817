//! Detects audio without speech that an ASR model would transcribe as words. This is steady audio
//! (silence, a tone, hum, fan noise), possibly with clicks.

use engram_models::speech::log_mel::SAMPLE_RATE;

/// The block length for power levels, in samples: 100 ms, about a syllable.
const BLOCK: usize = SAMPLE_RATE as usize / 10;
/// The minimum number of blocks for a decision.
const MIN_BLOCKS: usize = 4;
/// The maximum difference in steady audio between its quiet blocks and its loudest block, in
/// decibels. White noise has 1 dB. Speech has at least 10 dB, or 3 dB in noise of equal power.
const STEADY_RANGE_DB: f64 = 2.0;
/// Added to the power, so that digital silence has a finite level. It is about the power of the
/// rounding error of 24-bit samples.
const POWER_FLOOR: f64 = 1e-15;

/// The block length for detecting clicks, in samples: 10 ms.
const SHORT_BLOCK: usize = SAMPLE_RATE as usize / 100;
/// The maximum length of a click, in short blocks. Vowels are longer.
const MAX_CLICK_BLOCKS: usize = 4;
/// The maximum fraction of short blocks with clicks.
const MAX_CLICK_FRACTION: f64 = 0.1;
/// The minimum difference between a click and the quiet blocks of a clip, in decibels.
const MIN_CLICK_DB: f64 = 6.0;
/// Audio below this level is silence, in decibels of full scale.
const SILENCE_DB: f64 = -60.0;

/// Whether a clip contains no speech.
pub(super) fn is_without_speech(samples: &[f32]) -> bool {
    is_steady(samples) || has_only_clicks(samples)
}

/// Whether a clip is quiet except for a few sounds that are too short for a vowel.
fn has_only_clicks(samples: &[f32]) -> bool {
    let levels: Vec<f64> =
        samples.chunks_exact(SHORT_BLOCK).map(|block| level(block, SHORT_BLOCK)).collect();
    let mut sorted = levels.clone();
    sorted.sort_by(f64::total_cmp);
    let Some(quiet_level) = sorted.get(levels.len() / 5) else { return false };
    let threshold = (quiet_level + MIN_CLICK_DB).max(SILENCE_DB);
    let (mut longest_run, mut run, mut click_blocks) = (0, 0, 0);
    for level in &levels {
        run = if *level > threshold { run + 1 } else { 0 };
        longest_run = longest_run.max(run);
        click_blocks += usize::from(run > 0);
    }
    let are_few = click_blocks as f64 <= MAX_CLICK_FRACTION * levels.len() as f64;
    levels.len() * SHORT_BLOCK >= MIN_BLOCKS * BLOCK && longest_run <= MAX_CLICK_BLOCKS && are_few
}

/// The level of a block of `length` samples, in decibels of full scale.
fn level(block: &[f32], length: usize) -> f64 {
    let sum: f64 = block.iter().map(|sample| f64::from(*sample) * f64::from(*sample)).sum();
    10.0 * (sum / length as f64 + POWER_FLOOR).log10()
}

/// Whether all blocks of a clip have about the same level. The quietest 5 % of the blocks are
/// ignored, because a gap is not speech.
fn is_steady(samples: &[f32]) -> bool {
    if samples.iter().all(|sample| *sample == 0.0) {
        return true;
    }
    let mut levels: Vec<f64> =
        samples.chunks_exact(BLOCK).map(|block| level(block, BLOCK)).collect();
    levels.sort_by(f64::total_cmp);
    match &levels[levels.len() / 20..] {
        [low, .., high] => levels.len() >= MIN_BLOCKS && high - low < STEADY_RANGE_DB,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tones_and_silence_are_steady_and_syllables_are_not() {
        let audio = |f: fn(f64) -> f64| -> Vec<f32> {
            (0..32_000).map(|i| f(f64::from(i) / 16_000.0) as f32).collect()
        };
        let tone = |t: f64| 0.3 * (t * 440.0 * std::f64::consts::TAU).sin();
        assert!(is_steady(&audio(|_| 0.0)) && is_steady(&[0.0; 100]));
        assert!(is_steady(&audio(tone)));
        assert!(!is_steady(&audio(|t| (1.5 + (t * 12.0).sin()) * (t * 2_000.0).sin())));
        // A click in silence is not steady.
        assert!(!is_steady(&audio(|t| if t < 0.05 { 0.1 } else { 0.0 })));
        // Half a minute of silence or fan noise is steady; with a word in it, it is not.
        for amplitude in [0.0, 0.01] {
            let noise =
                |i: u32| f64::from(i.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 23) - 1.0;
            let mut clip: Vec<f32> = (0..480_000).map(|i| (amplitude * noise(i)) as f32).collect();
            assert!(is_steady(&clip));
            clip[200_000..206_000]
                .iter_mut()
                .enumerate()
                .for_each(|(i, sample)| *sample += 0.1 * (i as f32).sin());
            assert!(!is_steady(&clip));
        }
        assert!(!is_steady(&[0.5; 100]), "too short for a decision");
    }

    #[test]
    fn clicks_are_not_speech_but_short_words_are() {
        let noise =
            |i: u32| f64::from(i.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 23) - 1.0;
        // Four sounds of `length` samples in two seconds of noise. The amplitudes are `sound` and
        // `background`.
        let clip = |length: u32, sound: f64, background: f64| -> Vec<f32> {
            let sample = |i: u32| {
                if (4_000..4_000 + length).contains(&(i % 8_000)) {
                    sound * (f64::from(i) * 0.7).sin()
                } else {
                    background * noise(i)
                }
            };
            (0..32_000).map(|i| sample(i) as f32).collect()
        };
        for (length, background) in [(1, 0.0), (16, 0.0), (80, 1e-4), (320, 1e-4), (80, 0.01)] {
            let clicks = clip(length, 0.5, background);
            assert!(is_without_speech(&clicks), "{length} samples, {background}");
        }
        // Loud and quiet sounds of 80 ms and more, in silence and in noise.
        for (length, sound, background) in
            [(1_280, 0.5, 0.0), (3_200, 0.01, 1e-4), (1_280, 0.1, 0.02), (3_200, 0.5, 0.1)]
        {
            let words = clip(length, sound, background);
            assert!(!is_without_speech(&words), "{length} samples, {background}");
        }
        // A loud click before a quiet word.
        let mut word = clip(3_200, 0.01, 1e-4);
        word[100..130].fill(1.0);
        assert!(!is_without_speech(&word));
        assert!(!has_only_clicks(&clip(1, 0.5, 0.0)[..4_001]), "too short for a decision");
    }
}
