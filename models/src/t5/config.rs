//! The fields of a published T5 `config.json` that define the model.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::{
    check_buckets, check_epsilon, check_layers, check_probability, check_sizes, check_token,
    in_file, read_published, require,
};
use crate::error::{ModelError, Result};
use crate::kernels::Activation;

/// The fields that every published T5 v1.1 `config.json` has. (T5 1.0 lacks the last two.)
const REQUIRED_FIELDS: [&str; 8] = [
    "vocab_size",
    "d_model",
    "d_kv",
    "d_ff",
    "num_layers",
    "num_heads",
    "feed_forward_proj",
    "tie_word_embeddings",
];

/// The configuration of T5 v1.1 and of models with its architecture, such as FLAN-T5.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct T5Config {
    /// Size `V` of the vocabulary.
    pub vocab_size: usize,
    /// Width `D`.
    pub d_model: usize,
    /// Width of a head.
    pub d_kv: usize,
    /// Width of the feed-forward part.
    pub d_ff: usize,
    /// Number of encoder blocks.
    pub num_layers: usize,
    /// Number of decoder blocks. `None` means the number of encoder blocks.
    pub num_decoder_layers: Option<usize>,
    /// Number of heads `H`.
    pub num_heads: usize,
    /// Number of buckets of relative positions.
    pub relative_attention_num_buckets: usize,
    /// Relative positions from this distance on share the last bucket.
    pub relative_attention_max_distance: usize,
    /// Dropout probability of embeddings, of attention weights, of the outputs of attention and
    /// feed-forward before the residual sums, within the feed-forward part, and of final states.
    pub dropout_rate: f64,
    /// Epsilon of the RMS norms, added to the mean square.
    pub layer_norm_epsilon: f64,
    /// The kind of feed-forward part; only `gated-gelu` is supported.
    pub feed_forward_proj: String,
    /// Whether the token table is also the output projection (T5 1.0); `true` is not supported.
    pub tie_word_embeddings: bool,
    /// The token that ends a text.
    pub eos_token_id: u32,
    /// The padding token. Packed texts do not use it.
    pub pad_token_id: u32,
    /// The first input token of the decoder.
    pub decoder_start_token_id: u32,
    /// Number of learned positions that are added to the decoder's inputs; 0 for none, as published.
    pub decoder_positions: usize,
}

impl Default for T5Config {
    fn default() -> Self {
        Self::small()
    }
}

impl T5Config {
    /// The size `t5_1_1_small` of the released code (77 million parameters).
    pub fn small() -> Self {
        Self {
            vocab_size: 32128,
            d_model: 512,
            d_kv: 64,
            d_ff: 1024,
            num_layers: 8,
            num_decoder_layers: None,
            num_heads: 6,
            relative_attention_num_buckets: 32,
            relative_attention_max_distance: 128,
            dropout_rate: 0.1,
            layer_norm_epsilon: 1e-6,
            feed_forward_proj: "gated-gelu".to_string(),
            tie_word_embeddings: false,
            eos_token_id: 1,
            pad_token_id: 0,
            decoder_start_token_id: 0,
            decoder_positions: 0,
        }
    }

    /// `t5_1_1_base`.
    pub fn base() -> Self {
        Self { d_model: 768, d_ff: 2048, num_layers: 12, num_heads: 12, ..Self::small() }
    }

    /// `t5_1_1_large`.
    pub fn large() -> Self {
        Self { d_model: 1024, d_ff: 2816, num_layers: 24, num_heads: 16, ..Self::small() }
    }

    /// Reads a published `config.json`. Fields that do not define the model are ignored.
    ///
    /// # Errors
    /// [`ModelError::Io`]. [`ModelError::BadConfig`] if the file belongs to another model, a size
    /// is missing, or values contradict each other.
    pub fn read(path: &Path) -> Result<Self> {
        let mut fields: serde_json::Map<String, Value> = read_published(path, "t5", |_| Ok(()))?;
        let bad_config =
            |reason| ModelError::BadConfig { what: path.display().to_string(), reason };
        if let Some(field) = REQUIRED_FIELDS.iter().find(|field| !fields.contains_key(**field)) {
            return Err(bad_config(format!(
                "`{field}` is missing; only T5 v1.1 is supported, which has this field"
            )));
        }
        // transformers 5 writes `tie_word_embeddings: true` even for untied embeddings, together
        // with `scale_decoder_outputs: false`.
        if fields.get("scale_decoder_outputs") == Some(&Value::Bool(false)) {
            fields.insert("tie_word_embeddings".to_string(), Value::Bool(false));
        }
        let config: Self =
            serde_json::from_value(Value::Object(fields)).map_err(|e| bad_config(e.to_string()))?;
        in_file(path, config.validate())?;
        Ok(config)
    }

    /// Checks that the sizes are consistent and that the variant is supported.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`], which names the field.
    pub fn validate(&self) -> Result<()> {
        check_sizes(&[
            ("vocab_size", self.vocab_size),
            ("d_model", self.d_model),
            ("d_kv", self.d_kv),
            ("d_ff", self.d_ff),
            ("num_heads", self.num_heads),
            // At least 1: the first block of a stack stores the relative biases of all its blocks.
            ("num_layers", self.num_layers),
            ("num_decoder_layers", self.decoder_layers()),
        ])?;
        check_layers("num_layers", self.num_layers)?;
        check_layers("num_decoder_layers", self.decoder_layers())?;
        let max_distance = self.relative_attention_max_distance;
        check_buckets(self.relative_attention_num_buckets, max_distance)?;
        check_probability("dropout_rate", self.dropout_rate)?;
        check_epsilon("layer_norm_epsilon", self.layer_norm_epsilon)?;
        require(self.feed_forward_proj == "gated-gelu", "feed_forward_proj", || {
            format!("`{}` is not `gated-gelu`, as in v1.1", self.feed_forward_proj)
        })?;
        require(
            !self.tie_word_embeddings,
            "tie_word_embeddings",
            || "true means T5 1.0, which is not supported; v1.1 has its own output projection",
        )?;
        [
            ("eos_token_id", self.eos_token_id),
            ("pad_token_id", self.pad_token_id),
            ("decoder_start_token_id", self.decoder_start_token_id),
        ]
        .iter()
        .try_for_each(|(what, token)| check_token(what, *token, self.vocab_size))
    }

    /// The number of decoder blocks.
    pub fn decoder_layers(&self) -> usize {
        self.num_decoder_layers.unwrap_or(self.num_layers)
    }

    /// The total width of all heads.
    pub(crate) fn inner_size(&self) -> usize {
        self.num_heads * self.d_kv
    }

    /// The activation of the gate: `gated-gelu` means the tanh approximation.
    pub(super) fn activation(&self) -> Activation {
        Activation::GeluTanh
    }
}
