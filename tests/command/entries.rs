//! `engram data entries` as a user runs it: converts data set files to memory entries.

use std::fs;
use std::path::Path;

use crate::running::{Folder, json, refused, succeeds, write_npy};

fn write_files(folder: &Path) {
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    write("a.tsv", "http://a/1.jpg\ta dog\nhttp://a/2.jpg\tx\n");
    write("b.tsv", "http://b/1.jpg\ta cat\nno tab\n");
    write("edges.txt", "Q1\tP31\tQ5\n");
    write("labels.json", r#"{"Q1": {"label": "Ada", "description": "writer"}, "P31": "is"}"#);
    write("q.json", r#"{"questions": [{"question_id": 1, "image_id": 9, "question": "What?"}]}"#);
    write("a.json", r#"{"annotations": [{"question_id": 1, "answers": [{"answer": "cat"}]}]}"#);
}

#[test]
fn a_memory_is_built_from_converted_entries() {
    let folder = &Folder::new();
    write_files(folder);
    let printed = succeeds(
        folder,
        "data entries web a.tsv b.tsv --min-characters 2 --skip-bad-lines --out web.jsonl",
    );
    assert_eq!(printed, "web.jsonl: 2 entries from 4 records; skipped: 1 malformed, 1 too short\n");
    write_npy(folder, "keys.npy", &[1.0, 0.0, 0.0, 1.0], 2);
    let built =
        succeeds(folder, "memory build --keys keys.npy --entries web.jsonl --out m --quiet");
    assert!(built.contains("2 entries"), "{built}");
}

#[test]
fn triples_passages_and_questions_are_written() {
    let folder = &Folder::new();
    write_files(folder);
    let wikidata = "data entries wikidata edges.txt --labels labels.json";
    refused(
        folder,
        &format!("{wikidata} --out w.jsonl"),
        "edges.txt:1: the object Q5 has no label",
    );
    assert!(!folder.join("w.jsonl").exists());
    let wikidata = &format!("{wikidata} --keep-ids");
    let counts = json(folder, &format!("{wikidata} --reverse --descriptions --out w.jsonl"));
    assert_eq!(counts["entries"], 3);
    assert_eq!(counts["skipped"]["no_description"], 1);
    assert_eq!(counts["notes"]["entity_without_label"], 1);
    assert_eq!(
        fs::read_to_string(folder.join("w.jsonl")).unwrap(),
        "{\"source\":\"wikidata\",\"document\":\"Q1\",\"text\":\"Ada: writer\"}\n\
         {\"source\":\"wikidata\",\"document\":\"Q1\",\"subject\":\"Ada\",\"relation\":\"is\",\"object\":\"Q5\"}\n\
         {\"source\":\"wikidata\",\"document\":\"Q5\",\"subject\":\"Q5\",\"relation\":\"is_R\",\"object\":\"Ada\"}\n"
    );
    let entries = succeeds(
        folder,
        "data entries vqa --questions q.json --annotations a.json --image-name %03d.jpg \
         --out /dev/stdout",
    );
    let expected =
        r#"{"source":"vqa","document":"9","image":"009.jpg","question":"What?","answer":["cat"]}"#;
    assert_eq!(entries.trim_end(), expected);
}

#[test]
fn an_error_leaves_no_file() {
    let folder = &Folder::new();
    write_files(folder);
    let before = fs::read_dir(folder).unwrap().count();
    for (arguments, part) in [
        ("web a.tsv b.tsv --out o", "b.tsv:2: expected 2 columns"),
        ("web a.tsv --min-characters 9 --out o", "a.tsv: no entries from 2 records"),
        ("web a.tsv --out ./a.tsv", "./a.tsv: --out would overwrite the input a.tsv"),
        ("web none.tsv --out o", "none.tsv: No such file"),
        ("wikidata --out o", "no triples and no --descriptions"),
        ("vqa --questions q.json --out o", "1 question files, 0 annotation"),
    ] {
        refused(folder, &format!("data entries {arguments}"), part);
    }
    assert_eq!(fs::read_dir(folder).unwrap().count(), before);
}
