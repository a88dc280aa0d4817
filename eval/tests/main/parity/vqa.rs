//! Compares VQA accuracy with the official script, and retrieval metrics with trec_eval.

use engram_eval::items::Item;
use engram_eval::result::ReportOptions;
use engram_eval::retrieval::{evaluate as evaluate_retrieval, parse_queries};
use engram_eval::vqa::answer::normalise_answer;
use engram_eval::vqa::evaluate;
use engram_eval::vqa::read::{parse_annotations, parse_results};
use serde_json::Value;

use super::{assert_close, json, string, text};

#[test]
#[ignore = "needs ENGRAM_DATA: metrics/vqa.*"]
fn accuracies_equal_the_official_script() {
    let annotations = text("metrics/vqa.annotations.json.gz");
    let annotations = parse_annotations("annotations", &annotations).expect("annotations");
    let results = text("metrics/vqa.results.json.gz");
    let results = parse_results("results", &results).expect("results");
    let options = ReportOptions { items: true, ..ReportOptions::default() };
    let questions = Default::default();
    let report = evaluate("annotations", &annotations, "results", &results, &questions, &options);
    let report = report.expect("a report");
    let expected = json("metrics/vqa.expected.json");

    let per_question = expected["per_question"].as_object().expect("questions");
    assert_eq!(report.items.len(), per_question.len());
    for item in &report.items {
        assert_close(item.value(), &per_question[&item.id], 1e-9, &item.id);
    }
    for (digits, key) in [(2, "accuracy_n2"), (10, "accuracy_n10")] {
        let scale = 10f64.powi(digits);
        let assert_rounded = |computed: &Value, expected: &Value, description: &str| {
            let rounded = (computed.as_f64().expect("a number") * scale).round() / scale;
            assert_close(rounded, expected, 1e-9, description);
        };
        let (expected, detail) = (&expected[key], &report.evaluation.detail);
        assert_rounded(&detail["accuracy"], &expected["overall"], "overall");
        for (detail_key, expected_key) in
            [("per_question_type", "perQuestionType"), ("per_answer_type", "perAnswerType")]
        {
            let by_type = &detail[detail_key];
            let expected_by_type = expected[expected_key].as_object().expect("types");
            assert_eq!(by_type.as_object().map(|types| types.len()), Some(expected_by_type.len()));
            for (name, expected_value) in expected_by_type {
                assert_rounded(&by_type[name], expected_value, name);
            }
        }
    }
}

#[test]
#[ignore = "needs ENGRAM_DATA: metrics/vqa.*"]
fn answers_are_normalised_byte_for_byte() {
    let expected = json("metrics/vqa.expected.json");
    let pairs = expected["normalized_when_answers_differ"].as_array().expect("pairs");
    assert!(pairs.len() > 100);
    for pair in pairs {
        let (raw, normalised) = (string(&pair[0]), string(&pair[1]));
        let without_line_ends = raw.replace(['\n', '\t'], " ");
        assert_eq!(normalise_answer(without_line_ends.trim()), normalised, "{raw:?}");
    }
}

#[test]
#[ignore = "needs ENGRAM_DATA: metrics/recall.*"]
fn retrieval_metrics_equal_trec_eval() {
    let queries = text("metrics/recall.jsonl.gz");
    let queries = parse_queries("recall", &queries).expect("queries");
    let options = ReportOptions { items: true, ..ReportOptions::default() };
    let report = evaluate_retrieval(&queries, &Default::default(), &options).expect("a report");
    let expected = json("metrics/recall.expected.json.gz");
    for (name, expected_value) in expected["corpus"].as_object().expect("metrics") {
        let our_name = match name.as_str() {
            "recip_rank" => "mrr".to_owned(),
            name => name.replace("ndcg_cut", "ndcg").replace('_', "@"),
        };
        let computed = report.evaluation.detail[&our_name].as_f64().expect("a number");
        assert_close(computed, expected_value, 1e-9, name);
    }
    let columns = expected["columns"].as_array().expect("columns");
    let column = columns.iter().position(|name| name == "recall_10").expect("recall_10");
    let rows = expected["items"].as_array().expect("rows");
    let assert_row = |(item, row): (&Item, &Value)| {
        assert_close(item.value(), &row[column], 1e-12, &item.id);
    };
    report.items.iter().zip(rows).for_each(assert_row);
}
