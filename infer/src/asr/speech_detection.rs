//! Detects audio without speech that an ASR model would transcribe as words. This is steady audio
//! (silence, a tone, hum, fan noise), possibly with clicks.

use engram_models::speech::log_mel::SAMPLE_RATE;

/// The block length for power levels, in samples: 100 ms, about a syllable.
const BLOCK: usize = SAMPLE_RATE as usize / 10;
/// The minimum number of blocks for a decision.
const MIN_BLOCKS: usize = 4;
/// The maximum difference in steady audio between its quiet blocks and its loudest block, in
/// decibels. White noise has 1 dB. Speech has at least 10 dB, or 3 dB in noise of equal power.
const RANGE: f64 = 2.0;
/// Added to the power, so that digital silence has a finite level: the power of half a 24-bit step.
const FLOOR: f64 = 1e-15;

/// The block length for detecting clicks, in samples: 10 ms.
const SHORT_BLOCK: usize = SAMPLE_RATE as usize / 100;
/// The maximum length of a click, in short blocks. Vowels are longer.
const MAX_CLICK_BLOCKS: usize = 4;
/// The maximum fraction of short blocks with clicks.
const MAX_CLICK_SHARE: f64 = 0.1;
/// The minimum difference between a click and the quiet rest of a clip, in decibels.
const ABOVE_REST: f64 = 6.0;
/// Audio below this level is silence, in decibels of full scale.
const SILENCE: f64 = -60.0;

/// Whether a clip contains no speech.
pub(super) fn is_without_speech(samples: &[f32]) -> bool {
    is_steady(samples) || is_clicks(samples)
}

/// Whether a clip is quiet except for a few sounds that are too short for a vowel.
fn is_clicks(samples: &[f32]) -> bool {
    let levels: Vec<f64> =
        samples.chunks_exact(SHORT_BLOCK).map(|block| level(block, SHORT_BLOCK)).collect();
    let mut sorted = levels.clone();
    sorted.sort_by(f64::total_cmp);
    let Some(rest_level) = sorted.get(levels.len() / 5) else { return false };
    let threshold = (rest_level + ABOVE_REST).max(SILENCE);
    let (mut longest_run, mut run, mut click_blocks) = (0, 0, 0);
    for level in &levels {
        run = if *level > threshold { run + 1 } else { 0 };
        longest_run = longest_run.max(run);
        click_blocks += usize::from(run > 0);
    }
    let are_few = click_blocks as f64 <= MAX_CLICK_SHARE * levels.len() as f64;
    levels.len() * SHORT_BLOCK >= MIN_BLOCKS * BLOCK && longest_run <= MAX_CLICK_BLOCKS && are_few
}

/// The level of a block in decibels of full scale.
fn level(block: &[f32], length: usize) -> f64 {
    let sum: f64 = block.iter().map(|sample| f64::from(*sample) * f64::from(*sample)).sum();
    10.0 * (sum / length as f64 + FLOOR).log10()
}

/// Whether all blocks of a clip have about the same level. The quietest twentieth is ignored,
/// because a gap is not speech.
fn is_steady(samples: &[f32]) -> bool {
    if samples.iter().all(|sample| *sample == 0.0) {
        return true;
    }
    let mut levels: Vec<f64> =
        samples.chunks_exact(BLOCK).map(|block| level(block, BLOCK)).collect();
    levels.sort_by(f64::total_cmp);
    match &levels[levels.len() / 20..] {
        [low, .., high] => levels.len() >= MIN_BLOCKS && high - low < RANGE,
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
        for floor in [0.0, 0.01] {
            let fan =
                |i: u32| f64::from(i.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 23) - 1.0;
            let mut long: Vec<f32> = (0..480_000).map(|i| (floor * fan(i)) as f32).collect();
            assert!(is_steady(&long));
            long[200_000..206_000]
                .iter_mut()
                .enumerate()
                .for_each(|(i, s)| *s += 0.1 * (i as f32).sin());
            assert!(!is_steady(&long));
        }
        assert!(!is_steady(&[0.5; 100]), "too short to tell");
    }

    #[test]
    fn clicks_are_not_speech_but_short_words_are() {
        let noise =
            |i: u32| f64::from(i.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 23) - 1.0;
        // Sounds of this many samples and amplitude, four times in two seconds, in noise.
        let clip = |length: u32, loud: f64, rest: f64| -> Vec<f32> {
            let sample = |i: u32| match i % 8_000 {
                at if (4_000..4_000 + length).contains(&at) => loud * (f64::from(i) * 0.7).sin(),
                _ => rest * noise(i),
            };
            (0..32_000).map(|i| sample(i) as f32).collect()
        };
        for (length, rest) in [(1, 0.0), (16, 0.0), (80, 1e-4), (320, 1e-4), (80, 0.01)] {
            assert!(is_without_speech(&clip(length, 0.5, rest)), "{length} samples, {rest}");
        }
        // Sounds of 80 ms and more, loud and quiet, and noise of equal level.
        for (length, loud, rest) in
            [(1_280, 0.5, 0.0), (3_200, 0.01, 1e-4), (1_280, 0.1, 0.02), (3_200, 0.5, 0.1)]
        {
            assert!(!is_without_speech(&clip(length, loud, rest)), "{length} samples, {rest}");
        }
        // A loud click before a quiet word.
        let mut word = clip(3_200, 0.01, 1e-4);
        word[100..130].fill(1.0);
        assert!(!is_without_speech(&word));
        assert!(!is_clicks(&clip(1, 0.5, 0.0)[..4_001]), "too short to tell");
    }
}
