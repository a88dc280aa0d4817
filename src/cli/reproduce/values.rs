//! Values of several seeds, and their means.

use engram_eval::bootstrap::{BootstrapOptions, Resampling, interval};
use engram_eval::metric::MetricInfo;
use engram_eval::metric::mean::{mean, weighted_mean};
use engram_eval::result::Measure;
use engram_eval::significance::p_value;
use engram_train::grid::{Rule, Test};

/// Values, each with its seed and its resampling unit, such as an image.
#[derive(Default)]
pub(super) struct Values {
    values: Vec<f64>,
    units: Vec<String>,
    seeds: Vec<u64>,
}

impl Values {
    pub(super) fn add(&mut self, seed: u64, unit: impl ToString, value: f64) {
        self.values.push(value);
        self.units.push(unit.to_string());
        self.seeds.push(seed);
    }

    /// Adds 1 for an outcome that holds, otherwise 0.
    pub(super) fn add_outcome(&mut self, seed: u64, unit: impl ToString, holds: bool) {
        self.add(seed, unit, if holds { 1.0 } else { 0.0 });
    }

    /// The differences to other values of the same units and seeds.
    pub(super) fn minus(&self, other: &Self) -> Self {
        let values = self.values.iter().zip(&other.values).map(|(a, b)| a - b).collect();
        Self { values, units: self.units.clone(), seeds: self.seeds.clone() }
    }

    /// The values, in insertion order.
    #[cfg(test)]
    pub(super) fn values(&self) -> &[f64] {
        &self.values
    }

    /// The unit of each value.
    #[cfg(test)]
    pub(super) fn units(&self) -> &[String] {
        &self.units
    }

    fn resampling(&self, unit: &str) -> Resampling {
        Resampling::by_crossed_groups([unit, "seed"], &self.units, &self.seeds)
    }

    /// The mean, with an interval over units and seeds.
    pub(super) fn measure(&self, info: &MetricInfo, unit: &str) -> Measure {
        let (value, interval) = if self.values.is_empty() {
            (Err("undefined: nothing was measured".to_owned()), None)
        } else {
            let options = BootstrapOptions::default();
            let resampled = |counts: &[u32]| weighted_mean(&self.values, counts);
            (Ok(mean(&self.values)), interval(&self.resampling(unit), &options, resampled))
        };
        Measure::new(info, self.values.len(), value, interval)
    }

    /// Tests a rule on the mean.
    pub(super) fn test(&self, info: &MetricInfo, unit: &str, rule: Rule) -> Test {
        Test::new(self.measure(info, unit), rule, |measure, threshold| {
            p_value(measure, threshold, &self.resampling(unit), |counts| {
                weighted_mean(&self.values, counts)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use engram_eval::metric::Unit;
    use engram_train::grid::Verdict;

    use super::*;

    #[test]
    fn zero_of_276_does_not_decide_a_limit_of_one_percent() {
        let info = MetricInfo::lower("shown_name_in_text", Unit::Fraction);
        let test_of = |count: usize| {
            let mut values = Values::default();
            (0..count).for_each(|clip| values.add_outcome(1, clip, false));
            values.test(&info, "name", Rule::AtMost(0.01))
        };
        let test = test_of(276);
        let interval = test.measure.interval.as_ref().unwrap();
        assert_eq!(interval.method, "exact binomial by name");
        assert!((interval.high - 0.013_277).abs() < 1e-6, "{interval:?}");
        assert_eq!(test.verdict, Verdict::NotDecided);
        assert!(test.p_value.unwrap() > 0.05);
        let decided = test_of(400);
        assert_eq!(decided.verdict, Verdict::Holds);
        assert!(decided.p_value.unwrap() < 0.05);
    }

    #[test]
    fn p_values_are_over_units_and_seeds() {
        let mut values = Values::default();
        for seed in 1..=3 {
            (0..50).for_each(|unit| values.add_outcome(seed, unit, (unit + seed) % 4 > 0));
        }
        let info = MetricInfo::higher("accuracy", Unit::Fraction);
        let test = values.test(&info, "task", Rule::Above(0.5));
        assert_eq!(test.verdict, Verdict::Holds);
        assert!(test.p_value.unwrap() <= 0.05);
        let test = values.test(&info, "task", Rule::Above(test.measure.value));
        assert_eq!(test.verdict, Verdict::NotDecided);
        assert!(test.p_value.unwrap() > 0.5);
    }
}
