//! Pearson's r of systems trained with several seeds.

use engram_data::patent::PhrasePair;
use engram_eval::bootstrap::{BootstrapOptions, Resampling, interval};
use engram_eval::metric::MetricInfo;
use engram_eval::metric::mean::mean;
use engram_eval::metric::pearson::{self, WeightedPearson};
use engram_eval::result::Measure;
use engram_eval::significance::p_value;
use engram_train::grid::{Rule, Test};

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

    /// The name in reports.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The scores for each seed.
    pub(super) fn scores(&self) -> &[Vec<f64>] {
        &self.scores
    }

    /// Pearson's r with the gold scores of the pairs.
    pub(super) fn measured(&self, pairs: &[PhrasePair]) -> anyhow::Result<SystemMeasure> {
        let measure = Correlation::of(&[self], pairs)?.measure(&pearson::INFO);
        Ok(SystemMeasure { system: self.name.clone(), measure })
    }

    /// Tests whether Pearson's r is higher than that of another system, seed by seed.
    pub(super) fn beats(&self, other: &Self, pairs: &[PhrasePair]) -> anyhow::Result<Test> {
        let difference = Correlation::of(&[self, other], pairs)?;
        let measure = difference.measure(&pearson::INFO.renamed("pearson_difference"));
        Ok(Test::new(measure, Rule::Better, |measure, threshold| {
            p_value(measure, threshold, &difference.resampling, |counts| {
                difference.resampled(counts)
            })
        }))
    }
}

/// The mean over seeds of Pearson's r of the first system, minus Pearson's r of the second if there
/// are two. The interval resamples anchors and, if there are several, seeds.
struct Correlation {
    value: f64,
    /// For each seed: the sign and the correlation of each system.
    per_seed: Vec<Vec<(f64, WeightedPearson)>>,
    /// Number of pairs of each seed.
    pairs: usize,
    resampling: Resampling,
}

impl Correlation {
    fn of(systems: &[&System], pairs: &[PhrasePair]) -> anyhow::Result<Self> {
        let gold: Vec<f64> =
            pairs.iter().map(|pair| pair.score.map_or(f64::NAN, f64::from)).collect();
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
        Ok(Self {
            value: mean(&values),
            per_seed,
            pairs: pairs.len(),
            resampling: Resampling::by_crossed_groups(["anchor", "seed"], &anchors, &seed_of_value),
        })
    }

    /// The value for a resample of the pairs of all seeds.
    fn resampled(&self, counts: &[u32]) -> f64 {
        let (mut sum, mut weight_sum) = (0.0, 0.0);
        for (parts, counts) in self.per_seed.iter().zip(counts.chunks(self.pairs)) {
            // Weights each seed by the number of its resampled pairs.
            let weight = f64::from(counts.iter().sum::<u32>());
            if weight > 0.0 {
                let r = parts.iter().map(|(sign, pearson)| sign * pearson.value(counts));
                sum += weight * r.sum::<f64>();
                weight_sum += weight;
            }
        }
        sum / weight_sum
    }

    fn measure(&self, info: &MetricInfo) -> Measure {
        let options = BootstrapOptions::default();
        let interval = interval(&self.resampling, &options, |counts| self.resampled(counts));
        let value = if self.value.is_finite() {
            Ok(self.value)
        } else {
            Err("undefined: all scores are equal".to_owned())
        };
        Measure::new(info, self.resampling.rows(), value, interval)
    }
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
        let test = noisy.beats(&words, &pairs).unwrap();
        assert_equal(&test.measure, &expected.difference);
        assert!(test.p_value.unwrap() < 0.001 && expected.p_value.unwrap() < 0.01);
        assert_equal(&noisy.measured(&pairs).unwrap().measure, &expected.a);
        assert_equal(&words.measured(&pairs).unwrap().measure, &expected.b);
    }

    #[test]
    fn seeds_are_averaged_and_resampled() {
        let (pairs, words, noisy) = systems(3);
        let single_seed =
            |seed: usize| System::new("single seed", vec![noisy.scores[seed].clone()]);
        let differences: Vec<f64> = (0..3)
            .map(|seed| single_seed(seed).beats(&words, &pairs).unwrap().measure.value)
            .collect();
        let combined = noisy.beats(&words, &pairs).unwrap().measure;
        assert!((combined.value - mean(&differences)).abs() < 1e-12);
        assert_eq!(combined.n, 3 * pairs.len());
        let interval = combined.interval.unwrap();
        assert_eq!(interval.method, "percentile bootstrap by anchor and seed");
        // Equal seeds do not widen the interval; different seeds do.
        let same = System::new("same", vec![noisy.scores[1].clone(); 3]);
        let [same, one] =
            [&same, &single_seed(1)].map(|system| system.beats(&words, &pairs).unwrap().measure);
        assert!((same.value - one.value).abs() < 1e-12);
        let width = |interval: &engram_eval::result::Interval| interval.high - interval.low;
        assert!(width(&interval) > width(&same.interval.unwrap()));
    }
}
