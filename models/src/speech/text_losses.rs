//! Losses of the texts of clips by a decoder that predicts one token after another.

use std::sync::Arc;

use candle_core::Tensor;

use crate::error::Result;
use crate::kernels::{CrossEntropy, Span, cross_entropy, span_mean};

/// The target of tokens without a loss.
const IGNORED: u32 = u32::MAX;

/// Returns the mean cross-entropy of the tokens of each text and its end token, `[B]`. `logits`
/// `[Σ (P_b + U_b), V]` belong to a prompt of `P_b` tokens, at least one, followed by the text.
pub(crate) fn mean_text_losses(
    logits: &Tensor,
    texts: &[Vec<u32>],
    prompt_tokens: &[usize],
    end: u32,
) -> Result<Tensor> {
    let (mut targets, mut spans) = (Vec::new(), Vec::new());
    for (text, prompt_tokens) in texts.iter().zip(prompt_tokens) {
        targets.resize(targets.len() + prompt_tokens.saturating_sub(1), IGNORED);
        spans.push(Span { start: targets.len(), length: text.len() + 1 });
        targets.extend(text);
        targets.push(end);
    }
    let options =
        CrossEntropy { targets: targets.into(), ignore_index: Some(IGNORED), label_smoothing: 0.0 };
    let losses = cross_entropy(logits, options)?.unsqueeze(1)?;
    Ok(span_mean(&losses, Arc::from(spans))?.squeeze(1)?)
}
