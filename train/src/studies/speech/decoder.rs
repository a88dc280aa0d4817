//! The decoder's settings: `[model.decoder]`.

use engram_models::conformer::{
    AttentionDecoderConfig, ConformerAsrConfig, ConformerAttentionConfig, ConformerConfig,
    ConformerCtcConfig, ConformerTransducerConfig,
};
use engram_models::kernels::Activation;
use engram_models::transducer::{Prediction, TransducerConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::settings::Objective;
use crate::recipe::table;

/// `[model.decoder]`: the decoder of the ASR model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum DecoderSettings {
    /// A linear layer, trained by connectionist temporal classification (CTC).
    Ctc(CtcSettings),
    /// A transducer (RNN-T), the decoder of the AVFormer paper.
    Transducer(TransducerSettings),
    /// An attention decoder and a CTC head.
    Attention(AttentionSettings),
}

/// No keys.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CtcSettings {}

/// The kind of prediction network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PredictionNetwork {
    /// LSTM layers.
    Lstm,
    /// A convolution over the last labels.
    Stateless,
}

table! {
    /// The transducer.
    pub struct TransducerSettings {
        /// The kind of prediction network.
        pub prediction: PredictionNetwork = PredictionNetwork::Lstm,
        /// Width of the prediction network. BEST-RQ's 0.6-billion-parameter model has 1280.
        pub width: usize = 256,
        /// `lstm`: the number of layers. BEST-RQ's model has 2.
        pub layers: usize = 1,
        /// `stateless`: the number of labels that it reads.
        pub context: usize = 2,
        /// Width of the joint network. BEST-RQ's model has 640.
        pub joint_width: usize = 256,
        /// The maximum number of labels at one encoder state in decoding.
        pub max_symbols: usize = 10,
        /// Dropout on the output of the prediction network.
        pub dropout: f64 = 0.1,
    }
}

table! {
    /// The attention decoder.
    pub struct AttentionSettings {
        /// The number of layers.
        pub layers: usize = 2,
        /// The number of attention heads.
        pub heads: usize = 4,
        /// Width of the feed-forward layers.
        pub intermediate_width: usize = 576,
        /// The maximum number of tokens of a text, including the end token.
        pub max_tokens: usize = 1024,
        /// Dropout on the output of attention and feed-forward layers.
        pub dropout: f64 = 0.1,
        /// The weight of CTC in the loss and in the score of hypotheses.
        pub ctc_weight: f64 = 0.3,
    }
}

impl Default for DecoderSettings {
    fn default() -> Self {
        Self::Ctc(CtcSettings::default())
    }
}

impl DecoderSettings {
    /// Whether the decoder is the default, so that a resolved recipe omits it.
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The objective of phases that train this decoder on texts.
    pub fn objective(&self) -> Objective {
        match self {
            Self::Ctc(_) => Objective::Ctc,
            Self::Transducer(_) => Objective::Transducer,
            Self::Attention(_) => Objective::Attention,
        }
    }

    /// The ASR model's configuration for `vocabulary_size` tokens. The blank is the last class.
    pub fn config(&self, encoder: &ConformerConfig, vocabulary_size: usize) -> ConformerAsrConfig {
        let (encoder_config, vocab_size) = (encoder.clone(), vocabulary_size + 1);
        let blank = vocabulary_size as u32;
        match self {
            Self::Ctc(_) => {
                ConformerAsrConfig::Ctc(ConformerCtcConfig { encoder_config, vocab_size, blank })
            }
            Self::Transducer(settings) => {
                let decoder = TransducerConfig {
                    vocab_size,
                    decoder_hidden_size: settings.width,
                    num_decoder_layers: settings.layers,
                    joint_hidden_size: Some(settings.joint_width),
                    hidden_act: Activation::Tanh,
                    max_symbols_per_step: settings.max_symbols,
                    blank,
                    prediction: match settings.prediction {
                        PredictionNetwork::Lstm => Prediction::Lstm,
                        PredictionNetwork::Stateless => Prediction::Stateless,
                    },
                    context_size: settings.context,
                    decoder_dropout: settings.dropout,
                };
                ConformerAsrConfig::Transducer(ConformerTransducerConfig {
                    encoder_config,
                    decoder,
                })
            }
            Self::Attention(settings) => {
                let decoder = AttentionDecoderConfig {
                    num_layers: settings.layers,
                    num_heads: settings.heads,
                    intermediate_size: settings.intermediate_width,
                    max_tokens: settings.max_tokens,
                    dropout: settings.dropout,
                };
                let ctc_weight = settings.ctc_weight;
                ConformerAsrConfig::Attention(ConformerAttentionConfig {
                    encoder_config,
                    vocab_size,
                    blank,
                    ctc_weight,
                    decoder,
                })
            }
        }
    }
}
