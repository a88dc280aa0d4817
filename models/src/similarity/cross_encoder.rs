//! The cross-encoder: scores pairs of an anchor phrase and a target phrase, within a context.
//!
//! Two input layouts share this code. `title` is the title of the context, a patent class.
//!
//! - *Pair by pair*: one sequence `anchor [SEP] target [SEP] title …` per pair, scored from the
//!   whole sequence.
//! - *Listwise*: one sequence `anchor [SEP] title [SEP] target₁ [SEP] target₂ …` for all pairs of
//!   an anchor. Each target is scored from its own tokens and attends to all competing targets.
//!   The pairs share the tokens of anchor and title.

use std::sync::Arc;

use candle_core::{D, Tensor};

use crate::compute::full_precision;
use crate::error::Result;
use crate::kernels::{Mode, Span, dropout};
use crate::layers::Linear;
use crate::packed::PackedTokens;
use crate::params::ParameterBuilder;
use crate::similarity::bi_encoder::normalise;
use crate::similarity::pooling::{Pooling, SpanPooler};
use crate::text_encoder::TextEncoder;

/// The settings of the scoring head.
#[derive(Debug, Clone)]
pub struct CrossEncoderConfig {
    /// The pooling of a scored span's states into one vector.
    pub pooling: Pooling,
    /// Whether the head also gets comparisons of the target vector `t` with the anchor vector `a`:
    /// `|t - a|`, the element-wise product `t a`, and the cosine.
    pub compare_anchor: bool,
    /// The dropout probability before the head.
    pub head_dropout: f64,
    /// Whether the score has a bias. [`PairLoss::Pearson`](super::PairLoss::Pearson) ignores
    /// shifts, so a bias gets no gradient from it.
    pub score_bias: bool,
}

/// The scored spans of a packed batch, one item per pair.
#[derive(Debug, Clone)]
pub struct ScoredSpans {
    /// The scored span of each pair, whose states are pooled: the target or, pair by pair, the
    /// whole sequence.
    pub targets: Arc<[Span]>,
    /// The span of each pair's anchor, in the same sequence.
    pub anchors: Arc<[Span]>,
}

/// An encoder with a head that scores each span.
#[derive(Debug, Clone)]
pub struct CrossEncoder {
    config: CrossEncoderConfig,
    /// The text encoder.
    pub encoder: TextEncoder,
    pooler: SpanPooler,
    head: Linear,
}

/// The factor on the cosine, which brings it to the scale of the other features.
const COSINE_SCALE: f64 = 4.0;

impl CrossEncoder {
    /// Adds a scoring head to an encoder; its parameters are named `head.…`.
    pub fn new(
        config: CrossEncoderConfig,
        encoder: TextEncoder,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let (d, head) = (encoder.hidden_size(), builder.pp("head"));
        let features = if config.compare_anchor { 3 * d + 1 } else { d };
        let std = 1.0 / (features as f64).sqrt() / 3.0;
        let new_linear = if config.score_bias { Linear::new } else { Linear::without_bias };
        Ok(Self {
            encoder,
            pooler: SpanPooler::new(config.pooling, d, &head.pp("pooling"))?,
            head: new_linear(features, 1, std, &head.pp("score"))?,
            config,
        })
    }

    /// Returns one score (a logit) for each of the `N` spans: `[N]`.
    pub fn score(&self, tokens: &PackedTokens, spans: &ScoredSpans, mode: &Mode) -> Result<Tensor> {
        let states = self.encoder.encode(tokens, mode)?;
        let target = full_precision(&self.pooler.forward(&states, &spans.targets)?)?;
        let features = if self.config.compare_anchor {
            let anchor =
                full_precision(&crate::kernels::span_mean(&states, spans.anchors.clone())?)?;
            let cosine = (normalise(&target)? * normalise(&anchor)?)?.sum_keepdim(D::Minus1)?;
            let difference = absolute(&(&target - &anchor)?)?;
            let product = (&target * &anchor)?;
            Tensor::cat(&[target, difference, product, (cosine * COSINE_SCALE)?], D::Minus1)?
        } else {
            target
        };
        let features = dropout(&features, mode.dropout(self.config.head_dropout))?;
        Ok(full_precision(&self.head.forward(&features, mode)?)?.squeeze(D::Minus1)?)
    }
}

/// `|x|` of any shape. Its gradient at 0 is 0, as in PyTorch (candle's is 1).
fn absolute(x: &Tensor) -> Result<Tensor> {
    Ok((x * x.detach().sign()?)?)
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    #[test]
    fn the_gradient_of_the_absolute_value_at_0_is_0() -> Result<()> {
        let x = Var::new(&[-2f32, 0.0, 3.0], &Device::Cpu)?;
        let y = absolute(x.as_tensor())?;
        assert_eq!(y.to_vec1::<f32>()?, [2.0, 0.0, 3.0]);
        let gradients = y.sum_all()?.backward()?;
        let gradient = gradients.get(x.as_tensor()).expect("a gradient").to_vec1::<f32>()?;
        assert_eq!(gradient, [-1.0, 0.0, 1.0]);
        Ok(())
    }
}
