//! Log-mel spectrograms, the input of the ASR models.
//!
//! Reference for Whisper: `log_mel_spectrogram` of openai/whisper, `whisper/audio.py`
//! (`WhisperFeatureExtractor` of `transformers` is equivalent). Reference for Conformers:
//! `ParakeetFeatureExtractor` of `transformers`, which normalises each band to mean 0 and standard
//! deviation 1. Both use the filters of librosa's `mel` (Slaney scale and area), as in
//! `whisper/assets/mel_filters.npz`.

use std::f64::consts::TAU;
use std::sync::Arc;

use rayon::prelude::*;
use realfft::num_complex::Complex32;
use realfft::{RealFftPlanner, RealToComplex};

use crate::error::{ModelError, Result};

/// The sample rate in Hz.
pub const SAMPLE_RATE: u32 = 16_000;

/// Converts a number of samples to seconds.
pub fn samples_to_seconds(samples: usize) -> f64 {
    samples as f64 / f64::from(SAMPLE_RATE)
}

/// Converts seconds to a number of samples.
pub fn seconds_to_samples(seconds: f64) -> usize {
    (seconds * f64::from(SAMPLE_RATE)).round() as usize
}

/// Samples in a window: 25 ms.
const WINDOW: usize = 400;
/// Samples from one frame to the next: 10 ms.
pub const HOP: usize = 160;
/// Whisper: the minimum power.
const MIN_POWER: f32 = 1e-10;
/// Whisper: values are clamped to this range below the clip's maximum, in powers of ten.
const RANGE: f32 = 8.0;
/// Conformer: the size of the Fourier transform. The window is zero-padded to this size.
const LONG_TRANSFORM: usize = 512;
/// Conformer: the pre-emphasis coefficient.
const PREEMPHASIS: f32 = 0.97;
/// Conformer: added to the power, 2^-24.
const POWER_EPSILON: f32 = 5.960_464_5e-8;
/// Conformer: added to the standard deviation of a band.
const EPSILON: f32 = 1e-5;
/// Frames computed by one task.
const FRAMES_PER_TASK: usize = 64;

/// Converts audio to log-mel frames.
#[derive(Clone)]
pub struct LogMel {
    scale: Scale,
    filters: Vec<Filter>,
    window: Vec<f32>,
    fourier: Arc<dyn RealToComplex<f32>>,
}

/// The scaling of a band's power.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Scale {
    /// The decimal logarithm, clamped to a fixed range below the clip's maximum, then shifted and
    /// scaled.
    ClampedLog10,
    /// The natural logarithm, normalised to mean 0 and standard deviation 1 over the clip in each
    /// band.
    NormalisedLn,
}

/// A band's weights, starting at the frequency with index `first`.
#[derive(Debug, Clone)]
struct Filter {
    first: usize,
    weights: Vec<f32>,
}

/// The log-mel frames of a clip: `T` frames of `M` mel bands.
#[derive(Debug, Clone, PartialEq)]
pub struct Frames {
    /// The values `[T, M]`, row by row.
    pub values: Vec<f32>,
    /// The number of bands `M`.
    pub bands: usize,
}

impl Frames {
    /// Returns the number of frames, `T`.
    pub fn len(&self) -> usize {
        self.values.len() / self.bands
    }

    /// Whether there are no frames.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

impl LogMel {
    /// Creates Whisper's transform with this many bands `M`: 80, or 128 for large-v3.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`] if the number of bands is 0 or exceeds the number of frequencies.
    pub fn whisper(bands: usize) -> Result<Self> {
        Self::with_scale(Scale::ClampedLog10, bands)
    }

    /// Creates a Conformer's transform with this many bands `M`. Each band has mean 0 and standard
    /// deviation 1 over a clip.
    ///
    /// # Errors
    /// The same as for [`LogMel::whisper`].
    pub fn conformer(bands: usize) -> Result<Self> {
        Self::with_scale(Scale::NormalisedLn, bands)
    }

    /// Creates the transform with this scaling and this many bands.
    fn with_scale(scale: Scale, bands: usize) -> Result<Self> {
        // Whisper's window is periodic, the Conformer's is symmetric.
        let (transform, period) = match scale {
            Scale::ClampedLog10 => (WINDOW, WINDOW),
            Scale::NormalisedLn => (LONG_TRANSFORM, WINDOW - 1),
        };
        let frequencies = transform / 2 + 1;
        if !(1..=frequencies).contains(&bands) {
            let reason = format!("{bands} is not between 1 and {frequencies}");
            return Err(ModelError::BadConfig { what: "num_mel_bins".into(), reason });
        }
        let hann = |i| 0.5 - 0.5 * (TAU * i as f64 / period as f64).cos();
        Ok(Self {
            scale,
            filters: filters(bands, transform),
            window: (0..WINDOW).map(|i| hann(i) as f32).collect(),
            fourier: RealFftPlanner::new().plan_fft_forward(transform),
        })
    }

    /// Returns the weights of a band for the frequencies from 0 to 8 kHz; zeros if there is no such
    /// band.
    pub fn filter(&self, band: usize) -> Vec<f32> {
        let mut all_weights = vec![0.0; self.fourier.complex_len()];
        if let Some(Filter { first, weights }) = self.filters.get(band) {
            all_weights[*first..first + weights.len()].copy_from_slice(weights);
        }
        all_weights
    }

    /// Computes the frames of samples at 16 kHz, one for every full 160 samples. Clips shorter than
    /// `length` samples are padded with silence.
    pub fn frames(&self, samples: &[f32], length: usize) -> Frames {
        let length = length.max(samples.len());
        let (count, bands) = (length / HOP, self.filters.len());
        let mut values = vec![self.logarithm(0.0); count * bands];
        // Windows of later frames contain only padding.
        let occupied = count.min((samples.len() + WINDOW / 2).div_ceil(HOP));
        values[..occupied * bands].par_chunks_mut(FRAMES_PER_TASK * bands).enumerate().for_each(
            |(block, values)| {
                let mut buffers = Buffers::new(self.fourier.as_ref());
                for (i, frame) in values.chunks_mut(bands).enumerate() {
                    self.frame(
                        (block * FRAMES_PER_TASK + i) * HOP,
                        (samples, length),
                        &mut buffers,
                        frame,
                    );
                }
            },
        );
        match self.scale {
            Scale::ClampedLog10 => {
                let loudest = values.par_iter().copied().reduce(|| f32::NEG_INFINITY, f32::max);
                let quietest = loudest - RANGE;
                values.par_iter_mut().for_each(|value| *value = (value.max(quietest) + 4.0) / 4.0);
            }
            Scale::NormalisedLn if count > 0 => {
                (0..bands).for_each(|band| normalise(&mut values[band..], bands));
            }
            Scale::NormalisedLn => {}
        }
        Frames { values, bands }
    }

    /// Returns the logarithm of a band's power.
    fn logarithm(&self, power: f32) -> f32 {
        match self.scale {
            Scale::ClampedLog10 => power.max(MIN_POWER).log10(),
            Scale::NormalisedLn => (power + POWER_EPSILON).ln(),
        }
    }

    /// Returns a sample. The index may be before the start or after the end.
    fn sample(&self, index: isize, (samples, length): (&[f32], usize)) -> f32 {
        let sample_at = |index: usize| samples.get(index).copied().unwrap_or(0.0);
        match self.scale {
            Scale::ClampedLog10 => sample_at(mirrored(index, length)),
            Scale::NormalisedLn => match usize::try_from(index) {
                Ok(0) => sample_at(0),
                Ok(index) if index < length => {
                    sample_at(index) - PREEMPHASIS * sample_at(index - 1)
                }
                _ => 0.0,
            },
        }
    }

    /// Computes the log-mel bands of the window around sample `center`.
    fn frame(
        &self,
        center: usize,
        (samples, length): (&[f32], usize),
        buffers: &mut Buffers,
        bands: &mut [f32],
    ) {
        let first = center as isize - (WINDOW / 2) as isize;
        buffers.input.fill(0.0);
        for (i, (value, window)) in buffers.input.iter_mut().zip(&self.window).enumerate() {
            *value = window * self.sample(first + i as isize, (samples, length));
        }
        let result = self.fourier.process_with_scratch(
            &mut buffers.input,
            &mut buffers.spectrum,
            &mut buffers.scratch,
        );
        debug_assert!(result.is_ok(), "the plan allocated the buffers");
        for (power, value) in buffers.power.iter_mut().zip(&buffers.spectrum) {
            *power = value.norm_sqr();
        }
        for (band, filter) in bands.iter_mut().zip(&self.filters) {
            let powers = &buffers.power[filter.first..];
            let sum: f32 = filter.weights.iter().zip(powers).map(|(w, p)| w * p).sum();
            *band = self.logarithm(sum);
        }
    }
}

impl std::fmt::Debug for LogMel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogMel").field("bands", &self.filters.len()).finish_non_exhaustive()
    }
}

/// The buffers for computing one window.
struct Buffers {
    input: Vec<f32>,
    spectrum: Vec<Complex32>,
    power: Vec<f32>,
    scratch: Vec<Complex32>,
}

impl Buffers {
    fn new(fourier: &dyn RealToComplex<f32>) -> Self {
        Self {
            input: fourier.make_input_vec(),
            spectrum: fourier.make_output_vec(),
            power: vec![0.0; fourier.complex_len()],
            scratch: fourier.make_scratch_vec(),
        }
    }
}

/// Mirrors an index outside `0..length` at the ends (reflect padding).
fn mirrored(index: isize, length: usize) -> usize {
    let last = length.saturating_sub(1);
    match last {
        0 => 0,
        last => {
            let offset = index.unsigned_abs() % (2 * last);
            offset.min(2 * last - offset)
        }
    }
}

/// Normalises every `stride`th value to mean 0 and standard deviation 1.
fn normalise(values: &mut [f32], stride: usize) {
    let count = values.len().div_ceil(stride);
    let sum = |f: &dyn Fn(f64) -> f64| -> f64 {
        values.iter().step_by(stride).map(|value| f(f64::from(*value))).sum()
    };
    let mean = sum(&|value| value) / count as f64;
    let squares = sum(&|value| (value - mean).powi(2));
    let standard_deviation = (squares / count.saturating_sub(1).max(1) as f64).sqrt();
    let scale = 1.0 / (standard_deviation as f32 + EPSILON);
    for value in values.iter_mut().step_by(stride) {
        *value = (*value - mean as f32) * scale;
    }
}

/// Returns one triangular filter per band, from the centre of the previous band to the centre of
/// the next band. All filters have the same area.
fn filters(bands: usize, transform: usize) -> Vec<Filter> {
    let frequencies = transform / 2 + 1;
    let top = hertz_to_mel(f64::from(SAMPLE_RATE) / 2.0);
    let edge = |i: usize| mel_to_hertz(top * i as f64 / (bands + 1) as f64);
    let frequency = |i: usize| i as f64 * f64::from(SAMPLE_RATE) / transform as f64;
    let band_filter = |band: usize| {
        let (low, middle, high) = (edge(band), edge(band + 1), edge(band + 2));
        let weight = |i: usize| {
            let (rise, fall) =
                ((frequency(i) - low) / (middle - low), (high - frequency(i)) / (high - middle));
            rise.min(fall).max(0.0) * 2.0 / (high - low)
        };
        let first = (0..frequencies).find(|i| weight(*i) > 0.0).unwrap_or(0);
        let weights = (first..frequencies).map(|i| weight(i) as f32);
        Filter { first, weights: weights.take_while(|weight| *weight > 0.0).collect() }
    };
    (0..bands).map(band_filter).collect()
}

// Slaney's mel scale: linear below 1 kHz, logarithmic above.

/// The step of the linear part, in Hz per mel.
const HERTZ_PER_MEL: f64 = 200.0 / 3.0;
/// The frequency in Hz at which the logarithmic part begins.
const LOGARITHMIC_FROM: f64 = 1_000.0;
/// The number of mels in which the frequency grows by a factor of `e`.
const MELS_PER_NEPER: f64 = 14.545_078_505_785_56;

fn hertz_to_mel(hertz: f64) -> f64 {
    if hertz < LOGARITHMIC_FROM {
        hertz / HERTZ_PER_MEL
    } else {
        let linear = LOGARITHMIC_FROM / HERTZ_PER_MEL;
        linear + (hertz / LOGARITHMIC_FROM).ln() * MELS_PER_NEPER
    }
}

fn mel_to_hertz(mel: f64) -> f64 {
    let linear = LOGARITHMIC_FROM / HERTZ_PER_MEL;
    if mel < linear {
        mel * HERTZ_PER_MEL
    } else {
        LOGARITHMIC_FROM * ((mel - linear) / MELS_PER_NEPER).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mel_scale_is_invertible_and_has_slaneys_step() {
        // 27 logarithmic steps are a factor of 6.4.
        assert!((27.0 / 6.4f64.ln() - MELS_PER_NEPER).abs() < 1e-12);
        for hertz in [0.0, 440.0, 999.0, 1_000.0, 1_001.0, 8_000.0] {
            assert!((mel_to_hertz(hertz_to_mel(hertz)) - hertz).abs() < 1e-9);
        }
    }

    #[test]
    fn padding_equals_appended_silence() -> Result<()> {
        let mel = LogMel::whisper(80)?;
        let samples: Vec<f32> = (0..5_000).map(|i| (i as f32 * 0.3).sin() * 0.1).collect();
        let mut with_silence = samples.clone();
        with_silence.resize(20_000, 0.0);
        assert_eq!(mel.frames(&samples, 20_000), mel.frames(&with_silence, 0));
        assert_eq!(mel.frames(&samples, 0).len(), 31);
        Ok(())
    }

    #[test]
    fn short_clips_have_one_finite_frame_per_full_160_samples() -> Result<()> {
        let mel = LogMel::whisper(80)?;
        for mel in [mel, LogMel::conformer(80)?] {
            for (samples, frames) in
                [(0, 0), (1, 0), (159, 0), (160, 1), (200, 1), (201, 1), (320, 2)]
            {
                let clip = vec![0.5; samples];
                let result = mel.frames(&clip, 0);
                assert_eq!((result.len(), result.is_empty()), (frames, frames == 0));
                assert!(result.values.iter().all(|value| value.is_finite()));
            }
        }
        Ok(())
    }

    #[test]
    fn invalid_numbers_of_bands_are_errors() {
        assert!(LogMel::whisper(0).is_err() && LogMel::whisper(202).is_err());
        assert!(LogMel::conformer(0).is_err() && LogMel::conformer(258).is_err());
    }
}
