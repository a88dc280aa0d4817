//! DeBERTa-v2 and v3 (arXiv 2006.03654, 2111.09543): disentangled attention.
//!
//! Reference: `transformers` 5, `models/deberta_v2/modeling_deberta_v2.py`. Parameter names are the
//! published ones. As in [`crate::bert`], sequences are packed instead of padded. Left out are the
//! heads, and the convolution of the two largest v2 models, whose configurations are refused. Only
//! the rows of the relative embeddings that a batch needs are projected, and dropout is drawn for
//! them alone.

use std::sync::Arc;

use candle_core::Tensor;
use serde::Deserialize;

use crate::config::{bad_field, check_dropout, check_heads, check_sizes};
use crate::error::Result;
use crate::kernels::{
    Activation, Attention, AttentionBias, Disentangled, Mode, disentangled_bias, dropout,
    embedding_sum, feed_forward, self_attention, stacked_linear,
};
use crate::layers::{LayerNorm, Linear};
use crate::packed::PackedTokens;
use crate::params::{Init, ParameterBuilder};

/// The fields of a published `config.json` that shape the encoder (others are not read).
#[derive(Debug, Clone, Deserialize)]
pub struct DebertaConfig {
    /// Vocabulary `V`.
    pub vocab_size: usize,
    /// Width `D`.
    pub hidden_size: usize,
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Heads `H`; `D` is divided among them.
    pub num_attention_heads: usize,
    /// Width of the feed-forward block.
    pub intermediate_size: usize,
    /// Activation of the feed-forward block.
    pub hidden_act: Activation,
    /// Longest sequence, if there are absolute places.
    pub max_position_embeddings: usize,
    /// Segment ids; 0 for a model without.
    #[serde(default)]
    pub type_vocab_size: usize,
    /// Width of the embeddings, if not `D`.
    pub embedding_size: Option<usize>,
    /// Whether absolute places are part of the input.
    #[serde(default = "default_position_biased_input")]
    pub position_biased_input: bool,
    /// Whether attention sees relative places.
    #[serde(default)]
    pub relative_attention: bool,
    /// Buckets of relative places on each side; without buckets if not positive.
    #[serde(default = "unset")]
    pub position_buckets: i64,
    /// The distance from which on all places are one; `max_position_embeddings` if not positive.
    #[serde(default = "unset")]
    pub max_relative_positions: i64,
    /// The terms of the bias.
    #[serde(default)]
    pub pos_att_type: PositionTerms,
    /// Whether relative places go through the projections of the content.
    #[serde(default)]
    pub share_att_key: bool,
    /// `layer_norm` if relative embeddings are normed.
    #[serde(default)]
    pub norm_rel_ebd: String,
    /// Width of the convolution beside the first block; only 0 is built here.
    #[serde(default)]
    pub conv_kernel_size: usize,
    /// Width of a head; only `D / H` is built here.
    pub attention_head_size: Option<usize>,
    /// Added to the variance in norms.
    #[serde(default = "default_layer_norm_eps")]
    pub layer_norm_eps: f64,
    /// Dropout after the embeddings, of relative embeddings and in each residual branch.
    #[serde(default)]
    pub hidden_dropout_prob: f64,
    /// Dropout of attention weights.
    #[serde(default)]
    pub attention_probs_dropout_prob: f64,
    /// Standard deviation of fresh weights.
    #[serde(default = "default_initializer_range")]
    pub initializer_range: f64,
}

fn default_position_biased_input() -> bool {
    true
}

fn unset() -> i64 {
    -1
}

fn default_layer_norm_eps() -> f64 {
    1e-7
}

fn default_initializer_range() -> f64 {
    0.02
}

/// The terms of the disentangled bias, published as `"p2c|c2p"` or `["p2c", "c2p"]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "PublishedTerms")]
pub struct PositionTerms {
    /// `c2p`: the query's content meets the key's relative place.
    pub content_to_position: bool,
    /// `p2c`: the query's relative place meets the key's content.
    pub position_to_content: bool,
}

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
    fn count(self) -> usize {
        usize::from(self.content_to_position) + usize::from(self.position_to_content)
    }
}

/// More relative places than this are a mistake in the configuration.
const MOST_PLACES: i64 = 1 << 20;

impl DebertaConfig {
    /// Checks what the types do not.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig) naming the field.
    pub fn validate(&self) -> Result<()> {
        let bad = |what: &str, reason: String| Err(bad_field(what, reason));
        let (width, heads) = (self.hidden_size, self.num_attention_heads);
        check_heads(width, heads)?;
        check_sizes(&[
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
            let reason = format!("{size}: {heads} such heads do not make hidden_size {width}");
            return bad("attention_head_size", reason);
        }
        if self.conv_kernel_size > 0 {
            let reason = format!(
                "{}: the convolution of deberta-v2-xlarge and -xxlarge is not built here; \
                 take a v3 model",
                self.conv_kernel_size
            );
            return bad("conv_kernel_size", reason);
        }
        if self.relative_attention {
            if self.pos_att_type.count() == 0 {
                return bad("pos_att_type", "relative_attention needs c2p, p2c or both".into());
            }
            let (buckets, farthest) = (self.position_buckets, self.farthest());
            if !(1..=MOST_PLACES).contains(&farthest) {
                let reason = format!("{farthest} is not between 1 and {MOST_PLACES}");
                return bad("max_relative_positions", reason);
            }
            if buckets == 1 || (buckets > 1 && buckets / 2 + 1 >= farthest) {
                let reason = format!("{buckets} buckets for {farthest} relative places");
                return bad("position_buckets", reason);
            }
        }
        Ok(())
    }

    /// The distance from which on all places are one.
    fn farthest(&self) -> i64 {
        match self.max_relative_positions {
            places if places > 0 => places,
            _ => self.max_position_embeddings as i64,
        }
    }

    /// Half the rows of the relative embeddings.
    fn relative_span(&self) -> i64 {
        if self.position_buckets > 0 { self.position_buckets } else { self.farthest() }
    }

    /// The row of the relative embeddings for a query place minus a key place.
    fn relative_row(&self, distance: i64) -> u32 {
        let bucket = match self.position_buckets {
            buckets if buckets > 0 => log_bucket(distance, buckets, self.farthest()),
            _ => distance,
        };
        let span = self.relative_span();
        (bucket + span).clamp(0, 2 * span - 1) as u32
    }

    fn has_relative_norm(&self) -> bool {
        self.norm_rel_ebd.split('|').any(|part| part.trim().eq_ignore_ascii_case("layer_norm"))
    }
}

/// The bucket of a distance: itself up to half the buckets, logarithmic beyond
/// (`make_log_bucket_position`, in f32 as there).
fn log_bucket(distance: i64, buckets: i64, farthest: i64) -> i64 {
    let middle = buckets / 2;
    if distance.abs() <= middle {
        return distance;
    }
    let last = ((farthest - 1) as f64 / middle as f64) as f32;
    let ratio = (distance.abs() as f32 / middle as f32).ln() / last.ln();
    let steps = (ratio * (middle - 1) as f32).ceil() as i64;
    distance.signum() * (steps + middle)
}

/// The encoder.
#[derive(Debug, Clone)]
pub struct Deberta {
    config: DebertaConfig,
    word_embeddings: Tensor,
    position_embeddings: Option<Tensor>,
    token_type_embeddings: Option<Tensor>,
    embedding_projection: Option<Linear>,
    embedding_norm: LayerNorm,
    relative_embeddings: Option<Tensor>,
    relative_norm: Option<LayerNorm>,
    layers: Vec<DebertaLayer>,
}

#[derive(Debug, Clone)]
struct DebertaLayer {
    query: Linear,
    key: Linear,
    value: Linear,
    /// Projects relative embeddings for `c2p`; the `key` itself if shared.
    position_key: Option<Linear>,
    /// Projects relative embeddings for `p2c`; the `query` itself if shared.
    position_query: Option<Linear>,
    attention_output: Linear,
    attention_norm: LayerNorm,
    intermediate: Linear,
    output: Linear,
    output_norm: LayerNorm,
}

/// The relative places of a batch.
struct Relative {
    /// The embeddings of those that occur `[R, D]`.
    embeddings: Tensor,
    /// For each query place minus key place, from the lowest: the row of `embeddings`.
    rows: Arc<[u32]>,
}

impl DebertaLayer {
    fn new(config: &DebertaConfig, builder: &ParameterBuilder) -> Result<Self> {
        let (d, m, std) = (config.hidden_size, config.intermediate_size, config.initializer_range);
        let eps = config.layer_norm_eps;
        let attention = builder.pp("attention");
        let own = attention.pp("self");
        let query = Linear::new(d, d, std, &own.pp("query_proj"))?;
        let key = Linear::new(d, d, std, &own.pp("key_proj"))?;
        let value = Linear::new(d, d, std, &own.pp("value_proj"))?;
        let position = |term: bool, shared: &Linear, name: &str| -> Result<Option<Linear>> {
            if !term || !config.relative_attention {
                return Ok(None);
            }
            if config.share_att_key {
                return Ok(Some(shared.clone()));
            }
            Linear::new(d, d, std, &own.pp(name)).map(Some)
        };
        let terms = config.pos_att_type;
        Ok(Self {
            position_key: position(terms.content_to_position, &key, "pos_key_proj")?,
            position_query: position(terms.position_to_content, &query, "pos_query_proj")?,
            query,
            key,
            value,
            attention_output: Linear::new(d, d, std, &attention.pp("output.dense"))?,
            attention_norm: LayerNorm::new(d, eps, &attention.pp("output.LayerNorm"))?,
            intermediate: Linear::new(d, m, std, &builder.pp("intermediate.dense"))?,
            output: Linear::new(m, d, std, &builder.pp("output.dense"))?,
            output_norm: LayerNorm::new(d, eps, &builder.pp("output.LayerNorm"))?,
        })
    }

    /// `[T, D]` → `[T, D]`.
    fn forward(
        &self,
        x: &Tensor,
        relative: Option<&Relative>,
        config: &DebertaConfig,
        tokens: &PackedTokens,
        mode: &Mode,
    ) -> Result<Tensor> {
        let (num_heads, segments) = (config.num_attention_heads, tokens.segments.clone());
        let terms = 1 + config.pos_att_type.count();
        let scale = 1.0 / ((config.hidden_size / num_heads * terms) as f32).sqrt();
        let parts = [self.query.as_part(), self.key.as_part(), self.value.as_part()];
        let qkv = stacked_linear(x, &parts)?;
        let bias = match relative {
            None => None,
            Some(Relative { embeddings, rows }) => {
                let x = dropout(embeddings, mode.dropout(config.hidden_dropout_prob))?;
                let project =
                    |map: &Option<Linear>| map.as_ref().map(|map| map.forward(&x)).transpose();
                let (key, query) = (project(&self.position_key)?, project(&self.position_query)?);
                let segments = segments.clone();
                let options = Disentangled { num_heads, scale, segments, rows: rows.clone() };
                Some(disentangled_bias(&qkv, key.as_ref(), query.as_ref(), &options)?)
            }
        };
        let masked = mode.dropout(config.attention_probs_dropout_prob);
        let options = Attention { num_heads, scale, causal: false, segments, dropout: masked };
        let bias = bias.as_ref().map(AttentionBias::PerSegment);
        let context = self_attention(&qkv, bias, &options)?;
        let attended = self.attention_output.forward(&context)?;
        let masked = mode.dropout(config.hidden_dropout_prob);
        let x = self.attention_norm.forward_residual(&attended, x, masked)?;
        let (up, down) = (self.intermediate.with_bias()?, self.output.with_bias()?);
        let y = feed_forward(&x, up, down, config.hidden_act)?;
        let masked = mode.dropout(config.hidden_dropout_prob);
        self.output_norm.forward_residual(&y, &x, masked)
    }
}

impl Deberta {
    /// Builds the encoder from published weights or fresh.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig), and those of
    /// [`ParameterBuilder::get`].
    pub fn new(config: &DebertaConfig, builder: &ParameterBuilder) -> Result<Self> {
        config.validate()?;
        let (d, std, eps) = (config.hidden_size, config.initializer_range, config.layer_norm_eps);
        let e = config.embedding_size.unwrap_or(d);
        let (embeddings, encoder) = (builder.pp("embeddings"), builder.pp("encoder"));
        let table = |name: &str, rows: usize| {
            embeddings.pp(name).get("weight", &[rows, e], Init::Normal(std))
        };
        let (places, types) = (config.max_position_embeddings, config.type_vocab_size);
        let relative = config.relative_attention;
        let span = config.relative_span() as usize;
        Ok(Self {
            word_embeddings: table("word_embeddings", config.vocab_size)?,
            position_embeddings: config
                .position_biased_input
                .then(|| table("position_embeddings", places))
                .transpose()?,
            token_type_embeddings: (types > 0)
                .then(|| table("token_type_embeddings", types))
                .transpose()?,
            embedding_projection: (e != d)
                .then(|| Linear::without_bias(e, d, std, &embeddings.pp("embed_proj")))
                .transpose()?,
            embedding_norm: LayerNorm::new(d, eps, &embeddings.pp("LayerNorm"))?,
            relative_embeddings: relative
                .then(|| {
                    let table = encoder.pp("rel_embeddings");
                    table.get("weight", &[2 * span, d], Init::Normal(std))
                })
                .transpose()?,
            relative_norm: (relative && config.has_relative_norm())
                .then(|| LayerNorm::new(d, eps, &encoder.pp("LayerNorm")))
                .transpose()?,
            layers: (0..config.num_hidden_layers)
                .map(|i| DebertaLayer::new(config, &encoder.pp("layer").pp(i)))
                .collect::<Result<_>>()?,
            config: config.clone(),
        })
    }

    /// The configuration.
    pub fn config(&self) -> &DebertaConfig {
        &self.config
    }

    /// The hidden states after the embeddings and after each block, the last being the output;
    /// `[T, D]` each. Without absolute places a sequence may have any length.
    ///
    /// # Errors
    /// [`ModelError::BadInput`](crate::ModelError::BadInput) for a place beyond its table,
    /// [`ModelError::Candle`](crate::ModelError::Candle) for an id or a type beyond its own.
    pub fn forward(&self, tokens: &PackedTokens, mode: &Mode) -> Result<Vec<Tensor>> {
        let mut states = Vec::with_capacity(1 + self.layers.len());
        let last = self.run(tokens, mode, |state| states.push(state.clone()))?;
        states.push(last);
        Ok(states)
    }

    /// The last of the hidden states, `[T, D]`; the others are freed as soon as they can be.
    ///
    /// # Errors
    /// As [`Deberta::forward`].
    pub fn encode(&self, tokens: &PackedTokens, mode: &Mode) -> Result<Tensor> {
        self.run(tokens, mode, |_| {})
    }

    /// The last hidden state; `inner` sees those before it.
    fn run(
        &self,
        tokens: &PackedTokens,
        mode: &Mode,
        mut inner: impl FnMut(&Tensor),
    ) -> Result<Tensor> {
        let x = self.embed(tokens)?;
        let x = dropout(&x, mode.dropout(self.config.hidden_dropout_prob))?;
        let mut state = mode.cut(x);
        let relative = self.relative(tokens)?;
        for layer in &self.layers {
            inner(&state);
            let next = layer.forward(&state, relative.as_ref(), &self.config, tokens, mode)?;
            state = mode.cut(next);
        }
        Ok(state)
    }

    /// The embeddings before dropout `[T, D]`.
    fn embed(&self, tokens: &PackedTokens) -> Result<Tensor> {
        let mut lookups = vec![(&self.word_embeddings, Arc::clone(&tokens.ids))];
        if let Some(table) = &self.position_embeddings {
            tokens.check_positions(self.config.max_position_embeddings)?;
            lookups.push((table, Arc::clone(&tokens.positions)));
        }
        if let Some(table) = &self.token_type_embeddings {
            lookups.push((table, Arc::clone(&tokens.types)));
        }
        let mut x = embedding_sum(&lookups)?;
        if let Some(projection) = &self.embedding_projection {
            x = projection.forward(&x)?;
        }
        self.embedding_norm.forward(&x)
    }

    /// The relative places that occur in a batch; none without relative attention.
    fn relative(&self, tokens: &PackedTokens) -> Result<Option<Relative>> {
        let Some(table) = &self.relative_embeddings else { return Ok(None) };
        let longest = tokens.sequences().iter().map(|span| span.length).max().unwrap_or(0) as i64;
        let (mut occurring, mut rows) = (Vec::new(), Vec::new());
        // Rows rise with the distance, so equal ones are neighbours.
        for row in (1 - longest..longest).map(|distance| self.config.relative_row(distance)) {
            if occurring.last() != Some(&row) {
                occurring.push(row);
            }
            rows.push(occurring.len() as u32 - 1);
        }
        let embeddings = embedding_sum(&[(table, occurring.into())])?;
        let embeddings = match &self.relative_norm {
            Some(norm) => norm.forward(&embeddings)?,
            None => embeddings,
        };
        Ok(Some(Relative { embeddings, rows: rows.into() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected buckets: `tests/reference/text_encoders.py`.
    #[test]
    fn buckets_equal_those_of_the_published_models() {
        let text = include_str!("../tests/fixtures/deberta_buckets.json");
        let expected: Vec<i64> = serde_json::from_str(text).unwrap();
        for (distance, expected) in (0..).zip(expected) {
            assert_eq!(log_bucket(distance, 256, 512), expected, "distance {distance}");
            assert_eq!(log_bucket(-distance, 256, 512), -expected, "distance -{distance}");
        }
    }

    #[test]
    fn position_terms_are_text_or_list() {
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
