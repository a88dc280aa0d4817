//! Compares the correlations with scipy.

use engram_eval::metric::kendall::{WeightedKendall, kendall_tau_b};
use engram_eval::metric::pearson::{WeightedPearson, pearson};
use engram_eval::metric::spearman::{WeightedSpearman, spearman};
use serde_json::Value;

use super::string;

/// A number in the fixture, as text: `nan` and `inf` are not JSON.
fn number(value: &Value) -> f64 {
    string(value).parse().expect("a fixture number")
}

fn numbers(values: &Value) -> Vec<f64> {
    values.as_array().expect("a fixture number").iter().map(number).collect()
}

fn assert_equal(case: &str, metric: &str, computed: f64, reference: f64) {
    // `WeightedPearson` centres the values twice, which corrects the rounding of the mean in scipy.
    let corrected = metric == "weighted pearson" && case.starts_with("nearly_constant");
    let tolerance = if corrected { 1e-5 } else { 1e-12 };
    let equal =
        (computed - reference).abs() <= tolerance || (computed.is_nan() && reference.is_nan());
    assert!(equal, "{case}: {metric} is {computed}, scipy gives {reference}");
}

#[test]
fn correlations_equal_scipy() {
    let cases: Value =
        serde_json::from_str(include_str!("../../reference/phrase_scipy.json")).unwrap();
    let cases = cases.as_array().unwrap();
    assert!(cases.len() > 30);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let (x, y) = (numbers(&case["x"]), numbers(&case["y"]));
        let ones = vec![1; x.len()];

        if case["pearson"] == "error" {
            assert!(pearson(&x, &y).is_err(), "{name}");
        } else {
            let reference = number(&case["pearson"]);
            assert_equal(name, "pearson", pearson(&x, &y).unwrap(), reference);
            let weighted = WeightedPearson::new(&x, &y).unwrap();
            assert_equal(name, "weighted pearson", weighted.value(&ones), reference);
        }
        let reference = number(&case["spearman"]);
        assert_equal(name, "spearman", spearman(&x, &y).unwrap(), reference);
        let weighted = WeightedSpearman::new(&x, &y).unwrap();
        assert_equal(name, "weighted spearman", weighted.value(&ones), reference);

        let reference = number(&case["kendall"]);
        assert_equal(name, "kendall", kendall_tau_b(&x, &y).unwrap(), reference);
        let weighted = WeightedKendall::new(&x, &y).unwrap();
        assert_equal(name, "weighted kendall", weighted.value(&ones), reference);
    }
}
