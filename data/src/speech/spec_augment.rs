//! SpecAugment: masks frequency bands and time spans of a clip's frames.
//!
//! Masked values become the mean of the clip's frames before masking. The paper uses 0, because its
//! frames have mean 0. Time warping is not implemented: in the paper it has the smallest effect of
//! the three augmentations, and the highest cost.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::DataError;

/// SpecAugment settings. The defaults are the paper's policy LD, for frames of 80 bands every 10
/// ms.
///
/// # Source   Park et al., "SpecAugment" (2019), §2 and table 1. Widths are drawn from 0 to the
/// maximum, inclusive (exclusive in the paper), and masks may overlap.
///
/// ```
/// use engram_data::speech::spec_augment::SpecAugment;
/// use rand::SeedableRng;
/// use rand_chacha::ChaCha8Rng;
///
/// let mut frames = vec![1.0; 300 * 80];
/// frames[0] = 3.0;
/// let masks = SpecAugment { max_time_fraction: 0.05, ..SpecAugment::default() };
/// masks.apply(&mut frames, 80, &mut ChaCha8Rng::seed_from_u64(7))?;
/// # Ok::<(), engram_data::DataError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SpecAugment {
    /// The number of time masks (m_T in the paper).
    pub time_masks: usize,
    /// The maximum width of a time mask, in frames (T).
    pub max_time_width: usize,
    /// The maximum width of a time mask as a fraction of the clip's frames (p), from 0 to 1.
    pub max_time_fraction: f64,
    /// The number of frequency masks (m_F).
    pub frequency_masks: usize,
    /// The maximum width of a frequency mask, in bands (F).
    pub max_frequency_width: usize,
}

impl Default for SpecAugment {
    fn default() -> Self {
        Self {
            time_masks: 2,
            max_time_width: 100,
            max_time_fraction: 1.0,
            frequency_masks: 2,
            max_frequency_width: 27,
        }
    }
}

impl SpecAugment {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`DataError::OutOfRange`]
    pub fn validate(&self) -> Result<(), DataError> {
        if (0.0..=1.0).contains(&self.max_time_fraction) {
            Ok(())
        } else {
            let (what, wanted) = ("max_time_fraction", "use a fraction from 0 to 1");
            Err(DataError::out_of_range(what, self.max_time_fraction, wanted))
        }
    }

    /// Masks the frames of one clip, without padding: masked values become the mean of the clip.
    /// The same random state gives the same masks.
    ///
    /// # Shapes   frames `[F, M]`, in row-major order, with `bands` = `M` bands
    /// # Errors
    /// [`DataError::OutOfRange`], also if the number of values is not a multiple of
    /// `bands`
    pub fn apply(
        &self,
        frames: &mut [f32],
        bands: usize,
        rng: &mut ChaCha8Rng,
    ) -> Result<(), DataError> {
        self.validate()?;
        if bands == 0 || !frames.len().is_multiple_of(bands) {
            let value = format!("{} values in {bands} bands", frames.len());
            let wanted = "pass all bands of each frame";
            return Err(DataError::out_of_range("the clip", value, wanted));
        }
        let length = frames.len() / bands;
        let sum: f64 = frames.iter().map(|value| f64::from(*value)).sum();
        let mean = (sum / frames.len().max(1) as f64) as f32;
        for _ in 0..self.frequency_masks {
            let mask = draw_mask(self.max_frequency_width, bands, rng);
            frames.chunks_exact_mut(bands).for_each(|frame| frame[mask.clone()].fill(mean));
        }
        let max_time_width =
            self.max_time_width.min((self.max_time_fraction * length as f64) as usize);
        for _ in 0..self.time_masks {
            let mask = draw_mask(max_time_width, length, rng);
            frames[mask.start * bands..mask.end * bands].fill(mean);
        }
        Ok(())
    }
}

/// Draws the range of a mask: at most `max_width` of `length` positions.
fn draw_mask(max_width: usize, length: usize, rng: &mut ChaCha8Rng) -> std::ops::Range<usize> {
    let width = rng.random_range(0..=max_width.min(length));
    let start = rng.random_range(0..=length - width);
    start..start + width
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    const BANDS: usize = 80;

    fn frames(length: usize) -> Vec<f32> {
        (0..length * BANDS).map(|i| (i as f32 * 0.37).sin() + 2.0).collect()
    }

    fn masked(masks: &SpecAugment, length: usize, seed: u64) -> Vec<f32> {
        let mut frames = frames(length);
        masks.apply(&mut frames, BANDS, &mut ChaCha8Rng::seed_from_u64(seed)).expect("masks");
        frames
    }

    /// Returns the frames, and then the bands, in which all values changed.
    fn changed(before: &[f32], after: &[f32]) -> (Vec<usize>, Vec<usize>) {
        let differs = |i: usize| before[i] != after[i];
        let length = before.len() / BANDS;
        let frames = (0..length).filter(|f| (0..BANDS).all(|b| differs(f * BANDS + b))).collect();
        let bands = (0..BANDS).filter(|b| (0..length).all(|f| differs(f * BANDS + b))).collect();
        (frames, bands)
    }

    fn is_contiguous(positions: &[usize]) -> bool {
        positions.windows(2).all(|pair| pair[1] == pair[0] + 1)
    }

    #[test]
    fn each_mask_is_one_contiguous_span_of_the_mean() {
        let masks = SpecAugment { time_masks: 1, frequency_masks: 1, ..SpecAugment::default() };
        let before = frames(400);
        let mean = before.iter().map(|value| f64::from(*value)).sum::<f64>() / 32_000.0;
        let (mut longest, mut widest) = (0, 0);
        for seed in 0..300 {
            let after = masked(&masks, 400, seed);
            let (time, bands) = changed(&before, &after);
            assert!(is_contiguous(&time) && is_contiguous(&bands), "seed {seed}");
            for (i, (before, after)) in before.iter().zip(&after).enumerate() {
                let is_masked = time.contains(&(i / BANDS)) || bands.contains(&(i % BANDS));
                let expected = if is_masked { mean as f32 } else { *before };
                assert_eq!(*after, expected, "seed {seed}, value {i}");
            }
            (longest, widest) = (longest.max(time.len()), widest.max(bands.len()));
        }
        assert!((97..=100).contains(&longest), "{longest}");
        assert!((26..=27).contains(&widest), "{widest}");
    }

    #[test]
    fn no_mask_exceeds_its_fraction_of_the_clip() {
        let masks = SpecAugment {
            time_masks: 1,
            max_time_fraction: 0.1,
            frequency_masks: 0,
            ..SpecAugment::default()
        };
        for (length, max) in [(400, 40), (59, 5), (9, 0)] {
            let longest = (0..200)
                .map(|seed| changed(&frames(length), &masked(&masks, length, seed)).0.len())
                .max();
            assert_eq!(longest, Some(max), "of {length} frames");
        }
    }

    #[test]
    fn masks_are_reproducible_and_fit_clips_of_any_length() {
        let masks = SpecAugment { time_masks: 3, ..SpecAugment::default() };
        assert_eq!(masked(&masks, 400, 7), masked(&masks, 400, 7));
        assert_ne!(masked(&masks, 400, 7), masked(&masks, 400, 8));
        for length in 0..4 {
            assert_eq!(masked(&masks, length, 1).len(), length * BANDS);
        }
        let no_masks = SpecAugment { time_masks: 0, frequency_masks: 0, ..SpecAugment::default() };
        assert_eq!(masked(&no_masks, 50, 1), frames(50));
        let wide_masks = SpecAugment { max_frequency_width: 1_000, ..SpecAugment::default() };
        assert_eq!(masked(&wide_masks, 5, 1).len(), 5 * BANDS);
    }

    #[test]
    fn invalid_settings_and_shapes_are_refused() {
        let parse = |text: &str| serde_json::from_str::<SpecAugment>(text);
        assert_eq!(parse("{}").expect("defaults"), SpecAugment::default());
        assert_eq!(parse(r#"{"time_masks": 10}"#).expect("masks").max_frequency_width, 27);
        assert!(parse(r#"{"time_mask": 10}"#).unwrap_err().to_string().contains("time_mask"));
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for fraction in [-0.1, 1.1, f64::NAN] {
            let masks = SpecAugment { max_time_fraction: fraction, ..SpecAugment::default() };
            let error = masks.apply(&mut [0.0; 80], BANDS, &mut rng).expect_err("a refusal");
            assert!(error.to_string().contains("max_time_fraction is"), "{error}");
        }
        for (values, bands) in [(81, 80), (80, 0)] {
            let error = SpecAugment::default().apply(&mut vec![0.0; values], bands, &mut rng);
            assert!(error.expect_err("a refusal").to_string().contains(" bands; pass all bands"));
        }
    }
}
