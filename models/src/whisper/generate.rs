//! Texts of clips, for a whole batch at once.

use std::sync::Arc;

use candle_core::{DType, Tensor};

use super::decoder::Decoder;
use super::rules::Rules;
use crate::error::{ModelError, Result};
use crate::generation::cache::Cache;
use crate::generation::{GenerateOptions, Generated, NextTokens, search};
use crate::kernels::{Segments, Span, log_sum};
use crate::speech::AudioStates;
use crate::speech::boosting::BoostTree;

/// What was heard in a clip.
#[derive(Debug, Clone, PartialEq)]
pub struct Heard {
    /// The text.
    pub text: Generated,
    /// The probability that nothing is said, by the token for that; 0 for a vocabulary without it.
    pub no_speech: f32,
}

/// Texts that are being written: what was heard, and what was written so far.
struct Writing<'a> {
    decoder: &'a Decoder,
    rules: &'a Rules,
    /// Keys and values of the clips, of each layer: `[T_k, D]`.
    keys: Vec<(Tensor, Tensor)>,
    /// The states of each clip.
    runs: Vec<Span>,
    written: Cache,
    /// Tokens that are read before the token whose logits say whether something is said.
    before_start: usize,
    /// The probability of each clip that nothing is said.
    no_speech: Vec<f32>,
}

impl Decoder {
    /// The best text of each clip after `prompt`, which every clip's text begins with. No gradient is
    /// kept. The start and end of `options` are not used: those of the prompt and the rules are.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`] for options that cannot be followed; [`ModelError::BadInput`] for an
    /// empty prompt, for more tokens than the model has positions, and for logits that are not
    /// numbers.
    pub fn generate(
        &self,
        audio: &AudioStates,
        prompt: &[u32],
        rules: &Rules,
        options: &GenerateOptions,
    ) -> Result<Vec<Heard>> {
        let Some((last, before)) = prompt.split_last() else {
            return Err(ModelError::BadInput("a prompt without a token".to_string()));
        };
        let options = GenerateOptions {
            start_token_id: *last,
            eos_token_id: rules.tokens.end,
            ..options.clone()
        };
        options.validate(self.config.vocab_size)?;
        let (tokens, most) =
            (prompt.len() + options.max_new_tokens, self.config.max_target_positions);
        if tokens > most + 1 {
            let reason =
                format!("a text of {tokens} tokens with its prompt; the decoder has {most}");
            return Err(ModelError::BadInput(reason));
        }
        let clips = audio.lengths.len();
        if clips == 0 {
            return Ok(Vec::new());
        }
        let states = audio.states.detach();
        let of_layer = |layer: &super::decoder::Layer| {
            let (keys, values) = layer.cross_keys(&states)?;
            Ok((keys.detach(), values.detach()))
        };
        let slots = (clips * options.num_beams, self.config.d_model);
        let start = prompt.iter().position(|token| *token == rules.tokens.start);
        let mut writing = Writing {
            decoder: self,
            rules,
            keys: self.layers.iter().map(of_layer).collect::<Result<_>>()?,
            runs: Segments::packed(&audio.lengths).keys().to_vec(),
            written: Cache::new(self.layers.len(), slots, states.dtype(), states.device())?,
            before_start: start.unwrap_or(usize::MAX),
            no_speech: Vec::new(),
        };
        let first_slots: Vec<usize> = (0..clips).map(|clip| clip * options.num_beams).collect();
        for token in before {
            writing.read(&vec![*token; clips], &first_slots, &vec![1; clips])?;
        }
        let texts = search(clips, &options, &mut writing)?;
        let mut no_speech = writing.no_speech;
        no_speech.resize(clips, 0.0);
        let heard = texts.into_iter().zip(no_speech);
        Ok(heard.map(|(text, no_speech)| Heard { text, no_speech }).collect())
    }
}

impl Writing<'_> {
    /// States `[S, D]` after the last tokens of the texts in `slots`.
    fn read(&mut self, tokens: &[u32], slots: &[usize], counts: &[usize]) -> Result<Tensor> {
        let open = || self.runs.iter().zip(counts).filter(|(_, count)| **count > 0);
        let runs: Arc<[Span]> = open().map(|(run, _)| *run).collect();
        let cross = Segments::to_runs(&open().map(|(_, count)| *count).collect::<Vec<_>>(), runs);
        let place = self.written.length();
        let step = self.written.next(slots)?;
        let places = vec![place as u32; tokens.len()].into();
        let mut x = self.decoder.embed(tokens.into(), places)?.detach();
        let layers = self.decoder.layers.iter().zip(self.written.layers()).zip(&self.keys);
        for ((layer, own), (keys, values)) in layers {
            x = layer.step(&x, (own, &step), (keys, values, &cross))?.detach();
        }
        if place == self.before_start {
            self.no_speech = self.no_speech_of(&x)?;
        }
        Ok(x)
    }

    fn no_speech_of(&self, x: &Tensor) -> Result<Vec<f32>> {
        let Some(token) = self.rules.tokens.no_speech else { return Ok(Vec::new()) };
        let logits = self.decoder.logits(x)?.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        let of_row = |row: &Vec<f32>| {
            row.get(token as usize).map_or(0.0, |logit| (logit - log_sum(row)).exp())
        };
        Ok(logits.iter().map(of_row).collect())
    }
}

impl NextTokens for Writing<'_> {
    fn step(&mut self, tokens: &[u32], slots: &[usize], counts: &[usize]) -> Result<Tensor> {
        let x = self.read(tokens, slots, counts)?;
        Ok(self.decoder.logits(&x)?.detach())
    }

    fn copy(&mut self, pairs: &[(usize, usize)]) -> Result<()> {
        self.written.copy(pairs)
    }

    fn adjust(&self, clip: usize, tokens: &[u32], logits: &mut [f32]) {
        self.rules.apply(clip, tokens, logits);
    }

    fn boost(&self, clip: usize) -> Option<&BoostTree> {
        self.rules.boosts.get(clip)?.as_deref()
    }
}
