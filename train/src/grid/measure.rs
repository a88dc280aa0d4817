//! Metrics of a configuration's runs, and paired differences of two configurations.

use std::collections::HashMap;
use std::path::Path;

use engram_eval::bootstrap::{BootstrapOptions, Resampling, interval};
use engram_eval::items::{Item, Statistic};
use engram_eval::metric::MetricInfo;
use engram_eval::result::Measure;
use engram_eval::significance::p_value;

use super::study::{AblationStudy, MetricQuery};
use super::verdict::{Rule, Test};
use crate::error::Result;

/// A configuration's results for one metric: test items with their seeds, or the reason why the
/// metric is undefined.
pub(super) type SeedItems = Result<Vec<(u64, Item)>, String>;

/// The runs of all configurations.
pub(super) struct Runs<'a> {
    pub(super) study: &'a dyn AblationStudy,
    /// The folder that contains `seed-1/CONFIGURATION`.
    pub(super) out: &'a Path,
    pub(super) seeds: u64,
}

impl Runs<'_> {
    /// The items of a configuration over all seeds.
    pub(super) fn items(&self, configuration: &str, query: &MetricQuery) -> Result<SeedItems> {
        let mut seed_items = Vec::new();
        for seed in 1..=self.seeds {
            let folder = self.out.join(format!("seed-{seed}")).join(configuration);
            match self.study.items(&folder, query)? {
                Ok(items) if !items.iter().all(is_ratio_or_mean) => {
                    let name = &query.metric.name;
                    return Ok(Err(format!("undefined: {name} is neither a ratio nor a mean")));
                }
                Ok(items) => seed_items.extend(items.into_iter().map(|item| (seed, item))),
                Err(reason) => return Ok(Err(reason)),
            }
        }
        Ok(Ok(seed_items))
    }

    /// The metric over items and seeds, with a bootstrap interval over resampling units and seeds.
    pub(super) fn measure(&self, configuration: &str, query: &MetricQuery) -> Result<Measure> {
        Ok(measure(&query.metric, self.study.resampling_unit(), &self.items(configuration, query)?))
    }

    /// Tests a rule on the metric over items and seeds.
    pub(super) fn test_value(
        &self,
        configuration: &str,
        query: &MetricQuery,
        rule: Rule,
    ) -> Result<Test> {
        let items = self.items(configuration, query)?;
        Ok(test(&query.metric, self.study.resampling_unit(), &items, rule))
    }

    /// The metric of the first configuration minus the metric of the second, paired by item. Only
    /// items of the first configuration are compared.
    pub(super) fn difference(
        &self,
        configurations: [&str; 2],
        query: &MetricQuery,
    ) -> Result<Measure> {
        let differences = self.differences(configurations, [query, query])?;
        Ok(measure(&difference_info(query), self.study.resampling_unit(), &differences))
    }

    /// Tests a rule on the difference of two configurations.
    pub(super) fn test(
        &self,
        configurations: [&str; 2],
        queries: [&MetricQuery; 2],
        rule: Rule,
    ) -> Result<Test> {
        let differences = self.differences(configurations, queries)?;
        let info = difference_info(queries[0]);
        Ok(test(&info, self.study.resampling_unit(), &differences, rule))
    }

    fn differences(
        &self,
        [better, worse]: [&str; 2],
        [query, worse_query]: [&MetricQuery; 2],
    ) -> Result<SeedItems> {
        let full_worse_query = self.study.query_of_worse(worse_query);
        let same_items = full_worse_query == *worse_query;
        let [better, worse] = [self.items(better, query)?, self.items(worse, &full_worse_query)?];
        Ok(better.and_then(|better| subtract(better, worse?, same_items)))
    }
}

/// The name of a difference in the query's metric.
fn difference_info(query: &MetricQuery) -> MetricInfo {
    query.metric.renamed(format!("{}_difference", query.metric.name))
}

/// The items of `better`. The statistic of `worse` is subtracted from the statistic of each. Every
/// item of `better` needs a counterpart in `worse`. With `same_items`, `worse` may have no further
/// items.
fn subtract(better: Vec<(u64, Item)>, worse: Vec<(u64, Item)>, same_items: bool) -> SeedItems {
    let mut by_id: HashMap<(u64, String), [f64; 2]> =
        worse.iter().map(|(seed, item)| ((*seed, item.id.clone()), parts(item))).collect();
    let unmatched = |seed: u64, id: &str| {
        format!(
            "undefined: item {id} of seed {seed} has no counterpart in the other configuration; \
             a comparison needs the same test data"
        )
    };
    let mut differences = Vec::with_capacity(better.len());
    for (seed, mut item) in better {
        let [numerator, denominator] = parts(&item);
        let other = by_id.remove(&(seed, item.id.clone())).filter(|other| other[1] == denominator);
        let [subtrahend, _] = other.ok_or_else(|| unmatched(seed, &item.id))?;
        item.statistic = Statistic::Ratio { numerator: numerator - subtrahend, denominator };
        differences.push((seed, item));
    }
    let unpaired = worse.iter().find(|(seed, item)| by_id.contains_key(&(*seed, item.id.clone())));
    match unpaired.filter(|_| same_items) {
        Some((seed, item)) => Err(unmatched(*seed, &item.id)),
        None => Ok(differences),
    }
}

/// Whether a grid can measure an item. Differences are only defined for means and ratios of sums.
fn is_ratio_or_mean(item: &Item) -> bool {
    matches!(item.statistic, Statistic::Ratio { .. } | Statistic::Mean { .. })
}

/// An item's numerator and denominator; NaN unless [`is_ratio_or_mean`].
fn parts(item: &Item) -> [f64; 2] {
    match item.statistic {
        Statistic::Ratio { numerator, denominator } => [numerator, denominator],
        Statistic::Mean { value } => [value, 1.0],
        Statistic::Correlation { .. } | Statistic::Sums { .. } => [f64::NAN; 2],
    }
}

/// The metric over items and seeds, with its bootstrap interval.
fn measure(info: &MetricInfo, unit: &str, items: &SeedItems) -> Measure {
    match items {
        Ok(items) => Sample::of(unit, items).measure(info),
        Err(reason) => Measure::new(info, 0, Err(reason.clone()), None),
    }
}

/// Tests a rule on the metric over items and seeds.
fn test(info: &MetricInfo, unit: &str, items: &SeedItems, rule: Rule) -> Test {
    Test::new(measure(info, unit, items), rule, |measure, threshold| {
        Sample::of(unit, items.as_ref().ok()?).p_value(measure, threshold)
    })
}

/// The items of a metric, to be resampled.
struct Sample {
    /// The numerator and the denominator of each item.
    values: Vec<[f64; 2]>,
    resampling: Resampling,
}

impl Sample {
    fn of(unit: &str, items: &[(u64, Item)]) -> Self {
        let groups: Vec<&Option<String>> = items.iter().map(|(_, item)| &item.group).collect();
        let seeds: Vec<u64> = items.iter().map(|(seed, _)| *seed).collect();
        Self {
            values: items.iter().map(|(_, item)| parts(item)).collect(),
            resampling: Resampling::by_crossed_groups([unit, "seed"], &groups, &seeds),
        }
    }

    /// The metric, if item `i` occurs `count(i)` times.
    fn ratio(&self, count: impl Fn(usize) -> f64) -> f64 {
        let sum = |part: usize| -> f64 {
            self.values.iter().enumerate().map(|(i, parts)| count(i) * parts[part]).sum()
        };
        sum(0) / sum(1)
    }

    fn resampled(&self, counts: &[u32]) -> f64 {
        self.ratio(|i| f64::from(counts[i]))
    }

    fn measure(&self, info: &MetricInfo) -> Measure {
        let options = BootstrapOptions::default();
        let interval = interval(&self.resampling, &options, |counts| self.resampled(counts));
        Measure::new(info, self.values.len(), Ok(self.ratio(|_| 1.0)), interval)
    }

    fn p_value(&self, measure: &Measure, threshold: f64) -> Option<f64> {
        p_value(measure, threshold, &self.resampling, |counts| self.resampled(counts))
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::measure_text;
    use super::super::verdict::Verdict;
    use super::*;
    use engram_eval::metric::Unit;
    use engram_eval::wer::report::WER;

    const EXACT_MATCH: MetricInfo = MetricInfo::higher("exact_match", Unit::Fraction);

    /// 40 images with 3 questions each, and three seeds. Of every ten images, `right` have correct
    /// answers.
    fn answers(right: usize) -> SeedItems {
        let item = |seed: u64, id: usize| {
            let is_correct = (id / 3 + seed as usize) % 10 < right;
            let (info, group) = (EXACT_MATCH, (id / 3).to_string());
            let statistic =
                Statistic::Ratio { numerator: f64::from(u8::from(is_correct)), denominator: 1.0 };
            Item::new(&info, "", &id.to_string(), Some(&group), statistic)
        };
        Ok((1..=3).flat_map(|seed| (0..120).map(move |id| (seed, item(seed, id)))).collect())
    }

    fn difference_of(better: SeedItems, worse: SeedItems, metric: MetricInfo) -> Measure {
        let differences = better.and_then(|better| subtract(better, worse?, true));
        measure(&difference_info(&MetricQuery::new(metric)), "image", &differences)
    }

    #[test]
    fn differences_are_paired_by_item_and_decide_claims() {
        let better = difference_of(answers(7), answers(4), EXACT_MATCH);
        assert!((better.value - 0.3).abs() < 1e-12 && better.n == 360);
        assert_eq!(
            better.interval.as_ref().unwrap().method,
            "percentile bootstrap by image and seed"
        );
        assert_eq!(Verdict::of(&better, Rule::Better), Verdict::Holds);
        let worse = difference_of(answers(4), answers(7), EXACT_MATCH);
        assert_eq!(Verdict::of(&worse, Rule::Better), Verdict::Fails);
        let no_difference = difference_of(answers(4), answers(4), EXACT_MATCH);
        assert_eq!(Verdict::of(&no_difference, Rule::Better), Verdict::NotDecided);
        // Both configurations give the same answers. The rule-of-three interval for 40 images
        // allows three images to differ.
        assert_eq!(
            no_difference.interval.as_ref().unwrap().method,
            "rule of three by image and seed"
        );
        assert_eq!(Verdict::of(&no_difference, Rule::Within(0.01)), Verdict::NotDecided);
        assert_eq!(Verdict::of(&no_difference, Rule::Within(0.08)), Verdict::Holds);
        assert_eq!(Verdict::of(&better, Rule::Within(0.01)), Verdict::Fails);
        // Fewer errors are better.
        let errors = difference_of(answers(4), answers(7), WER);
        assert_eq!(Verdict::of(&errors, Rule::Better), Verdict::Holds);
        assert_eq!(
            Verdict::of(&difference_of(answers(7), answers(4), WER), Rule::Better),
            Verdict::Fails
        );
        let undefined = difference_of(answers(7), Err("undefined: no metric".to_owned()), WER);
        assert_eq!(undefined.reason.as_deref(), Some("undefined: no metric"));
        assert_eq!(Verdict::of(&undefined, Rule::Better), Verdict::NotDecided);
        assert_eq!(measure_text(&undefined), "–");
        assert_eq!(measure_text(&better).split(' ').next(), Some("0.300"));
    }

    #[test]
    fn a_difference_with_unpaired_items_is_undefined() {
        let reason = |better: SeedItems, worse: Vec<(u64, Item)>, same_items| {
            better.and_then(|better| subtract(better, worse, same_items)).err()
        };
        let complete = answers(7).unwrap();
        let mut incomplete = complete.clone();
        incomplete.retain(|(seed, item)| *seed != 2 || item.id != "5");
        let message = reason(answers(7), incomplete.clone(), true).unwrap();
        assert!(
            message.contains("item 5 of seed 2") && message.contains("same test data"),
            "{message}"
        );
        assert!(
            reason(Ok(incomplete.clone()), complete.clone(), true)
                .unwrap()
                .contains("item 5 of seed 2")
        );
        // The first configuration may have only some of the questions, such as those of one source.
        assert_eq!(reason(Ok(incomplete), complete.clone(), false), None);
        let mut changed = complete;
        changed[0].1.statistic = Statistic::Ratio { numerator: 0.0, denominator: 2.0 };
        assert!(reason(answers(7), changed, true).unwrap().contains("item 0 of seed 1"));
    }

    #[test]
    fn a_better_configuration_meets_no_worse_by_but_not_within() {
        let rule = Rule::NoWorseBy(0.01);
        let fewer_errors = difference_of(answers(4), answers(7), WER);
        assert_eq!(Verdict::of(&fewer_errors, rule), Verdict::Holds);
        assert_eq!(Verdict::of(&fewer_errors, Rule::Within(0.01)), Verdict::Fails);
        let more_errors = difference_of(answers(7), answers(4), WER);
        assert_eq!(Verdict::of(&more_errors, rule), Verdict::Fails);
        let more_correct = difference_of(answers(7), answers(4), EXACT_MATCH);
        assert_eq!(Verdict::of(&more_correct, rule), Verdict::Holds);
    }

    #[test]
    fn error_rates_weight_items_by_their_words() {
        let item = |id: &str, numerator, denominator| {
            let statistic = Statistic::Ratio { numerator, denominator };
            (1, Item::new(&WER, "", id, Some(id), statistic))
        };
        let configuration = |errors: f64| Ok(vec![item("a", errors, 8.0), item("b", 1.0, 2.0)]);
        let info = WER;
        assert_eq!(measure(&info, "name", &configuration(2.0)).value, 0.3);
        assert_eq!(difference_of(configuration(2.0), configuration(4.0), WER).value, -0.2);
    }
}
