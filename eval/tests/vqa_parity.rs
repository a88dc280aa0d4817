//! Compares VQA accuracy with the official script, and retrieval metrics with trec_eval.
//!
//! `ENGRAM_DATA` names the folder that contains the fixtures in `metrics/`, which are not in this
//! repository.

use std::path::{Path, PathBuf};

use engram_eval::retrieval::{RetrievalOptions, evaluate as evaluate_retrieval, parse_queries};
use engram_eval::vqa::answer::normalise_answer;
use engram_eval::vqa::read::{parse_annotations, parse_results};
use engram_eval::vqa::{VqaOptions, evaluate};
use engram_textfile::read_text;
use serde_json::Value;

fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("ENGRAM_DATA").map(|data| PathBuf::from(data).join("metrics"));
    if folder.is_none() {
        eprintln!("SKIPPED: ENGRAM_DATA is not set, so nothing was compared with the references");
    }
    folder
}

fn text(folder: &Path, name: &str) -> String {
    read_text(folder.join(name)).unwrap_or_else(|error| panic!("{error}"))
}

fn json(folder: &Path, name: &str) -> Value {
    serde_json::from_str(&text(folder, name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn accuracies_equal_the_official_script() {
    let Some(folder) = folder() else { return };
    let annotations = text(&folder, "vqa.annotations.json.gz");
    let annotations = parse_annotations("annotations", &annotations).expect("annotations");
    let results = text(&folder, "vqa.results.json.gz");
    let results = parse_results("results", &results).expect("results");
    let options = VqaOptions { items: true, ..VqaOptions::default() };
    let report = evaluate("annotations", &annotations, "results", &results, &options);
    let report = report.expect("a report");
    let expected = json(&folder, "vqa.expected.json");

    let per_question = expected["per_question"].as_object().expect("questions");
    assert_eq!(report.items.len(), per_question.len());
    for item in &report.items {
        let engram_eval::items::Statistic::Mean { value } = item.statistic else {
            panic!("a mean");
        };
        let expected_value = per_question[&item.id].as_f64().expect("a number");
        assert!((value - expected_value).abs() < 1e-9, "{}: {value}, {expected_value}", item.id);
    }
    let rounded =
        |value: f64, digits: i32| (value * 10f64.powi(digits)).round() / 10f64.powi(digits);
    for (digits, key) in [(2, "accuracy_n2"), (10, "accuracy_n10")] {
        let expected_values = &expected[key];
        let detail = &report.evaluation.detail;
        let assert_close = |computed: &Value, expected_value: &Value, description: &str| {
            let computed = computed.as_f64().expect("a number");
            let expected_value = expected_value.as_f64().expect("a number");
            assert!(
                (rounded(computed, digits) - expected_value).abs() < 1e-9,
                "{description}: {computed}, {expected_value}"
            );
        };
        assert_close(&detail["accuracy"], &expected_values["overall"], "overall");
        for (detail_key, expected_key) in
            [("per_question_type", "perQuestionType"), ("per_answer_type", "perAnswerType")]
        {
            let by_type = &detail[detail_key];
            let expected_by_type = expected_values[expected_key].as_object().expect("types");
            assert_eq!(by_type.as_object().map(|types| types.len()), Some(expected_by_type.len()));
            for (name, expected_value) in expected_by_type {
                assert_close(&by_type[name], expected_value, name);
            }
        }
    }
}

#[test]
fn answers_are_normalised_byte_for_byte() {
    let Some(folder) = folder() else { return };
    let expected = json(&folder, "vqa.expected.json");
    let pairs = expected["normalized_when_answers_differ"].as_array().expect("pairs");
    assert!(pairs.len() > 100);
    for pair in pairs {
        let (raw, normalised) = (pair[0].as_str().expect("text"), pair[1].as_str().expect("text"));
        let without_line_ends = raw.replace(['\n', '\t'], " ");
        assert_eq!(normalise_answer(without_line_ends.trim()), normalised, "{raw:?}");
    }
}

#[test]
fn retrieval_metrics_equal_trec_eval() {
    let Some(folder) = folder() else { return };
    let queries = text(&folder, "recall.jsonl.gz");
    let queries = parse_queries("recall", &queries).expect("queries");
    let options = RetrievalOptions { items: true, ..RetrievalOptions::default() };
    let report = evaluate_retrieval(&queries, &options).expect("a report");
    let expected = json(&folder, "recall.expected.json.gz");
    let our_name = |name: &str| match name {
        "recip_rank" => "mrr".to_owned(),
        name => name.replace("ndcg_cut", "ndcg").replace('_', "@"),
    };
    for (name, expected_value) in expected["corpus"].as_object().expect("metrics") {
        let computed = report.evaluation.detail[&our_name(name)].as_f64().expect("a number");
        let expected_value = expected_value.as_f64().expect("a number");
        assert!(
            (computed - expected_value).abs() < 1e-9 * expected_value,
            "{name}: {computed}, {expected_value}"
        );
    }
    let columns = expected["columns"].as_array().expect("columns");
    let column = columns.iter().position(|name| name == "recall_10").expect("recall_10");
    for (item, row) in report.items.iter().zip(expected["items"].as_array().expect("rows")) {
        let engram_eval::items::Statistic::Mean { value } = item.statistic else {
            panic!("a mean");
        };
        assert!((value - row[column].as_f64().expect("a number")).abs() < 1e-12, "{}", item.id);
    }
}
