//! Sound that does not change: silence, a tone, hum, the noise of a fan. Nobody speaks in it, and a
//! recogniser makes words of it.

use engram_models::speech::log_mel::SAMPLE_RATE;

/// Samples whose power is one level: 100 ms, about a syllable.
const BLOCK: usize = SAMPLE_RATE as usize / 10;
/// Blocks that are needed to tell.
const FEWEST: usize = 4;
/// Decibels from the quiet blocks of steady sound to its loudest: white noise has 1; speech 10 and
/// more, in noise as loud as itself 3.
const RANGE: f64 = 2.0;
/// Added to the power, so that digital silence has a level: that of half a step of 24 bits.
const FLOOR: f64 = 1e-15;

/// Whether no block of a clip is louder than the others. A gap is no speech: the quietest twentieth is
/// left out.
pub(super) fn is_steady(samples: &[f32]) -> bool {
    if samples.iter().all(|sample| *sample == 0.0) {
        return true;
    }
    let power = |block: &[f32]| -> f64 {
        let sum: f64 = block.iter().map(|sample| f64::from(*sample) * f64::from(*sample)).sum();
        10.0 * (sum / BLOCK as f64 + FLOOR).log10()
    };
    let mut levels: Vec<f64> = samples.chunks_exact(BLOCK).map(power).collect();
    levels.sort_by(f64::total_cmp);
    match &levels[levels.len() / 20..] {
        [low, .., high] => levels.len() >= FEWEST && high - low < RANGE,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tones_and_silence_are_steady_and_syllables_are_not() {
        let sound = |f: fn(f64) -> f64| -> Vec<f32> {
            (0..32_000).map(|i| f(f64::from(i) / 16_000.0) as f32).collect()
        };
        let tone = |t: f64| 0.3 * (t * 440.0 * std::f64::consts::TAU).sin();
        assert!(is_steady(&sound(|_| 0.0)) && is_steady(&[0.0; 100]));
        assert!(is_steady(&sound(tone)));
        assert!(!is_steady(&sound(|t| (1.5 + (t * 12.0).sin()) * (t * 2_000.0).sin())));
        // A click in silence is not silence, nor is half a tone.
        assert!(!is_steady(&sound(|t| if t < 0.05 { 0.1 } else { 0.0 })));
        // A word in half a minute of silence, or of a fan.
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
}
