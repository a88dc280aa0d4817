//! REVEAL (arXiv 2212.05221): a vision-language model that retrieves from a memory with several
//! sources. Model and retriever are trained end to end.
//!
//! | paper | file |
//! |---|---|
//! | base encoder `b` of texts and images | [`base_encoder`] |
//! | query head, key head | [`query_key_head`] |
//! | value head (Perceiver) | [`value_perceiver`] |
//! | corpus gate | [`gate`] |
//! | attentive knowledge fusion, with the scores as a prior | [`fusion`] |
//! | generator | [`crate::t5::Decoder`] |
//! | contrastive, decorrelation and alignment losses | [`losses`] |
//! | initialisation from T5 and ViT weights | [`published`] |
//!
//! Reference: the released code, google-research/scenic `projects/knowledge_visual_language`. The
//! released code cannot run its own retrieval, so only the building blocks (T5, ViT) are tested
//! against a reference. The other parts are tested by finite differences and against their
//! definitions. Sequences are packed, not padded: a query or entry without an image has no rows for
//! an image, where the released code has one masked zero token.

pub mod base_encoder;
mod config;
pub mod fusion;
pub mod gate;
pub mod losses;
pub mod published;
pub mod query_key_head;
pub mod value_perceiver;

use candle_core::Tensor;

use crate::error::Result;
use crate::kernels::Mode;
use crate::layers::Linear;
use crate::params::ParameterBuilder;
use crate::t5::{Decoder, GenerateOptions, Generated};
use base_encoder::BaseEncoder;
pub use base_encoder::{BaseStates, RevealInput};
pub use config::RevealConfig;
use fusion::Fusion;
pub use fusion::Retrieved;
use gate::{CorpusGate, ScoreTransform};
use query_key_head::QueryKeyHead;
use value_perceiver::ValuePerceiver;

/// The whole model: encoder, retriever heads, fusion and generator.
#[derive(Debug, Clone)]
pub struct Reveal {
    /// The configuration.
    pub config: RevealConfig,
    base: BaseEncoder,
    query_head: QueryKeyHead,
    key_head: QueryKeyHead,
    /// Shared by the query head and the key head.
    head_out: Linear,
    value_perceiver: ValuePerceiver,
    gate: CorpusGate,
    transform: ScoreTransform,
    fusion: Fusion,
    decoder: Decoder,
}

impl Reveal {
    /// Builds the model with published weights, or with random initial weights.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`], and the errors of [`ParameterBuilder::get`].
    pub fn new(config: &RevealConfig, builder: &ParameterBuilder) -> Result<Self> {
        config.validate()?;
        let (d, key_dim) = (config.t5.d_model, config.key_dim);
        let head = |name: &str| QueryKeyHead::new(config, &builder.pp(name));
        let std = (d as f64).powf(-0.5);
        Ok(Self {
            base: BaseEncoder::new(config, builder)?,
            query_head: head("query_head")?,
            key_head: head("key_head")?,
            head_out: Linear::without_bias(d, key_dim, std, &builder.pp("head_out"))?,
            value_perceiver: ValuePerceiver::new(config, &builder.pp("value_perceiver"))?,
            gate: CorpusGate::new(config, &builder.pp("dataset_gate"))?,
            transform: ScoreTransform::new(config, &builder.pp("att_transform"))?,
            fusion: Fusion::new(config, builder)?,
            decoder: Decoder::new(&config.t5, builder)?,
            config: config.clone(),
        })
    }

    /// Returns the base encoder's states of queries or entries.
    pub fn encode(&self, input: &RevealInput, mode: &Mode) -> Result<BaseStates> {
        self.base.forward(input, mode)
    }

    /// Returns the query vectors, `[B, key_dim]`, with unit length.
    pub fn query(&self, states: &BaseStates, mode: &Mode) -> Result<Tensor> {
        self.query_head.forward(states, &self.head_out, mode)
    }

    /// Returns the key vectors of entries, `[N, key_dim]`, with unit length.
    pub fn key(&self, states: &BaseStates, mode: &Mode) -> Result<Tensor> {
        self.key_head.forward(states, &self.head_out, mode)
    }

    /// Returns the values of entries, `[N M, D]`, with `M` value tokens per entry.
    pub fn value(&self, states: &BaseStates, mode: &Mode) -> Result<Tensor> {
        self.value_perceiver.forward(states, mode)
    }

    /// Returns the weight of each source for each query: `[B, key_dim]` → `[B, sources]`. Rows sum
    /// to 1; without a gate, all weights are 1.
    pub fn gates(&self, queries: &Tensor) -> Result<Tensor> {
        self.gate.forward(queries)
    }

    /// Returns the prior of retrieved entries from their gated scores. A gated score is the cosine
    /// of query and key, times the gate of the source. See [`ScoreTransform::prior`].
    pub fn prior(&self, scores: &Tensor, counts: &[usize]) -> Result<Tensor> {
        self.transform.prior(scores, counts)
    }

    /// The score of finding no entry, `[1]`, which competes with gated scores; `None` without one.
    pub fn no_entry(&self) -> Option<&Tensor> {
        self.transform.no_entry()
    }

    /// Fuses the states of each query with its retrieved entries, for the decoder. `None` means
    /// that nothing was retrieved.
    pub fn fuse(
        &self,
        query: &BaseStates,
        retrieved: Option<&Retrieved<'_>>,
        mode: &Mode,
    ) -> Result<BaseStates> {
        self.fusion.forward(query, retrieved, mode)
    }

    /// Generates the output text of each query from fused states. No gradient is computed.
    ///
    /// # Errors
    /// See [`Decoder::generate`].
    pub fn generate(
        &self,
        states: &BaseStates,
        options: &GenerateOptions,
    ) -> Result<Vec<Generated>> {
        self.decoder.generate(&self.base.token_table, &states.states, &states.lengths, options)
    }

    /// Returns the logits `[T, V]` of the next token at each position of `tokens`, given fused
    /// states.
    pub fn decode(
        &self,
        tokens: &crate::packed::PackedTokens,
        states: &BaseStates,
        mode: &Mode,
    ) -> Result<Tensor> {
        let embedded = self.base.embed(&tokens.ids)?;
        self.decoder.forward(embedded, &tokens.segments, &states.states, &states.lengths, mode)
    }
}
