//! The sizes of a Conformer.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::config::{
    bad_field, check_heads, check_layers, check_probability, check_sizes, in_file, read_published,
};
use crate::error::Result;
use crate::kernels::{Activation, Windows};

/// The epsilon of all norms.
pub(super) const EPSILON: f64 = 1e-5;

/// How the sound is made shorter before the first block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subsampling {
    /// Convolutions from all channels to all (arXiv 2005.08100).
    Full,
    /// After the first, convolutions of each channel by itself and a linear map (arXiv 2305.05084).
    Depthwise,
}

/// The norm within the convolution module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConvolutionNorm {
    /// By statistics that the published model has learnt; they do not change in training.
    BatchNorm,
    /// Over the channels: what is trained here, where clips are packed and batches small.
    LayerNorm,
}

/// The encoder's configuration. Fields and defaults are those of `transformers`
/// (`ParakeetEncoderConfig`), except for the last two. The dropout of blocks is the paper's, on what
/// each part adds; `activation_dropout` and `layerdrop` are not known here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConformerConfig {
    /// Width of the states, `D`.
    pub hidden_size: usize,
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Heads.
    pub num_attention_heads: usize,
    /// Width of the feed-forward parts.
    pub intermediate_size: usize,
    /// Activation of the feed-forward parts and of the convolution module.
    pub hidden_act: Activation,
    /// Whether the maps of attention and feed-forward parts have biases.
    pub attention_bias: bool,
    /// Whether the maps of the convolution module have biases.
    pub convolution_bias: bool,
    /// Rows of the depthwise convolution; odd.
    pub conv_kernel_size: usize,
    /// Frames for one state: a power of the stride.
    pub subsampling_factor: usize,
    /// Channels of the convolutions before the blocks.
    pub subsampling_conv_channels: usize,
    /// Rows and columns of their windows; odd.
    pub subsampling_conv_kernel_size: usize,
    /// Their stride.
    pub subsampling_conv_stride: usize,
    /// Bands of a frame, `M`.
    pub num_mel_bins: usize,
    /// Dropout of what a block's parts add.
    pub dropout: f64,
    /// Dropout of attention weights.
    pub attention_dropout: f64,
    /// Whether states are multiplied by the root of the width before the first block.
    pub scale_input: bool,
    /// Standard deviation of fresh weights.
    pub initializer_range: f64,
    /// How the sound is made shorter.
    pub subsampling: Subsampling,
    /// The norm within the convolution module.
    pub convolution_norm: ConvolutionNorm,
}

impl Default for ConformerConfig {
    fn default() -> Self {
        Self {
            hidden_size: 1024,
            num_hidden_layers: 24,
            num_attention_heads: 8,
            intermediate_size: 4096,
            hidden_act: Activation::Silu,
            attention_bias: true,
            convolution_bias: true,
            conv_kernel_size: 9,
            subsampling_factor: 8,
            subsampling_conv_channels: 256,
            subsampling_conv_kernel_size: 3,
            subsampling_conv_stride: 2,
            num_mel_bins: 80,
            dropout: 0.1,
            attention_dropout: 0.1,
            scale_input: true,
            initializer_range: 0.02,
            subsampling: Subsampling::Depthwise,
            convolution_norm: ConvolutionNorm::BatchNorm,
        }
    }
}

impl ConformerConfig {
    /// The small encoder that trains on two cores: 144 wide, 4 blocks, one state for 40 ms.
    pub fn tiny() -> Self {
        Self {
            hidden_size: 144,
            num_hidden_layers: 4,
            num_attention_heads: 4,
            intermediate_size: 576,
            conv_kernel_size: 15,
            subsampling_conv_channels: 32,
            initializer_range: 0.05,
            ..Self::of_the_paper()
        }
    }

    /// Conformer L (arXiv 2005.08100, table 1), with a kernel of 31 for the paper's 32, which has no
    /// middle.
    pub fn large() -> Self {
        Self {
            hidden_size: 512,
            num_hidden_layers: 17,
            num_attention_heads: 8,
            intermediate_size: 2048,
            conv_kernel_size: 31,
            subsampling_conv_channels: 512,
            ..Self::of_the_paper()
        }
    }

    /// The 0.6 billion parameters of BEST-RQ (arXiv 2202.01855), the frozen encoder of AVFormer.
    pub fn extra_large() -> Self {
        Self {
            hidden_size: 1024,
            num_hidden_layers: 24,
            num_attention_heads: 8,
            intermediate_size: 4096,
            conv_kernel_size: 5,
            subsampling_conv_channels: 512,
            ..Self::of_the_paper()
        }
    }

    fn of_the_paper() -> Self {
        Self {
            subsampling_factor: 4,
            scale_input: false,
            subsampling: Subsampling::Full,
            convolution_norm: ConvolutionNorm::LayerNorm,
            ..Self::default()
        }
    }

    /// Checks what the types do not.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig) naming the field.
    pub fn validate(&self) -> Result<()> {
        check_heads(self.hidden_size, self.num_attention_heads)?;
        check_layers(self.num_hidden_layers)?;
        check_sizes(&[
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("subsampling_conv_channels", self.subsampling_conv_channels),
            ("num_mel_bins", self.num_mel_bins),
        ])?;
        check_probability("dropout", self.dropout)?;
        check_probability("attention_dropout", self.attention_dropout)?;
        for (what, size) in [
            ("conv_kernel_size", self.conv_kernel_size),
            ("subsampling_conv_kernel_size", self.subsampling_conv_kernel_size),
        ] {
            if size.is_multiple_of(2) || size > 1023 {
                return Err(bad_field(what, format!("{size} is not an odd number below 1024")));
            }
        }
        if !self.hidden_size.is_multiple_of(2) {
            return Err(bad_field("hidden_size", format!("{} is odd", self.hidden_size)));
        }
        let (factor, stride) = (self.subsampling_factor, self.subsampling_conv_stride);
        if stride < 2 || self.subsampling_layers() == 0 {
            let reason = format!("{factor} is not a power of the stride {stride} from 2 up");
            return Err(bad_field("subsampling_factor", reason));
        }
        Ok(())
    }

    /// Convolutions that make the sound shorter; 0 if the factor is no power of the stride.
    pub(super) fn subsampling_layers(&self) -> usize {
        let stride = self.subsampling_conv_stride;
        let power = |n: u32| stride.checked_pow(n);
        let found = (1..16).find(|n| power(*n) == Some(self.subsampling_factor));
        found.map_or(0, |n| n as usize)
    }

    /// The windows of each of them.
    pub(super) fn subsampling_windows(&self) -> Windows {
        let size = self.subsampling_conv_kernel_size;
        Windows::square(size, self.subsampling_conv_stride, (size - 1) / 2)
    }

    /// States of a clip of this many frames.
    pub fn states_of(&self, frames: usize) -> usize {
        let windows = self.subsampling_windows();
        (0..self.subsampling_layers()).fold(frames, |length, _| windows.of_length(length))
    }
}

/// A Conformer with a head for CTC, as published (`ParakeetCTCConfig`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConformerCtcConfig {
    /// The encoder.
    pub encoder_config: ConformerConfig,
    /// Entries of the vocabulary, `V`, with the blank.
    pub vocab_size: usize,
    /// The blank, which is what published models pad with.
    #[serde(rename = "pad_token_id")]
    pub blank: u32,
}

impl ConformerCtcConfig {
    /// Reads a published `config.json`.
    ///
    /// # Errors
    /// [`ModelError::Io`](crate::ModelError::Io);
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig) for another model type, or values
    /// that do not fit each other.
    pub fn read(path: &Path) -> Result<Self> {
        let config: Self = read_published(path, "parakeet_ctc")?;
        in_file(path, config.validate())?;
        Ok(config)
    }

    /// Checks what the types do not.
    ///
    /// # Errors
    /// As [`ConformerConfig::validate`]; a blank that is not in the vocabulary.
    pub fn validate(&self) -> Result<()> {
        self.encoder_config.validate()?;
        check_sizes(&[("vocab_size", self.vocab_size)])?;
        if self.blank as usize >= self.vocab_size {
            let reason = format!("{} is not below vocab_size {}", self.blank, self.vocab_size);
            return Err(bad_field("pad_token_id", reason));
        }
        Ok(())
    }
}
