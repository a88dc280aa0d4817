//! BEST-RQ (arXiv 2202.01855): self-supervised pre-training of a speech encoder by predicting the
//! codes of masked frames.
//!
//! An encoder state covers `subsampling_factor` frames of the input. A frozen random projection and
//! a frozen random codebook assign a code to the frames of each state. Noise replaces some spans of
//! the encoder's input, and the model predicts the codes of the masked states. Use frames with mean
//! 0 and standard deviation 1 ([`LogMel::conformer`](super::log_mel::LogMel::conformer)): otherwise
//! most states get the same code.

use candle_core::Tensor;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::AudioStates;
use super::log_mel::Frames;
use crate::compute::to_host;
use crate::config::{check_sizes, require};
use crate::conformer::ConformerConfig;
use crate::error::{Result, bail};
use crate::kernels::{CrossEntropy, Matrix, Mode, cross_entropy, embedding_sum, matmul};
use crate::layers::Linear;
use crate::params::{Init, ParameterBuilder};

/// The sizes and the masking. The defaults are the paper's values (§4.1).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BestRqConfig {
    /// The number of codes in the codebook, `V`.
    pub num_codes: usize,
    /// The dimension of a code vector.
    pub code_dim: usize,
    /// The probability that a masked span starts at a frame.
    pub mask_probability: f64,
    /// The number of frames in a span; a frame is 10 ms.
    pub mask_length: usize,
    /// The standard deviation of the noise that replaces masked frames.
    pub mask_std: f64,
}

impl Default for BestRqConfig {
    fn default() -> Self {
        Self {
            num_codes: 8192,
            code_dim: 16,
            mask_probability: 0.01,
            mask_length: 40,
            mask_std: 0.1,
        }
    }
}

/// The quantiser and the prediction head.
#[derive(Debug, Clone)]
pub struct BestRq {
    config: BestRqConfig,
    /// Frames per state.
    frames_per_state: usize,
    /// `[code_dim, M frames_per_state]`, with `M` mel bands.
    projection: Tensor,
    /// `[V, code_dim]`; only the directions matter.
    codebook: Tensor,
    head: Linear,
}

/// The masked states of packed clips.
#[derive(Debug, Clone, PartialEq)]
pub struct MaskedStates {
    /// The indices of the masked states in the batch.
    pub states: Vec<u32>,
    /// The code of each masked state.
    pub codes: Vec<u32>,
}

impl BestRqConfig {
    /// Checks the values that the types do not restrict.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`] with the field's name.
    pub fn validate(&self) -> Result<()> {
        check_sizes(&[
            ("num_codes", self.num_codes),
            ("code_dim", self.code_dim),
            ("mask_length", self.mask_length),
        ])?;
        require((0.0..=1.0).contains(&self.mask_probability), "mask_probability", || {
            format!("{} is not a probability between 0 and 1", self.mask_probability)
        })?;
        require(self.mask_std >= 0.0 && self.mask_std.is_finite(), "mask_std", || {
            format!("{} is not a finite standard deviation of at least 0", self.mask_std)
        })
    }
}

impl BestRq {
    /// Creates the quantiser and head for this encoder. The parameters are `projection` and
    /// `codebook`, both constant, and `head`.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`], and the errors of [`ParameterBuilder::get`].
    pub fn new(
        config: &BestRqConfig,
        encoder: &ConformerConfig,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        config.validate()?;
        let (frames_per_state, code_dim) = (encoder.subsampling_factor, config.code_dim);
        // A shorter span may not cover all frames of any state.
        require(config.mask_length + 1 >= 2 * frames_per_state, "mask_length", || {
            format!("{} cannot mask a whole state of {frames_per_state} frames", config.mask_length)
        })?;
        let inputs = frames_per_state * encoder.num_mel_bins;
        // The bound of Xavier initialisation.
        let bound = (6.0 / (inputs + code_dim) as f64).sqrt();
        let projection = builder.buffer("projection", &[code_dim, inputs], Init::Uniform(bound))?;
        let codebook =
            builder.buffer("codebook", &[config.num_codes, code_dim], Init::Normal(1.0))?;
        let d = encoder.hidden_size;
        let std = (d as f64).powf(-0.5);
        let head = Linear::new(d, config.num_codes, std, &builder.pp("head"))?;
        Ok(Self { config: config.clone(), frames_per_state, projection, codebook, head })
    }

    /// Returns the code of each state of a clip: the nearest code by angle to the state's projected
    /// frames. Missing frames at the end of the clip are 0.
    ///
    /// # Errors
    /// The errors of candle.
    pub fn codes(&self, frames: &Frames) -> Result<Vec<u32>> {
        // Read on every call: a trainer may have loaded other values into the parameters.
        let (projection, mut codebook) = (to_host(&self.projection)?, to_host(&self.codebook)?);
        codebook.chunks_mut(self.config.code_dim).for_each(l2_normalise);
        let (inputs, code_dim) = (self.frames_per_state * frames.bands, self.config.code_dim);
        let count = frames.len().div_ceil(self.frames_per_state);
        let mut padded_frames = frames.values.clone();
        padded_frames.resize(count * inputs, 0.0);
        let mut projected = vec![0.0; count * code_dim];
        let projection = Matrix::new(&projection, code_dim, inputs).t();
        matmul(
            1.0,
            Matrix::new(&padded_frames, count, inputs),
            projection,
            0.0,
            &mut projected,
            code_dim,
        );
        let nearest = |vector: &[f32]| {
            let mut best = (f32::NEG_INFINITY, 0);
            for (code, code_vector) in codebook.chunks(code_dim).enumerate() {
                let cosine: f32 = vector.iter().zip(code_vector).map(|(a, b)| a * b).sum();
                if cosine > best.0 {
                    best = (cosine, code as u32);
                }
            }
            best.1
        };
        Ok(projected.par_chunks(code_dim).map(nearest).collect())
    }

    /// Replaces spans of the clips by noise, and returns the completely masked states with their
    /// codes. At least one state of each clip with frames is completely masked. `codes` holds
    /// [`BestRq::codes`] of each clip before masking. You may augment the frames between that call
    /// and this one.
    pub fn mask(
        &self,
        clips: &mut [Frames],
        codes: &[Vec<u32>],
        rng: &mut ChaCha8Rng,
    ) -> MaskedStates {
        let mut masked = MaskedStates { states: Vec::new(), codes: Vec::new() };
        let mut first_state = 0;
        for (frames, codes) in clips.iter_mut().zip(codes) {
            let is_masked = self.draw_mask(frames.len(), rng);
            for (row, _) in frames
                .values
                .chunks_mut(frames.bands)
                .zip(&is_masked)
                .filter(|(_, masked)| **masked)
            {
                row.iter_mut().for_each(|value| *value = self.noise(rng));
            }
            for (state, (is_masked, code)) in
                is_masked.chunks(self.frames_per_state).zip(codes).enumerate()
            {
                if is_masked.iter().all(|is_masked| *is_masked) {
                    masked.states.push(first_state + state as u32);
                    masked.codes.push(*code);
                }
            }
            first_state += codes.len() as u32;
        }
        masked
    }

    /// Draws masked spans and returns, for each frame, whether it is masked.
    fn draw_mask(&self, count: usize, rng: &mut ChaCha8Rng) -> Vec<bool> {
        let mut is_masked = vec![false; count];
        let length = self.config.mask_length;
        let starts: Vec<usize> =
            (0..count).filter(|_| rng.random_bool(self.config.mask_probability)).collect();
        for start in starts {
            is_masked[start..(start + length).min(count)].fill(true);
        }
        let all_masked = |frames: &[bool]| frames.iter().all(|is_masked| *is_masked);
        if count > 0 && !is_masked.chunks(self.frames_per_state).any(all_masked) {
            let start =
                self.frames_per_state * rng.random_range(0..count.div_ceil(self.frames_per_state));
            is_masked[start..(start + length).min(count)].fill(true);
        }
        is_masked
    }

    /// Draws from a normal distribution (Box-Muller).
    fn noise(&self, rng: &mut ChaCha8Rng) -> f32 {
        let radius = (-2.0 * rng.random_range(f64::MIN_POSITIVE..1.0).ln()).sqrt();
        let angle = rng.random_range(0.0..std::f64::consts::TAU);
        (self.config.mask_std * radius * angle.cos()) as f32
    }

    /// Returns the logits `[N, V]` of the codes of the `N` masked states.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] if no state is masked.
    pub fn logits(&self, audio: &AudioStates, masked: &MaskedStates) -> Result<Tensor> {
        if masked.states.is_empty() {
            bail!("no state is masked");
        }
        let states = embedding_sum(&[(&audio.states, masked.states.clone().into())])?;
        self.head.forward(&states, &Mode::evaluate())
    }

    /// Returns the mean of `-log p` of the codes in nats: a scalar.
    pub fn loss(&self, logits: &Tensor, masked: &MaskedStates) -> Result<Tensor> {
        let targets = masked.codes.clone().into();
        let options = CrossEntropy { targets, ignore_index: None, label_smoothing: 0.0 };
        Ok(cross_entropy(logits, options)?.mean_all()?)
    }
}

fn l2_normalise(vector: &mut [f32]) {
    let norm = vector.iter().map(|v| v * v).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
    vector.iter_mut().for_each(|value| *value /= norm);
}
