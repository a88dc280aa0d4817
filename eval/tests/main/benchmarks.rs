//! Compares the benchmarks with the published scorers, on made-up cases in the published layouts.
//!
//! # Source   `eval/tests/reference/benchmarks/make.py`

use engram_eval::EvalError;
use engram_eval::benchmark::{BenchmarkReport, edit, forget, kbvqa};
use engram_eval::result::ReportOptions;
use engram_textfile::Input;
use serde_json::{Map, Value};

const FIXTURES: [(&str, &[u8]); 10] = [
    ("counterfact", include_bytes!("../reference/benchmarks/counterfact.json.gz")),
    ("zsre", include_bytes!("../reference/benchmarks/zsre.json.gz")),
    ("mquake", include_bytes!("../reference/benchmarks/mquake.json.gz")),
    ("vlkeb", include_bytes!("../reference/benchmarks/vlkeb.json.gz")),
    ("evqa", include_bytes!("../reference/benchmarks/evqa.json.gz")),
    ("infoseek", include_bytes!("../reference/benchmarks/infoseek.json.gz")),
    ("m2kr", include_bytes!("../reference/benchmarks/m2kr.json.gz")),
    ("viquae", include_bytes!("../reference/benchmarks/viquae.json.gz")),
    ("webqa", include_bytes!("../reference/benchmarks/webqa.json.gz")),
    ("forget", include_bytes!("../reference/benchmarks/forget.json.gz")),
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
    if data == "forget" {
        let results = files
            .iter()
            .map(|(file, text)| forget::Results { file, text: text.as_str().expect("a text") });
        return forget::evaluate(&results.collect::<Vec<_>>(), metric, &options);
    }
    let metric = metric.map(str::to_owned);
    let (reference, predictions) =
        (file("reference").expect("a file"), file("predictions").expect("a file"));
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

/// The files of a data set.
fn files(parts: &[(&str, &str)]) -> Map<String, Value> {
    parts.iter().map(|(name, text)| ((*name).to_owned(), Value::from(*text))).collect()
}

const CASES: &str = r#"[{"case_id": 1, "requested_rewrite": {"prompt": "{} is", "subject": "Oslo",
 "relation_id": "P1", "target_new": {"str": "Peru"}, "target_true": {"str": "Norway"}},
 "paraphrase_prompts": ["a", "b"], "neighborhood_prompts": ["c"]},
{"case_id": 2, "requested_rewrite": {"prompt": "{} is", "subject": "Rome",
 "relation_id": "P1", "target_new": {"str": "Chad"}, "target_true": {"str": "Italy"}},
 "paraphrase_prompts": ["a"], "neighborhood_prompts": []}]"#;
const FIRST: &str =
    r#"{"id": 1, "rewrite": "the PERU!", "paraphrase": ["Peru", null], "neighborhood": "Norway"}"#;
const SECOND: &str = r#"{"id": 2, "rewrite": "Italy", "paraphrase": ["Chad"]}"#;

#[test]
fn generated_answers_and_hops_are_scored() {
    let both = format!("{FIRST}\n{SECOND}");
    let files_of = |text: &str| files(&[("reference", CASES), ("predictions", text)]);
    let report_of = |metric| report("counterfact", &files_of(&both), metric).unwrap();
    let evaluation = report_of(None).evaluation;
    assert_eq!(evaluation.normaliser, "answers");
    // 3 / (1 / 0.5 + 1 / 0.75 + 1 / 1)
    assert!((evaluation.primary.value - 9.0 / 13.0).abs() < 1e-12);
    for (metric, value, n) in [("efficacy", 0.5, 2), ("generality", 0.75, 2), ("locality", 1.0, 1)]
    {
        let primary = report_of(Some(metric)).evaluation.primary;
        assert_eq!((primary.value, primary.n), (value, n), "{metric}");
    }
    // The items of a harmonic mean can be compared.
    let items = |file: &str, report: BenchmarkReport| {
        let text = engram_eval::items::json_lines(&report.items);
        engram_eval::items::Items::parse(file, &text).unwrap()
    };
    let better = both.replace("\"Italy\"", "\"Chad\"");
    let [a, b] = [better, both.clone()]
        .map(|text| items("f", report("counterfact", &files_of(&text), None).unwrap()));
    let difference = engram_eval::compare::compare_items(&a, &b, &Default::default()).unwrap();
    assert!((difference.difference.value - (0.9 - 9.0 / 13.0)).abs() < 1e-12);

    let cases = r#"[{"case_id": 1, "questions": ["q", "r"], "new_answer": "Lima",
        "requested_rewrite": [{"prompt": "{}", "subject": "s", "target_new": {"str": "Peru"},
        "target_true": {"str": "x"}}], "new_answer_alias": ["LIM"],
        "new_single_hops": [{"answer": "Peru"}, {"answer": "Lima"}]}]"#;
    for (hops, questions, expected) in [
        (r#"["Peru", "Lima"]"#, r#"[null, "LIM"]"#, [1.0, 1.0]),
        (r#"["Peru", "lima"]"#, r#"["lima", "Lima."]"#, [0.0, 0.0]),
    ] {
        let line =
            format!(r#"{{"id": "1", "questions": {questions}, "hops": {hops}, "edits": "Peru"}}"#);
        let files = files(&[("reference", cases), ("predictions", &line)]);
        let detail = report("mquake", &files, None).unwrap().evaluation.detail;
        let [multi_hop, hop_wise] = expected;
        assert_eq!(detail["multi_hop"], multi_hop);
        assert_eq!(detail["hop_wise"], hop_wise);
        assert_eq!(detail["edit_wise"], 1.0);
    }
}

#[test]
fn bad_files_are_refused_with_their_line() {
    let contradiction = CASES.replace("Rome", "Oslo");
    let both = format!("{FIRST}\n{SECOND}");
    for (cases, predictions, expected) in [
        (
            &*contradiction,
            &*both,
            "reference:4: the edit of `Oslo, P1` to `Chad` contradicts case `1` (line 1)",
        ),
        (CASES, FIRST, "predictions: no prediction for id `2` (reference:4)"),
        (CASES, &both.replace("\"id\": 2", "\"id\": 3"), "no prediction for id `2`"),
        (CASES, &format!("{both}\n{FIRST}"), "predictions:3: id `1`"),
        (CASES, &format!("{both}\n{{\"id\": 9}}"), "predictions:3: id `9` is not in reference"),
        (
            CASES,
            &both.replace(", null", ""),
            "predictions:1: case `1` has 1 outputs for `paraphrase` and 2",
        ),
        (
            CASES,
            &both.replace("\"rewrite\": \"Italy\", ", ""),
            "predictions:2: case `2` has no outputs for `rewrite`",
        ),
        (CASES, &both.replace("\"Italy\"", "0.5"), "predictions:2: has another kind of outputs"),
        (
            CASES,
            &both.replace("\"Italy\"", "1.5"),
            "has outputs for `rewrite` that cannot be scored",
        ),
        (
            CASES,
            &both.replace("\"Italy\"", "{\"target_new\": 1}"),
            "has outputs for `rewrite` that cannot be scored",
        ),
        (
            CASES,
            &both.replace("\"rewrite\"", "\"rewrit\""),
            "predictions:1: case `1` has no outputs for `rewrite`",
        ),
        (CASES, "[]", "predictions: has no records"),
        ("[]", &both, "reference: has no records"),
        ("[{}]", &both, "reference:1: is not as expected: missing field"),
    ] {
        let files = files(&[("reference", cases), ("predictions", predictions)]);
        let error = report("counterfact", &files, None).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let single = edit::EditOptions { single_edits: true, ..Default::default() };
    let files_of = |cases| [["reference", cases], ["predictions", &both]];
    let [cases, predictions] = files_of(&*contradiction);
    assert!(
        edit::evaluate(&edit::SETS[0], cases, predictions, &single, &Default::default()).is_ok()
    );

    let question = r#"{"id": "a", "output": {"answer": ["an oak"]}}"#;
    let passages = r#"{"passage_id": "p", "passage_content": "The oak. A tree."}"#;
    for (reference, predictions, expected) in [
        (question, r#"{"id": "a", "answer": "oak", "ranked": ["p"]}"#, ""),
        (
            question,
            r#"{"id": "a", "ranked": ["q"]}"#,
            "predictions:1: retrieves `q`, which is not in passages",
        ),
        (question, r#"{"id": "a", "ranked": ["p", "p"]}"#, "predictions:1: lists `p` twice"),
        (question, r#"{"id": "a"}"#, "predictions: has nothing to score"),
        (question, r#"{"id": "b", "answer": "x"}"#, "no prediction for id `a` (reference:1)"),
        (
            r#"{"id": "a", "output": [{}]}"#,
            r#"{"id": "a", "answer": "x"}"#,
            "reference:1: has no answers",
        ),
    ] {
        let parts =
            [("reference", reference), ("predictions", predictions), ("passages", passages)];
        match report("viquae", &files(&parts), None) {
            Ok(report) => assert_eq!(report.evaluation.detail["mrr@100"], 1.0),
            Err(error) => assert!(error.to_string().contains(expected), "{error}"),
        }
    }
    for (data, parts, expected) in [
        ("infoseek", vec![("reference", "{}")], "reference: has no question types"),
        (
            "evqa",
            vec![("reference", "question,answer,question_type\nq,a,x\n")],
            "question type `x`",
        ),
        (
            "okvqa",
            vec![(
                "reference",
                r#"{"annotations": [{"question_id": 1, "answers": [{"answer": "a"}]}]}"#,
            )],
            "reference: has answers but no passages",
        ),
        ("webqa", vec![("reference", "{\"a\": {}}")], "reference:1: has no `img_posFacts`"),
    ] {
        let parts: Vec<_> = parts
            .into_iter()
            .chain([("predictions", r#"{"id": 1, "answer": "", "ranked": []}"#)])
            .collect();
        let error = report(data, &files(&parts), None).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn damaged_files_are_refused_or_scored() {
    for (data, bytes) in FIXTURES {
        let bytes = Input::new(data, bytes).unwrap().read_bytes().unwrap();
        let fixture: Value = serde_json::from_slice(&bytes).unwrap();
        let whole = fixture["files"].as_object().unwrap();
        // The first cases are enough.
        for (name, damage) in whole.keys().flat_map(|name| (0..60).map(move |n| (name, n))) {
            let mut files = whole.clone();
            let mut text: Vec<char> = files[name].as_str().unwrap().chars().collect();
            let at = (damage * 7919 + 13) % text.len().min(3000);
            match damage % 4 {
                0 => text.truncate(at),
                1 => text[at] = ['0', '"', '[', 'é', '-'][damage % 5],
                2 => drop(text.drain(at..(at + 20).min(text.len()))),
                _ => text.insert(at, ['1', '{', ',', '\n', 'e'][damage % 5]),
            }
            files.insert(name.clone(), text.into_iter().collect::<String>().into());
            let _ = report(data, &files, None);
        }
    }
}

#[test]
fn deleted_facts_are_scored_by_fact() {
    let line = |fact: u32, state: &str, output: &str| {
        format!(
            r#"{{"fact_id": {fact}, "subject": "S{fact}", "relation": "r", "ground_truth": "o{fact}",
            "prompt": "p", "state": "{state}", "model_output": "{output}"}}"#
        )
        .replace('\n', " ")
            + "\n"
    };
    let case = |fact: u32, outputs: [&str; 3]| -> String {
        let states = ["FULL", "DEL-ON", "DEL-OFF"].into_iter().zip(outputs);
        states.map(|(state, output)| line(fact, state, output)).collect()
    };
    let evaluate = |files: &[(&str, &str)]| {
        let results = files.iter().map(|(file, text)| forget::Results { file, text });
        forget::evaluate(&results.collect::<Vec<_>>(), None, &ReportOptions::default())
    };
    let text = case(0, ["O0.", "o1", "unknown"]) + &case(1, ["x", "o1", ""]);
    let names = ["a/base/prompts_cloze_results.jsonl", "a/noise/prompts_cloze_results.jsonl"];
    let report = evaluate(&names.map(|name| (name, &*text))).unwrap();
    let (primary, detail) = (&report.evaluation.primary, &report.evaluation.detail);
    assert_eq!((primary.value, primary.n), (0.5, 4));
    // Each fact is in both files.
    let interval = primary.interval.as_ref().unwrap();
    assert_eq!((interval.units, &*interval.method), (2, "percentile bootstrap by fact"));
    for (metric, value) in [
        ("del_on_exact_match", 0.5),
        ("parametric_leakage", 0.0),
        ("retrieval_mediated_correctness", 0.5),
        ("retrieval_artifact_rate", 0.5),
        ("del_off_unknown_rate", 1.0),
    ] {
        assert_eq!(detail[metric], value, "{metric}");
    }
    let by: Vec<&str> = report.evaluation.breakdowns.iter().map(|table| &*table.name).collect();
    assert_eq!(by, ["topology"; 5]);
    assert!(report.to_text().contains("By topology\n"), "{}", report.to_text());

    let whole = case(0, ["a", "b", "c"]);
    for (text, expected) in [
        (String::new(), "f.jsonl: has no records"),
        (line(3, "FULL", "x"), "f.jsonl:1: fact `3` has no result in DEL-ON and DEL-OFF"),
        (
            whole.clone() + &line(0, "FULL", "x"),
            "f.jsonl:4: fact `0` has FULL for this prompt in line 1",
        ),
        (whole.replace("DEL-ON", "DEL"), "f.jsonl:2: is not as expected: unknown variant `DEL`"),
        (whole.replace("\"model_output\"", "\"output\""), "missing field `model_output`"),
    ] {
        let error = evaluate(&[("f.jsonl", &text)]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
