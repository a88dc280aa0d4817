//! The list of all metrics of this crate.
//!
//! A new metric needs one file, its `mod` line, and one line in [`METRICS`]: its spelling for
//! reports, its range for intervals, and the function that computes it.

use super::caption::{bleu, cider, rouge_l};
use super::range::Range;
use super::{
    MetricError, MetricInfo, Unit, chrf, kendall, mean, mean_absolute_error, pearson, spearman,
};
use crate::wer::report as wer;
use crate::{aokvqa, haystack, retrieval, vqa};

/// A metric: its definition, its usual spelling and its range.
#[derive(Debug, Clone)]
pub struct Metric {
    /// Name, version, direction and unit.
    pub info: MetricInfo,
    /// The usual spelling, such as `chrF++`. Empty if reports show the name with spaces for
    /// underscores.
    pub spelling: &'static str,
    /// The range of the value, for the interval if all resamples are equal.
    pub range: Range,
    /// How the value is computed from sums; `None` for a metric without sums.
    pub sums: Option<Sums>,
    /// How the value is computed from gold values and predictions; `None` for other metrics.
    pub of_rows: Option<OfRows>,
}

/// Computes a metric of gold values and predictions.
pub type OfRows = fn(&[f64], &[f64]) -> Result<RowMetric, MetricError>;

/// Computes a metric of a resample in which row `i` occurs `counts[i]` times, from `counts`.
pub type OfResample = Box<dyn Fn(&[u32]) -> f64 + Sync>;

/// A metric of gold values and predictions.
pub struct RowMetric {
    /// The value; NaN if it is undefined.
    pub value: f64,
    /// The values of resamples.
    pub of_resample: OfResample,
}

impl RowMetric {
    /// A metric from its value and the function of resamples.
    pub fn new(value: f64, of_resample: impl Fn(&[u32]) -> f64 + Sync + 'static) -> Self {
        Self { value, of_resample: Box::new(of_resample) }
    }
}

/// A metric that is a function of sums over the items, such as n-gram counts.
#[derive(Debug, Clone, Copy)]
pub struct Sums {
    /// Number of sums.
    pub count: usize,
    /// The metric's value from the sums.
    pub value: fn(&[f64]) -> f64,
    /// Computes the sums of one hypothesis and its references; `None` for a metric of other items.
    pub of_text: Option<OfText>,
}

/// Computes the sums of one hypothesis and its references.
pub type OfText = fn(&str, &[&str]) -> Vec<f64>;

pub(super) const FRACTION: Range = Range::new(0.0, 1.0);
const PERCENT: Range = Range::new(0.0, 100.0);
pub(super) const CORRELATION: Range = Range::new(-1.0, 1.0);

/// All metrics. A metric with a cut-off, `recall@10`, is listed without the cut-off.
pub static METRICS: &[Metric] = &[
    without_sums(wer::WER, "WER", FRACTION),
    without_sums(wer::CER, "CER", FRACTION),
    without_sums(wer::MER, "MER", FRACTION),
    without_sums(wer::WIL, "WIL", FRACTION),
    without_sums(wer::WIP, "WIP", FRACTION),
    without_sums(wer::SENTENCE_ERROR_RATE, "", Range::proportion(1.0)),
    from_text(chrf::CHRF, "chrF", PERCENT, chrf::SUMS),
    from_text(chrf::CHRF_PLUS_PLUS, "chrF++", PERCENT, chrf::SUMS_PLUS_PLUS),
    without_sums(bleu::BLEU_1, "BLEU-1", FRACTION),
    without_sums(bleu::BLEU_2, "BLEU-2", FRACTION),
    without_sums(bleu::BLEU_3, "BLEU-3", FRACTION),
    without_sums(bleu::BLEU_4, "BLEU-4", FRACTION),
    without_sums(rouge_l::INFO, "ROUGE-L", FRACTION),
    without_sums(cider::CIDER_D_INFO, "CIDEr-D", Range::new(0.0, 10.0)),
    without_sums(cider::CIDER_INFO, "CIDEr", Range::new(0.0, 10.0)),
    without_sums(vqa::INFO, "VQA accuracy", PERCENT),
    without_sums(aokvqa::DIRECT_ANSWER, "", PERCENT),
    without_sums(aokvqa::MULTIPLE_CHOICE, "", Range::proportion(100.0)),
    without_sums(haystack::ACCURACY, "", Range::proportion(1.0)),
    without_sums(haystack::PLAIN, "", Range::proportion(1.0)),
    without_sums(haystack::STRICT, "", Range::proportion(1.0)),
    without_sums(haystack::COMPLIANCE, "", Range::proportion(1.0)),
    without_sums(retrieval::RECALL, "", FRACTION),
    without_sums(retrieval::SUCCESS, "", Range::proportion(1.0)),
    without_sums(retrieval::MRR, "MRR", FRACTION),
    without_sums(retrieval::MAP, "MAP", FRACTION),
    without_sums(retrieval::NDCG, "nDCG", FRACTION),
    share("efficacy", FRACTION),
    share("generality", FRACTION),
    share("image_generality", FRACTION),
    share("locality", FRACTION),
    share("image_locality", FRACTION),
    share("random_image_locality", FRACTION),
    share("no_image_locality", FRACTION),
    share("consistent_image_locality", FRACTION),
    share("portability", FRACTION),
    share("edit_wise", FRACTION),
    share("hop_wise", Range::proportion(1.0)),
    share("multi_hop", Range::proportion(1.0)),
    share("efficacy_magnitude", Range::new(-1.0, 1.0)),
    share("generality_magnitude", Range::new(-1.0, 1.0)),
    share("locality_magnitude", Range::new(-1.0, 1.0)),
    harmonic("edit_score", 3),
    harmonic("edit_score_without_efficacy", 2),
    share("full_exact_match", Range::proportion(1.0)),
    falling_share("del_on_exact_match", Range::proportion(1.0)),
    falling_share("parametric_leakage", Range::proportion(1.0)),
    falling_share("retrieval_mediated_correctness", Range::proportion(1.0)),
    falling_share("retrieval_artifact_rate", Range::proportion(1.0)),
    share("full_contains_match", Range::proportion(1.0)),
    falling_share("del_on_contains_match", Range::proportion(1.0)),
    falling_share("del_off_contains_match", Range::proportion(1.0)),
    falling_share("full_unknown_rate", Range::proportion(1.0)),
    share("del_on_unknown_rate", Range::proportion(1.0)),
    share("del_off_unknown_rate", Range::proportion(1.0)),
    share("full_f1", FRACTION),
    falling_share("del_on_f1", FRACTION),
    falling_share("del_off_f1", FRACTION),
    share("evqa_em", Range::proportion(1.0)),
    share("evqa", Range::proportion(1.0)),
    share("infoseek", Range::proportion(1.0)),
    share("infoseek_unseen_question", Range::proportion(1.0)),
    share("infoseek_unseen_entity", Range::proportion(1.0)),
    harmonic("infoseek_final", 2),
    share("pseudo_recall", Range::proportion(1.0)),
    share("precision", FRACTION),
    share("retrieval_f1", FRACTION),
    share("retrieval_precision", FRACTION),
    share("retrieval_recall", FRACTION),
    share("exact_match", Range::proportion(1.0)),
    share("f1", FRACTION),
    pearson::METRIC,
    spearman::METRIC,
    kendall::METRIC,
    mean_absolute_error::METRIC,
    mean::MEAN_PREDICTION,
    without_sums(mean::MEAN, "", FRACTION),
];

const fn without_sums(info: MetricInfo, spelling: &'static str, range: Range) -> Metric {
    Metric { info, spelling, range, sums: None, of_rows: None }
}

const fn from_text(info: MetricInfo, spelling: &'static str, range: Range, sums: Sums) -> Metric {
    Metric { info, spelling, range, sums: Some(sums), of_rows: None }
}

/// A mean of values of cases, such as the share of correct answers.
const fn share(name: &'static str, range: Range) -> Metric {
    without_sums(MetricInfo::higher(name, Unit::Fraction), "", range)
}

/// A share of cases for which lower is better.
const fn falling_share(name: &'static str, range: Range) -> Metric {
    without_sums(MetricInfo::lower(name, Unit::Fraction), "", range)
}

/// The harmonic mean of `means` means.
const fn harmonic(name: &'static str, means: usize) -> Metric {
    let sums = Sums { count: 2 * means, value: harmonic_mean, of_text: None };
    from_text(MetricInfo::higher(name, Unit::Fraction), "", FRACTION, sums)
}

/// The harmonic mean of means from the sum and the number of the values of each; 0 if a mean is 0.
pub(crate) fn harmonic_mean(sums: &[f64]) -> f64 {
    let reciprocals: f64 = sums.chunks_exact(2).map(|sums| sums[1] / sums[0]).sum();
    (sums.len() / 2) as f64 / reciprocals
}

impl Metric {
    /// A metric of gold values and predictions.
    pub const fn of_rows(
        info: MetricInfo,
        spelling: &'static str,
        range: Range,
        of_rows: OfRows,
    ) -> Self {
        Self { info, spelling, range, sums: None, of_rows: Some(of_rows) }
    }
}

/// The metrics of gold values and predictions that have a direction, in the order of [`METRICS`].
pub fn row_metrics() -> impl Iterator<Item = &'static Metric> {
    let is_directed = |metric: &&Metric| metric.info.higher_is_better.is_some();
    METRICS.iter().filter(|metric| metric.of_rows.is_some()).filter(is_directed)
}

/// Finds a metric by its name, which may have a cut-off, such as `recall@10`. `None` for an unknown
/// name.
pub fn find(name: &str) -> Option<&'static Metric> {
    let name = base_name(name);
    METRICS.iter().find(|metric| metric.info.name == name)
}

/// The name without its cut-off.
pub(crate) fn base_name(name: &str) -> &str {
    name.split_once('@').map_or(name, |(base, _)| base)
}

/// The usual spelling of a metric's name.
pub(crate) fn spelling(name: &str) -> String {
    if let Some(name) = name.strip_suffix("_difference") {
        return format!("{} difference", spelling(name));
    }
    match find(name).map(|metric| metric.spelling).filter(|spelling| !spelling.is_empty()) {
        Some(spelling) => format!("{spelling}{}", &name[base_name(name).len()..]),
        None => crate::text::words(name),
    }
}

/// The function that computes the named metric from its sums; `None` if the metric is unknown or
/// does not have `count` sums.
pub(crate) fn function_of_sums(name: &str, count: usize) -> Option<fn(&[f64]) -> f64> {
    find(name)?.sums.filter(|sums| sums.count == count).map(|sums| sums.value)
}

/// The metrics of `engram eval text`, in the order of [`METRICS`], each with the function that
/// computes the sums of a text.
pub fn text_metrics() -> impl Iterator<Item = (&'static Metric, OfText)> {
    METRICS.iter().filter_map(|metric| Some((metric, metric.sums?.of_text?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_spelled() {
        let names: std::collections::HashSet<_> =
            METRICS.iter().map(|metric| &metric.info.name).collect();
        assert_eq!(names.len(), METRICS.len());
        for (name, spelled) in [
            ("ndcg@10", "nDCG@10"),
            ("recall@5", "recall@5"),
            ("cider_d", "CIDEr-D"),
            ("chrf++", "chrF++"),
            ("sentence_error_rate", "sentence error rate"),
            ("some_other", "some other"),
            ("cider_d_difference", "CIDEr-D difference"),
        ] {
            assert_eq!(spelling(name), spelled);
        }
    }

    #[test]
    fn a_function_of_sums_needs_the_number_of_sums() {
        assert!(function_of_sums("chrf", 18).is_some());
        assert!(function_of_sums("chrf", 24).is_none() && function_of_sums("wer", 2).is_none());
    }
}
