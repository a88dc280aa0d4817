//! Compares chrF and chrF++ with sacrebleu: scores of whole sets and of single texts.

use engram_eval::bootstrap::BootstrapOptions;
use engram_eval::compare::compare_items;
use engram_eval::items::Items;
use engram_eval::metric::chrf::{chrf, chrf_plus_plus_sums, chrf_sums};
use engram_eval::normalise::Normaliser;
use engram_eval::result::ReportOptions;
use engram_eval::texts::{Texts, evaluate};
use serde::Deserialize;

const TOLERANCE: f64 = 1e-9;

#[derive(Deserialize)]
struct Case {
    name: String,
    hypotheses: Vec<String>,
    references: Vec<Vec<String>>,
    chrf: Scores,
    #[serde(rename = "chrf++")]
    chrf_plus_plus: Scores,
}

#[derive(Deserialize)]
struct Scores {
    corpus: f64,
    sentences: Vec<f64>,
}

impl Case {
    fn texts(&self) -> Texts<'_> {
        Texts {
            ids: (1..=self.hypotheses.len()).map(|id| id.to_string().into()).collect(),
            hypotheses: self.hypotheses.iter().map(|text| text.into()).collect(),
            references: self
                .references
                .iter()
                .map(|references| references.iter().map(|text| text.into()).collect())
                .collect(),
        }
    }
}

fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("../../reference/chrf.json")).expect("the fixture")
}

#[test]
fn scores_equal_sacrebleu() {
    let cases = cases();
    assert!(cases.iter().map(|case| case.hypotheses.len()).sum::<usize>() > 130);
    for case in cases {
        for (metric, expected) in [("chrf", &case.chrf), ("chrf++", &case.chrf_plus_plus)] {
            for (row, (hypothesis, references)) in
                case.hypotheses.iter().zip(&case.references).enumerate()
            {
                let references: Vec<&str> = references.iter().map(String::as_str).collect();
                let sums = match metric {
                    "chrf" => chrf_sums(hypothesis, &references),
                    _ => chrf_plus_plus_sums(hypothesis, &references),
                };
                let (score, expected_score) = (chrf(&sums), expected.sentences[row]);
                assert!(
                    (score - expected_score).abs() < TOLERANCE,
                    "{}: {metric} of {hypothesis:?}: {score}, sacrebleu gives {expected_score}",
                    case.name
                );
            }
            let report = evaluate(&case.texts(), metric, Normaliser::None, &Default::default());
            let measure = report.expect("texts").evaluation.primary;
            assert!(
                (measure.value - expected.corpus).abs() < TOLERANCE,
                "{}: {metric} is {}, sacrebleu gives {}",
                case.name,
                measure.value,
                expected.corpus
            );
        }
    }
}

#[test]
fn items_give_the_same_value_and_interval() {
    let cases = cases();
    let texts = cases[0].texts();
    let options = ReportOptions { items: true, ..ReportOptions::default() };
    let report =
        |texts: &Texts<'_>| evaluate(texts, "chrf", Normaliser::None, &options).expect("texts");
    let items = |hypotheses| {
        let items = report(&Texts { hypotheses, ..texts.clone() }).items;
        // The items are written as JSON and read again.
        let written = engram_eval::items::json_lines(&items);
        Items::parse("items", &written).expect("items")
    };
    let system_items = items(texts.hypotheses.clone());
    let perfect_items =
        items(texts.references.iter().map(|references| references[0].clone()).collect());
    let comparison =
        compare_items(&system_items, &perfect_items, &BootstrapOptions::default()).expect("items");
    let primary = &report(&texts).evaluation.primary;
    assert_eq!(comparison.a.value, primary.value);
    let limits = |measure: &engram_eval::result::Measure| {
        let interval = measure.interval.clone().expect("an interval");
        (interval.low, interval.high)
    };
    assert_eq!(limits(&comparison.a), limits(primary));
    assert_eq!((comparison.b.value, comparison.difference.value), (100.0, primary.value - 100.0));
    assert_eq!(comparison.difference.metric, "chrf_difference");
    assert!(comparison.p_value.expect("a p-value") < 0.01);
    assert!(comparison.permutation_p_value.expect("a p-value") < 0.01);
}
