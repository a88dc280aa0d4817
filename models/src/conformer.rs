//! Conformer (arXiv 2005.08100): a speech encoder with attention and convolution. Its decoder is a
//! CTC head, a [transducer](crate::transducer), or an attention decoder with a CTC head.
//!
//! Reference: `transformers` 5, `models/parakeet/modeling_parakeet.py`. Parameter names equal the
//! names there, so published Fast Conformers load. With [`Subsampling::Full`] and
//! [`ConvolutionNorm::BatchNorm`], the encoder has the architecture of the paper. Clips are packed,
//! not padded. Gradients pass through frozen blocks to [adapters](crate::adapter), and to tokens
//! inserted among the audio tokens ([`ConformerEncoder::embed`]).

mod asr_model;
mod attention;
mod block;
mod config;
mod positions;
mod subsampling;

use std::sync::Arc;

use candle_core::Tensor;

use crate::adapter::Adapters;
use crate::compute::Compute;
use crate::error::{Result, bail};
use crate::kernels::{Mode, Segments};
use crate::layers::Pointwise;
use crate::params::ParameterBuilder;
use crate::speech::ctc::ctc_loss;
use crate::speech::{AlignedTargets, AudioStates};
pub use asr_model::{ConformerAsrConfig, ConformerAsrModel, ConformerDecoder};
pub use attention::{AttentionDecoder, AttentionDecoderConfig, ConformerAttentionConfig};
use block::{Block, Clips};
pub use config::{
    ConformerConfig, ConformerCtcConfig, ConformerTransducerConfig, ConvolutionNorm, Subsampling,
};
use positions::Positions;
use subsampling::Subsampler;

/// The Conformer encoder: subsampling and blocks.
#[derive(Debug, Clone)]
pub struct ConformerEncoder {
    /// The configuration.
    pub config: ConformerConfig,
    /// The device and the dtype of the computation.
    pub compute: Compute,
    subsampling: Subsampler,
    layers: Vec<Block>,
}

impl ConformerEncoder {
    /// Builds the encoder with published weights, or with random initial weights.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`], and the errors of [`ParameterBuilder::get`].
    pub fn new(config: &ConformerConfig, builder: &ParameterBuilder) -> Result<Self> {
        config.validate()?;
        let layers = builder.pp("layers");
        Ok(Self {
            config: config.clone(),
            compute: builder.compute(),
            subsampling: Subsampler::new(config, &builder.pp("subsampling"))?,
            layers: (0..config.num_hidden_layers)
                .map(|i| Block::new(config, &layers.pp(i)))
                .collect::<Result<_>>()?,
        })
    }

    /// Returns the audio tokens `[T, D]`, the input of the blocks: one per `subsampling_factor`
    /// frames. `frames` `[F, M]` holds packed clips with the given `lengths`. You may insert other
    /// tokens before calling [`ConformerEncoder::forward`].
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] for a clip without frames, or another number of mel bands.
    pub fn embed(&self, frames: &Tensor, lengths: &[usize]) -> Result<AudioStates> {
        let bands = self.config.num_mel_bins;
        if lengths.contains(&0) || frames.dims().get(1) != Some(&bands) {
            bail!(
                "frames {:?} of clips of {lengths:?}; this encoder needs {bands} bands and clips \
                 with frames",
                frames.dims()
            );
        }
        let frames = self.compute.activations(frames)?;
        let (states, lengths) = self.subsampling.forward(&frames, lengths)?;
        let states = if self.config.scale_input {
            (states * (self.config.hidden_size as f64).sqrt())?
        } else {
            states
        };
        Ok(AudioStates { states, lengths })
    }

    /// Runs the blocks with their adapters: `[T, D]` → `[T, D]`. Clips do not attend to each other.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] unless there are no adapters, or one per block.
    pub fn forward(&self, x: AudioStates, adapters: &Adapters, mode: &Mode) -> Result<AudioStates> {
        let parts = x.lengths.clone();
        self.forward_parts(x, parts, adapters, mode)
    }

    /// Does the same as [`ConformerEncoder::forward`] for clips that also have tokens other than
    /// audio. `parts` are the lengths of the runs of tokens of one kind, clip after clip; their sum
    /// is `T`. The convolutions do not read across the ends of a run, because only audio tokens are
    /// neighbours in time. Attention joins all tokens of a clip.
    ///
    /// # Errors
    /// Those of [`ConformerEncoder::forward`]. [`crate::ModelError::BadInput`] for another sum.
    pub fn forward_parts(
        &self,
        x: AudioStates,
        parts: Vec<usize>,
        adapters: &Adapters,
        mode: &Mode,
    ) -> Result<AudioStates> {
        adapters.check(self.layers.len())?;
        if parts.iter().sum::<usize>() != x.lengths.iter().sum::<usize>() {
            bail!("runs of {parts:?} tokens for clips of {:?}", x.lengths);
        }
        let max_length = x.lengths.iter().max().copied().unwrap_or_default();
        let states = self.compute.activations(&x.states)?;
        let (dtype, device) = (states.dtype(), states.device());
        let clips = Arc::new(Clips {
            parts,
            segments: Segments::packed(&x.lengths),
            positions: Positions::new(max_length, self.config.hidden_size, dtype, device)?,
        });
        let mut states = mode.detach(states);
        for (i, layer) in self.layers.iter().enumerate() {
            let (clips, config) = (clips.clone(), self.config.clone());
            let adapters = adapters.clone();
            let next = mode.block(layer, &[&states], move |layer, inputs, mode| {
                let next = layer.forward(&inputs[0], &clips, &config, mode)?;
                adapters.apply(i, &inputs[0], next, mode)
            })?;
            states = mode.detach(next);
        }
        Ok(AudioStates { states, lengths: x.lengths })
    }
}

/// A CTC head (`ParakeetForCTC`).
#[derive(Debug, Clone)]
pub struct CtcHead {
    blank: u32,
    head: Pointwise,
}

impl CtcHead {
    /// Builds the head for an encoder. Parameter names start with `ctc_head`.
    ///
    /// # Errors
    /// The errors of [`ParameterBuilder::get`].
    pub fn new(config: &ConformerCtcConfig, builder: &ParameterBuilder) -> Result<Self> {
        let encoder = &config.encoder_config;
        let (d, std, head) =
            (encoder.hidden_size, encoder.initializer_range, builder.pp("ctc_head"));
        let head = Pointwise::new(d, config.vocab_size, std, true, &head)?;
        Ok(Self { blank: config.blank, head })
    }

    /// Returns the logits `[T, V]` of the encoder's states `[T, D]`.
    pub fn logits(&self, audio: &AudioStates) -> Result<Tensor> {
        self.head.forward(&audio.states)
    }

    /// Returns `-log p(text)` of each clip in nats, `[B]`. A text that is too long for its clip has
    /// infinite loss and zero gradient.
    ///
    /// # Errors
    /// The errors of [`ctc_loss`].
    pub fn losses(&self, audio: &AudioStates, texts: &[Vec<u32>]) -> Result<Tensor> {
        let (lengths, blank) = (audio.lengths.clone(), self.blank);
        let targets = AlignedTargets { lengths, targets: texts.to_vec(), blank };
        Ok(ctc_loss(&self.logits(audio)?, targets)?)
    }
}
