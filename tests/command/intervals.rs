//! No interval of `engram eval` is a point, even if all items have the same result.

use std::fs;

use crate::running::{Folder, json, succeeds};
use serde_json::{Value, json};

const ITEMS: usize = 12;

/// Counts the intervals in a report; each has to have two different limits.
fn count_intervals(report: &Value, command: &str) -> usize {
    match report {
        Value::Object(fields) => {
            let is_interval = fields.contains_key("low") && fields.contains_key("high");
            if is_interval {
                let [low, high] = ["low", "high"].map(|limit| fields[limit].as_f64().unwrap());
                assert!(low < high, "{command}: [{low}, {high}]");
            }
            let inner = fields.values().map(|value| count_intervals(value, command)).sum::<usize>();
            inner + usize::from(is_interval)
        }
        Value::Array(values) => values.iter().map(|value| count_intervals(value, command)).sum(),
        _ => 0,
    }
}

/// One line per item.
fn lines(line: impl Fn(usize) -> String) -> String {
    (0..ITEMS).map(|item| line(item) + "\n").collect()
}

#[test]
fn perfect_and_useless_systems_have_intervals_with_a_width() {
    let root = &Folder::new();
    let write = |name: &str, text: String| fs::write(root.join(name), text).unwrap();
    write("ref.tsv", lines(|i| format!("u{i}\ta cat sat {i}")));
    write("wrong.tsv", lines(|i| format!("u{i}\txx yy zz q{i}z")));
    let images: Vec<Value> = (0..ITEMS).map(|id| json!({"id": id})).collect();
    let caption = |id: usize| format!("a dog number {id} runs");
    let annotation = |id| json!({"image_id": id, "id": id, "caption": caption(id)});
    let annotations: Vec<Value> = (0..ITEMS).map(annotation).collect();
    write("captions.json", json!({"images": images, "annotations": annotations}).to_string());
    let results: Vec<Value> =
        (0..ITEMS).map(|id| json!({"image_id": id, "caption": caption(id)})).collect();
    write("right.json", json!(results).to_string());
    let results: Vec<Value> =
        (0..ITEMS).map(|id| json!({"image_id": id, "caption": "zzz"})).collect();
    write("wrong.json", json!(results).to_string());
    for (name, ranked) in [("found.jsonl", "b"), ("missed.jsonl", "z")] {
        let query =
            |i: usize| json!({"id": format!("q{i}"), "ranked": [ranked], "relevant": ["b"]});
        write(name, lines(|i| query(i).to_string()));
    }
    for (name, response) in [("no.jsonl", "no"), ("yes.jsonl", "yes")] {
        write(name, lines(|i| json!({"id": i, "answer": "no", "response": response}).to_string()));
    }
    let score = |i: usize| (i % 5) as f64 / 4.0;
    let gold = lines(|i| format!("{i},a{},t{i},A47,{}", i % 4, score(i)));
    write("gold.csv", format!("id,anchor,target,context,score\n{gold}"));
    write("same.csv", format!("id,score\n{}", lines(|i| format!("{i},{}", score(i)))));
    for hypothesis in ["ref", "wrong"] {
        let items = format!("--items {hypothesis}.items.jsonl");
        succeeds(root, &format!("eval wer --ref ref.tsv --hyp {hypothesis}.tsv {items}"));
    }
    for (command, at_least) in [
        ("wer --ref ref.tsv --hyp ref.tsv --compare-normalizers", 7),
        ("wer --ref ref.tsv --hyp wrong.tsv", 6),
        ("text --ref ref.tsv --hyp ref.tsv", 2),
        ("text --ref ref.tsv --hyp wrong.tsv", 2),
        ("caption --ref captions.json --hyp right.json", 7),
        ("caption --ref captions.json --hyp wrong.json", 7),
        ("retrieval --queries found.jsonl", 10),
        ("retrieval --queries missed.jsonl", 10),
        ("haystack --hyp no.jsonl", 4),
        ("haystack --hyp yes.jsonl", 4),
        ("phrase --ref gold.csv --hyp same.csv", 10),
        ("phrase --ref gold.csv --hyp same.csv --baseline same.csv", 3),
        ("compare ref.items.jsonl wrong.items.jsonl", 3),
        ("compare wrong.items.jsonl wrong.items.jsonl", 3),
    ] {
        let intervals = count_intervals(&json(root, &format!("eval {command}")), command);
        assert!(intervals >= at_least, "{command}: {intervals}");
    }
}
