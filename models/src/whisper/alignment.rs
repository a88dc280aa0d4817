//! Token timestamps from the cross-attention of alignment heads, by dynamic time warping.
//!
//! Reference: `find_alignment` of openai/whisper, `whisper/timing.py`, and `WhisperReplica::align`
//! of CTranslate2, `src/models/whisper.cc`. There are two differences:
//! - If a head attends equally to a state from all tokens, its weight for that state is 0. The
//!   reference divides by 0.
//! - The end token is omitted if the decoder has no position left for it.

mod path;

use candle_core::{DType, Tensor};
use rayon::prelude::*;

use super::config::WhisperConfig;
use super::cross_attention::softmax;
use super::decoder::Decoder;
use crate::config::bad_field;
use crate::error::{Result, bail};
use crate::kernels::{Segments, Span, log_sum_exp};
use crate::packed::PackedTokens;
use crate::speech::AudioStates;
use path::{cheapest_path, smooth};

/// Maximum number of rows of logits in memory at the same time.
const ROWS_AT_ONCE: usize = 128;

/// The heads of the decoder's cross-attention that align tokens with audio.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlignmentHeads {
    /// Pairs of layer and head.
    heads: Vec<[usize; 2]>,
}

impl AlignmentHeads {
    /// Selects the heads `[layer, head]` in `alignment_heads` of a published
    /// `generation_config.json`. If `published` is empty, selects all heads in the upper half of
    /// the layers, as openai/whisper does.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`] if the model does not have one of the heads.
    pub fn new(published: &[[usize; 2]], config: &WhisperConfig) -> Result<Self> {
        let (layers, heads) = (config.decoder_layers, config.decoder_attention_heads);
        let exists = |[layer, head]: &[usize; 2]| *layer < layers && *head < heads;
        if let Some([layer, head]) = published.iter().find(|head| !exists(head)) {
            let reason = format!(
                "the head [{layer}, {head}] does not exist: the decoder has {layers} layers of \
                 {heads} heads, counted from 0"
            );
            return Err(bad_field("alignment_heads", reason));
        }
        let upper =
            (layers / 2..layers).flat_map(|layer| (0..heads).map(move |head| [layer, head]));
        Ok(Self { heads: if published.is_empty() { upper.collect() } else { published.to_vec() } })
    }
}

/// The text to align with a clip.
#[derive(Debug, Clone, Copy)]
pub struct AlignmentText<'a> {
    /// The word tokens, without special tokens and timestamps.
    pub tokens: &'a [u32],
    /// The number of encoder states of the clip's audio, without padding. 0 counts as 1.
    pub num_states: usize,
}

/// The times of a text's tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Alignment {
    /// The index of the encoder state at which each token starts, then the index at which the last
    /// token ends: `[L + 1]`. Empty if the text has no tokens. Values never decrease.
    pub starts: Vec<usize>,
    /// The probability of each word token given the previous tokens, normalised over word tokens:
    /// `[L]`.
    pub probabilities: Vec<f32>,
    /// The cross-attention from the positions that predict each token, and then the end token, to
    /// each of the clip's `F` encoder states: `[L + 1, F]`. Each head's attention is standardised
    /// over the tokens and smoothed; the heads are averaged.
    pub weights: Vec<f64>,
}

/// A text during alignment.
struct TextAlignment<'a> {
    text: &'a [u32],
    /// The rows of prompt, text and end token in the decoder input.
    rows: Span,
    /// The index of the last prompt token within `rows`.
    last_prompt_index: usize,
    /// The encoder states of the text's clip, without padding.
    states: Span,
    weights: Vec<f64>,
}

impl Decoder {
    /// Aligns each clip's text with its audio. The decoder reads `prompt` before each text and
    /// `end` after it. The last prompt token is the no-timestamps token. Word tokens are the ids
    /// below `end`. The result is detached.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] in these cases:
    /// - The numbers of texts and clips differ.
    /// - Prompt and text together have more tokens than the model has positions.
    /// - A token is not a word token.
    /// - The prompt is empty.
    /// - A clip has no states.
    pub fn align(
        &self,
        audio: &AudioStates,
        texts: &[AlignmentText<'_>],
        prompt: &[u32],
        end: u32,
        heads: &AlignmentHeads,
    ) -> Result<Vec<Alignment>> {
        if texts.len() != audio.lengths.len() {
            let (texts, clips) = (texts.len(), audio.lengths.len());
            bail!("{texts} texts but {clips} clips");
        }
        if prompt.is_empty() || audio.lengths.contains(&0) {
            bail!("the prompt has no tokens, or a clip has no states");
        }
        let end_of_words = (end as usize).min(self.config.vocab_size);
        let mut tokens = texts.iter().flat_map(|text| text.tokens);
        if let Some(token) = tokens.find(|token| **token as usize >= end_of_words) {
            bail!("token {token} is not a word token");
        }
        let mut alignments = vec![Alignment::default(); texts.len()];
        let clips: Vec<usize> = (0..texts.len()).filter(|i| !texts[*i].tokens.is_empty()).collect();
        if clips.is_empty() {
            return Ok(alignments);
        }
        let positions = self.config.max_target_positions;
        let sequence = |text: &[u32]| {
            let mut inputs = [prompt, text].concat();
            inputs.extend((inputs.len() < positions).then_some(end));
            inputs
        };
        let inputs = PackedTokens::new(
            &clips.iter().map(|clip| sequence(texts[*clip].tokens)).collect::<Vec<_>>(),
        );
        inputs.check_positions(positions)?;
        let audio_segments = Segments::packed(&audio.lengths);
        let mut texts: Vec<TextAlignment<'_>> = clips
            .iter()
            .zip(inputs.sequences().iter())
            .map(|(clip, rows)| {
                let Span { start, length } = audio_segments.keys[*clip];
                let AlignmentText { tokens: text, num_states } = texts[*clip];
                let states = Span { start, length: num_states.clamp(1, length) };
                let weights = vec![0.0; (text.len() + 1) * states.length];
                TextAlignment {
                    text,
                    rows: *rows,
                    last_prompt_index: prompt.len() - 1,
                    states,
                    weights,
                }
            })
            .collect();
        let clip_spans = clips.iter().map(|clip| audio_segments.keys[*clip]).collect();
        let x = self.attend(&inputs, (&audio.states.detach(), clip_spans), heads, &mut texts)?;
        let probabilities = self.probabilities(&x, &texts, end_of_words)?;
        for ((clip, text), probabilities) in clips.into_iter().zip(texts).zip(probabilities) {
            let costs: Vec<f64> = text.weights.iter().map(|weight| -weight).collect();
            let mut starts = Vec::with_capacity(text.text.len() + 1);
            for (row, state) in cheapest_path(&costs, text.states.length) {
                if row == starts.len() {
                    starts.push(state);
                }
            }
            alignments[clip] = Alignment { starts, probabilities, weights: text.weights };
        }
        Ok(alignments)
    }

    /// Accumulates the attention weights of the texts and returns the last layer's states `[T, D]`.
    /// `clip_spans` are the spans of the encoder states of the clips with texts.
    fn attend(
        &self,
        inputs: &PackedTokens,
        (states, clip_spans): (&Tensor, std::sync::Arc<[Span]>),
        heads: &AlignmentHeads,
        texts: &mut [TextAlignment<'_>],
    ) -> Result<Tensor> {
        let head_weight = 1.0 / heads.heads.len() as f64;
        self.visit_cross_attention(inputs, (states, clip_spans), |layer, queries, keys| {
            let in_layer = heads.heads.iter().filter(|head| head[0] == layer);
            let layer_heads: Vec<usize> = in_layer.map(|head| head[1]).collect();
            texts.par_iter_mut().try_for_each(|text| {
                layer_heads.iter().try_for_each(|head| {
                    let (queries, keys) = ((queries, text.rows), (keys, text.states));
                    text.add_head(self.head_scores(queries, keys, *head)?, head_weight);
                    Ok(())
                })
            })
        })
    }

    /// Returns the probability of each text token among word tokens, from the last layer's states
    /// `[T, D]`.
    fn probabilities(
        &self,
        x: &Tensor,
        texts: &[TextAlignment<'_>],
        end_of_words: usize,
    ) -> Result<Vec<Vec<f32>>> {
        // Each token is predicted by the row before it.
        let rows = |text: &TextAlignment<'_>| {
            x.narrow(0, text.rows.start + text.last_prompt_index, text.text.len())
        };
        let rows = Tensor::cat(&texts.iter().map(rows).collect::<Result<Vec<_>, _>>()?, 0)?;
        let tokens: Vec<u32> = texts.iter().flat_map(|text| text.text.iter().copied()).collect();
        let mut probabilities = Vec::with_capacity(tokens.len());
        for (i, tokens) in tokens.chunks(ROWS_AT_ONCE).enumerate() {
            let rows = rows.narrow(0, i * ROWS_AT_ONCE, tokens.len())?;
            let logits = self.logits(&rows)?.detach().to_dtype(DType::F32)?.to_vec2::<f32>()?;
            probabilities.par_extend(logits.par_iter().zip(tokens).map(|(row, token)| {
                let words = &row[..end_of_words.min(row.len())];
                let logit = row.get(*token as usize).copied().unwrap_or(f32::NEG_INFINITY);
                (logit - log_sum_exp(words)).exp()
            }));
        }
        let mut probabilities = probabilities.into_iter();
        Ok(texts
            .iter()
            .map(|text| probabilities.by_ref().take(text.text.len()).collect())
            .collect())
    }
}

impl TextAlignment<'_> {
    /// Adds the attention of a head, times `head_weight`. The attention is the softmax of `scores`
    /// `[rows, states]`, standardised over the rows and smoothed over the states.
    fn add_head(&mut self, mut scores: Vec<f64>, head_weight: f64) {
        let width = self.states.length;
        scores.chunks_exact_mut(width).for_each(softmax);
        for state in 0..width {
            let column = || scores.iter().skip(state).step_by(width);
            let count = self.rows.length as f64;
            let mean = column().sum::<f64>() / count;
            let variance = column().map(|score| (score - mean).powi(2)).sum::<f64>() / count;
            let factor = if variance > 0.0 { 1.0 / variance.sqrt() } else { 0.0 };
            for score in scores.iter_mut().skip(state).step_by(width) {
                *score = (*score - mean) * factor;
            }
        }
        let rows = scores.chunks_exact(width).skip(self.last_prompt_index);
        for (sums, row) in self.weights.chunks_exact_mut(width).zip(rows) {
            for (sum, score) in sums.iter_mut().zip(smooth(row)) {
                *sum += head_weight * score;
            }
        }
    }
}
