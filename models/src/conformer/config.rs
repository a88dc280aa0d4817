//! The configuration of a Conformer.

use serde::{Deserialize, Serialize};

use crate::config::{
    check_heads, check_layers, check_probability, check_sizes, check_token, require,
};
use crate::error::Result;
use crate::kernels::{Activation, Windows};
use crate::transducer::TransducerConfig;

/// The epsilon of all norms.
pub(super) const EPSILON: f64 = 1e-5;

/// The subsampling of frames before the first block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subsampling {
    /// Full convolutions (arXiv 2005.08100).
    Full,
    /// One full convolution, then depthwise separable convolutions (arXiv 2305.05084).
    Depthwise,
}

/// The norm within the convolution module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConvolutionNorm {
    /// Batch norm with the published model's statistics, which stay fixed in training.
    BatchNorm,
    /// Layer norm over the channels. Use it to train from random weights, because training does not
    /// update the statistics of a batch norm.
    LayerNorm,
}

/// The encoder's configuration. Fields and defaults match `ParakeetEncoderConfig` of
/// `transformers`, except for `subsampling` and `convolution_norm`. Dropout is applied to the
/// output of each module, as in the paper. `activation_dropout` and `layerdrop` are not supported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConformerConfig {
    /// Width of the hidden states, `D`.
    pub hidden_size: usize,
    /// The number of blocks.
    pub num_hidden_layers: usize,
    /// The number of attention heads.
    pub num_attention_heads: usize,
    /// Width of the feed-forward modules.
    pub intermediate_size: usize,
    /// Activation of the feed-forward modules and the convolution module.
    pub hidden_act: Activation,
    /// Whether the linear layers of attention and feed-forward modules have biases.
    pub attention_bias: bool,
    /// Whether the layers of the convolution module have biases.
    pub convolution_bias: bool,
    /// Kernel size of the depthwise convolution; odd.
    pub conv_kernel_size: usize,
    /// Frames per encoder state: a power of the subsampling stride.
    pub subsampling_factor: usize,
    /// Number of channels of the subsampling convolutions.
    pub subsampling_conv_channels: usize,
    /// Kernel size of the subsampling convolutions; odd.
    pub subsampling_conv_kernel_size: usize,
    /// Stride of the subsampling convolutions.
    pub subsampling_conv_stride: usize,
    /// Number `M` of mel bands per frame.
    pub num_mel_bins: usize,
    /// Dropout on the output of each module of a block.
    pub dropout: f64,
    /// Dropout on the attention weights.
    pub attention_dropout: f64,
    /// Whether states are multiplied by the square root of the width before the first block.
    pub scale_input: bool,
    /// Standard deviation for initialising weights.
    pub initializer_range: f64,
    /// The kind of subsampling.
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
    /// A small encoder that trains on two CPU cores: width 144, 4 blocks, one encoder state per 40
    /// ms.
    pub fn tiny() -> Self {
        Self { initializer_range: 0.05, ..Self::paper([144, 4, 4], 15, 32) }
    }

    /// Conformer S (arXiv 2005.08100, table 1). Its kernel size is that of [`Self::large`]. The
    /// paper's transducer has a prediction network of one LSTM layer of width 320.
    pub fn small() -> Self {
        Self::paper([144, 16, 4], 31, 144)
    }

    /// Conformer M (arXiv 2005.08100, table 1), with a prediction network of width 640.
    pub fn medium() -> Self {
        Self::paper([256, 16, 4], 31, 256)
    }

    /// Conformer L (arXiv 2005.08100, table 1). The kernel size is 31, because the paper's 32 has
    /// no centre.
    pub fn large() -> Self {
        Self::paper([512, 17, 8], 31, 512)
    }

    /// The size of the 0.6-billion-parameter encoder of BEST-RQ (arXiv 2202.01855), which is the
    /// frozen encoder in the AVFormer paper.
    pub fn extra_large() -> Self {
        Self::paper([1024, 24, 8], 5, 512)
    }

    /// A preset: the architecture of arXiv 2005.08100, but with layer norm in place of batch norm
    /// in the convolution module. Feed-forward modules have four times the width.
    fn paper(
        [width, blocks, heads]: [usize; 3],
        conv_kernel_size: usize,
        subsampling_conv_channels: usize,
    ) -> Self {
        Self {
            hidden_size: width,
            num_hidden_layers: blocks,
            num_attention_heads: heads,
            intermediate_size: 4 * width,
            conv_kernel_size,
            subsampling_conv_channels,
            subsampling_factor: 4,
            scale_input: false,
            subsampling: Subsampling::Full,
            convolution_norm: ConvolutionNorm::LayerNorm,
            ..Self::default()
        }
    }

    /// Checks the values that the types do not restrict.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig) with the field's name.
    pub fn validate(&self) -> Result<()> {
        check_heads(self.hidden_size, self.num_attention_heads)?;
        check_layers("num_hidden_layers", self.num_hidden_layers)?;
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
            require(size % 2 == 1 && size < 1024, what, || {
                format!("{size} is not an odd number below 1024")
            })?;
        }
        let width = self.hidden_size;
        require(width.is_multiple_of(2), "hidden_size", || format!("{width} is odd"))?;
        let (factor, stride) = (self.subsampling_factor, self.subsampling_conv_stride);
        require(stride >= 2 && self.subsampling_layers() > 0, "subsampling_factor", || {
            format!("{factor} is not a power of the stride {stride}, or the stride is below 2")
        })
    }

    /// Returns the number of subsampling convolutions; 0 if the factor is not a power of the
    /// stride.
    pub(super) fn subsampling_layers(&self) -> usize {
        let stride = self.subsampling_conv_stride;
        let power = |n: u32| stride.checked_pow(n);
        let exponent = (1..16).find(|n| power(*n) == Some(self.subsampling_factor));
        exponent.map_or(0, |n| n as usize)
    }

    /// Returns the windows of each subsampling convolution.
    pub(super) fn subsampling_windows(&self) -> Windows {
        let size = self.subsampling_conv_kernel_size;
        Windows::square(size, self.subsampling_conv_stride, (size - 1) / 2)
    }

    /// Returns the number of encoder states of a clip with this many frames.
    pub fn num_states(&self, frames: usize) -> usize {
        let windows = self.subsampling_windows();
        (0..self.subsampling_layers()).fold(frames, |length, _| windows.of_length(length))
    }
}

/// The configuration of a Conformer with a CTC head, as published (`ParakeetCTCConfig`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConformerCtcConfig {
    /// The encoder.
    pub encoder_config: ConformerConfig,
    /// Vocabulary size `V`, including the blank.
    pub vocab_size: usize,
    /// The blank token, which published models use as the padding token.
    #[serde(rename = "pad_token_id")]
    pub blank: u32,
}

impl ConformerCtcConfig {
    /// Checks the values that the types do not restrict.
    ///
    /// # Errors
    /// The same as for [`ConformerConfig::validate`]. Also a blank that is not in the vocabulary.
    pub fn validate(&self) -> Result<()> {
        self.encoder_config.validate()?;
        check_sizes(&[("vocab_size", self.vocab_size)])?;
        check_token("pad_token_id", self.blank, self.vocab_size)
    }
}

/// The configuration of a Conformer with a transducer, as published (`ParakeetRNNTConfig`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConformerTransducerConfig {
    /// The encoder.
    pub encoder_config: ConformerConfig,
    /// The prediction and the joint network.
    #[serde(flatten)]
    pub decoder: TransducerConfig,
}

impl ConformerTransducerConfig {
    /// Checks the values that the types do not restrict.
    ///
    /// # Errors
    /// The errors of [`ConformerConfig::validate`] and [`TransducerConfig::validate`].
    pub fn validate(&self) -> Result<()> {
        self.encoder_config.validate()?;
        self.decoder.validate()
    }
}
