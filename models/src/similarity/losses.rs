//! Losses over scored pairs.
//!
//! Each loss takes `scores` `[N]` and gold scores in `[0, 1]`, and returns a scalar.

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Result, bail};

/// A loss for scored pairs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PairLoss {
    /// `mean (σ(s) - y)²` of logits; bounded, so one bad label cannot dominate.
    Mse,
    /// Binary cross-entropy of logits with graded targets, in nats.
    Bce,
    /// `1 - r`, where `r` is Pearson's correlation of logits and gold scores over the batch. Use
    /// batches of 64 pairs or more. The scale of the scores is arbitrary.
    Pearson,
    /// CoSENT of cosines, which compares pairs of examples, with scale 20.
    Cosent,
    /// `mean (s - y)²` of cosines.
    CosineMse,
    /// Contrastive loss of cosines: gold scores of at least 0.5 count as similar; margin 0.5.
    Contrastive,
}

impl PairLoss {
    /// Returns the loss, a scalar, of `scores` `[N]` and `gold` of the same length.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] if the lengths differ or are 0.
    pub fn loss(self, scores: &Tensor, gold: &[f32]) -> Result<Tensor> {
        if gold.is_empty() || scores.dims() != [gold.len()] {
            bail!("{:?} scores for {} gold scores", scores.dims(), gold.len());
        }
        let gold_tensor =
            Tensor::from_slice(gold, gold.len(), scores.device())?.to_dtype(scores.dtype())?;
        match self {
            Self::Mse => {
                let probability = candle_nn::ops::sigmoid(scores)?;
                Ok((probability - gold_tensor)?.sqr()?.mean_all()?)
            }
            Self::CosineMse => Ok((scores - gold_tensor)?.sqr()?.mean_all()?),
            Self::Bce => binary_cross_entropy(scores, &gold_tensor),
            Self::Pearson => one_minus_pearson(scores, &gold_tensor),
            Self::Cosent => cosent(scores, gold, 20.0),
            Self::Contrastive => contrastive(scores, &gold_tensor, 0.5, 0.5),
        }
    }

    /// Whether the loss takes cosines (scores of a bi-encoder), not logits.
    pub fn takes_cosines(self) -> bool {
        matches!(self, Self::Cosent | Self::CosineMse | Self::Contrastive)
    }
}

/// `max(s, 0) - s y + ln(1 + e^-|s|)`, which never overflows.
fn binary_cross_entropy(scores: &Tensor, gold: &Tensor) -> Result<Tensor> {
    let log_term = (scores.abs()?.neg()?.exp()? + 1.0)?.log()?;
    Ok(((scores.relu()? - (scores * gold)?)? + log_term)?.mean_all()?)
}

/// `1 - r`. The denominator is at least 1e-6, so constant scores give 1, not NaN.
fn one_minus_pearson(scores: &Tensor, gold: &Tensor) -> Result<Tensor> {
    let scores = scores.broadcast_sub(&scores.mean_all()?)?;
    let gold = gold.broadcast_sub(&gold.mean_all()?)?;
    let product = (&scores * &gold)?.sum_all()?;
    let squares = (scores.sqr()?.sum_all()? * gold.sqr()?.sum_all()?)?;
    let r = (product / (squares + 1e-12)?.sqrt()?)?;
    Ok((1.0 - r)?)
}

/// CoSENT (Su 2022; `CoSENTLoss` of `sentence-transformers`): `ln(1 + Σ e^(λ (sᵢ - sⱼ)))` over all
/// `i, j` with gold scores `yᵢ < yⱼ`, where `λ` is `scale`. It is small if scores rank the pairs as
/// gold scores do, and 0 if all gold scores are equal. `scores` and `gold` `[N]` → a scalar.
///
/// # Requirements
/// Scores are cosines. Only the order of gold scores matters. Larger batches give more comparisons.
pub fn cosent(scores: &Tensor, gold: &[f32], scale: f64) -> Result<Tensor> {
    let n = gold.len();
    let (mut lower, mut higher) = (Vec::new(), Vec::new());
    for i in 0..n {
        for j in 0..n {
            if gold[i] < gold[j] {
                lower.push(i as u32);
                higher.push(j as u32);
            }
        }
    }
    let count = lower.len();
    if count == 0 {
        return Ok((scores.sum_all()? * 0.0)?);
    }
    let pick = |ids: Vec<u32>| {
        let ids = Tensor::from_vec(ids, count, scores.device())?;
        scores.index_select(&ids, 0)
    };
    let differences = ((pick(lower)? - pick(higher)?)? * scale)?;
    // ln(1 + Σ e^d), computed relative to the largest of 0 and all d to avoid overflow.
    let top = differences.detach().max(0)?.relu()?;
    let sum = differences.broadcast_sub(&top)?.exp()?.sum_all()?;
    Ok(((sum + top.neg()?.exp()?)?.log()? + top)?)
}

/// The contrastive loss of Hadsell et al. (CVPR 2006) with distance `d = 1 - s`: the mean of `½ d²`
/// for similar pairs (gold ≥ `threshold`) and `½ max(margin - d, 0)²` for others. `scores` and
/// `gold` `[N]` → a scalar.
///
/// # Requirements
/// Scores are cosines. Gold scores are only compared with the threshold.
pub fn contrastive(scores: &Tensor, gold: &Tensor, threshold: f64, margin: f64) -> Result<Tensor> {
    let similar = gold.ge(threshold)?.to_dtype(scores.dtype())?;
    let distance = (1.0 - scores)?;
    let dissimilar = (margin - &distance)?.relu()?.sqr()?;
    let loss = ((&similar * distance.sqr()?)? + ((1.0 - &similar)? * dissimilar)?)?;
    Ok((loss.mean_all()? * 0.5)?)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::finite_difference::check_gradients;

    const GOLD: [f32; 5] = [0.0, 0.25, 0.5, 0.5, 1.0];
    const SCORES: [f64; 5] = [0.1, -0.3, 0.9, 0.2, 0.4];

    #[test]
    fn every_loss_has_correct_gradients() -> Result<()> {
        for loss in [
            PairLoss::Mse,
            PairLoss::Bce,
            PairLoss::Pearson,
            PairLoss::Cosent,
            PairLoss::CosineMse,
            PairLoss::Contrastive,
        ] {
            check_gradients(&[(SCORES.to_vec(), &[5])], |t| loss.loss(&t[0], &GOLD))?;
        }
        Ok(())
    }

    #[test]
    fn bce_cosent_and_pearson_losses_match_their_formulas() -> Result<()> {
        let scores = Tensor::from_slice(&SCORES, 5, &Device::Cpu)?;
        let value = |loss: PairLoss| {
            loss.loss(&scores, &GOLD)?.to_scalar::<f64>().map_err(crate::ModelError::from)
        };
        let pairs = SCORES.iter().zip(GOLD.map(f64::from));
        let bce: f64 = pairs
            .clone()
            .map(|(s, y)| {
                let p = 1.0 / (1.0 + (-s).exp());
                -(y * p.ln() + (1.0 - y) * (1.0 - p).ln())
            })
            .sum::<f64>()
            / 5.0;
        assert!((value(PairLoss::Bce)? - bce).abs() < 1e-12);
        let mut sum_of_exponentials = 1.0;
        for (s_i, y_i) in pairs.clone() {
            for (s_j, y_j) in pairs.clone() {
                if y_i < y_j {
                    sum_of_exponentials += (20.0 * (s_i - s_j)).exp();
                }
            }
        }
        assert!((value(PairLoss::Cosent)? - sum_of_exponentials.ln()).abs() < 1e-9);
        let (mean_s, mean_y) = (SCORES.iter().sum::<f64>() / 5.0, 0.45);
        let (mut product, mut s2, mut y2) = (0.0, 0.0, 0.0);
        for (s, y) in pairs {
            product += (s - mean_s) * (y - mean_y);
            s2 += (s - mean_s).powi(2);
            y2 += (y - mean_y).powi(2);
        }
        assert!((value(PairLoss::Pearson)? - (1.0 - product / (s2 * y2).sqrt())).abs() < 1e-9);
        Ok(())
    }

    /// The gradients of `max(s, 0)` and `|s|` at 0 must be consistent.
    #[test]
    fn binary_cross_entropy_has_the_correct_gradient_at_0() -> Result<()> {
        let score = candle_core::Var::new(&[0f64], &Device::Cpu)?;
        let gradients = PairLoss::Bce.loss(score.as_tensor(), &[0.25])?.backward()?;
        let gradient = gradients.get(score.as_tensor()).expect("a gradient").to_vec1::<f64>()?;
        assert_eq!(gradient, [0.25]);
        Ok(())
    }

    #[test]
    fn equal_gold_scores_give_a_finite_loss() -> Result<()> {
        let scores = Tensor::from_slice(&SCORES, 5, &Device::Cpu)?;
        for loss in [PairLoss::Pearson, PairLoss::Cosent] {
            let value = loss.loss(&scores, &[0.5; 5])?.to_scalar::<f64>()?;
            assert!(value.is_finite(), "{loss:?}: {value}");
        }
        Ok(())
    }
}
