//! Generates text with a T5 decoder, in batches.

use candle_core::Tensor;

use super::{Decoder, T5, TokenTable};
use crate::error::Result;
use crate::generation::{GenerateOptions, Generated, NextTokens, search};
use crate::kernels::Mode;
use crate::packed::PackedTokens;
use crate::pre_norm::DecodingState;

impl T5 {
    /// Generates the best output for each text.
    ///
    /// # Errors
    /// See [`Decoder::generate`].
    pub fn generate(
        &self,
        texts: &PackedTokens,
        options: &GenerateOptions,
    ) -> Result<Vec<Generated>> {
        let lengths: Vec<usize> = texts.sequences().iter().map(|span| span.length).collect();
        let states = self.encode(texts, &Mode::inference())?;
        self.decoder.generate(&self.shared, &states, &lengths, options)
    }
}

/// The decoder with its state.
struct Generator<'a> {
    decoder: &'a Decoder,
    table: &'a TokenTable,
    state: DecodingState<'a>,
}

impl Decoder {
    /// Generates the best output for each text from the encoder's states `[T_k, D]`. `lengths`
    /// holds the number of states of each text. No gradient is computed.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig) for invalid options.
    /// [`ModelError::BadInput`](crate::ModelError::BadInput) if the lengths do not sum to the
    /// number of states, or if a logit is NaN or plus infinity.
    pub fn generate(
        &self,
        table: &TokenTable,
        states: &Tensor,
        lengths: &[usize],
        options: &GenerateOptions,
    ) -> Result<Vec<Generated>> {
        options.validate(self.config.vocab_size)?;
        if lengths.is_empty() {
            return Ok(Vec::new());
        }
        super::check_rows(states, lengths)?;
        let state = DecodingState::new(&self.stack.layers, states, lengths, options.num_beams)?;
        search(lengths.len(), options, &mut Generator { decoder: self, table, state })
    }
}

impl NextTokens for Generator<'_> {
    fn step(&mut self, tokens: &[u32], slots: &[usize], counts: &[usize]) -> Result<Tensor> {
        let Decoder { positions, stack, lm_head, .. } = self.decoder;
        let place = std::iter::repeat_n(self.state.length(), tokens.len());
        let x = positions.add(self.table.forward(&tokens.into())?, place)?.detach();
        let bias = |length| Ok(Some(stack.bias.forward(1, length)?.detach()));
        let x = self.state.step(x, slots, counts, bias)?;
        Ok(lm_head.forward(&stack.final_norm.forward(&x)?, &Mode::inference())?.detach())
    }

    fn copy(&mut self, pairs: &[(usize, usize)]) -> Result<()> {
        self.state.copy(pairs)
    }
}
