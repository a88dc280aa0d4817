//! Transcription of a batch of clips.

use candle_core::{DType, Tensor};

use super::context::EarlierContext;
use super::decoder::Decoder;
use super::rules::{DecodingRules, TokenRules};
use crate::error::{Result, bail};
use crate::generation::boosting::BoostTree;
use crate::generation::{GenerateOptions, Generated, NextTokens, search};
use crate::kernels::log_sum_exp;
use crate::pre_norm::DecodingState;
use crate::speech::AudioStates;

/// The transcript of a clip.
#[derive(Debug, Clone, PartialEq)]
pub struct WhisperTranscript {
    /// The generated text.
    pub generated: Generated,
    /// The probability of the no-speech token; 0 if the vocabulary or the prompt lacks the tokens
    /// for it.
    pub no_speech_prob: f32,
}

/// The tokens before the start token of each text.
#[derive(Default)]
struct Prompts<'a> {
    /// The tokens of each clip; all clips have the same number.
    tokens: Vec<Vec<u32>>,
    /// The embeddings of tokens outside of the vocabulary.
    extra: Option<&'a Tensor>,
    /// The index of `<|startoftranscript|>`. The logits after this token give the probability of
    /// the no-speech token.
    start_index: Option<usize>,
}

/// The decoder with its rules and its state.
struct Generator<'a> {
    decoder: &'a Decoder,
    rules: TokenRules<'a>,
    state: DecodingState<'a>,
    prompts: &'a Prompts<'a>,
    /// The no-speech probability of each clip.
    no_speech_probs: Vec<f32>,
}

impl Decoder {
    /// Generates the best text of each clip after the shared `prompt`. The result is detached. The
    /// start and end tokens of `options` are ignored: the last prompt token is the start token, and
    /// the rules have the end token. `earlier` are embeddings before the prompt; each clip has the
    /// same number of them.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`] for invalid options. [`crate::ModelError::BadInput`] for an
    /// empty prompt, too many tokens for the model, and logits that are NaN or plus infinity.
    pub fn generate(
        &self,
        audio: &AudioStates,
        earlier: Option<&EarlierContext>,
        prompt: &[u32],
        rules: &DecodingRules,
        options: &GenerateOptions,
    ) -> Result<Vec<WhisperTranscript>> {
        let Some(last_token) = prompt.last() else {
            bail!("the prompt has no tokens");
        };
        let mut prompts = match earlier {
            Some(earlier) => earlier.prompts(prompt, self.config.vocab_size),
            None => vec![prompt.to_vec(); audio.lengths.len()],
        };
        let length = prompts.first().map_or(0, Vec::len);
        if prompts.len() != audio.lengths.len() || prompts.iter().any(|all| all.len() != length) {
            bail!("each clip needs the same number of embeddings before the prompt");
        }
        let is_start = |token: &u32| *token == rules.tokens.start;
        let start_index = prompts.first().and_then(|prompt| prompt.iter().position(is_start));
        prompts.iter_mut().for_each(|prompt| prompt.truncate(length - 1));
        let options = GenerateOptions {
            start_token_id: *last_token,
            eos_token_id: rules.tokens.end,
            ..options.clone()
        };
        let extra = earlier.map(|earlier| &earlier.embeddings);
        let prompts = Prompts { tokens: prompts, extra, start_index };
        let (texts, mut no_speech_probs) = self.search(audio, &prompts, rules.all(), &options)?;
        no_speech_probs.resize(audio.lengths.len(), 0.0);
        let transcripts = texts.into_iter().zip(no_speech_probs);
        Ok(transcripts
            .map(|(generated, no_speech_prob)| WhisperTranscript { generated, no_speech_prob })
            .collect())
    }

    /// Generates the best text of each clip from the start token to the end token, with at most
    /// `max_tokens[i]` tokens for clip `i`. A text also ends if it repeats itself. The result is
    /// detached.
    ///
    /// # Errors
    /// The errors of [`Decoder::generate`].
    pub fn generate_texts(
        &self,
        audio: &AudioStates,
        options: &GenerateOptions,
        max_tokens: &[usize],
    ) -> Result<Vec<Generated>> {
        let rules = TokenRules { end: options.eos_token_id, max_tokens, special: None };
        let prompts =
            Prompts { tokens: vec![Vec::new(); audio.lengths.len()], ..Prompts::default() };
        Ok(self.search(audio, &prompts, rules, options)?.0)
    }

    /// Generates texts after the prompts. Also returns the no-speech probabilities, if the prompts
    /// have the start token.
    fn search(
        &self,
        audio: &AudioStates,
        prompts: &Prompts<'_>,
        rules: TokenRules<'_>,
        options: &GenerateOptions,
    ) -> Result<(Vec<Generated>, Vec<f32>)> {
        options.validate(self.config.vocab_size)?;
        let prompt_length = prompts.tokens.first().map_or(0, Vec::len);
        let (tokens, max_positions) =
            (prompt_length + 1 + options.max_new_tokens, self.config.max_target_positions);
        if tokens > max_positions + 1 {
            bail!(
                "prompt and text may have {tokens} tokens, but the decoder has {max_positions} \
                 positions"
            );
        }
        let clips = audio.lengths.len();
        if clips == 0 {
            return Ok((Vec::new(), Vec::new()));
        }
        let (states, beams) = (&audio.states, options.num_beams);
        let mut generator = Generator {
            decoder: self,
            rules,
            state: DecodingState::new(&self.layers, states, &audio.lengths, beams)?,
            prompts,
            no_speech_probs: Vec::new(),
        };
        let first_slots: Vec<usize> = (0..clips).map(|clip| clip * options.num_beams).collect();
        for step in 0..prompt_length {
            let tokens: Vec<u32> = prompts.tokens.iter().map(|prompt| prompt[step]).collect();
            generator.forward_step(&tokens, &first_slots, &vec![1; clips])?;
        }
        let texts = search(clips, options, &mut generator)?;
        Ok((texts, generator.no_speech_probs))
    }
}

impl Generator<'_> {
    /// Returns the states `[S, D]` of the last tokens of the texts in `slots`.
    fn forward_step(
        &mut self,
        tokens: &[u32],
        slots: &[usize],
        counts: &[usize],
    ) -> Result<Tensor> {
        let index = self.state.length();
        let positions = vec![index as u32; tokens.len()].into();
        let x = self.decoder.embed(&tokens.into(), positions, self.prompts.extra)?.detach();
        let x = self.state.step(x, slots, counts, |_| Ok(None))?;
        if Some(index) == self.prompts.start_index {
            self.no_speech_probs = self.no_speech_probabilities(&x)?;
        }
        Ok(x)
    }

    /// Returns the probability of the no-speech token for each clip; empty if the vocabulary has
    /// none.
    fn no_speech_probabilities(&self, x: &Tensor) -> Result<Vec<f32>> {
        let Some(token) = self.rules.special.and_then(|rules| rules.tokens.no_speech) else {
            return Ok(Vec::new());
        };
        let logits = self.decoder.logits(x)?.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        let no_speech_probability = |row: &Vec<f32>| {
            row.get(token as usize).map_or(0.0, |logit| (logit - log_sum_exp(row)).exp())
        };
        Ok(logits.iter().map(no_speech_probability).collect())
    }
}

impl NextTokens for Generator<'_> {
    fn step(&mut self, tokens: &[u32], slots: &[usize], counts: &[usize]) -> Result<Tensor> {
        let x = self.forward_step(tokens, slots, counts)?;
        Ok(self.decoder.logits(&x)?.detach())
    }

    fn copy(&mut self, pairs: &[(usize, usize)]) -> Result<()> {
        self.state.copy(pairs)
    }

    fn adjust(&self, clip: usize, tokens: &[u32], logits: &mut [f32]) {
        self.rules.apply(clip, tokens, logits);
    }

    fn boost(&self, clip: usize) -> Option<&BoostTree> {
        self.rules.boost(clip)
    }
}
