//! The encoder: turns audio frames into hidden states.

use candle_core::Tensor;

use super::config::{ENCODER_NAMES, EPSILON, WhisperConfig};
use crate::adapter::Adapters;
use crate::compute::Compute;
use crate::error::{Result, bail};
use crate::kernels::{Activation, Mode, Segments, Windows, activation, embedding_sum, residual};
use crate::layers::{Convolution, LayerNorm};
use crate::params::{Init, ParameterBuilder};
use crate::pre_norm::{InitStds, PreNormBlocks};
use crate::speech::AudioStates;

/// The convolutions, the position embeddings and the blocks.
#[derive(Debug, Clone)]
pub struct Encoder {
    config: WhisperConfig,
    /// The device and the dtype of the computation.
    pub compute: Compute,
    conv1: Convolution,
    conv2: Convolution,
    /// `[max_source_positions, D]`.
    positions: Tensor,
    /// Blocks that [`Encoder::embed`] runs: see [`Encoder::start_at`].
    embedding_blocks: Option<PreNormBlocks>,
    blocks: PreNormBlocks,
    layer_norm: LayerNorm,
}

impl Encoder {
    pub(super) fn new(config: &WhisperConfig, builder: &ParameterBuilder) -> Result<Self> {
        let (d, std) = (config.d_model, config.init_std);
        let positions = builder.pp("embed_positions");
        let shape = [config.max_source_positions, d];
        let convolution = |in_channels: usize, stride: usize, builder: &ParameterBuilder| {
            Convolution::over_time([in_channels, d], Windows::over_time(3, stride, 1), std, builder)
        };

        Ok(Self {
            conv1: convolution(config.num_mel_bins, 1, &builder.pp("conv1"))?,
            conv2: convolution(d, 2, &builder.pp("conv2"))?,
            positions: positions.get("weight", &shape, Init::Sinusoids(d))?,
            blocks: PreNormBlocks::new(
                config.encoder(),
                &ENCODER_NAMES,
                &InitStds::all(std),
                &builder.pp("layers"),
            )?,
            embedding_blocks: None,
            layer_norm: LayerNorm::new(d, EPSILON, &builder.pp("layer_norm"))?,
            config: config.clone(),
            compute: builder.compute(),
        })
    }

    /// Returns the input of the blocks. Two log-mel frames of `[F, M]` become one token, to
    /// which its position embedding is added. Clip `i` has `lengths[i]` frames. You may insert
    /// other tokens before calling [`Encoder::forward`].
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] for a clip without frames, or with too many for the model.
    pub fn embed(&self, frames: &Tensor, lengths: &[usize]) -> Result<AudioStates> {
        let max_frames = 2 * self.config.max_source_positions;
        if let Some(length) = lengths.iter().find(|length| !(1..=max_frames).contains(*length)) {
            bail!("a clip has {length} frames, but this encoder takes 1 to {max_frames}");
        }
        let frames = self.compute.activations(frames)?;
        let (x, lengths) = self.conv1.forward(&frames, lengths)?;
        let x = activation(&x, Activation::Gelu)?;
        let (x, lengths) = self.conv2.forward(&x, &lengths)?;
        let x = activation(&x, Activation::Gelu)?;
        let position_ids: Vec<u32> = lengths.iter().flat_map(|&length| 0..length as u32).collect();
        let positions = embedding_sum(&[(&self.positions, position_ids.into())])?;
        let mut states = residual(&x, &positions, None)?;
        if let Some(blocks) = &self.embedding_blocks {
            let (segments, mode) = (Segments::packed(&lengths), Mode::inference());
            states = blocks.forward(states, &segments, false, None, &Adapters::NONE, &mode)?;
        }
        Ok(AudioStates { states, lengths })
    }

    /// Moves the blocks before `first` into [`Encoder::embed`].
    pub(crate) fn start_at(&mut self, first: usize) {
        self.embedding_blocks = (first > 0).then(|| self.blocks.split_before(first));
    }

    /// Number of blocks that [`Encoder::forward`] runs.
    pub(crate) fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Runs the blocks with their adapters and the final norm: `[T, D]` → `[T, D]`. Clips do not
    /// attend to each other.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] unless there are no adapters, or one per block.
    pub fn forward(&self, x: AudioStates, adapters: &Adapters, mode: &Mode) -> Result<AudioStates> {
        let segments = Segments::packed(&x.lengths);
        let states = self.compute.activations(&x.states)?;
        let states = self.blocks.forward(states, &segments, false, None, adapters, mode)?;
        Ok(AudioStates {
            states: mode.detach(self.layer_norm.forward(&states)?),
            lengths: x.lengths,
        })
    }
}
