//! Comparison of two systems on the same rows.
//!
//! Both systems are scored on the same resamples, so what makes a row easy or hard for both cancels out: the interval
//! of the difference is far narrower than the two single intervals suggest.

use serde::{Deserialize, Serialize};

use crate::bootstrap::{BootstrapOptions, Resampling, bootstrap, interval};
use crate::error::EvalError;
use crate::metric::pearson::{self, WeightedPearson, pearson};
use crate::metric::{MetricInfo, undefined_reason};
use crate::result::{Measure, SCHEMA_VERSION};
use crate::table::{Align, TextTable, limits, number};

/// The difference of a metric between system A and system B, on the same rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// [`SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// Names of system A and system B.
    pub systems: [String; 2],
    /// System A alone.
    pub a: Measure,
    /// System B alone.
    pub b: Measure,
    /// A less B, with the paired interval.
    pub difference: Measure,
    /// Two-sided p value of "there is no difference", from the paired bootstrap; `null` without resamples.
    pub p_value: Option<f64>,
    /// The true difference that this set of rows would show at the 5 % level four times out of five:
    /// `(1.96 + 0.84)` standard errors. `null` without resamples.
    pub detectable_difference: Option<f64>,
    /// What was drawn, and how many of them there are.
    pub unit: String,
    /// Number of units: rows, or groups of rows.
    pub units: usize,
}

impl Comparison {
    /// The comparison as aligned plain text.
    pub fn to_text(&self) -> String {
        let [a, b] = &self.systems;
        let mut table = TextTable::new(&[
            ("system", Align::Left),
            (&self.a.metric, Align::Right),
            ("interval", Align::Left),
        ]);
        for (name, measure) in
            [(a.as_str(), &self.a), (b, &self.b), ("difference", &self.difference)]
        {
            let interval = limits(measure.interval.as_ref());
            table.push(vec![name.to_owned(), number(measure.value), interval]);
        }
        let finding = match (self.p_value, self.detectable_difference) {
            (Some(p), Some(detectable)) => format!(
                "Two-sided p {}; {} {}s would show a true difference of {} four times out of five.\n",
                number(p),
                self.units,
                self.unit,
                number(detectable)
            ),
            _ => String::new(),
        };
        let reasons = [&self.a, &self.b].into_iter().filter_map(|measure| measure.reason.as_ref());
        let reasons: String = reasons.map(|reason| format!("Warning: {reason}.\n")).collect();
        format!("{table}{finding}{reasons}")
    }
}

/// Difference of two systems' Pearson correlation with the same gold values.
///
/// The p value is twice the share of paired resamples in which the difference has the other sign or is 0, so it is
/// about 0.05 where the 95 % interval touches 0.
///
/// # Errors   [`EvalError::Metric`] for unequal lengths or fewer than 2 rows; [`EvalError::BadOption`] for a level that
/// is no share, and for a resampling of another number of rows
///
/// ```
/// use engram_eval::bootstrap::{BootstrapOptions, Resampling};
///
/// let gold = [0.0, 0.25, 0.5, 0.75, 1.0, 0.5];
/// let good = [0.1, 0.2, 0.6, 0.7, 0.9, 0.5];
/// let poor = [0.5, 0.1, 0.4, 0.9, 0.2, 0.3];
/// let options = BootstrapOptions::default();
/// let by_row = Resampling::by_row(gold.len());
/// let comparison = engram_eval::compare::compare_pearson(&gold, &good, &poor, &by_row, &options)?;
/// assert!(comparison.difference.value > 0.5);
/// # Ok::<(), engram_eval::EvalError>(())
/// ```
pub fn compare_pearson(
    gold: &[f64],
    a: &[f64],
    b: &[f64],
    resampling: &Resampling,
    options: &BootstrapOptions,
) -> Result<Comparison, EvalError> {
    options.validate()?;
    if resampling.rows() != gold.len() {
        return Err(EvalError::BadOption {
            option: "resampling",
            found: format!("over {} rows", resampling.rows()),
            expected: "the same rows as the gold values",
        });
    }
    let value_a = defined(gold, a, "system A")?;
    let value_b = defined(gold, b, "system B")?;
    let difference = value_a.clone().and_then(|a| value_b.clone().map(|b| a - b));
    let weighted_a = WeightedPearson::new(gold, a)?;
    let weighted_b = WeightedPearson::new(gold, b)?;

    let single =
        |weighted: &WeightedPearson| interval(resampling, options, |counts| weighted.value(counts));
    let paired = (options.resamples > 0 && difference.is_ok()).then(|| {
        bootstrap(resampling, options, |counts| weighted_a.value(counts) - weighted_b.value(counts))
    });
    let info = MetricInfo { name: "pearson_difference", ..pearson::INFO };
    let paired_interval = paired.as_ref().map(|paired| paired.interval(resampling, options));
    let finite = |value: f64| value.is_finite().then_some(value);
    Ok(Comparison {
        schema_version: SCHEMA_VERSION,
        systems: ["A", "B"].map(str::to_owned),
        a: Measure::new(&pearson::INFO, gold.len(), value_a, single(&weighted_a)),
        b: Measure::new(&pearson::INFO, gold.len(), value_b, single(&weighted_b)),
        difference: Measure::new(&info, gold.len(), difference, paired_interval),
        p_value: paired.as_ref().and_then(|paired| finite(paired.p_value())),
        detectable_difference: paired.and_then(|paired| finite(2.8 * paired.standard_error())),
        unit: resampling.unit().to_owned(),
        units: resampling.draws(),
    })
}

/// Pearson's `r`, or the sentence that says why it is undefined.
fn defined(gold: &[f64], system: &[f64], name: &str) -> Result<Result<f64, String>, EvalError> {
    let r = pearson(gold, system)?;
    let reason = || undefined_reason(gold, system, "the gold score", name);
    Ok(if r.is_nan() { Err(reason()) } else { Ok(r) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `n` gold values and two systems; `b` follows gold, `a` follows it with `extra` less noise.
    fn systems(n: usize, noise_a: f64, noise_b: f64) -> [Vec<f64>; 3] {
        let wave = |row: usize, step: f64| (row as f64 * step).sin();
        let gold: Vec<f64> = (0..n).map(|row| wave(row, 12.9898)).collect();
        let noisy = |noise: f64, step: f64| -> Vec<f64> {
            gold.iter().enumerate().map(|(row, g)| g + noise * wave(row, step)).collect()
        };
        let (a, b) = (noisy(noise_a, 78.233), noisy(noise_b, 37.719));
        [gold, a, b]
    }

    fn compare(systems: &[Vec<f64>; 3]) -> Comparison {
        let [gold, a, b] = systems;
        let by_row = Resampling::by_row(gold.len());
        compare_pearson(gold, a, b, &by_row, &BootstrapOptions::default()).unwrap()
    }

    #[test]
    fn a_clear_difference_is_found_and_none_is_not() {
        let clear = compare(&systems(300, 0.3, 1.0));
        let interval = clear.difference.interval.clone().unwrap();
        assert!(interval.low > 0.0 && clear.p_value.unwrap() < 0.01, "{clear:?}");
        assert!((clear.a.value - clear.b.value - clear.difference.value).abs() < 1e-15);

        let text = clear.to_text();
        assert!(text.starts_with("system      pearson  interval\nA"), "{text}");
        assert!(text.contains("; 300 rows would show a true difference of 0.0"), "{text}");

        let alike = compare(&systems(300, 0.6, 0.6));
        let interval = alike.difference.interval.clone().unwrap();
        assert!(interval.low < 0.0 && interval.high > 0.0, "{alike:?}");
        assert!(alike.p_value.unwrap() > 0.05);
    }

    #[test]
    fn a_system_against_itself_differs_by_nothing() {
        let [gold, a, _] = systems(50, 0.5, 0.5);
        let same = compare(&[gold, a.clone(), a]);
        let interval = same.difference.interval.clone().unwrap();
        assert_eq!((same.difference.value, interval.low, interval.high), (0.0, 0.0, 0.0));
        assert_eq!((same.p_value, same.detectable_difference), (Some(1.0), Some(0.0)));
    }

    #[test]
    fn a_resampling_of_other_rows_is_refused() {
        let [gold, a, b] = systems(20, 0.5, 0.5);
        let options = BootstrapOptions::default();
        let error = compare_pearson(&gold, &a, &b, &Resampling::by_row(19), &options).unwrap_err();
        assert_eq!(
            error.to_string(),
            "option `resampling` is over 19 rows; expected the same rows as the gold values"
        );
    }

    #[test]
    fn swapping_the_systems_swaps_the_sign() {
        let [gold, a, b] = systems(80, 0.5, 0.9);
        let forward = compare(&[gold.clone(), a.clone(), b.clone()]);
        let backward = compare(&[gold, b, a]);
        assert_eq!(forward.difference.value, -backward.difference.value);
        assert_eq!(forward.p_value, backward.p_value);
    }

    #[test]
    fn a_constant_system_has_a_reason_and_no_p_value() {
        let [gold, a, _] = systems(20, 0.5, 0.5);
        let constant = compare(&[gold, a, vec![0.5; 20]]);
        assert_eq!(
            constant.b.reason.as_deref(),
            Some("undefined: system B is constant (always 0.5)")
        );
        assert!(constant.difference.value.is_nan() && constant.p_value.is_none());
        assert!(constant.a.interval.is_some());
        assert!(constant.to_text().contains("Warning: undefined: system B is constant"));
    }
}
