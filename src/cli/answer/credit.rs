//! How well attributions predict an answer's log-probability, as ContextCite measures it (arXiv
//! 2409.00729).

use engram_data::messages::counted;
use engram_eval::bootstrap::{BootstrapOptions, Resampling, interval};
use engram_eval::metric::mean::{mean, weighted_mean};
use engram_eval::metric::spearman::spearman;
use engram_infer::reveal::answerer::{Answer, Evidence};
use serde::Serialize;

/// The numbers of best entries whose removal is measured.
const REMOVED: [usize; 3] = [1, 3, 5];

/// The quality of one method's attributions for an answer.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct CreditQuality {
    method: &'static str,
    /// Linear datamodeling score: Spearman's correlation, over all subsets of the entries, of the
    /// sum of their attributions with the answer's log-probability; `None` if it is undefined.
    lds: Option<f64>,
    /// The decrease of the log-probability without the best 1, 3 and 5 entries, in nats.
    drop: [f64; REMOVED.len()],
    /// Forward passes of the method, and backward passes.
    passes: usize,
}

/// The quality of each method for an answer with Shapley values; empty for other answers.
pub(super) fn quality(answer: &Answer) -> Vec<CreditQuality> {
    let (entries, tokens) = (answer.evidence.len(), answer.tokens.len());
    if answer.subsets.is_empty() || entries == 0 {
        return Vec::new();
    }
    let sums = |values: fn(&Evidence) -> &[f64]| -> Vec<f64> {
        answer.evidence.iter().map(|evidence| values(evidence).iter().sum()).collect()
    };
    let prior = answer.evidence.iter().map(|evidence| evidence.prior.unwrap_or_default());
    // The linear model that fits the log-probabilities of all subsets best.
    let least_squares = |entry: usize| {
        let signed = |(subset, value): (usize, &f64)| {
            if subset >> entry & 1 == 1 { *value } else { -value }
        };
        answer.subsets.iter().enumerate().map(signed).sum::<f64>() * 2.0
            / answer.subsets.len() as f64
    };
    [
        ("shapley", sums(|evidence| &evidence.shapley), 1 << entries),
        ("least squares", (0..entries).map(least_squares).collect(), 1 << entries),
        ("leave-one-out", sums(|evidence| &evidence.attribution), 1 + entries),
        ("gradient", sums(|evidence| &evidence.gradient_attribution), 1 + tokens),
        ("fusion weight", prior.collect(), 1),
    ]
    .map(|(method, scores, passes)| {
        let predicted: Vec<f64> = (0..answer.subsets.len())
            .map(|subset| (0..entries).filter(|i| subset >> i & 1 == 1).map(|i| scores[i]).sum())
            .collect();
        let lds = spearman(&predicted, &answer.subsets).ok().filter(|rho| rho.is_finite());
        let mut order: Vec<usize> = (0..entries).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        let all = answer.subsets.len() - 1;
        let without = |removed: usize| {
            order.iter().take(removed).fold(all, |subset, entry| subset & !(1 << entry))
        };
        let drop = REMOVED.map(|removed| answer.subsets[all] - answer.subsets[without(removed)]);
        CreditQuality { method, lds, drop, passes }
    })
    .into()
}

/// The mean quality of each method over the answers, as a table; `None` without any.
pub(super) fn table(answers: &[&[CreditQuality]]) -> Option<String> {
    let answers: Vec<_> = answers.iter().filter(|methods| !methods.is_empty()).collect();
    let first = answers.first()?;
    let mut lines = vec![
        format!(
            "quality of the attributions, mean of {}: LDS is the Spearman correlation of predicted \
             and actual log-probability",
            counted(answers.len(), "answer")
        ),
        "over all subsets of the entries; drop is its decrease without the best 1, 3 and 5 entries, \
         in nats"
            .to_owned(),
        format!(
            "{:<14} {:>22} {:>8} {:>8} {:>8} {:>7}",
            "method", "LDS", "drop 1", "drop 3", "drop 5", "passes"
        ),
    ];
    for (index, CreditQuality { method, .. }) in first.iter().enumerate() {
        let of_method = || answers.iter().map(move |methods| &methods[index]);
        let lds: Vec<f64> = of_method().filter_map(|quality| quality.lds).collect();
        let drops = (0..REMOVED.len()).map(|removed| {
            let drops: Vec<f64> = of_method().map(|quality| quality.drop[removed]).collect();
            format!(" {:>8.3}", mean(&drops))
        });
        let passes: Vec<f64> = of_method().map(|quality| quality.passes as f64).collect();
        lines.push(format!(
            "{method:<14} {:>22}{} {:>7.0}",
            with_interval(&lds),
            drops.collect::<String>(),
            mean(&passes)
        ));
    }
    Some(lines.join("\n"))
}

/// The mean of values of questions, with its interval.
fn with_interval(values: &[f64]) -> String {
    if values.is_empty() {
        return "undefined".to_owned();
    }
    let resampling = Resampling::by_named_row("question", values.len());
    let options = BootstrapOptions::default();
    let range = interval(&resampling, &options, |counts| weighted_mean(values, counts));
    let range = range.map(|range| format!(" [{:.3}, {:.3}]", range.low, range.high));
    format!("{:.3}{}", mean(values), range.unwrap_or_default())
}
