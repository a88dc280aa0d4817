//! Values of several seeds, and their means.

use engram_eval::bootstrap::{BootstrapOptions, Resampling, interval};
use engram_eval::metric::mean::{mean, weighted_mean};
use engram_eval::metric::{MetricInfo, Unit};
use engram_eval::result::Measure;
use engram_train::grid::Verdict;

/// The verdict on the claim that a value is above a threshold. The claim is not decided if the
/// interval contains the threshold or is undefined.
pub(super) fn beats(measure: &Measure, threshold: f64) -> Verdict {
    match &measure.interval {
        Some(interval) if interval.low > threshold => Verdict::Holds,
        Some(interval) if interval.high < threshold => Verdict::Fails,
        _ => Verdict::NotDecided,
    }
}

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

    /// The mean, with an interval over units and seeds.
    pub(super) fn measure(&self, metric: &'static str, unit: &str) -> Measure {
        let info = MetricInfo::descriptive(metric, Unit::Fraction);
        let options = BootstrapOptions::default();
        let resampling = Resampling::by_crossed_groups([unit, "seed"], &self.units, &self.seeds);
        let (value, interval) = if self.values.is_empty() {
            (Err("undefined: nothing was measured".to_owned()), None)
        } else {
            (
                Ok(mean(&self.values)),
                interval(&resampling, &options, |counts| weighted_mean(&self.values, counts)),
            )
        };
        Measure::new(&info, self.values.len(), value, interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_of_276_does_not_decide_a_limit_of_one_percent() {
        let measure_of = |count: usize| {
            let mut values = Values::default();
            (0..count).for_each(|clip| values.add_outcome(1, clip, false));
            values.measure("shown_name_in_text", "name")
        };
        let measure = measure_of(276);
        let interval = measure.interval.as_ref().unwrap();
        assert_eq!(interval.method, "exact binomial by name");
        assert!((interval.high - 0.013_277).abs() < 1e-6, "{interval:?}");
        assert_eq!(beats(&measure, 0.01), Verdict::NotDecided);
        assert_eq!(beats(&measure_of(400), 0.01), Verdict::Fails);
    }
}
