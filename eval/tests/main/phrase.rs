//! Tests of the phrase evaluation: metrics, breakdowns, worst rows, JSON and text.

use engram_eval::bootstrap::BootstrapOptions;
use engram_eval::metric::mean::{mean, weighted_mean};
use engram_eval::metric::pearson::pearson;
use engram_eval::metric::registry::{Metric, RowMetric};
use engram_eval::metric::{MetricError, MetricInfo, Range, Unit};
use engram_eval::phrase::{GoldRow, PhraseOptions, PhraseReport, Prediction, compare, evaluate};
use engram_eval::result::Breakdown;
use serde_json::Value;

const CLASSES: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];
const CONTEXTS: [&str; 3] = ["A47", "G06", "H01"];

/// Returns rows with predictions: `anchors` anchors with ten rows each. A prediction is the gold
/// score times a slope, which differs per anchor, plus an error, which differs per row.
fn sample(anchors: usize) -> (Vec<GoldRow>, Vec<Prediction>) {
    let wave = |i: usize, step: f64| (i as f64 * step).sin();
    let rows = (0..anchors * 10).map(|i| {
        let anchor = i / 10;
        let score = CLASSES[i * 7 % 5];
        let gold = GoldRow {
            id: format!("id{i}"),
            anchor: format!("anchor {anchor}"),
            target: format!("target {i}"),
            context: CONTEXTS[anchor % 3].to_owned(),
            score,
            ..GoldRow::default()
        };
        let slope = 1.0 + 1.2 * wave(anchor, 12.9898);
        let score = slope * score + 0.2 * wave(i, 78.233);
        (gold, Prediction { id: format!("id{i}"), score, line: None })
    });
    rows.unzip()
}

fn table<'a>(report: &'a PhraseReport, name: &str, metric: &str) -> &'a Breakdown {
    let tables = &report.evaluation.breakdowns;
    tables.iter().find(|table| table.name == name && table.metric == metric).expect("in the report")
}

#[test]
fn the_order_of_the_predictions_does_not_matter() {
    let (gold, mut predictions) = sample(12);
    let options = PhraseOptions::default();
    let report = evaluate(&gold, &predictions, &options).unwrap();
    predictions.reverse();
    let reversed = evaluate(&gold, &predictions, &options).unwrap();
    assert_eq!(report, reversed);
    let gold_scores: Vec<f64> = gold.iter().map(|row| row.score).collect();
    let predicted: Vec<f64> = predictions.iter().rev().map(|row| row.score).collect();
    assert_eq!(report.evaluation.primary.value, pearson(&gold_scores, &predicted).unwrap());
}

#[test]
fn breakdowns_hold_every_row_once() {
    let (mut gold, predictions) = sample(12);
    for (i, row) in gold.iter_mut().enumerate() {
        row.rating = (i % 4 > 0).then(|| "synonym".to_owned());
    }
    let report = evaluate(&gold, &predictions, &PhraseOptions::default()).unwrap();
    for table in &report.evaluation.breakdowns {
        assert_eq!(table.rows.iter().map(|row| row.n).sum::<usize>(), 120, "{}", table.name);
    }
    let names = |name, metric| -> Vec<String> {
        table(&report, name, metric).rows.iter().map(|row| row.name.clone()).collect()
    };
    assert_eq!(names("score", "mean_prediction"), ["0", "0.25", "0.5", "0.75", "1"]);
    assert_eq!(names("rating", "pearson"), ["(none)", "synonym"]);
    assert_eq!(names("section", "pearson"), ["A Human Necessities", "G Physics", "H Electricity"]);

    let in_section: Vec<usize> = (0..120).filter(|i| gold[*i].context == "G06").collect();
    let values = |value: &dyn Fn(usize) -> f64| -> Vec<f64> {
        in_section.iter().map(|&i| value(i)).collect()
    };
    let expected = pearson(&values(&|i| gold[i].score), &values(&|i| predictions[i].score));
    // The second section is `G Physics`.
    assert_eq!(table(&report, "section", "pearson").rows[1].value, expected.unwrap());

    let anchors = &table(&report, "anchor", "pearson").rows;
    assert_eq!(anchors.len(), 12);
    assert!(anchors.is_sorted_by(|a, b| a.value <= b.value));
}

/// The share of rows whose prediction is within 0.2 of the gold score.
fn near(gold: &[f64], predicted: &[f64]) -> Result<RowMetric, MetricError> {
    let is_near = |(gold, predicted): (&f64, &f64)| f64::from((gold - predicted).abs() < 0.2);
    let near: Vec<f64> = gold.iter().zip(predicted).map(is_near).collect();
    Ok(RowMetric::new(mean(&near), move |counts| weighted_mean(&near, counts)))
}

#[test]
fn a_metric_is_one_function() {
    let info = MetricInfo::higher("near_score", Unit::Fraction);
    let mut options = PhraseOptions::default();
    options.metrics.push(Metric::of_rows(info, "near", Range::new(0.0, 1.0), near));
    let (gold, predictions) = sample(12);
    let report = evaluate(&gold, &predictions, &options).unwrap();
    let measure = report.evaluation.secondary.last().unwrap();
    let interval = measure.interval.as_ref().unwrap();
    assert!(interval.low < measure.value && measure.value < interval.high);
    assert_eq!(report.evaluation.detail["near_score"], measure.value);
    assert!(report.to_text().contains("near score") && report.to_html().contains("near score"));
}

#[test]
fn the_worst_rows_account_for_one_minus_r() {
    let (gold, mut predictions) = sample(12);
    predictions[33].score += 9.0;
    let options = PhraseOptions { worst_rows: usize::MAX, ..PhraseOptions::default() };
    let report = evaluate(&gold, &predictions, &options).unwrap();
    let worst = &report.worst_rows;
    assert_eq!((worst.len(), worst[0].id.as_str()), (120, "id33"));
    assert!(worst[0].difference > 0.0);
    let mean_square = worst.iter().map(|row| row.difference.powi(2)).sum::<f64>() / 120.0;
    let expected = 2.0 * (1.0 - report.evaluation.primary.value);
    assert!((mean_square - expected).abs() < 1e-12);
}

#[test]
fn constant_predictions_give_null_with_a_reason() {
    let (gold, mut predictions) = sample(3);
    predictions.iter_mut().for_each(|row| row.score = 0.5);
    let report = evaluate(&gold, &predictions, &PhraseOptions::default()).unwrap();
    let json = serde_json::to_value(&report).unwrap();
    let reason = "undefined: the prediction is constant (always 0.5)";
    assert_eq!((&json["value"], &json["reason"]), (&Value::Null, &reason.into()));
    assert_eq!(json["detail"]["kendall"], Value::Null);
    assert_eq!(json["detail"]["mean_absolute_error"], 0.3);
    assert_eq!(json["warnings"][0], reason);
    assert_eq!(json["worst_rows"], serde_json::json!([]));
    assert!(report.to_text().contains(reason));
}

#[test]
fn resamples_without_a_correlation_are_reported() {
    let (mut gold, predictions) = sample(12);
    for row in &mut gold[1..] {
        row.score = 0.0;
    }
    gold[0].score = 1.0;
    let report = evaluate(&gold, &predictions, &PhraseOptions::default()).unwrap();
    let interval = report.evaluation.primary.interval.unwrap();
    // A resample misses the anchor with the only nonzero score with probability (11/12)^12 = 0.352.
    assert!(interval.undefined_resamples.abs_diff(352) < 50);
    let undefined = interval.undefined_resamples;
    let warning = format!("{undefined} of 1000 resamples have no Pearson correlation");
    let is_reported = report.warnings.iter().any(|reported| reported.starts_with(&warning));
    assert!(is_reported, "{:?}", report.warnings);
}

#[test]
fn json_has_stable_names_and_can_be_read_back() {
    let (gold, predictions) = sample(4);
    let report = evaluate(&gold, &predictions, &PhraseOptions::default()).unwrap();
    let json = serde_json::to_value(&report).unwrap();
    let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    let expected = "schema_version metric version higher_is_better unit value ci95 n interval detail secondary \
                    breakdowns normaliser sources anchors warnings worst_rows";
    assert_eq!(keys, expected.split_whitespace().collect::<Vec<_>>());
    assert_eq!((&json["metric"], &json["n"]), (&"pearson".into(), &40.into()));
    assert_eq!(json["normaliser"], "none");
    assert_eq!(json["ci95"][0], json["interval"]["low"]);
    let detail: Vec<&String> = json["detail"].as_object().unwrap().keys().collect();
    assert_eq!(detail, ["pearson", "spearman", "kendall", "mean_absolute_error"]);
    let read: PhraseReport = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), json);
}

#[test]
fn the_text_has_every_table_and_aligned_columns() {
    let (mut gold, predictions) = sample(12);
    gold[0].rating = Some("synonym".to_owned());
    let report = evaluate(&gold, &predictions, &PhraseOptions::default()).unwrap();
    let text = report.to_text();
    for expected in [
        "Phrase similarity, 120 rows, 12 anchors",
        "95 % interval",
        "Intervals: percentile bootstrap by anchor, 1000 resamples, seed 1;",
        "By score",
        "By rating",
        "By section",
        "By anchor, worst and best 5 of 12",
        "Worst 20 rows",
    ] {
        assert!(text.contains(expected), "`{expected}` is missing in\n{text}");
    }
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("anchor ")).collect();
    assert_eq!(lines.len(), 11, "a heading and ten anchors");
    let start = |line: &str| line.find('[');
    assert!(lines[1..].iter().all(|line| start(line) == start(lines[1])), "{text}");
}

#[test]
fn reports_without_resamples_have_no_intervals() {
    let (gold, predictions) = sample(9);
    let with_intervals = evaluate(&gold, &predictions, &PhraseOptions::default()).unwrap();
    assert_eq!(with_intervals.warnings, ["only 9 sampling units: intervals are rough"]);
    assert!(with_intervals.to_text().contains("]*"));
    assert!(!with_intervals.to_text().contains("]**"));
    let bootstrap = BootstrapOptions { resamples: 0, ..BootstrapOptions::default() };
    let options = PhraseOptions { bootstrap, ..PhraseOptions::default() };
    let report = evaluate(&gold, &predictions, &options).unwrap();
    assert!(report.evaluation.primary.interval.is_none());
    assert!(report.warnings.is_empty() && !report.to_text().contains("Intervals:"));
    let comparison = compare(&gold, "a", &predictions, "b", &predictions, &options).unwrap();
    assert_eq!((comparison.difference.value, comparison.p_value), (0.0, None));
}

#[test]
fn errors_name_unmatched_and_invalid_rows() {
    let (gold, predictions) = sample(2);
    let failure = |gold: &[GoldRow], predictions: &[Prediction]| {
        evaluate(gold, predictions, &PhraseOptions::default()).unwrap_err().to_string()
    };
    assert_eq!(
        failure(&gold, &predictions[2..]),
        "predictions: no prediction for id `id0` (gold), 2 of 20 ids are missing; give one row per gold row"
    );
    assert_eq!(
        failure(&gold[..17], &predictions),
        "predictions: id `id17` is not in gold, 3 of 20 predictions have no gold row; \
         check that both files belong to the same split"
    );
    let mut duplicated = predictions.clone();
    duplicated[5].id = "id4".to_owned();
    assert!(failure(&gold, &duplicated).starts_with("predictions: id `id4` was already given"));
    let mut infinite = predictions.clone();
    infinite[5].score = f64::INFINITY;
    assert!(failure(&gold, &infinite).contains("id `id5`: score `inf` is not a finite number"));
    assert_eq!(
        failure(&[], &predictions),
        "gold: has no rows; expected a header line and one line per row"
    );
    assert_eq!(
        failure(&gold[..1], &predictions[..1]),
        "pearson: needs at least 2 rows, got 1; add rows"
    );
}

#[test]
fn the_error_that_both_systems_share_cancels_out() {
    let (gold, predictions) = sample(40);
    let mut better = predictions.clone();
    for (row, gold) in better.iter_mut().zip(&gold) {
        row.score += 0.1 * gold.score;
    }
    let options = PhraseOptions::default();
    let comparison = compare(&gold, "a", &better, "b", &predictions, &options).unwrap();
    let width = |measure: &engram_eval::result::Measure| {
        let interval = measure.interval.as_ref().unwrap();
        interval.high - interval.low
    };
    assert!(comparison.difference.value > 0.0 && comparison.p_value.unwrap() < 0.01);
    assert!(width(&comparison.difference) < 0.5 * width(&comparison.a));
    assert_eq!((comparison.unit.as_str(), comparison.units), ("anchor", 40));
    assert_eq!(comparison.systems, ["a", "b"]);
}
