//! One pre-norm block: self-attention, cross-attention in decoders, and feed-forward. A norm comes
//! before each part, and a residual sum after it.

use std::sync::Arc;

use candle_core::Tensor;

use crate::adapter::Adapters;
use crate::error::Result;
use crate::generation::cache::{LayerCache, Step};
use crate::kernels::{
    Activation, Attention, AttentionBias, Chain, Mode, Segments, Value, attention, embedding_sum,
    residual, self_attention, stacked_linear,
};
use crate::layers::{CrossKeyValues, LayerNorm, Linear, Projections};

/// A pre-norm block.
#[derive(Debug, Clone)]
pub struct PreNormBlock {
    pub(crate) options: BlockOptions,
    pub(crate) norm: LayerNorm,
    pub(crate) attention: Projections,
    /// The norm and the projections of a decoder's cross-attention.
    pub(crate) cross: Option<(LayerNorm, Projections)>,
    pub(crate) feed_forward_norm: LayerNorm,
    pub(crate) feed_forward: FeedForward,
}

/// The properties of a block that are not parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockOptions {
    /// Number of heads `H`.
    pub(crate) num_heads: usize,
    /// The factor on attention scores.
    pub(crate) scale: f32,
    /// Dropout probability of the output of each part, and within a gated feed-forward part.
    pub(crate) hidden_dropout: f64,
    /// Dropout probability of attention weights.
    pub(crate) attention_dropout: f64,
}

/// The feed-forward part.
#[derive(Debug, Clone)]
pub(crate) enum FeedForward {
    /// `down(f(up(x)))`.
    Plain { up: Linear, down: Linear, f: Activation },
    /// `down(f(gate(x)) ⊙ up(x))`.
    Gated { gate: Linear, up: Linear, down: Linear, f: Activation },
}

/// The inputs of a block besides its state `[T, D]`.
#[derive(Clone, Copy)]
pub struct BlockInputs<'a> {
    /// Rows attend within their segment.
    pub segments: &'a Segments,
    /// Whether self-attention is causal.
    pub causal: bool,
    /// Relative biases `[H, L, L]` of self-attention, for every segment.
    pub bias: Option<&'a Tensor>,
    /// Factors `[T, 1]` on the normalised input of self-attention, row by row, as in
    /// `fuse_topk_knowledge` of REVEAL.
    pub weights: Option<&'a Tensor>,
    /// The encoder's states `[T_k, D]`, and the segments of cross-attention to them.
    pub cross: Option<(&'a Tensor, &'a Segments)>,
    /// The adapters of all blocks, and the index of this block.
    pub adapters: Option<(&'a Adapters, usize)>,
}

impl<'a> BlockInputs<'a> {
    /// The inputs of an encoder's block.
    pub fn new(segments: &'a Segments) -> Self {
        let (causal, bias, weights, cross) = (false, None, None, None);
        Self { segments, causal, bias, weights, cross, adapters: None }
    }
}

impl FeedForward {
    /// Adds the part to a chain: `[T, D]` → `[T, D]`.
    fn append(&self, chain: &mut Chain, x: Value, dropout: f64, mode: &Mode) -> Value {
        match self {
            Self::Plain { up, down, f } => {
                let (up, down) = (up.parameters(mode), down.parameters(mode));
                chain.feed_forward(x, up, down, *f)
            }
            Self::Gated { gate, up, down, f } => {
                let hidden = [gate, up].map(|layer| layer.parameters(mode));
                let hidden = chain.stacked_linear(x, &hidden);
                let hidden = chain.gated(hidden, *f);
                let hidden = chain.dropout(hidden, mode.dropout(dropout));
                chain.stacked_linear(hidden, &[down.parameters(mode)])
            }
        }
    }
}

impl PreNormBlock {
    /// Runs the block: `[T, D]` → `[T, D]`.
    pub fn forward(&self, x: &Tensor, inputs: BlockInputs<'_>, mode: &Mode) -> Result<Tensor> {
        let mut tensors = vec![x];
        tensors.extend(inputs.cross.iter().flat_map(|(states, _)| [*states; 2]));
        tensors.extend(inputs.bias);
        tensors.extend(inputs.weights);
        let (segments, causal) = (inputs.segments.clone(), inputs.causal);
        let cross = inputs.cross.map(|(_, segments)| segments.clone());
        let (has_bias, has_weights) = (inputs.bias.is_some(), inputs.weights.is_some());
        let adapters = inputs.adapters.map(|(adapters, i)| (adapters.clone(), i));
        mode.block(self, &tensors, move |block, tensors, mode| {
            let mut others = tensors[1..].iter();
            let states = cross.as_ref().and_then(|_| others.next().zip(others.next()));
            let keys_and_values = match (&block.cross, states) {
                (Some((_, projections)), Some((for_values, for_keys))) => {
                    let keys = projections.key.forward(for_keys, mode)?;
                    Some((keys, projections.value.forward(for_values, mode)?))
                }
                _ => None,
            };
            let bias = has_bias.then(|| others.next()).flatten();
            let weights = has_weights.then(|| others.next()).flatten();
            let mut chain = mode.chain();
            let x = chain.input(&tensors[0]);
            let mut normed = chain.norm(x, block.norm.as_norm());
            if let Some(weights) = weights {
                let weights = chain.input(weights);
                normed = chain.scaled_rows(normed, weights);
            }
            let options = block.attention_options(&segments, causal, mode);
            let bias = bias.map(AttentionBias::Shared);
            let attended = block.attention.self_attention(&mut chain, normed, bias, &options, mode);
            let x = chain.residual(x, attended, mode.dropout(block.options.hidden_dropout));
            let cross = keys_and_values.as_ref().zip(cross.as_ref());
            let cross =
                cross.map(|((keys, values), segments)| CrossKeyValues { keys, values, segments });
            let output = block.finish(chain, x, cross, mode)?;
            match &adapters {
                Some((adapters, i)) => adapters.apply(*i, &tensors[0], output, mode),
                None => Ok(output),
            }
        })
    }

    /// Computes only the first row of each sequence of [`PreNormBlock::forward`]: `[T, D]` in
    /// sequences of `lengths` → `[S, D]`, with the biases `[H, L, L]`.
    pub(crate) fn first_rows(
        &self,
        x: &Tensor,
        lengths: &[usize],
        bias: &Tensor,
        mode: &Mode,
    ) -> Result<Tensor> {
        let starts = Segments::packed(lengths);
        let starts: Arc<[u32]> = starts.queries.iter().map(|span| span.start as u32).collect();
        let bias = bias.narrow(1, 0, 1)?.contiguous()?;
        let segments = Segments::cross(&vec![1; lengths.len()], lengths);
        mode.block(self, &[x, x, &bias], move |block, inputs, mode| {
            let first = embedding_sum(&[(&inputs[1], starts.clone())])?;
            let options = block.attention_options(&segments, false, mode);
            let mut chain = mode.chain();
            let (x, first) = (chain.input(&inputs[0]), chain.input(&first));
            let normed = chain.norm(x, block.norm.as_norm());
            let normed_first = chain.norm(first, block.norm.as_norm());
            let projections = &block.attention;
            let keys = chain.stacked_linear(normed, &[projections.key.parameters(mode)]);
            let values = chain.stacked_linear(normed, &[projections.value.parameters(mode)]);
            let bias = Some(AttentionBias::Shared(&inputs[2]));
            let kv = (keys, values);
            let attended =
                projections.cross_attention(&mut chain, normed_first, kv, bias, &options, mode);
            let dropout = mode.dropout(block.options.hidden_dropout);
            let first = chain.residual(first, attended, dropout);
            block.finish(chain, first, None, mode)
        })
    }

    /// Returns the keys and values of a decoder block's cross-attention to the encoder's states
    /// `[T_k, D]`, both `[T_k, W]`. They are detached. A block without cross-attention is an error.
    pub(crate) fn cross_key_values(&self, states: &Tensor) -> Result<(Tensor, Tensor)> {
        let Some((_, projections)) = &self.cross else {
            return Err(candle_core::Error::msg("the block has no cross-attention").into());
        };
        let (keys, values) = projections.key_values(states, &Mode::inference())?;
        Ok((keys.detach(), values.detach()))
    }

    /// One causal step for the next row of each sequence, without dropout: `[S, D]` → `[S, D]`. The
    /// biases are `[H, 1, L]` of all rows so far. The cache holds the keys and values of the
    /// earlier rows; this call adds the new rows.
    pub(crate) fn step(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        cache: &LayerCache,
        step: &Step,
        cross: CrossKeyValues<'_>,
    ) -> Result<Tensor> {
        let mode = Mode::inference();
        let qkv = stacked_linear(&self.norm.forward(x)?, &self.attention.query_key_value(&mode))?;
        cache.write(&qkv, step)?;
        let query = qkv.narrow(1, 0, cache.keys.dim(1)?)?;
        let options = self.attention_options(&step.segments, false, &mode);
        let bias = bias.map(AttentionBias::Shared);
        let context = attention(&query, &cache.keys, &cache.values, bias, &options)?;
        let x = residual(x, &self.attention.output.forward(&context, &mode)?, None)?;
        let mut chain = Chain::new();
        let x = chain.input(&x);
        self.finish(chain, x, Some(cross), &mode)
    }

    /// Runs a causal forward pass without dropout, `[T, D]` → `[T, D]`. Also returns the queries
    /// `[T, D]` of the cross-attention.
    pub(crate) fn forward_with_queries(
        &self,
        x: &Tensor,
        segments: &Segments,
        cross: CrossKeyValues<'_>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let mode = Mode::inference();
        let qkv = stacked_linear(&self.norm.forward(x)?, &self.attention.query_key_value(&mode))?;
        let context = self_attention(&qkv, None, &self.attention_options(segments, true, &mode))?;
        let x = residual(x, &self.attention.output.forward(&context, &mode)?, None)?;
        let queries = |(norm, projections): &(LayerNorm, Projections)| {
            projections.query.forward(&norm.forward(&x)?, &mode)
        };
        let queries = self.cross.as_ref().map(queries).transpose()?;
        let mut chain = Chain::new();
        let x = chain.input(&x);
        Ok((self.finish(chain, x, Some(cross), &mode)?, queries))
    }

    /// Runs the block after its self-attention.
    fn finish(
        &self,
        mut chain: Chain,
        mut x: Value,
        cross: Option<CrossKeyValues<'_>>,
        mode: &Mode,
    ) -> Result<Tensor> {
        let hidden_dropout = self.options.hidden_dropout;
        if let Some(((norm, projections), cross)) = self.cross.as_ref().zip(cross) {
            let options = self.attention_options(cross.segments, false, mode);
            let kv = (chain.input(cross.keys), chain.input(cross.values));
            let normed = chain.norm(x, norm.as_norm());
            let attended =
                projections.cross_attention(&mut chain, normed, kv, None, &options, mode);
            x = chain.residual(x, attended, mode.dropout(hidden_dropout));
        }
        let normed = chain.norm(x, self.feed_forward_norm.as_norm());
        let output = self.feed_forward.append(&mut chain, normed, hidden_dropout, mode);
        chain.residual(x, output, mode.dropout(hidden_dropout));
        Ok(chain.finish()?)
    }

    /// Returns the options of an attention within these segments. Draws a dropout mask.
    fn attention_options(&self, segments: &Segments, causal: bool, mode: &Mode) -> Attention {
        let BlockOptions { num_heads, scale, attention_dropout, .. } = self.options;
        let dropout = mode.dropout(attention_dropout);
        Attention { num_heads, scale, causal, segments: segments.clone(), dropout }
    }
}
