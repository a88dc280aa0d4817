//! The settings of a scorer: `[model]` in a recipe of the patent study.

use engram_data::groups::Grouping;
use engram_models::similarity::{PairLoss, Pooling};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::encode::EncoderFiles;
use crate::error::InferError;

/// The kind of model that scores phrase pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// A cross-encoder over `anchor, title, target₁, target₂, …`: all rows of a group at once.
    Listwise,
    /// A cross-encoder over `anchor, target, title, other targets`: one row at a time.
    Pairs,
    /// A bi-encoder: each phrase is encoded alone; the score is the cosine.
    BiEncoder,
}

/// The architecture of a randomly initialised encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Architecture {
    /// BERT.
    Bert,
    /// DeBERTa-v3.
    Deberta,
}

/// The size of a randomly initialised encoder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FreshEncoder {
    /// The architecture.
    pub architecture: Architecture,
    /// Width of the token states.
    pub hidden_size: usize,
    /// Number of blocks.
    pub num_layers: usize,
    /// Number of attention heads.
    pub num_heads: usize,
    /// Width of the feed-forward layers.
    pub intermediate_size: usize,
}

impl Default for FreshEncoder {
    fn default() -> Self {
        Self {
            architecture: Architecture::Bert,
            hidden_size: 128,
            num_layers: 2,
            num_heads: 4,
            intermediate_size: 256,
        }
    }
}

impl FreshEncoder {
    /// The `config.json` of this encoder.
    pub fn config(&self, vocab_size: usize, max_tokens: usize) -> Value {
        let mut config = json!({
            "model_type": "bert",
            "vocab_size": vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "intermediate_size": self.intermediate_size,
            "hidden_act": "gelu",
            "max_position_embeddings": max_tokens,
            "type_vocab_size": 2,
        });
        if self.architecture == Architecture::Deberta {
            config["model_type"] = "deberta-v2".into();
            config["type_vocab_size"] = 0.into();
            config["relative_attention"] = true.into();
            config["position_buckets"] = 32.into();
            config["pos_att_type"] = "p2c|c2p".into();
            config["share_att_key"] = true.into();
            config["norm_rel_ebd"] = "layer_norm".into();
            config["position_biased_input"] = false.into();
        }
        config
    }
}

/// `[model]`: the encoder, its input, and the loss.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScorerSettings {
    /// Published weights, `hf://owner/name[@revision]` or a folder; empty for random weights.
    pub weights: String,
    /// The encoder to initialise at random if `weights` is empty.
    pub fresh: FreshEncoder,
    /// The kind of model that scores phrase pairs.
    pub layout: Layout,
    /// The fields by which rows form groups. The targets of a group are in one input.
    pub group: Grouping,
    /// Whether the targets of a group share a sequence without attending to each other. Each target
    /// is scored as if alone, but anchor and title are encoded once (listwise only).
    pub targets_apart: bool,
    /// Whether the class title is part of the input (not for a bi-encoder).
    pub context_title: bool,
    /// Number of other targets of the group in the input of a pair (layout `pairs` only).
    pub other_targets: usize,
    /// The longest sequence, in tokens; longer inputs are truncated or split.
    pub max_tokens: usize,
    /// The loss.
    pub loss: PairLoss,
    /// How token states are pooled into one vector.
    pub pooling: Pooling,
    /// Whether the head also gets a comparison of target and anchor (listwise only).
    pub compare_anchor: bool,
    /// Dropout before the head.
    pub head_dropout: f64,
    /// Dropout in residual branches.
    pub hidden_dropout: f64,
    /// Dropout of attention weights.
    pub attention_dropout: f64,
    /// Number of prediction passes, each with the targets in another order. Scores are averaged.
    pub passes: usize,
}

impl Default for ScorerSettings {
    fn default() -> Self {
        Self {
            weights: String::new(),
            fresh: FreshEncoder::default(),
            layout: Layout::Listwise,
            group: Grouping::Context,
            targets_apart: false,
            context_title: true,
            other_targets: 0,
            max_tokens: 400,
            loss: PairLoss::Pearson,
            pooling: Pooling::Mean,
            compare_anchor: true,
            head_dropout: 0.0,
            hidden_dropout: 0.1,
            attention_dropout: 0.0,
            passes: 4,
        }
    }
}

impl ScorerSettings {
    /// Checks that the encoder accepts sequences of `max_tokens`.
    ///
    /// # Errors
    /// [`InferError::Encoder`]
    pub fn check_fits(&self, files: &EncoderFiles) -> Result<(), InferError> {
        let (max_tokens, supported) = (self.max_tokens, files.config.max_tokens());
        if max_tokens <= supported {
            return Ok(());
        }
        let reason = format!(
            "accepts at most {supported} tokens, but model.max_tokens is {max_tokens}; lower it"
        );
        Err(InferError::Encoder { name: files.name.clone(), reason })
    }

    /// The first invalid key, with the reason; `None` if all keys are valid.
    pub fn first_invalid_key(&self) -> Option<(&'static str, String)> {
        let needs_cosines = self.loss.takes_cosines();
        let is_bi_encoder = self.layout == Layout::BiEncoder;
        if needs_cosines && !is_bi_encoder {
            let reason = "is a loss of cosines: use it with `layout = \"bi_encoder\"`, or one of \
                          mse, bce, pearson";
            return Some(("loss", reason.into()));
        }
        if is_bi_encoder && matches!(self.loss, PairLoss::Mse | PairLoss::Bce) {
            let reason = "is a loss of logits, and a bi-encoder scores by cosines: use one of \
                          cosent, cosine_mse, contrastive, pearson";
            return Some(("loss", reason.into()));
        }
        let has_one_title = matches!(self.group, Grouping::Row | Grouping::Context);
        if self.targets_apart && self.layout != Layout::Listwise {
            return Some(("targets_apart", "needs `layout = \"listwise\"`".into()));
        }
        if self.targets_apart && self.context_title && !has_one_title {
            let reason = "needs `group = \"context\"` (or \"row\"): the title is encoded with \
                          the anchor, once for all targets";
            return Some(("targets_apart", reason.into()));
        }
        if !(16..=65_536).contains(&self.max_tokens) {
            return Some((
                "max_tokens",
                format!("is {}; must be from 16 to 65536", self.max_tokens),
            ));
        }
        let fresh = &self.fresh;
        let sizes = [fresh.hidden_size, fresh.num_layers, fresh.num_heads, fresh.intermediate_size];
        if sizes.iter().any(|size| !(1..=65_536).contains(size)) {
            return Some(("fresh", "has a size that is not between 1 and 65536".into()));
        }
        if !fresh.hidden_size.is_multiple_of(fresh.num_heads) {
            let (width, heads) = (fresh.hidden_size, fresh.num_heads);
            return Some((
                "fresh",
                format!("hidden_size {width} is not divisible by num_heads {heads}"),
            ));
        }
        if self.passes == 0 {
            return Some(("passes", "must be at least 1".into()));
        }
        for (key, probability) in [
            ("head_dropout", self.head_dropout),
            ("hidden_dropout", self.hidden_dropout),
            ("attention_dropout", self.attention_dropout),
        ] {
            if !(0.0..1.0).contains(&probability) {
                return Some((key, format!("is {probability}; must be a probability below 1")));
            }
        }
        None
    }
}
