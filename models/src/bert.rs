//! BERT (arXiv 1810.04805), and all encoders with its architecture: MiniLM, BERT-for-patents, E5, …
//!
//! Reference: `transformers` 5, `models/bert/modeling_bert.py`. Parameter names are the published
//! names. Sequences are packed, not padded, so no work is spent on padding. The pooler is omitted,
//! because no study uses it.

use candle_core::Tensor;
use serde::Deserialize;

use crate::block_output::{BlockOutput, BlockShape};
use crate::compute::Compute;
use crate::config::{bad_field, check_dropout, check_heads, check_layers, check_sizes};
use crate::error::Result;
use crate::kernels::{Activation, Attention, Mode, dropout};
use crate::layers::{LayerNorm, Linear, Projections};
use crate::packed::PackedTokens;
use crate::params::{EmbeddingTable, Init, Lookup, ParameterBuilder, sum_of_rows};

/// The fields of a published `config.json` that define the encoder. Other fields are ignored.
#[derive(Debug, Clone, Deserialize)]
pub struct BertConfig {
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
    /// Number of absolute positions: the maximum length of a sequence.
    pub max_position_embeddings: usize,
    /// Number of token types (segment ids).
    pub type_vocab_size: usize,
    /// Epsilon of the layer norms, added to the variance.
    #[serde(default = "default_layer_norm_eps")]
    pub layer_norm_eps: f64,
    /// Dropout probability after the embeddings and in each residual branch.
    #[serde(default)]
    pub hidden_dropout_prob: f64,
    /// Dropout probability of attention weights.
    #[serde(default)]
    pub attention_probs_dropout_prob: f64,
    /// The kind of position embedding; only `absolute`, the default, is supported.
    #[serde(default)]
    pub position_embedding_type: Option<String>,
    /// Whether the model is a decoder with causal attention; `true` is not supported.
    #[serde(default)]
    pub is_decoder: bool,
    /// Standard deviation of random initial weights.
    #[serde(default = "default_initializer_range")]
    pub initializer_range: f64,
}

fn default_layer_norm_eps() -> f64 {
    1e-12
}

fn default_initializer_range() -> f64 {
    0.02
}

impl BertConfig {
    /// Checks that the values are valid and fit together.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig), which names the field.
    pub fn validate(&self) -> Result<()> {
        check_heads(self.hidden_size, self.num_attention_heads)?;
        check_layers(self.num_hidden_layers)?;
        check_sizes(&[
            ("hidden_size", self.hidden_size),
            ("vocab_size", self.vocab_size),
            ("intermediate_size", self.intermediate_size),
            ("max_position_embeddings", self.max_position_embeddings),
            ("type_vocab_size", self.type_vocab_size),
        ])?;
        if self.is_decoder {
            let reason = "true is not supported; use an encoder".to_string();
            return Err(bad_field("is_decoder", reason));
        }
        if self.position_embedding_type.as_deref().is_some_and(|kind| kind != "absolute") {
            let reason = "only `absolute` is supported".to_string();
            return Err(bad_field("position_embedding_type", reason));
        }
        check_dropout(self.hidden_dropout_prob, self.attention_probs_dropout_prob)
    }

    fn block_shape(&self) -> BlockShape {
        BlockShape {
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            hidden_act: self.hidden_act,
            hidden_dropout: self.hidden_dropout_prob,
            layer_norm_eps: self.layer_norm_eps,
            initializer_range: self.initializer_range,
        }
    }
}

/// The encoder.
#[derive(Debug, Clone)]
pub struct Bert {
    config: BertConfig,
    compute: Compute,
    word_embeddings: EmbeddingTable,
    position_embeddings: EmbeddingTable,
    token_type_embeddings: EmbeddingTable,
    embedding_norm: LayerNorm,
    layers: Vec<BertLayer>,
}

/// One block.
#[derive(Debug, Clone)]
struct BertLayer {
    attention: Projections,
    output: BlockOutput,
}

impl BertLayer {
    fn new(config: &BertConfig, builder: &ParameterBuilder) -> Result<Self> {
        let (d, std) = (config.hidden_size, config.initializer_range);
        let projection = |name: &str| Linear::new(d, d, std, &builder.pp("attention").pp(name));
        Ok(Self {
            attention: Projections {
                query: projection("self.query")?,
                key: projection("self.key")?,
                value: projection("self.value")?,
                output: projection("output.dense")?,
            },
            output: BlockOutput::new(config.block_shape(), builder)?,
        })
    }

    /// Runs the block: `[T, D]` → `[T, D]`.
    fn forward(
        &self,
        x: &Tensor,
        config: &BertConfig,
        tokens: &PackedTokens,
        mode: &Mode,
    ) -> Result<Tensor> {
        let options = Attention {
            num_heads: config.num_attention_heads,
            scale: 1.0 / ((config.hidden_size / config.num_attention_heads) as f32).sqrt(),
            causal: false,
            segments: tokens.segments.clone(),
            dropout: mode.dropout(config.attention_probs_dropout_prob),
        };
        let mut chain = mode.chain();
        let x = chain.input(x);
        let attended = self.attention.self_attention(&mut chain, x, None, &options, mode);
        self.output.append(&mut chain, attended, x, mode);
        Ok(chain.finish()?)
    }
}

impl Bert {
    /// Builds the encoder with published weights, or with random initial weights.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig), and the errors of
    /// [`ParameterBuilder::get`].
    pub fn new(config: &BertConfig, builder: &ParameterBuilder) -> Result<Self> {
        config.validate()?;
        let d = config.hidden_size;
        let embeddings = builder.pp("embeddings");
        let table = |name: &str, rows: usize| {
            embeddings.pp(name).embedding_table(
                "weight",
                [rows, d],
                Init::Normal(config.initializer_range),
            )
        };
        Ok(Self {
            word_embeddings: table("word_embeddings", config.vocab_size)?,
            position_embeddings: table("position_embeddings", config.max_position_embeddings)?,
            token_type_embeddings: table("token_type_embeddings", config.type_vocab_size)?,
            embedding_norm: LayerNorm::new(d, config.layer_norm_eps, &embeddings.pp("LayerNorm"))?,
            layers: (0..config.num_hidden_layers)
                .map(|i| BertLayer::new(config, &builder.pp("encoder.layer").pp(i)))
                .collect::<Result<_>>()?,
            config: config.clone(),
            compute: builder.compute(),
        })
    }

    /// The configuration.
    pub fn config(&self) -> &BertConfig {
        &self.config
    }

    /// Returns the last hidden state, `[T, D]`. Hidden states of earlier blocks are freed as soon
    /// as possible.
    ///
    /// # Errors
    /// [`ModelError::BadInput`](crate::ModelError::BadInput) for a position beyond the position
    /// table. [`ModelError::Candle`](crate::ModelError::Candle) for a token id or type beyond its
    /// table.
    pub fn encode(&self, tokens: &PackedTokens, mode: &Mode) -> Result<Tensor> {
        self.run(tokens, mode, |_| {})
    }

    /// The embedding tables, with the ids that these tokens look up in each.
    ///
    /// # Errors
    /// [`ModelError::BadInput`](crate::ModelError::BadInput) for a position beyond its table.
    pub(crate) fn lookups<'a>(&'a self, tokens: &'a PackedTokens) -> Result<Vec<Lookup<'a>>> {
        tokens.check_positions(self.config.max_position_embeddings)?;
        Ok(vec![
            (&self.word_embeddings, &tokens.ids),
            (&self.position_embeddings, &tokens.positions),
            (&self.token_type_embeddings, &tokens.types),
        ])
    }

    /// Returns the last hidden state, `[T, D]`. Calls `on_state` with each earlier state, starting
    /// with the embeddings.
    pub(crate) fn run(
        &self,
        tokens: &PackedTokens,
        mode: &Mode,
        mut on_state: impl FnMut(&Tensor),
    ) -> Result<Tensor> {
        let embedded = sum_of_rows(&self.lookups(tokens)?)?;
        let x = self.embedding_norm.forward(&self.compute.activations(&embedded)?)?;
        let x = dropout(&x, mode.dropout(self.config.hidden_dropout_prob))?;
        let mut state = mode.detach(x);
        for layer in &self.layers {
            on_state(&state);
            let (config, tokens) = (self.config.clone(), tokens.clone());
            let next = mode.block(layer, &[&state], move |layer, inputs, mode| {
                layer.forward(&inputs[0], &config, &tokens, mode)
            })?;
            state = mode.detach(next);
        }
        Ok(state)
    }
}
