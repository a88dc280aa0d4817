//! Pearson's r of systems trained with several seeds.

use engram_data::patent::PhrasePair;
use engram_eval::bootstrap::{BootstrapOptions, Resampling, interval};
use engram_eval::metric::MetricInfo;
use engram_eval::metric::mean::mean;
use engram_eval::metric::pearson::{self, WeightedPearson};
use engram_eval::result::Measure;

use super::report::SystemMeasure;

/// The scores that a system gives to the same pairs, for each seed.
pub(super) struct System {
    name: String,
    scores: Vec<Vec<f64>>,
}

impl System {
    /// `scores` has one list per seed; a system without seeds has one list.
    pub(super) fn new(name: &str, scores: Vec<Vec<f64>>) -> Self {
        Self { name: name.to_owned(), scores }
    }

    /// The scores for each seed.
    pub(super) fn scores(&self) -> &[Vec<f64>] {
        &self.scores
    }

    /// Pearson's r with the gold scores of the pairs.
    pub(super) fn measured(&self, pairs: &[PhrasePair]) -> anyhow::Result<SystemMeasure> {
        let measure = correlation(&pearson::INFO, &[self], pairs)?;
        Ok(SystemMeasure { system: self.name.clone(), measure })
    }

    /// The difference in Pearson's r, seed by seed.
    pub(super) fn minus(&self, other: &Self, pairs: &[PhrasePair]) -> anyhow::Result<Measure> {
        let info = pearson::INFO.renamed("pearson_difference");
        correlation(&info, &[self, other], pairs)
    }
}

/// The mean over seeds of Pearson's r of the first system, minus Pearson's r of the second if there
/// are two. The interval resamples anchors and, if there are several, seeds.
fn correlation(
    info: &MetricInfo,
    systems: &[&System],
    pairs: &[PhrasePair],
) -> anyhow::Result<Measure> {
    let gold: Vec<f64> = pairs.iter().map(|pair| pair.score.map_or(f64::NAN, f64::from)).collect();
    let seeds = systems.iter().map(|system| system.scores.len()).max().unwrap_or(0);
    let (mut values, mut per_seed) = (Vec::with_capacity(seeds), Vec::with_capacity(seeds));
    for seed in 0..seeds {
        let (mut value, mut parts) = (0.0, Vec::with_capacity(2));
        for (system, sign) in systems.iter().zip([1.0, -1.0]) {
            let scores = &system.scores[seed % system.scores.len()];
            value += sign * pearson::pearson(&gold, scores)?;
            parts.push((sign, WeightedPearson::new(&gold, scores)?));
        }
        values.push(value);
        per_seed.push(parts);
    }
    let anchors: Vec<&str> =
        (0..seeds).flat_map(|_| pairs.iter().map(|pair| pair.anchor.as_str())).collect();
    let seed_of_value: Vec<usize> =
        (0..seeds).flat_map(|seed| std::iter::repeat_n(seed, pairs.len())).collect();
    let resampling = Resampling::by_crossed_groups(["anchor", "seed"], &anchors, &seed_of_value);
    let interval = interval(&resampling, &BootstrapOptions::default(), |counts| {
        let (mut sum, mut weight_sum) = (0.0, 0.0);
        for (parts, counts) in per_seed.iter().zip(counts.chunks(pairs.len())) {
            // Weights each seed by the number of its resampled pairs.
            let weight = f64::from(counts.iter().sum::<u32>());
            if weight > 0.0 {
                let r = parts.iter().map(|(sign, pearson)| sign * pearson.value(counts));
                sum += weight * r.sum::<f64>();
                weight_sum += weight;
            }
        }
        sum / weight_sum
    });
    let value = mean(&values);
    let value = if value.is_finite() {
        Ok(value)
    } else {
        Err("undefined: all scores are equal".to_owned())
    };
    Ok(Measure::new(info, anchors.len(), value, interval))
}

#[cfg(test)]
mod tests {
    use engram_data::world::phrases::phrase_world;
    use engram_eval::compare::compare_pearson;
    use engram_infer::similarity::zero_shot::word_overlap;

    use super::*;

    /// The pairs, a system of word overlap, and a system of gold scores with noise per seed.
    fn systems(seeds: usize) -> (Vec<PhrasePair>, System, System) {
        let pairs = phrase_world(1).test;
        let noisy_scores = |seed: usize| {
            let noise = |row: usize| ((row * (seed + 3)) as f64 * 12.9898).sin();
            let score = |(row, pair): (usize, &PhrasePair)| {
                f64::from(pair.score.unwrap_or(0.0)) + 0.1 * (seed + 1) as f64 * noise(row)
            };
            pairs.iter().enumerate().map(score).collect::<Vec<f64>>()
        };
        let words = System::new("words", vec![word_overlap(&pairs)]);
        let noisy = System::new("noisy", (0..seeds).map(noisy_scores).collect());
        (pairs, words, noisy)
    }

    #[test]
    fn one_seed_equals_the_comparison_of_eval() {
        let (pairs, words, noisy) = systems(1);
        let gold: Vec<f64> =
            pairs.iter().map(|pair| f64::from(pair.score.unwrap_or(0.0))).collect();
        let anchors: Vec<&str> = pairs.iter().map(|pair| pair.anchor.as_str()).collect();
        let (by_anchor, options) =
            (Resampling::by_group("anchor", &anchors), BootstrapOptions::default());
        let (a, b) = (&noisy.scores[0], &words.scores[0]);
        let expected = compare_pearson(&gold, a, b, &by_anchor, &options).unwrap();
        let assert_equal = |actual: &Measure, expected: &Measure| {
            assert_eq!((&actual.metric, actual.n), (&expected.metric, expected.n));
            assert!((actual.value - expected.value).abs() < 1e-12);
            let (actual, expected) =
                (actual.interval.as_ref().unwrap(), expected.interval.as_ref().unwrap());
            assert!(
                (actual.low - expected.low).abs() < 1e-12
                    && (actual.high - expected.high).abs() < 1e-12
            );
            assert_eq!((&actual.method, actual.units), (&expected.method, expected.units));
        };
        assert_equal(&noisy.minus(&words, &pairs).unwrap(), &expected.difference);
        assert_equal(&noisy.measured(&pairs).unwrap().measure, &expected.a);
        assert_equal(&words.measured(&pairs).unwrap().measure, &expected.b);
    }

    #[test]
    fn seeds_are_averaged_and_resampled() {
        let (pairs, words, noisy) = systems(3);
        let single_seed =
            |seed: usize| System::new("single seed", vec![noisy.scores[seed].clone()]);
        let differences: Vec<f64> =
            (0..3).map(|seed| single_seed(seed).minus(&words, &pairs).unwrap().value).collect();
        let combined = noisy.minus(&words, &pairs).unwrap();
        assert!((combined.value - mean(&differences)).abs() < 1e-12);
        assert_eq!(combined.n, 3 * pairs.len());
        let interval = combined.interval.unwrap();
        assert_eq!(interval.method, "percentile bootstrap by anchor and seed");
        // Equal seeds do not widen the interval; different seeds do.
        let same = System::new("same", vec![noisy.scores[1].clone(); 3]);
        let (same, one) =
            (same.minus(&words, &pairs).unwrap(), single_seed(1).minus(&words, &pairs).unwrap());
        assert!((same.value - one.value).abs() < 1e-12);
        let width = |interval: &engram_eval::result::Interval| interval.high - interval.low;
        assert!(width(&interval) > width(&same.interval.unwrap()));
    }
}
