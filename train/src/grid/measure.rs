//! Metrics of a configuration's runs, and paired differences of two configurations.

use std::collections::HashMap;
use std::path::Path;

use engram_eval::bootstrap::{BootstrapOptions, Resampling, interval};
use engram_eval::items::{Item, PooledMetric, Statistic};
use engram_eval::metric::MetricInfo;
use engram_eval::result::Measure;
use engram_eval::significance::p_value;

use super::study::{AblationStudy, MetricQuery};
use super::verdict::{Rule, Test};
use crate::error::Result;

/// The items of one system for one metric, with their seeds, or the reason why the metric is
/// undefined.
pub type SeedItems = Result<Vec<(u64, Item)>, String>;

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
                Ok(items) => seed_items.extend(items.into_iter().map(|item| (seed, item))),
                Err(reason) => return Ok(Err(reason)),
            }
        }
        Ok(Ok(seed_items))
    }

    /// The metric over items and seeds.
    pub(super) fn measure(&self, configuration: &str, query: &MetricQuery) -> Result<Measure> {
        let items = self.items(configuration, query)?;
        Ok(measure(&query.metric, self.study.measures().resampling_unit, items))
    }

    /// The items of two configurations that are compared, and whether both have the same items.
    pub(super) fn pair(
        &self,
        [better, worse]: [&str; 2],
        [query, worse_query]: [&MetricQuery; 2],
    ) -> Result<(SeedItems, SeedItems, bool)> {
        let full_query = self.study.query_of_worse(worse_query);
        let same_items = full_query == *worse_query;
        Ok((self.items(better, query)?, self.items(worse, &full_query)?, same_items))
    }

    /// The metric of the first configuration minus the metric of the second, paired by item.
    pub(super) fn difference(
        &self,
        configurations: [&str; 2],
        query: &MetricQuery,
    ) -> Result<Measure> {
        let (better, worse, same_items) = self.pair(configurations, [query, query])?;
        let unit = self.study.measures().resampling_unit;
        let sample = Sample::difference(unit, better, worse, same_items);
        Ok(measure_sample(&difference_info(&query.metric), &sample))
    }
}

/// The metric of one system over items and seeds, with a bootstrap interval over resampling units
/// and seeds. `unit` is the kind of unit, such as `image`.
pub fn measure(info: &MetricInfo, unit: &str, items: SeedItems) -> Measure {
    measure_sample(info, &Sample::of(unit, items))
}

/// Tests a rule on the metric of one system.
pub fn test_value(info: &MetricInfo, unit: &str, items: SeedItems, rule: Rule) -> Test {
    test(info, &Sample::of(unit, items), rule)
}

/// Tests a rule on the metric of the first system minus the metric of the second, paired by item.
/// Only items of the first system are compared; with `same_items`, the second may have no further
/// items.
pub fn test_difference(
    info: &MetricInfo,
    unit: &str,
    better: SeedItems,
    worse: SeedItems,
    same_items: bool,
    rule: Rule,
) -> Test {
    let sample = Sample::difference(unit, better, worse, same_items);
    test(&difference_info(info), &sample, rule)
}

/// The metric's difference of two systems.
fn difference_info(info: &MetricInfo) -> MetricInfo {
    info.renamed(format!("{}_difference", info.name))
}

fn measure_sample(info: &MetricInfo, sample: &Result<Sample, String>) -> Measure {
    match sample {
        Ok(sample) => sample.measure(info),
        Err(reason) => Measure::new(info, 0, Err(reason.clone()), None),
    }
}

fn test(info: &MetricInfo, sample: &Result<Sample, String>, rule: Rule) -> Test {
    Test::new(measure_sample(info, sample), rule, |measure, threshold| {
        let sample = sample.as_ref().ok()?;
        p_value(measure, threshold, &sample.resampling, |counts| sample.value(counts))
    })
}

/// The metric of one system, or the difference of two, to be resampled.
struct Sample {
    parts: Vec<Part>,
    resampling: Resampling,
}

/// Consecutive items whose metric is computed together. A ratio of sums or a mean is computed over
/// all items at once, any other metric for each seed. The metric of a sample is the mean over its
/// parts.
struct Part {
    items: usize,
    /// The metrics to add, each with its sign.
    metrics: Vec<(f64, PooledMetric)>,
}

impl Sample {
    fn of(unit: &str, items: SeedItems) -> Result<Self, String> {
        let items = items?;
        let statistics = items.iter().map(|(_, item)| &item.statistic).collect();
        Self::new(unit, &items, &[(1.0, statistics)])
    }

    fn difference(
        unit: &str,
        better: SeedItems,
        worse: SeedItems,
        same_items: bool,
    ) -> Result<Self, String> {
        let (mut better, worse) = (better?, worse?);
        let paired = pair(&better, &worse, same_items)?;
        if is_additive(&better) {
            for ((_, item), subtrahend) in better.iter_mut().zip(&paired) {
                let [[numerator, denominator], [other, _]] =
                    [&item.statistic, subtrahend].map(ratio);
                item.statistic = Statistic::Ratio { numerator: numerator - other, denominator };
            }
            return Self::of(unit, Ok(better));
        }
        let statistics = better.iter().map(|(_, item)| &item.statistic).collect();
        Self::new(unit, &better, &[(1.0, statistics), (-1.0, paired)])
    }

    /// `systems` has the sign and the statistics of each system, in the order of `items`.
    fn new(
        unit: &str,
        items: &[(u64, Item)],
        systems: &[(f64, Vec<&Statistic>)],
    ) -> Result<Self, String> {
        let Some((_, first)) = items.first() else {
            return Err("undefined: nothing was measured".to_owned());
        };
        // An item without a group is a unit of its own.
        let groups: Vec<&String> =
            items.iter().map(|(_, item)| item.group.as_ref().unwrap_or(&item.id)).collect();
        let seeds: Vec<u64> = items.iter().map(|(seed, _)| *seed).collect();
        let lengths: Vec<usize> = match is_additive(items) {
            true => vec![items.len()],
            false => seeds.chunk_by(|a, b| a == b).map(<[_]>::len).collect(),
        };
        let (mut start, mut parts) = (0, Vec::new());
        for length in lengths {
            let pool = |(sign, statistics): &(f64, Vec<&Statistic>)| {
                let of_part = statistics[start..start + length].iter().copied();
                Ok((*sign, PooledMetric::new(&first.metric, of_part)?))
            };
            let metrics: Result<Vec<_>, engram_eval::EvalError> =
                systems.iter().map(pool).collect();
            let metrics = metrics.map_err(|error| format!("undefined: {error}"))?;
            parts.push(Part { items: length, metrics });
            start += length;
        }
        let resampling = Resampling::by_crossed_groups([unit, "seed"], &groups, &seeds);
        Ok(Self { parts, resampling })
    }

    /// The metric, if item `i` occurs `counts[i]` times. Several parts are weighted by the number
    /// of their items.
    fn value(&self, counts: &[u32]) -> f64 {
        let value = |part: &Part, counts: &[u32]| -> f64 {
            part.metrics.iter().map(|(sign, metric)| sign * metric.value(counts)).sum()
        };
        if let [part] = self.parts.as_slice() {
            return value(part, counts);
        }
        let (mut sum, mut weight_sum, mut rest) = (0.0, 0.0, counts);
        for part in &self.parts {
            let (counts, others) = rest.split_at(part.items);
            let weight = f64::from(counts.iter().sum::<u32>());
            if weight > 0.0 {
                sum += weight * value(part, counts);
                weight_sum += weight;
            }
            rest = others;
        }
        sum / weight_sum
    }

    fn measure(&self, info: &MetricInfo) -> Measure {
        let rows = self.resampling.rows();
        let options = BootstrapOptions::default();
        let interval = interval(&self.resampling, &options, |counts| self.value(counts));
        let value = self.value(&vec![1; rows]);
        let value = if value.is_finite() { Ok(value) } else { Err(UNDEFINED.to_owned()) };
        Measure::new(info, rows, value, interval)
    }
}

const UNDEFINED: &str = "undefined over these items, for example because all scores are equal";

/// Whether the differences of single items give the difference of the metric.
fn is_additive(items: &[(u64, Item)]) -> bool {
    items
        .iter()
        .all(|(_, item)| matches!(item.statistic, Statistic::Ratio { .. } | Statistic::Mean { .. }))
}

/// The numerator and the denominator; NaN for another statistic.
fn ratio(statistic: &Statistic) -> [f64; 2] {
    match statistic {
        Statistic::Ratio { numerator, denominator } => [*numerator, *denominator],
        Statistic::Mean { value } => [*value, 1.0],
        Statistic::Correlation { .. } | Statistic::Sums { .. } => [f64::NAN; 2],
    }
}

/// The statistic of `worse` for each item of `better`.
fn pair<'w>(
    better: &[(u64, Item)],
    worse: &'w [(u64, Item)],
    same_items: bool,
) -> Result<Vec<&'w Statistic>, String> {
    let mut by_id: HashMap<(u64, &str), &Statistic> = HashMap::new();
    by_id.extend(worse.iter().map(|(seed, item)| ((*seed, item.id.as_str()), &item.statistic)));
    let unmatched = |seed: u64, id: &str| {
        format!(
            "undefined: item {id} of seed {seed} has no counterpart in the other configuration; \
             a comparison needs the same test data"
        )
    };
    let is_same_test = |a: &Statistic, b: &Statistic| match (a, b) {
        (Statistic::Correlation { gold, .. }, Statistic::Correlation { gold: other, .. }) => {
            gold == other
        }
        (Statistic::Sums { .. }, Statistic::Sums { .. }) => true,
        (a, b) => ratio(a)[1] == ratio(b)[1],
    };
    let mut paired = Vec::with_capacity(better.len());
    for (seed, item) in better {
        let other = by_id.remove(&(*seed, item.id.as_str()));
        let other = other.filter(|other| is_same_test(&item.statistic, other));
        paired.push(other.ok_or_else(|| unmatched(*seed, &item.id))?);
    }
    let is_unpaired = |(seed, item): &&(u64, Item)| by_id.contains_key(&(*seed, item.id.as_str()));
    match worse.iter().find(is_unpaired).filter(|_| same_items) {
        Some((seed, item)) => Err(unmatched(*seed, &item.id)),
        None => Ok(paired),
    }
}

#[cfg(test)]
mod tests {
    use super::super::verdict::Verdict;
    use super::*;
    use engram_eval::metric::{Unit, pearson};
    use engram_eval::wer::report::WER;

    const EXACT_MATCH: MetricInfo = MetricInfo::higher("exact_match", Unit::Fraction);

    /// 40 images with 3 questions each, and three seeds. Of every ten images, `right` have correct
    /// answers.
    fn answers(right: usize) -> SeedItems {
        let item = |seed: u64, id: usize| {
            let is_correct = (id / 3 + seed as usize) % 10 < right;
            let (info, group) = (EXACT_MATCH, (id / 3).to_string());
            let statistic = Statistic::Mean { value: f64::from(u8::from(is_correct)) };
            Item::new(&info, "", &id.to_string(), Some(&group), statistic)
        };
        Ok((1..=3).flat_map(|seed| (0..120).map(move |id| (seed, item(seed, id)))).collect())
    }

    fn test_of(better: SeedItems, worse: SeedItems, metric: MetricInfo, rule: Rule) -> Test {
        test_difference(&metric, "image", better, worse, true, rule)
    }

    #[test]
    fn differences_are_paired_by_item_and_decide_claims() {
        let verdict = |better, worse, rule| {
            test_of(answers(better), answers(worse), EXACT_MATCH, rule).verdict
        };
        let better = test_of(answers(7), answers(4), EXACT_MATCH, Rule::Better).measure;
        assert!((better.value - 0.3).abs() < 1e-12 && better.n == 360);
        assert_eq!(
            better.interval.as_ref().unwrap().method,
            "percentile bootstrap by image and seed"
        );
        assert_eq!(verdict(7, 4, Rule::Better), Verdict::Holds);
        assert_eq!(verdict(4, 7, Rule::Better), Verdict::Fails);
        assert_eq!(verdict(7, 4, Rule::Within(0.01)), Verdict::Fails);
        // Both configurations give the same answers. The rule-of-three interval for 40 images
        // allows three images to differ.
        assert_eq!(verdict(4, 4, Rule::Better), Verdict::NotDecided);
        assert_eq!(verdict(4, 4, Rule::Within(0.01)), Verdict::NotDecided);
        assert_eq!(verdict(4, 4, Rule::Within(0.08)), Verdict::Holds);
        // Fewer errors are better. A better configuration is no worse by any margin.
        let verdict = |rule| test_of(answers(4), answers(7), WER, rule).verdict;
        assert_eq!(verdict(Rule::Better), Verdict::Holds);
        assert_eq!(verdict(Rule::NoWorseBy(0.01)), Verdict::Holds);
        assert_eq!(verdict(Rule::Within(0.01)), Verdict::Fails);
        let undefined =
            test_of(answers(7), Err("undefined: no metric".to_owned()), WER, Rule::Better);
        assert_eq!(undefined.measure.reason.as_deref(), Some("undefined: no metric"));
        assert_eq!(undefined.verdict, Verdict::NotDecided);
    }

    #[test]
    fn a_difference_with_unpaired_items_is_undefined() {
        let reason = |better: &[(u64, Item)], worse: &[(u64, Item)], same_items| {
            pair(better, worse, same_items).err()
        };
        let complete = answers(7).unwrap();
        let mut incomplete = complete.clone();
        incomplete.retain(|(seed, item)| *seed != 2 || item.id != "5");
        let message = reason(&complete, &incomplete, true).unwrap();
        assert!(message.contains("item 5 of seed 2") && message.contains("same test"), "{message}");
        assert!(reason(&incomplete, &complete, true).unwrap().contains("item 5 of seed 2"));
        // The first configuration may have only some of the questions, such as those of one source.
        assert_eq!(reason(&incomplete, &complete, false), None);
        let mut changed = complete.clone();
        changed[0].1.statistic = Statistic::Ratio { numerator: 0.0, denominator: 2.0 };
        assert!(reason(&complete, &changed, true).unwrap().contains("item 0 of seed 1"));
    }

    #[test]
    fn error_rates_weight_items_by_their_words() {
        let item = |id: &str, numerator, denominator| {
            let statistic = Statistic::Ratio { numerator, denominator };
            (1, Item::new(&WER, "", id, Some(id), statistic))
        };
        let configuration = |errors: f64| Ok(vec![item("a", errors, 8.0), item("b", 1.0, 2.0)]);
        assert_eq!(measure(&WER, "name", configuration(2.0)).value, 0.3);
        let test = test_of(configuration(2.0), configuration(4.0), WER, Rule::Better);
        assert_eq!(test.measure.value, -0.2);
    }

    #[test]
    fn correlations_are_computed_for_each_seed() {
        let gold = |row: usize| (row % 5) as f64 / 4.0;
        let system = |seeds: std::ops::RangeInclusive<u64>, noise: fn(u64) -> f64| -> SeedItems {
            let item = move |seed: u64, row: usize| {
                let prediction = gold(row) + noise(seed) * ((row * 7 + 3) as f64 * 12.9898).sin();
                let statistic = Statistic::Correlation { gold: gold(row), prediction };
                let group = (row / 4).to_string();
                (seed, Item::new(&pearson::INFO, "", &row.to_string(), Some(&group), statistic))
            };
            Ok(seeds.flat_map(|seed| (0..80).map(move |row| item(seed, row))).collect())
        };
        let noisy = |seed: u64| 0.2 * seed as f64;
        let compare = |better, worse| test_of(better, worse, pearson::INFO, Rule::Better).measure;
        let single =
            |seed: u64| compare(system(seed..=seed, noisy), system(seed..=seed, |_| 2.0)).value;
        let all = compare(system(1..=3, noisy), system(1..=3, |_| 2.0));
        assert!((all.value - (single(1) + single(2) + single(3)) / 3.0).abs() < 1e-12);
        assert_eq!(all.n, 240);
        // Equal seeds do not widen the interval; different seeds do.
        let width = |measure: &Measure| {
            let interval = measure.interval.as_ref().unwrap();
            interval.high - interval.low
        };
        let same = compare(system(1..=3, |_| 0.4), system(1..=3, |_| 2.0));
        assert!(width(&all) > width(&same));
    }
}
