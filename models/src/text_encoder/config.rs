//! The configuration of a text encoder, and the rows of DeBERTa's relative embeddings.

use std::path::Path;

use serde::Deserialize;

use super::family::Family;
use super::modern::{self, ModernBertConfig};
use crate::config::{
    bad_field, check_buckets, check_dropout, check_heads, check_layers, check_sizes, in_file,
    refuse_quantised, require,
};
use crate::error::{ModelError, Result};
use crate::kernels::Activation;

/// The fields of a published `config.json` that define the encoder. Other fields are ignored.
/// DistilBERT has other names for some.
#[derive(Debug, Clone, Deserialize)]
pub struct TextEncoderConfig {
    /// Size `V` of the vocabulary.
    pub vocab_size: usize,
    /// Width `D`.
    #[serde(alias = "dim")]
    pub hidden_size: usize,
    /// Number of blocks.
    #[serde(alias = "n_layers")]
    pub num_hidden_layers: usize,
    /// Number of heads `H`; `D` must be a multiple of it.
    #[serde(alias = "n_heads")]
    pub num_attention_heads: usize,
    /// Width of the feed-forward block.
    #[serde(alias = "hidden_dim")]
    pub intermediate_size: usize,
    /// Activation of the feed-forward block.
    #[serde(alias = "activation")]
    pub hidden_act: Activation,
    /// The configured maximum length of a sequence, in tokens.
    pub max_position_embeddings: usize,
    /// Number of token types (segment ids); 0 for a model without token types.
    #[serde(default)]
    pub type_vocab_size: usize,
    /// Epsilon of the layer norms, added to the variance; `None` for the published default.
    pub layer_norm_eps: Option<f64>,
    /// Dropout probability after the embeddings, of relative embeddings, and in each residual
    /// branch.
    #[serde(default, alias = "dropout")]
    pub hidden_dropout_prob: f64,
    /// Dropout probability of attention weights.
    #[serde(default, alias = "attention_dropout")]
    pub attention_probs_dropout_prob: f64,
    /// Standard deviation of random initial weights.
    #[serde(default = "default_initializer_range")]
    pub initializer_range: f64,
    /// The id of the padding token. RoBERTa and MPNet count positions from the one after it.
    #[serde(default = "default_pad_token_id")]
    pub pad_token_id: usize,
    /// Number of buckets of MPNet's relative positions.
    #[serde(default = "default_relative_buckets")]
    pub relative_attention_num_buckets: usize,
    /// The kind of BERT's position embedding; only `absolute`, the default, is supported.
    pub position_embedding_type: Option<String>,
    /// Whether a BERT is a decoder with causal attention; `true` is not supported.
    #[serde(default)]
    pub is_decoder: bool,
    /// The family of the `model_type`.
    #[serde(skip)]
    pub family: &'static Family,
    /// The fields of DeBERTa; `None` for the other families.
    #[serde(skip)]
    pub disentangled: Option<DisentangledConfig>,
    /// The fields of ModernBERT; `None` for the other families.
    #[serde(skip)]
    pub modern: Option<ModernBertConfig>,
}

/// The fields that only a DeBERTa's configuration has.
#[derive(Debug, Clone, Deserialize)]
pub struct DisentangledConfig {
    /// Width of the embeddings before they are projected to `D`; `None` means `D`, without a
    /// projection.
    pub embedding_size: Option<usize>,
    /// Whether absolute position embeddings are added to the input.
    #[serde(default = "default_position_biased_input")]
    pub position_biased_input: bool,
    /// Whether attention uses relative positions.
    #[serde(default)]
    pub relative_attention: bool,
    /// Number of buckets of relative positions on each side. If it is 0 or negative, each distance
    /// has its own embedding.
    #[serde(default = "default_unset")]
    pub position_buckets: i64,
    /// The largest relative distance; larger distances share its embedding. If it is 0 or negative,
    /// `max_position_embeddings` applies.
    #[serde(default = "default_unset")]
    pub max_relative_positions: i64,
    /// The terms of the disentangled attention bias. Relative attention needs at least one.
    #[serde(default)]
    pub pos_att_type: PositionTerms,
    /// Whether relative positions share the query and key projections of the content.
    #[serde(default)]
    pub share_att_key: bool,
    /// If it contains `layer_norm`, a layer norm is applied to the relative embeddings.
    #[serde(default)]
    pub norm_rel_ebd: String,
    /// Kernel size of the convolution next to the first block; only 0 is supported.
    #[serde(default)]
    pub conv_kernel_size: usize,
    /// Width of a head; only `D / H` is supported. `None` means `D / H`.
    pub attention_head_size: Option<usize>,
}

fn default_initializer_range() -> f64 {
    0.02
}

fn default_pad_token_id() -> usize {
    1
}

fn default_relative_buckets() -> usize {
    32
}

fn default_position_biased_input() -> bool {
    true
}

fn default_unset() -> i64 {
    -1
}

/// The terms of the disentangled attention bias, published as `"p2c|c2p"` or `["p2c", "c2p"]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "PublishedTerms")]
pub struct PositionTerms {
    /// `c2p`: the query's content and the key's relative position.
    pub content_to_position: bool,
    /// `p2c`: the query's relative position and the key's content.
    pub position_to_content: bool,
}

/// The forms of `pos_att_type` in published files.
#[derive(Deserialize)]
#[serde(untagged)]
enum PublishedTerms {
    None,
    Text(String),
    List(Vec<String>),
}

impl TryFrom<PublishedTerms> for PositionTerms {
    type Error = String;

    fn try_from(published: PublishedTerms) -> Result<Self, String> {
        let names = match published {
            PublishedTerms::None => Vec::new(),
            PublishedTerms::Text(text) => text.split('|').map(str::to_string).collect(),
            PublishedTerms::List(names) => names,
        };
        let mut terms = Self::default();
        for name in names {
            match name.trim().to_lowercase().as_str() {
                "c2p" => terms.content_to_position = true,
                "p2c" => terms.position_to_content = true,
                _ => return Err(format!("pos_att_type: `{name}` is neither c2p nor p2c")),
            }
        }
        Ok(terms)
    }
}

impl PositionTerms {
    /// Returns the number of terms.
    pub(super) fn count(self) -> usize {
        usize::from(self.content_to_position) + usize::from(self.position_to_content)
    }
}

/// Relative positions of MPNet from this distance on share the last bucket.
pub(super) const MAX_BIAS_DISTANCE: usize = 128;

/// The largest accepted number of relative positions.
const MAX_RELATIVE_POSITIONS: i64 = 1 << 20;

impl TextEncoderConfig {
    /// Reads a published `config.json`.
    ///
    /// # Errors
    /// [`ModelError::Io`]. [`ModelError::BadConfig`] if the model type is unknown, a field is
    /// missing, or values contradict each other.
    pub fn read(path: &Path) -> Result<Self> {
        let text = engram_durable::read_text(path)
            .map_err(|source| ModelError::Io { path: path.to_path_buf(), source })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Parses the text of a `config.json`; `name` names it in errors.
    pub fn parse(text: &str, name: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Required {
            model_type: String,
            type_vocab_size: Option<usize>,
        }
        let bad_json = |error: serde_json::Error| bad_field(name, error.to_string());
        let required: Required = serde_json::from_str(text).map_err(bad_json)?;
        let Some(family) = Family::of_model_type(&required.model_type) else {
            let known = Family::model_types();
            let reason = format!("model_type `{}` is not one of: {known}", required.model_type);
            return Err(bad_field(name, reason));
        };
        refuse_quantised(text, name)?;
        let disentangled = if family.has_disentangled_attention {
            Some(serde_json::from_str(text).map_err(bad_json)?)
        } else if family.has_types && required.type_vocab_size.is_none() {
            return Err(bad_field(name, "missing field `type_vocab_size`"));
        } else {
            None
        };
        let modern = family.is_modern.then(|| serde_json::from_str(text)).transpose();
        let modern = modern.map_err(bad_json)?;
        let text = match family.is_modern {
            true => modern::renamed(text).map_err(|reason| bad_field(name, reason))?,
            false => text.into(),
        };
        let mut config: Self = serde_json::from_str(&text).map_err(bad_json)?;
        if !family.has_types {
            config.type_vocab_size = 0;
        }
        let config = Self { family, disentangled, modern, ..config };
        in_file(Path::new(name), config.validate())?;
        Ok(config)
    }

    /// Checks that the values are valid and fit together.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`], which names the field.
    pub fn validate(&self) -> Result<()> {
        check_heads(self.hidden_size, self.num_attention_heads)?;
        check_layers("num_hidden_layers", self.num_hidden_layers)?;
        check_sizes(&[
            ("hidden_size", self.hidden_size),
            ("vocab_size", self.vocab_size),
            ("intermediate_size", self.intermediate_size),
            ("embedding_size", self.embedding_size()),
        ])?;
        let offset = self.position_offset();
        require(self.max_position_embeddings > offset, "max_position_embeddings", || {
            format!("{} positions, but the first {offset} are unused", self.max_position_embeddings)
        })?;
        if let Some(positions) = self.max_positions() {
            check_sizes(&[("max_position_embeddings", positions)])?;
        }
        if let Some(modern) = &self.modern {
            return modern.validate(self);
        }
        check_dropout(self.hidden_dropout_prob, self.attention_probs_dropout_prob)?;
        if let Some(disentangled) = &self.disentangled {
            return disentangled.validate(self);
        }
        if self.family.has_types {
            check_sizes(&[("type_vocab_size", self.type_vocab_size)])?;
        }
        if self.family.has_relative_bias {
            check_buckets(self.relative_attention_num_buckets, MAX_BIAS_DISTANCE)?;
        }
        require(!self.is_decoder, "is_decoder", || "true is not supported; use an encoder")?;
        let positions = self.position_embedding_type.as_deref();
        require(
            positions.is_none_or(|it| it == "absolute"),
            "position_embedding_type",
            || "only `absolute` is supported",
        )
    }

    /// The number of tokens that the model was made for.
    pub fn max_tokens(&self) -> usize {
        self.max_position_embeddings - self.position_offset()
    }

    /// The largest number of tokens that the position table allows. `None` if the model has no
    /// position table: any length is accepted.
    pub fn max_positions(&self) -> Option<usize> {
        let has_table = self.disentangled.as_ref().is_none_or(|it| it.position_biased_input)
            && !self.family.is_modern;
        has_table.then_some(self.max_tokens())
    }

    /// The row of the position table for the first token.
    pub(super) fn position_offset(&self) -> usize {
        if self.family.positions_follow_padding { self.pad_token_id + 1 } else { 0 }
    }

    /// Sets the dropout probabilities of residual branches and of attention weights.
    pub fn set_dropout(&mut self, hidden: f64, attention: f64) {
        self.hidden_dropout_prob = hidden;
        self.attention_probs_dropout_prob = attention;
        if let Some(modern) = &mut self.modern {
            modern.mlp_dropout = hidden;
        }
    }

    /// The fields of relative attention, if the model has it.
    pub(super) fn relative(&self) -> Option<&DisentangledConfig> {
        self.disentangled.as_ref().filter(|disentangled| disentangled.relative_attention)
    }

    /// The width of the embeddings before they are projected to `D`.
    pub(super) fn embedding_size(&self) -> usize {
        self.disentangled.as_ref().and_then(|it| it.embedding_size).unwrap_or(self.hidden_size)
    }

    /// The epsilon of the layer norms.
    pub(super) fn layer_norm_eps(&self) -> f64 {
        self.layer_norm_eps.unwrap_or(self.family.default_epsilon)
    }

    /// The factor on attention scores.
    pub(super) fn attention_scale(&self) -> f32 {
        let terms = 1 + self.disentangled.as_ref().map_or(0, |it| it.pos_att_type.count());
        1.0 / ((self.hidden_size / self.num_attention_heads * terms) as f32).sqrt()
    }
}

impl DisentangledConfig {
    /// Checks that the values are valid and fit the other fields.
    fn validate(&self, config: &TextEncoderConfig) -> Result<()> {
        let (width, heads) = (config.hidden_size, config.num_attention_heads);
        let size = self.attention_head_size.unwrap_or(width / heads);
        require(size.checked_mul(heads) == Some(width), "attention_head_size", || {
            format!("{size} times {heads} heads is not hidden_size {width}")
        })?;
        require(self.conv_kernel_size == 0, "conv_kernel_size", || {
            format!(
                "{}: the convolution of deberta-v2-xlarge and -xxlarge is not supported; \
                 use a v3 model",
                self.conv_kernel_size
            )
        })?;
        if !self.relative_attention {
            return Ok(());
        }
        require(
            self.pos_att_type.count() > 0,
            "pos_att_type",
            || "relative_attention needs c2p, p2c or both",
        )?;
        let max_distance = self.max_distance(config.max_position_embeddings);
        require(
            (1..=MAX_RELATIVE_POSITIONS).contains(&max_distance),
            "max_relative_positions",
            || format!("{max_distance} is not between 1 and {MAX_RELATIVE_POSITIONS}"),
        )?;
        let buckets = self.position_buckets;
        let fit = buckets < 1 || (buckets > 1 && buckets / 2 + 1 < max_distance);
        require(fit, "position_buckets", || {
            format!("{buckets} buckets do not fit {max_distance} relative positions")
        })
    }

    /// The largest relative distance; larger distances share its embedding.
    fn max_distance(&self, max_position_embeddings: usize) -> i64 {
        match self.max_relative_positions {
            positions if positions > 0 => positions,
            _ => max_position_embeddings as i64,
        }
    }

    /// Half the number of rows in the table of relative embeddings.
    pub(super) fn span(&self, max_position_embeddings: usize) -> i64 {
        match self.position_buckets {
            buckets if buckets > 0 => buckets,
            _ => self.max_distance(max_position_embeddings),
        }
    }

    /// Returns the row of the relative embeddings for a distance (query position minus key
    /// position).
    pub(super) fn row(&self, distance: i64, max_position_embeddings: usize) -> u32 {
        let bucket = match self.position_buckets {
            buckets if buckets > 0 => {
                log_bucket(distance, buckets, self.max_distance(max_position_embeddings))
            }
            _ => distance,
        };
        let span = self.span(max_position_embeddings);
        (bucket + span).clamp(0, 2 * span - 1) as u32
    }

    /// Whether the relative embeddings are normalised.
    pub(super) fn has_norm(&self) -> bool {
        self.norm_rel_ebd.split('|').any(|part| part.trim().eq_ignore_ascii_case("layer_norm"))
    }
}

/// Returns the bucket of a distance: the distance itself up to half the buckets, logarithmic beyond
/// (`make_log_bucket_position`, in f32 like the reference).
fn log_bucket(distance: i64, buckets: i64, max_distance: i64) -> i64 {
    let middle = buckets / 2;
    if distance.abs() <= middle {
        return distance;
    }
    let max_ratio = ((max_distance - 1) as f64 / middle as f64) as f32;
    let ratio = (distance.abs() as f32 / middle as f32).ln() / max_ratio.ln();
    let steps = (ratio * (middle - 1) as f32).ceil() as i64;
    distance.signum() * (steps + middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected buckets: `tests/reference/text_encoders.py`.
    #[test]
    fn log_buckets_equal_the_reference() {
        let text = include_str!("../../tests/fixtures/deberta_buckets.json");
        let expected: Vec<i64> = serde_json::from_str(text).unwrap();
        for (distance, expected) in (0..).zip(expected) {
            assert_eq!(log_bucket(distance, 256, 512), expected, "distance {distance}");
            assert_eq!(log_bucket(-distance, 256, 512), -expected, "distance -{distance}");
        }
    }

    #[test]
    fn position_terms_are_read_from_text_lists_and_null() {
        let parse = |text: &str| serde_json::from_str::<PositionTerms>(text);
        let terms = |content_to_position, position_to_content| PositionTerms {
            content_to_position,
            position_to_content,
        };
        assert_eq!(parse("\"p2c|c2p\"").unwrap(), terms(true, true));
        assert_eq!(parse("[\"p2c\"]").unwrap(), terms(false, true));
        assert_eq!(parse("null").unwrap(), terms(false, false));
        assert!(parse("\"p2p\"").unwrap_err().to_string().contains("p2p"));
    }
}
