//! Pools the hidden states of each span of tokens into one vector.

use std::sync::Arc;

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::kernels::{Attention, Segments, Span, attention, embedding_sum, span_mean};
use crate::params::{Init, ParameterBuilder};

/// The pooling of a span's states into one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The mean.
    Mean,
    /// The first state (`[CLS]` if the span is the whole sequence).
    First,
    /// The mean weighted by `softmax(w·h)` with a learned `w`.
    Attention,
}

/// A pooling with its parameters.
#[derive(Debug, Clone)]
pub struct SpanPooler {
    pooling: Pooling,
    /// The learned `w` `[1, D]` of attention pooling; `None` for the other poolings.
    query: Option<Tensor>,
}

impl SpanPooler {
    /// Creates a pooling. Attention pooling starts as the mean (`w = 0`).
    pub fn new(pooling: Pooling, width: usize, builder: &ParameterBuilder) -> Result<Self> {
        let query = match pooling {
            Pooling::Attention => Some(builder.get("weight", &[1, width], Init::Zeros)?),
            Pooling::Mean | Pooling::First => None,
        };
        Ok(Self { pooling, query })
    }

    /// Returns one vector per span: `[T, D]`, `S` spans → `[S, D]`. For attention pooling, spans
    /// must be in ascending order and must not overlap.
    pub fn forward(&self, states: &Tensor, spans: &Arc<[Span]>) -> Result<Tensor> {
        match (self.pooling, &self.query) {
            (Pooling::Attention, Some(query)) => {
                let first_row = Arc::from(vec![0u32; spans.len()]);
                let queries = embedding_sum(&[(query, first_row)])?.to_dtype(states.dtype())?;
                let options = Attention {
                    num_heads: 1,
                    scale: 1.0,
                    causal: false,
                    segments: Segments::pooling(spans.clone()),
                    dropout: None,
                };
                Ok(attention(&queries, states, states, None, &options)?)
            }
            (Pooling::First, _) => {
                let rows: Vec<u32> = spans.iter().map(|span| span.start as u32).collect();
                Ok(embedding_sum(&[(states, rows.into())])?)
            }
            _ => Ok(span_mean(states, spans.clone())?),
        }
    }
}
