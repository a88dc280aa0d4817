//! Compares the benchmarks with the published scorers, on made-up cases in the published layouts.
//!
//! # Source   `eval/tests/reference/benchmarks/make.py`

use engram_eval::EvalError;
use engram_eval::benchmark::{BenchmarkReport, edit, kbvqa};
use engram_eval::result::ReportOptions;
use engram_textfile::Input;
use serde_json::{Map, Value};

const FIXTURES: [(&str, &[u8]); 9] = [
    ("counterfact", include_bytes!("../reference/benchmarks/counterfact.json.gz")),
    ("zsre", include_bytes!("../reference/benchmarks/zsre.json.gz")),
    ("mquake", include_bytes!("../reference/benchmarks/mquake.json.gz")),
    ("vlkeb", include_bytes!("../reference/benchmarks/vlkeb.json.gz")),
    ("evqa", include_bytes!("../reference/benchmarks/evqa.json.gz")),
    ("infoseek", include_bytes!("../reference/benchmarks/infoseek.json.gz")),
    ("m2kr", include_bytes!("../reference/benchmarks/m2kr.json.gz")),
    ("viquae", include_bytes!("../reference/benchmarks/viquae.json.gz")),
    ("webqa", include_bytes!("../reference/benchmarks/webqa.json.gz")),
];

/// The report of a data set from its files; `metric` is the primary metric.
fn report(
    data: &str,
    files: &Map<String, Value>,
    metric: Option<&str>,
) -> Result<BenchmarkReport, EvalError> {
    let file = |name: &'static str| files.get(name).and_then(Value::as_str).map(|t| [name, t]);
    let mut options = ReportOptions { items: true, worst: 3, ..ReportOptions::default() };
    options.bootstrap.resamples = 20;
    let metric = metric.map(str::to_owned);
    let (reference, predictions) = (file("reference").unwrap(), file("predictions").unwrap());
    if let Some(set) = edit::SETS.iter().find(|set| set.name == data) {
        let edit_options = edit::EditOptions { metric, ..Default::default() };
        return edit::evaluate(set, reference, predictions, &edit_options, &options);
    }
    let set = kbvqa::SETS.iter().find(|set| set.name == data).expect("a data set");
    let (types, passages) = (file("types"), file("passages"));
    let files = kbvqa::Files { reference, types, passages, predictions };
    let kbvqa_options = kbvqa::KbvqaOptions { metric, ..Default::default() };
    kbvqa::evaluate(set, &files, &kbvqa_options, &options)
}

#[test]
fn values_equal_those_of_the_published_scorers() {
    for (data, bytes) in FIXTURES {
        let bytes = Input::new(data, bytes).unwrap().read_bytes().unwrap();
        let fixture: Value = serde_json::from_slice(&bytes).unwrap();
        let files = fixture["files"].as_object().unwrap();
        let detail = report(data, files, None).unwrap().evaluation.detail;
        for (metric, expected) in fixture["expected"].as_object().unwrap() {
            let (value, expected) = (detail[metric].as_f64().unwrap(), expected.as_f64().unwrap());
            // Some scripts print per cent with two decimals.
            let is_rounded = ["edit_score", "infoseek_"].iter().any(|n| metric.starts_with(n));
            let tolerance = if is_rounded { 1.0001e-4 } else { 1e-9 };
            assert!((value - expected).abs() < tolerance, "{data} {metric}: {value} {expected}");
        }
        for (metric, expected) in fixture["items"].as_object().unwrap() {
            let report = report(data, files, Some(metric)).unwrap();
            let expected = expected.as_array().unwrap();
            assert!(expected.len() >= 300 && report.items.len() == expected.len(), "{data}");
            for (item, expected) in report.items.iter().zip(expected) {
                let expected = expected.as_f64().unwrap();
                assert!((item.value() - expected).abs() < 1e-9, "{data} {metric} {}", item.id);
            }
            assert!(report.to_html().contains("Worst cases") || report.worst.is_empty());
        }
    }
}
