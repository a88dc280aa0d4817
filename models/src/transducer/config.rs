//! The configuration of a transducer's decoder.

use serde::{Deserialize, Serialize};

use crate::config::{check_layers, check_probability, check_sizes, check_token};
use crate::error::Result;
use crate::kernels::Activation;

/// The kind of prediction network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prediction {
    /// An embedding and LSTM layers.
    #[default]
    Lstm,
    /// An embedding and a convolution over the last `context_size` labels.
    Stateless,
}

/// The sizes of the prediction and the joint network. Fields and defaults match
/// `ParakeetRNNTConfig` of `transformers`, except for `prediction`, `context_size`,
/// `joint_hidden_size` and `decoder_dropout`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TransducerConfig {
    /// Vocabulary size `V`, including the blank.
    pub vocab_size: usize,
    /// Width of the prediction network.
    pub decoder_hidden_size: usize,
    /// The number of LSTM layers.
    pub num_decoder_layers: usize,
    /// Width `J` of the joint network; `None` for the width of the prediction network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joint_hidden_size: Option<usize>,
    /// Activation of the joint network. The paper has tanh, published models ReLU.
    pub hidden_act: Activation,
    /// The maximum number of labels at one encoder state in decoding.
    pub max_symbols_per_step: usize,
    /// The blank token. It is also the prediction network's input before the first label.
    #[serde(rename = "blank_token_id")]
    pub blank: u32,
    /// The kind of prediction network.
    pub prediction: Prediction,
    /// The number of labels that a stateless prediction network reads.
    pub context_size: usize,
    /// Dropout on the output of the prediction network.
    pub decoder_dropout: f64,
}

impl Default for TransducerConfig {
    fn default() -> Self {
        Self {
            vocab_size: 8193,
            decoder_hidden_size: 640,
            num_decoder_layers: 2,
            joint_hidden_size: None,
            hidden_act: Activation::Relu,
            max_symbols_per_step: 10,
            blank: 8192,
            prediction: Prediction::Lstm,
            context_size: 2,
            decoder_dropout: 0.0,
        }
    }
}

impl TransducerConfig {
    /// The width `J` of the joint network.
    pub fn joint_width(&self) -> usize {
        self.joint_hidden_size.unwrap_or(self.decoder_hidden_size)
    }

    /// Checks the values that the types do not restrict.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig) with the field's name.
    pub fn validate(&self) -> Result<()> {
        check_sizes(&[
            ("vocab_size", self.vocab_size),
            ("decoder_hidden_size", self.decoder_hidden_size),
            ("num_decoder_layers", self.num_decoder_layers),
            ("joint_hidden_size", self.joint_width()),
            ("max_symbols_per_step", self.max_symbols_per_step),
            ("context_size", self.context_size),
        ])?;
        check_layers("num_decoder_layers", self.num_decoder_layers)?;
        check_layers("context_size", self.context_size)?;
        check_probability("decoder_dropout", self.decoder_dropout)?;
        check_token("blank_token_id", self.blank, self.vocab_size)
    }
}
