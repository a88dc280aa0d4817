//! The bi-encoder: encodes each phrase into a unit vector and scores a pair of phrases by the
//! cosine of their vectors.
//!
//! Source: Sentence-BERT (arXiv 1908.10084); mean pooling and normalisation as in
//! `sentence-transformers`' all-MiniLM-L6-v2.

use candle_core::{D, Tensor};

use crate::compute::full_precision;
use crate::error::Result;
use crate::kernels::{Mode, embedding_sum};
use crate::packed::PackedTokens;
use crate::params::ParameterBuilder;
use crate::similarity::pooling::{Pooling, SpanPooler};
use crate::text_encoder::TextEncoder;

/// A text encoder with pooling.
#[derive(Debug, Clone)]
pub struct BiEncoder {
    /// The text encoder.
    pub encoder: TextEncoder,
    pooler: SpanPooler,
}

impl BiEncoder {
    /// Adds pooling to an encoder; its parameters are named `pooling.…`.
    pub fn new(pooling: Pooling, encoder: TextEncoder, builder: &ParameterBuilder) -> Result<Self> {
        let pooler = SpanPooler::new(pooling, encoder.hidden_size(), &builder.pp("pooling"))?;
        Ok(Self { encoder, pooler })
    }

    /// Returns the unit vectors `[S, D]` of the `S` packed phrases.
    pub fn embed(&self, phrases: &PackedTokens, mode: &Mode) -> Result<Tensor> {
        let states = self.encoder.encode(phrases, mode)?;
        normalise(&self.pooler.forward(&states, phrases.sequences())?)
    }

    /// Returns the cosines of pairs `(i, j)` of the packed phrases: `[N]`.
    pub fn score(
        &self,
        phrases: &PackedTokens,
        pairs: &[(u32, u32)],
        mode: &Mode,
    ) -> Result<Tensor> {
        let embeddings = self.embed(phrases, mode)?;
        let vectors_of = |pick: fn(&(u32, u32)) -> u32| {
            let rows: Vec<u32> = pairs.iter().map(pick).collect();
            embedding_sum(&[(&embeddings, rows.into())])
        };
        Ok((vectors_of(|p| p.0)? * vectors_of(|p| p.1)?)?.sum(D::Minus1)?)
    }
}

/// Divides each row `x` by `sqrt(|x|² + 1e-12)`: `[S, D]` → `[S, D]`.
pub fn normalise(x: &Tensor) -> Result<Tensor> {
    let x = full_precision(x)?;
    let length = (x.sqr()?.sum_keepdim(D::Minus1)? + 1e-12)?.sqrt()?;
    Ok(x.broadcast_div(&length)?)
}
