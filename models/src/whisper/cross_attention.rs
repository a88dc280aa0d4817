//! The weights of the decoder's cross-attention, for alignment and analysis.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Tensor};
use rayon::prelude::*;

use super::decoder::Decoder;
use crate::error::{Result, bail};
use crate::kernels::{Segments, Span};
use crate::layers::CrossKeyValues;
use crate::packed::PackedTokens;
use crate::speech::AudioStates;

impl Decoder {
    /// Returns the share of the cross-attention that goes to some encoder states, for each token of
    /// each text: the mean over layers and heads, at the position that predicts the token. The
    /// decoder reads `prompt` before each text. `selected` has the indices of each clip's states.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] if the numbers of clips, texts and ranges differ, the prompt
    /// is empty, a clip has no states, a range ends after its clip, or a text is too long.
    pub fn attention_share(
        &self,
        audio: &AudioStates,
        texts: &[Vec<u32>],
        prompt: &[u32],
        selected: &[Range<usize>],
    ) -> Result<Vec<Vec<f64>>> {
        audio.check_texts(texts)?;
        let is_inside = |(range, length): (&Range<usize>, &usize)| range.end <= *length;
        if selected.len() != texts.len()
            || prompt.is_empty()
            || audio.lengths.contains(&0)
            || !selected.iter().zip(&audio.lengths).all(is_inside)
        {
            bail!("the prompt or a clip is empty, or the ranges do not fit the clips");
        }
        let sequences = texts.iter().map(|text| [prompt, text].concat());
        let inputs = PackedTokens::new(&sequences.collect::<Vec<Vec<u32>>>());
        inputs.check_positions(self.config.max_target_positions)?;
        let clips = Segments::packed(&audio.lengths).keys;
        let (layers, heads) = (self.layers.len(), self.config.decoder_attention_heads);
        let mut shares: Vec<Vec<f64>> = texts.iter().map(|text| vec![0.0; text.len()]).collect();
        let states = audio.states.detach();
        self.visit_cross_attention(&inputs, (&states, clips.clone()), |_, queries, keys| {
            let sequences = inputs.sequences().par_iter();
            let of_text = sequences.zip(clips.par_iter().zip(selected)).zip(&mut shares);
            of_text.try_for_each(|((rows, (clip, selected)), shares)| {
                for head in 0..heads {
                    let mut scores = self.head_scores((queries, *rows), (keys, *clip), head)?;
                    scores.chunks_exact_mut(clip.length).for_each(softmax);
                    let predicting = scores.chunks_exact(clip.length).skip(prompt.len() - 1);
                    for (share, weights) in shares.iter_mut().zip(predicting) {
                        *share += weights[selected.clone()].iter().sum::<f64>();
                    }
                }
                Ok(())
            })
        })?;
        shares.iter_mut().flatten().for_each(|share| *share /= (layers * heads) as f64);
        Ok(shares)
    }

    /// Runs the decoder without dropout and returns the last layer's states `[T, D]`. Calls `visit`
    /// with the index of each layer, and with the queries `[T, D]` and the keys `[F, D]` of its
    /// cross-attention. `clip_spans` are the encoder states that each sequence of `inputs` reads.
    /// All tensors are detached.
    pub(super) fn visit_cross_attention(
        &self,
        inputs: &PackedTokens,
        (states, clip_spans): (&Tensor, Arc<[Span]>),
        mut visit: impl FnMut(usize, &Tensor, &Tensor) -> Result<()>,
    ) -> Result<Tensor> {
        let lengths: Vec<usize> = inputs.sequences().iter().map(|rows| rows.length).collect();
        let cross = Segments::to_key_spans(&lengths, clip_spans);
        let mut x = self.embed(&inputs.ids, inputs.positions.clone(), None)?.detach();
        for (i, layer) in self.layers.iter().enumerate() {
            let (keys, values) = layer.cross_key_values(states)?;
            let (next, queries) = layer.forward_with_queries(
                &x,
                &inputs.segments,
                CrossKeyValues { keys: &keys, values: &values, segments: &cross },
            )?;
            x = next.detach();
            if let Some(queries) = queries {
                visit(i, &queries.detach(), &keys)?;
            }
        }
        Ok(x)
    }

    /// The scaled scores of one head, `[rows, states]`, before the softmax.
    pub(super) fn head_scores(
        &self,
        (queries, rows): (&Tensor, Span),
        (keys, states): (&Tensor, Span),
        head: usize,
    ) -> Result<Vec<f64>> {
        let width = self.config.d_model / self.config.decoder_attention_heads;
        let of_head = |all_heads: &Tensor, rows: Span| {
            let columns = all_heads.narrow(1, head * width, width)?;
            columns.narrow(0, rows.start, rows.length)?.contiguous()
        };
        let (query, key) = (of_head(queries, rows)?, of_head(keys, states)?);
        let scores = query.matmul(&key.t()?)?.to_dtype(DType::F64)?;
        let mut scores = scores.flatten_all()?.to_vec1::<f64>()?;
        let scale = 1.0 / (width as f64).sqrt();
        scores.iter_mut().for_each(|score| *score *= scale);
        Ok(scores)
    }
}

/// Replaces a row by its softmax.
pub(super) fn softmax(row: &mut [f64]) {
    let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    row.iter_mut().for_each(|score| *score = (*score - top).exp());
    let total: f64 = row.iter().sum();
    row.iter_mut().for_each(|score| *score /= total);
}
