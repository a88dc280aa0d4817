//! The projections of multi-head attention.

use candle_core::Tensor;

use super::Linear;
use crate::error::Result;
use crate::kernels::{Attention, AttentionBias, Chain, LinearParameters, Mode, Segments, Value};

/// The keys and values of an encoder's output, for a decoder's cross-attention.
#[derive(Clone, Copy)]
pub struct CrossKeyValues<'a> {
    /// `[T_k, W]`, where `W` is the width of all heads.
    pub keys: &'a Tensor,
    /// The same shape as the keys.
    pub values: &'a Tensor,
    /// For each sequence of the decoder: its query rows, and the key rows that they attend to.
    pub segments: &'a Segments,
}

/// The projections of queries, keys and values, and the projection of the output.
#[derive(Debug, Clone)]
pub(crate) struct Projections {
    pub(crate) query: Linear,
    pub(crate) key: Linear,
    pub(crate) value: Linear,
    pub(crate) output: Linear,
}

impl Projections {
    /// Returns the parameters of query, key and value, for one stacked linear layer.
    pub(crate) fn query_key_value(&self, mode: &Mode) -> [LinearParameters<'_>; 3] {
        [&self.query, &self.key, &self.value].map(|layer| layer.parameters(mode))
    }

    /// Returns the keys and values of an encoder's states: `[T_k, D]` → `[T_k, W]` each.
    pub(crate) fn key_values(&self, states: &Tensor, mode: &Mode) -> Result<(Tensor, Tensor)> {
        Ok((self.key.forward(states, mode)?, self.value.forward(states, mode)?))
    }

    /// Adds self-attention to a chain, with all projections: `[T, D]` → `[T, D]`.
    pub(crate) fn self_attention(
        &self,
        chain: &mut Chain,
        x: Value,
        bias: Option<AttentionBias<'_>>,
        options: &Attention,
        mode: &Mode,
    ) -> Value {
        let qkv = chain.stacked_linear(x, &self.query_key_value(mode));
        let context = chain.self_attention(qkv, bias, options);
        chain.stacked_linear(context, &[self.output.parameters(mode)])
    }

    /// Adds attention to keys `k` and values `v`, `[T_k, W]`, to a chain, with the projections of
    /// query and output: `[T_q, D]` → `[T_q, D]`.
    pub(crate) fn cross_attention(
        &self,
        chain: &mut Chain,
        x: Value,
        (k, v): (Value, Value),
        bias: Option<AttentionBias<'_>>,
        options: &Attention,
        mode: &Mode,
    ) -> Value {
        let query = chain.stacked_linear(x, &[self.query.parameters(mode)]);
        let context = chain.attention(query, k, v, bias, options);
        chain.stacked_linear(context, &[self.output.parameters(mode)])
    }
}
