//! The state of a decoder while texts are generated.
//!
//! The cross-attention keys and values of an input are computed once and shared by its beams. A
//! cache keeps the keys and values of the output from token to token.

use std::sync::Arc;

use candle_core::Tensor;

use super::PreNormBlock;
use crate::error::Result;
use crate::generation::cache::KeyValueCache;
use crate::kernels::{Segments, Span};
use crate::layers::CrossKeyValues;

/// The encoded inputs, and the cache of the outputs so far.
pub(crate) struct DecodingState<'a> {
    blocks: &'a [PreNormBlock],
    /// Keys and values of the inputs, per block: `[T_k, W]`.
    keys: Vec<(Tensor, Tensor)>,
    /// The rows of each input in `keys`.
    input_spans: Arc<[Span]>,
    cache: KeyValueCache,
}

impl<'a> DecodingState<'a> {
    /// Starts the outputs of inputs with these encoder states `[T_k, D]` and lengths.
    pub(crate) fn new(
        blocks: &'a [PreNormBlock],
        states: &Tensor,
        lengths: &[usize],
        num_beams: usize,
    ) -> Result<Self> {
        let states = states.detach();
        let keys = blocks.iter().map(|block| block.cross_key_values(&states));
        let keys = keys.collect::<Result<Vec<(Tensor, Tensor)>>>()?;
        let width = keys.first().map_or(Ok(1), |(keys, _)| keys.dim(1))?;
        let slots = lengths.len() * num_beams;
        let cache =
            KeyValueCache::new(blocks.len(), slots, width, states.dtype(), states.device())?;
        Ok(Self { blocks, keys, input_spans: Segments::packed(lengths).keys, cache })
    }

    /// The number of tokens of each output so far.
    pub(crate) fn length(&self) -> usize {
        self.cache.length
    }

    /// Runs the blocks for the next row of each output, `[S, D]` → `[S, D]`, detached. `slots` and
    /// `counts` are those of [`crate::generation::NextTokens::step`]. `bias` returns the relative
    /// biases `[H, 1, L]` for `L` rows.
    pub(crate) fn step(
        &mut self,
        mut x: Tensor,
        slots: &[usize],
        counts: &[usize],
        bias: impl Fn(usize) -> Result<Option<Tensor>>,
    ) -> Result<Tensor> {
        let unfinished = self.input_spans.iter().zip(counts).filter(|(_, count)| **count > 0);
        let (spans, counts): (Vec<Span>, Vec<usize>) = unfinished.unzip();
        let cross = Segments::to_key_spans(&counts, spans.into());
        let step = self.cache.next(slots)?;
        let bias = bias(self.cache.length)?;
        let blocks = self.blocks.iter().zip(&self.cache.layers).zip(&self.keys);
        for ((block, cache), (keys, values)) in blocks {
            let cross = CrossKeyValues { keys, values, segments: &cross };
            x = block.step(&x, bias.as_ref(), cache, &step, cross)?.detach();
        }
        Ok(x)
    }

    /// Copies the output of the first slot of each pair to the second.
    pub(crate) fn copy(&self, pairs: &[(usize, usize)]) -> Result<()> {
        self.cache.copy(pairs)
    }
}
