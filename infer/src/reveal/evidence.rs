//! Attribution of an answer: the contribution of each retrieved entry to each generated token.
//!
//! - **Exact**: the decrease of the token's log-probability if the entry had not been retrieved
//!   (leave-one-out; one forward pass per entry).
//! - **Gradient**: a first-order estimate of the exact attribution, from the derivative with
//!   respect to the entry's fusion weight (one backward pass per token, for any number of entries).
//!
//! The paper names attribution as future work. Deletion curves (Petsiuk et al., arXiv 1806.07421)
//! measure how good an attribution is: entries are removed in the order of their attribution. The
//! better the order, the sooner the answer's log-probability falls.

use candle_core::{DType, Tensor, Var};
use engram_models::compute::to_host;
use engram_models::kernels::{CrossEntropy, Mode, cross_entropy};
use engram_models::packed::PackedTokens;
use engram_models::reveal::{BaseStates, Retrieved};
use serde::Serialize;

use super::forward::{EntriesOfQueries, Forward};
use super::sequences::Target;
use crate::error::Result;

/// The attribution of entries for the tokens of an answer, in nats.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Attribution {
    /// The log-probability of each token with all entries.
    pub log_probabilities: Vec<f64>,
    /// For each entry and token, the decrease of the log-probability without the entry.
    pub exact: Vec<Vec<f64>>,
    /// The first-order estimate of `exact`, from the gradient.
    pub gradient: Vec<Vec<f64>>,
}

/// A query, its retrieved entries, and the answer to attribute.
pub struct AttributionCase<'a> {
    /// The forward passes.
    pub forward: Forward<'a>,
    /// The query's states from the base encoder.
    pub base: BaseStates,
    /// The query vector, `[1, key_dim]`.
    pub query: Tensor,
    /// The retrieved entries, best first.
    pub entries_to_fuse: EntriesOfQueries,
    /// The answer.
    pub target: Target,
}

impl AttributionCase<'_> {
    /// Computes the attribution of each entry.
    pub fn attribution(&self) -> Result<Attribution> {
        let entries = self.entries_to_fuse[0].len();
        // The first subset has all entries; each other subset lacks one entry.
        let all_entries: Vec<usize> = (0..entries).collect();
        let mut subsets = vec![all_entries.clone()];
        subsets.extend((0..entries).map(|excluded| {
            all_entries.iter().copied().filter(|entry| *entry != excluded).collect::<Vec<usize>>()
        }));
        let mut passes = self.log_probabilities(&subsets)?;
        let without_entry = passes.split_off(1);
        let log_probabilities = passes.swap_remove(0);
        let decrease = |without: &Vec<f64>| -> Vec<f64> {
            log_probabilities.iter().zip(without).map(|(with, without)| with - without).collect()
        };
        let exact: Vec<Vec<f64>> = without_entry.iter().map(decrease).collect();
        Ok(Attribution { log_probabilities, exact, gradient: self.gradient_attribution()? })
    }

    /// The answer's log-probability as the entries are deleted one by one in this order, from all
    /// entries to none.
    pub fn deletion_curve(&self, order: &[usize]) -> Result<Vec<f64>> {
        let subsets: Vec<Vec<usize>> =
            (0..=order.len()).map(|deleted| order[deleted..].to_vec()).collect();
        let tokens = self.log_probabilities(&subsets)?;
        Ok(tokens.iter().map(|tokens| tokens.iter().sum()).collect())
    }

    /// The log-probability of each answer token, for each subset of the entries.
    pub(super) fn log_probabilities(&self, subsets: &[Vec<usize>]) -> Result<Vec<Vec<f64>>> {
        let mode = Mode::inference();
        let all_entries = &self.entries_to_fuse[0];
        let base = self.base.select(&vec![0; subsets.len()])?;
        let queries = self.query.broadcast_as((subsets.len(), self.query.dim(1)?))?.contiguous()?;
        let entries: EntriesOfQueries = subsets
            .iter()
            .map(|subset| {
                let mut subset = subset.clone();
                // The entries of a subset stay in the order of retrieval.
                subset.sort_unstable();
                subset.into_iter().map(|entry| all_entries[entry]).collect()
            })
            .collect();
        let fused = self.forward.fuse(&base, &queries, &entries, &[], &mode)?;
        let tokens = self.target.input.len();
        let losses = to_host(&self.losses(&fused.states, subsets.len())?)?;
        let negated = |losses: &[f32]| losses.iter().map(|loss| -f64::from(*loss)).collect();
        Ok(losses.chunks(tokens.max(1)).map(negated).collect())
    }

    /// The estimated attribution. For each entry and token: the entry's fusion weight, times the
    /// derivative of the token's log-probability with respect to this weight.
    fn gradient_attribution(&self) -> Result<Vec<Vec<f64>>> {
        let mode = Mode::evaluate();
        let entries = self.entries_to_fuse[0].len();
        let (prior, values) = self.forward.read(&self.query, &self.entries_to_fuse)?;
        let weights = Var::from_tensor(&prior.to_dtype(DType::F32)?)?;
        let counts = [entries];
        let retrieved = Retrieved { counts: &counts, prior: weights.as_tensor(), values: &values };
        let states = self.forward.model.fuse(&self.base, Some(&retrieved), &mode)?;
        let losses = self.losses(&states, 1)?;
        let mut attribution = vec![Vec::new(); entries];
        let prior = to_host(&prior)?;
        for token in 0..losses.dim(0)? {
            let gradients = losses.get(token)?.backward()?;
            let gradient = match gradients.get(weights.as_tensor()) {
                Some(gradient) => to_host(gradient)?,
                None => vec![0.0; entries],
            };
            // The loss is the negative log-probability. Removing an entry sets its weight to 0.
            for ((attribution, gradient), prior) in attribution.iter_mut().zip(gradient).zip(&prior)
            {
                attribution.push(-f64::from(gradient) * f64::from(*prior));
            }
        }
        Ok(attribution)
    }

    /// The negative log-probability of each token, for each of `copies` fused queries: `[copies
    /// L]`.
    fn losses(&self, states: &BaseStates, copies: usize) -> Result<Tensor> {
        let inputs = vec![self.target.input.as_slice(); copies];
        let mode = Mode::evaluate();
        let logits = self.forward.model.decode(&PackedTokens::new(&inputs), states, &mode)?;
        let targets = self.target.output.repeat(copies);
        let options =
            CrossEntropy { targets: targets.into(), ignore_index: None, label_smoothing: 0.0 };
        Ok(cross_entropy(&logits, options)?)
    }
}

/// The indices of entries by descending attribution for the whole answer. `attribution` has one
/// list of token attributions per entry.
pub fn order(attribution: &[Vec<f64>]) -> Vec<usize> {
    let sum = |entry: &usize| attribution[*entry].iter().sum::<f64>();
    let mut order: Vec<usize> = (0..attribution.len()).collect();
    order.sort_by(|a, b| sum(b).total_cmp(&sum(a)));
    order
}

/// The area under a curve by the trapezoidal rule, on a horizontal axis from 0 to 1.
pub fn area(curve: &[f64]) -> f64 {
    let pairs = curve.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    pairs.sum::<f64>() / curve.len().saturating_sub(1).max(1) as f64
}
