//! The encoder: frames of sound as states.

use candle_core::Tensor;

use super::config::{EPSILON, WhisperConfig};
use crate::adapter::BottleneckAdapter;
use crate::error::{ModelError, Result};
use crate::kernels::{
    Activation, Mode, Segments, Unfold, activation, embedding_sum, linear, residual, unfold,
};
use crate::layers::LayerNorm;
use crate::params::{Init, ParameterBuilder};
use crate::pre_norm::{Deviations, Names, PreNormBlocks};

/// The published names in a block.
const NAMES: Names = Names {
    attention_norm: "self_attn_layer_norm",
    query: "self_attn.q_proj",
    key: "self_attn.k_proj",
    value: "self_attn.v_proj",
    output: "self_attn.out_proj",
    feed_forward_norm: "final_layer_norm",
    up: "fc1",
    down: "fc2",
};

/// The convolutions, the positions and the blocks.
#[derive(Debug, Clone)]
pub struct Encoder {
    config: WhisperConfig,
    conv1: Convolution,
    conv2: Convolution,
    /// `[max_source_positions, D]`.
    positions: Tensor,
    blocks: PreNormBlocks,
    layer_norm: LayerNorm,
}

/// States of packed clips.
#[derive(Debug, Clone)]
pub struct AudioStates {
    /// `[T, D]`.
    pub states: Tensor,
    /// States of each clip.
    pub lengths: Vec<usize>,
}

/// A convolution over time, followed by GELU.
#[derive(Debug, Clone)]
struct Convolution {
    /// `[C_out, C, 3]`.
    weight: Tensor,
    /// `[C_out]`.
    bias: Tensor,
    windows: Unfold,
}

impl Encoder {
    pub(super) fn new(config: &WhisperConfig, builder: &ParameterBuilder) -> Result<Self> {
        let (d, std) = (config.d_model, config.init_std);
        let positions = builder.pp("embed_positions");
        let shape = [config.max_source_positions, d];
        let deviations = Deviations { query_key_value: std, output: std, up: std, down: std };
        Ok(Self {
            conv1: Convolution::new((config.num_mel_bins, d), 1, std, &builder.pp("conv1"))?,
            conv2: Convolution::new((d, d), 2, std, &builder.pp("conv2"))?,
            positions: positions.get("weight", &shape, Init::Sinusoids(d))?,
            blocks: PreNormBlocks::new(
                config.encoder(),
                &NAMES,
                &deviations,
                &builder.pp("layers"),
            )?,
            layer_norm: LayerNorm::new(d, EPSILON, &builder.pp("layer_norm"))?,
            config: config.clone(),
        })
    }

    /// What the blocks read: frames `[F, M]` of packed clips, each of `lengths` of them, as one token
    /// for every two frames, with its position. Other tokens may be put between before
    /// [`Encoder::forward`].
    ///
    /// # Errors
    /// [`ModelError::BadInput`] for a clip without frames or with more than the model has positions.
    pub fn embed(&self, frames: &Tensor, lengths: &[usize]) -> Result<AudioStates> {
        let longest = 2 * self.config.max_source_positions;
        if let Some(length) = lengths.iter().find(|length| !(1..=longest).contains(*length)) {
            let reason = format!("a clip of {length} frames; this encoder takes 1 to {longest}");
            return Err(ModelError::BadInput(reason));
        }
        let (x, lengths) = self.conv1.forward(frames, lengths)?;
        let (x, lengths) = self.conv2.forward(&x, &lengths)?;
        let places: Vec<u32> = lengths.iter().flat_map(|&length| 0..length as u32).collect();
        let positions = embedding_sum(&[(&self.positions, places.into())])?;
        Ok(AudioStates { states: residual(&x, &positions, None)?, lengths })
    }

    /// The blocks, each followed by its adapter if there are any, and the last norm: `[T, D]` →
    /// `[T, D]`. No clip hears another.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] for a number of adapters that is neither 0 nor that of the blocks.
    pub fn forward(
        &self,
        x: AudioStates,
        adapters: &[BottleneckAdapter],
        mode: &Mode,
    ) -> Result<AudioStates> {
        let segments = Segments::packed(&x.lengths);
        let own = (&segments, false);
        let states = self.blocks.forward_adapted(x.states, own, None, adapters, mode)?;
        Ok(AudioStates { states: mode.cut(self.layer_norm.forward(&states)?), lengths: x.lengths })
    }
}

impl Convolution {
    fn new(
        (from, to): (usize, usize),
        stride: usize,
        std: f64,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let windows = Unfold { size: 3, stride, padding: 1 };
        Ok(Self {
            weight: builder.get("weight", &[to, from, windows.size], Init::Normal(std))?,
            bias: builder.get("bias", &[to], Init::Zeros)?,
            windows,
        })
    }

    /// `[T, C]` → `[T', C_out]`, and the lengths of the sequences then.
    fn forward(&self, x: &Tensor, lengths: &[usize]) -> Result<(Tensor, Vec<usize>)> {
        let weight = self.weight.flatten_from(1)?;
        let made = linear(&unfold(x, lengths, self.windows)?, &weight, Some(&self.bias))?;
        let lengths = lengths.iter().map(|length| self.windows.windows(*length)).collect();
        Ok((activation(&made, Activation::Gelu)?, lengths))
    }
}
