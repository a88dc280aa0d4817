//! The configuration of a DeBERTa, and the rows of its relative embeddings.

use serde::Deserialize;

use crate::block_output::BlockShape;
use crate::config::{bad_field, check_dropout, check_heads, check_layers, check_sizes};
use crate::error::Result;
use crate::kernels::Activation;

/// The fields of a published `config.json` that define the encoder. Other fields are ignored.
#[derive(Debug, Clone, Deserialize)]
pub struct DebertaConfig {
    /// Size `V` of the vocabulary.
    pub vocab_size: usize,
    /// Width `D`.
    pub hidden_size: usize,
    /// Number of blocks.
    pub num_hidden_layers: usize,
    /// Number of heads `H`; `D` must be a multiple of it.
    pub num_attention_heads: usize,
    /// Width of the feed-forward block.
    pub intermediate_size: usize,
    /// Activation of the feed-forward block.
    pub hidden_act: Activation,
    /// Number of absolute positions: the maximum length of a sequence if `position_biased_input` is
    /// true.
    pub max_position_embeddings: usize,
    /// Number of token types; 0 for a model without token types.
    #[serde(default)]
    pub type_vocab_size: usize,
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
    /// Epsilon of the layer norms, added to the variance.
    #[serde(default = "default_layer_norm_eps")]
    pub layer_norm_eps: f64,
    /// Dropout after the embeddings, of relative embeddings and in each residual branch.
    #[serde(default)]
    pub hidden_dropout_prob: f64,
    /// Dropout of attention weights.
    #[serde(default)]
    pub attention_probs_dropout_prob: f64,
    /// Standard deviation of random initial weights.
    #[serde(default = "default_initializer_range")]
    pub initializer_range: f64,
}

fn default_position_biased_input() -> bool {
    true
}

fn default_unset() -> i64 {
    -1
}

fn default_layer_norm_eps() -> f64 {
    1e-7
}

fn default_initializer_range() -> f64 {
    0.02
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

/// The largest accepted number of relative positions.
const MAX_RELATIVE_POSITIONS: i64 = 1 << 20;

impl DebertaConfig {
    /// Checks that the values are valid and fit together.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig), which names the field.
    pub fn validate(&self) -> Result<()> {
        let field_error = |what: &str, reason: String| Err(bad_field(what, reason));
        let (width, heads) = (self.hidden_size, self.num_attention_heads);
        check_heads(width, heads)?;
        check_layers(self.num_hidden_layers)?;
        check_sizes(&[
            ("hidden_size", width),
            ("vocab_size", self.vocab_size),
            ("intermediate_size", self.intermediate_size),
            ("embedding_size", self.embedding_size.unwrap_or(width)),
        ])?;
        if self.position_biased_input {
            check_sizes(&[("max_position_embeddings", self.max_position_embeddings)])?;
        }
        check_dropout(self.hidden_dropout_prob, self.attention_probs_dropout_prob)?;
        if let Some(size) =
            self.attention_head_size.filter(|size| size.checked_mul(heads) != Some(width))
        {
            let reason = format!("{size} times {heads} heads is not hidden_size {width}");
            return field_error("attention_head_size", reason);
        }
        if self.conv_kernel_size > 0 {
            let reason = format!(
                "{}: the convolution of deberta-v2-xlarge and -xxlarge is not supported; \
                 use a v3 model",
                self.conv_kernel_size
            );
            return field_error("conv_kernel_size", reason);
        }
        if self.relative_attention {
            if self.pos_att_type.count() == 0 {
                return field_error(
                    "pos_att_type",
                    "relative_attention needs c2p, p2c or both".into(),
                );
            }
            let (buckets, max_distance) = (self.position_buckets, self.max_distance());
            if !(1..=MAX_RELATIVE_POSITIONS).contains(&max_distance) {
                let reason =
                    format!("{max_distance} is not between 1 and {MAX_RELATIVE_POSITIONS}");
                return field_error("max_relative_positions", reason);
            }
            if buckets == 1 || (buckets > 1 && buckets / 2 + 1 >= max_distance) {
                let reason =
                    format!("{buckets} buckets do not fit {max_distance} relative positions");
                return field_error("position_buckets", reason);
            }
        }
        Ok(())
    }

    pub(super) fn block_shape(&self) -> BlockShape {
        BlockShape {
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            hidden_act: self.hidden_act,
            hidden_dropout: self.hidden_dropout_prob,
            layer_norm_eps: self.layer_norm_eps,
            initializer_range: self.initializer_range,
        }
    }

    /// The largest relative distance; larger distances share its embedding.
    fn max_distance(&self) -> i64 {
        match self.max_relative_positions {
            positions if positions > 0 => positions,
            _ => self.max_position_embeddings as i64,
        }
    }

    /// Half the number of rows in the table of relative embeddings.
    pub(super) fn relative_span(&self) -> i64 {
        if self.position_buckets > 0 { self.position_buckets } else { self.max_distance() }
    }

    /// Returns the row of the relative embeddings for a distance (query position minus key
    /// position).
    pub(super) fn relative_row(&self, distance: i64) -> u32 {
        let bucket = match self.position_buckets {
            buckets if buckets > 0 => log_bucket(distance, buckets, self.max_distance()),
            _ => distance,
        };
        let span = self.relative_span();
        (bucket + span).clamp(0, 2 * span - 1) as u32
    }

    /// Whether the relative embeddings are normalised.
    pub(super) fn has_relative_norm(&self) -> bool {
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
