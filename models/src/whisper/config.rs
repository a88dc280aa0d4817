//! The configuration of a Whisper model, as in its `config.json`.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::config::{
    check_dropout, check_heads, check_layers, check_sizes, check_token, read_published, require,
};
use crate::error::Result;
use crate::kernels::Activation;
use crate::pre_norm::{Names, PreNormConfig};

/// The epsilon of all norms.
pub(super) const EPSILON: f64 = 1e-5;

/// The published parameter names in a block of the encoder.
pub(super) const ENCODER_NAMES: Names = Names {
    attention_norm: "self_attn_layer_norm",
    query: "self_attn.q_proj",
    key: "self_attn.k_proj",
    value: "self_attn.v_proj",
    output: "self_attn.out_proj",
    cross: None,
    feed_forward_norm: "final_layer_norm",
    up: "fc1",
    down: "fc2",
};

/// The published parameter names in a block of the decoder.
pub(super) const DECODER_NAMES: Names = Names {
    cross: Some([
        "encoder_attn_layer_norm",
        "encoder_attn.q_proj",
        "encoder_attn.k_proj",
        "encoder_attn.v_proj",
        "encoder_attn.out_proj",
    ]),
    ..ENCODER_NAMES
};

/// The configuration. Fields and defaults match `WhisperConfig` of `transformers`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WhisperConfig {
    /// Vocabulary size `V`.
    pub vocab_size: usize,
    /// Number `M` of mel bands per frame.
    pub num_mel_bins: usize,
    /// Width of the hidden states, `D`.
    pub d_model: usize,
    /// Number of encoder layers.
    pub encoder_layers: usize,
    /// Number of attention heads of the encoder.
    pub encoder_attention_heads: usize,
    /// Width of the encoder's feed-forward layers.
    pub encoder_ffn_dim: usize,
    /// Number of decoder layers.
    pub decoder_layers: usize,
    /// Number of attention heads of the decoder.
    pub decoder_attention_heads: usize,
    /// Width of the decoder's feed-forward layers.
    pub decoder_ffn_dim: usize,
    /// The maximum number of encoder states: 1,500, for 30 seconds.
    pub max_source_positions: usize,
    /// The maximum number of decoder tokens, including the prompt.
    pub max_target_positions: usize,
    /// Activation of the feed-forward layers.
    pub activation_function: Activation,
    /// Dropout on the output of attention and feed-forward layers.
    pub dropout: f64,
    /// Dropout on the attention weights.
    pub attention_dropout: f64,
    /// Dropout inside feed-forward layers. Only 0 is supported, as in all published models.
    pub activation_dropout: f64,
    /// Standard deviation for initialising weights.
    pub init_std: f64,
    /// Whether embeddings are multiplied by the square root of the width. Only false is supported,
    /// as in all published models.
    pub scale_embedding: bool,
    /// The first token that the decoder reads.
    pub decoder_start_token_id: u32,
    /// The token that ends a text.
    pub eos_token_id: u32,
}

impl Default for WhisperConfig {
    /// Whisper tiny: 37.8 million parameters.
    fn default() -> Self {
        Self {
            vocab_size: 51_865,
            num_mel_bins: 80,
            d_model: 384,
            encoder_layers: 4,
            encoder_attention_heads: 6,
            encoder_ffn_dim: 1536,
            decoder_layers: 4,
            decoder_attention_heads: 6,
            decoder_ffn_dim: 1536,
            max_source_positions: 1500,
            max_target_positions: 448,
            activation_function: Activation::Gelu,
            dropout: 0.0,
            attention_dropout: 0.0,
            activation_dropout: 0.0,
            init_std: 0.02,
            scale_embedding: false,
            decoder_start_token_id: 50_257,
            eos_token_id: 50_256,
        }
    }
}

impl WhisperConfig {
    /// Reads a published `config.json`.
    ///
    /// # Errors
    /// [`ModelError::Io`](crate::ModelError::Io);
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig) for another model type, or
    /// inconsistent values.
    pub fn read(path: &Path) -> Result<Self> {
        read_published(path, "whisper", Self::validate)
    }

    /// Checks the values that the types do not restrict.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig) with the field's name.
    pub fn validate(&self) -> Result<()> {
        check_sizes(&[
            ("vocab_size", self.vocab_size),
            ("num_mel_bins", self.num_mel_bins),
            ("d_model", self.d_model),
            ("encoder_ffn_dim", self.encoder_ffn_dim),
            ("decoder_ffn_dim", self.decoder_ffn_dim),
            ("max_source_positions", self.max_source_positions),
            ("max_target_positions", self.max_target_positions),
        ])?;
        check_heads(self.d_model, self.encoder_attention_heads)?;
        check_heads(self.d_model, self.decoder_attention_heads)?;
        check_layers("encoder_layers", self.encoder_layers)?;
        check_layers("decoder_layers", self.decoder_layers)?;
        check_dropout(self.dropout, self.attention_dropout)?;
        require(
            self.activation_dropout == 0.0,
            "activation_dropout",
            || "only 0 is supported; set it to 0",
        )?;
        require(!self.scale_embedding, "scale_embedding", || "only false is supported")?;
        check_token("decoder_start_token_id", self.decoder_start_token_id, self.vocab_size)?;
        check_token("eos_token_id", self.eos_token_id, self.vocab_size)
    }

    /// Returns the maximum clip length in samples at 16 kHz. The encoder makes one state per two
    /// frames.
    pub fn max_samples(&self) -> usize {
        2 * self.max_source_positions * crate::speech::log_mel::HOP
    }

    /// Returns the configuration of the encoder's blocks. As published, keys have no bias.
    pub(super) fn encoder(&self) -> PreNormConfig {
        PreNormConfig {
            hidden_size: self.d_model,
            intermediate_size: self.encoder_ffn_dim,
            num_hidden_layers: self.encoder_layers,
            num_attention_heads: self.encoder_attention_heads,
            hidden_act: self.activation_function,
            layer_norm_eps: EPSILON,
            qkv_bias: [true, false, true],
            hidden_dropout: self.dropout,
            attention_dropout: self.attention_dropout,
        }
    }

    /// Returns the configuration of the decoder's blocks.
    pub(super) fn decoder(&self) -> PreNormConfig {
        PreNormConfig {
            intermediate_size: self.decoder_ffn_dim,
            num_hidden_layers: self.decoder_layers,
            num_attention_heads: self.decoder_attention_heads,
            ..self.encoder()
        }
    }
}
