//! `engram memory search` with diversity, minimum scores and search in texts; `reencode`; and the
//! refusal to mix the keys of two models.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use crate::running::{Folder, Texts, command, engram, json, refused, succeeds, until, write_npy};
use crate::tiny_models::{bert_folder, clip_folder, json_lines, mixed_entries};
use serde_json::{Value, json};

/// The JSON report of `memory search`.
fn search(folder: &Path, arguments: &(impl Texts + ?Sized)) -> Value {
    json(folder, &[vec!["memory", "search"], arguments.words()].concat())
}

/// The ids of the hits of the first query.
fn ids(report: &Value) -> Vec<i64> {
    let hits = report["queries"][0]["hits"].as_array().unwrap();
    hits.iter().map(|hit| hit["id"].as_i64().unwrap()).collect()
}

/// Writes a memory of four keys, of which the first three are nearly equal, and a query.
fn write_memory(folder: &Path) {
    write_npy(folder, "keys.npy", &[1.0, 0.0, 1.0, 0.01, 1.0, 0.02, 0.7, -0.7], 2);
    write_npy(folder, "query.npy", &[1.0, -0.2], 2);
    succeeds(folder, "memory build --keys keys.npy --out m --quiet");
}

#[test]
fn mmr_and_a_minimum_score_choose_among_the_entries_found() {
    let folder = &Folder::new();
    write_memory(folder);
    let found = |options: &str| ids(&search(folder, &format!("m --queries query.npy {options}")));
    assert_eq!(found("-k 2"), [0, 1]);
    assert_eq!(found("-k 2 --mmr 0.5"), [0, 3]);
    assert_eq!(found("-k 2 --mmr 1"), [0, 1]);
    assert_eq!(found("-k 9 --mmr 0.5").len(), 4);
    // With two candidates there is no choice.
    assert_eq!(found("-k 2 --mmr 0.5 --candidates 2"), [0, 1]);
    // The cosines are 0.98, 0.98, 0.98 and 0.83.
    assert_eq!(found("--min-score 0.9"), [0, 1, 2]);
    assert_eq!(found("--min-score 0.9 --mmr 0.01 -k 2"), [0, 2]);
    assert_eq!(found("--min-score -1"), [0, 1, 2, 3]);
    assert!(found("--min-score 0.999").is_empty());
    // The files have k columns whatever the number of entries found.
    let files = "--min-score 0.9 -k 4 --out ids.npy --scores scores.npy";
    succeeds(folder, &format!("memory search m --queries query.npy {files}"));
    let bytes = fs::read(folder.join("ids.npy")).unwrap();
    let expected = [0i64, 1, 2, -1].map(i64::to_le_bytes).concat();
    assert!(bytes.ends_with(&expected));
    let scores = fs::read(folder.join("scores.npy")).unwrap();
    assert!(scores.ends_with(&f32::NEG_INFINITY.to_le_bytes()));

    for (options, part) in [
        ("--mmr 1.5", "give a number from 0 to 1"),
        ("--mmr nan", "give a number from 0 to 1"),
        ("--mmr -0.1", "give a number from 0 to 1"),
        ("--min-score inf", "give a number"),
        ("--hybrid", "cannot be used with"),
        ("--mmr 0.5 --candidates 0", "--candidates"),
        ("--mmr 0.5 -k 0", "k is 0"),
    ] {
        refused(folder, &format!("memory search m --queries query.npy {options}"), part);
    }
}

#[test]
fn a_hybrid_search_finds_words_that_keys_miss() {
    let folder = &Folder::new();
    clip_folder(folder);
    let mut entries: Vec<Value> = (0..150)
        .map(|id| {
            let text = format!("{} {}", "abcdefghij".repeat(1 + id % 3), id * 7919 % 100);
            let source = if id % 2 == 0 { "a" } else { "b" };
            json!({"id": id, "source": source, "text": text})
        })
        .collect();
    entries[140]["text"] = json!("the part E0382 failed");
    entries[140]["document"] = json!("d");
    entries[141]["text"] = json!("E0382 E0382");
    fs::write(folder.join("entries.jsonl"), json_lines(&entries)).unwrap();
    succeeds(folder, "memory build --entries entries.jsonl --model clip --out m --quiet");
    let found = |options: &str| {
        search(folder, &[vec!["m", "-k", "4", "--text", "part e0382"], options.words()].concat())
    };
    let report = found("--hybrid --candidates 20");
    let hits = report["queries"][0]["hits"].as_array().unwrap();
    let hit = |id: i64| hits.iter().find(|hit| hit["id"] == id).unwrap();
    // Both words are in one entry, and the other has one word twice.
    for (id, rank) in [(140, 1), (141, 2)] {
        let ranks = &hit(id)["ranks"];
        assert_eq!(ranks["text"]["rank"], rank, "{report}");
        let part = |list: &str| match ranks[list]["rank"].as_u64() {
            Some(rank) => 1.0 / (60.0 + rank as f64),
            None => 0.0,
        };
        let score = hit(id)["score"].as_f64().unwrap();
        assert!((score - part("vector") - part("text")).abs() < 1e-8, "{report}");
    }
    // The ranks of the keys are those of a search by keys.
    let by_keys = ids(&found(""));
    let by_rank = |rank: u64| hits.iter().find(|hit| hit["ranks"]["vector"]["rank"] == rank);
    assert_eq!(by_rank(1).unwrap()["id"], by_keys[0]);
    assert!(found("")["queries"][0]["hits"][0].get("ranks").is_none());
    // Filters apply to the search in texts, too.
    assert!(!ids(&found("--hybrid --source b")).contains(&140));
    fs::write(folder.join("exclude.txt"), "d\n").unwrap();
    assert!(!ids(&found("--hybrid --exclude exclude.txt")).contains(&140));
    // A minimum score applies to keys only.
    assert_eq!(ids(&found("--hybrid --min-score 2")), [140, 141]);
    let text = ["memory", "search", "m", "-k", "3", "--text", "part e0382", "--hybrid"];
    let text = succeeds(folder, &text);
    assert!(text.contains("text 1  the part E0382 failed"), "{text}");

    // Queries from a file; a query without a text is refused.
    fs::write(folder.join("q.txt"), "e0382\nunknown words\n").unwrap();
    let report = search(folder, "m -k 2 --texts q.txt --hybrid");
    assert_eq!(report["queries"][0]["hits"][0]["ranks"]["text"]["rank"], 1);
    assert!(report["queries"][1]["hits"][0]["ranks"]["text"].is_null());
    mixed_entries(folder);
    let image = "memory search m --image pictures/red.png --hybrid";
    refused(folder, image, "--image: the query has no text for --hybrid");
    let both = ["m", "-k", "3", "--image", "pictures/red.png", "--text", "e0382", "--hybrid"];
    assert!(ids(&search(folder, &both)).contains(&141));
    let mmr = "memory search m --text e0382 --hybrid --mmr 0.5";
    refused(folder, mmr, "cannot be used with");
    // Other threads, same bytes.
    let bytes = |threads: &str| {
        let search = "memory search m --texts q.txt --hybrid --json --threads";
        engram(folder, &format!("{search} {threads}"))
    };
    assert_eq!(bytes("1").stdout, bytes("3").stdout);
}

#[test]
fn another_model_encodes_the_entries_of_a_memory() {
    let folder = &Folder::new();
    clip_folder(folder);
    bert_folder(folder);
    let entries = [
        json!({"id": 3, "text": "red bird", "source": "x", "extra": [1, 2]}),
        json!({"id": 5, "text": "blue fish", "document": "d"}),
        json!({"id": 9, "text": "green frog"}),
    ];
    fs::write(folder.join("entries.jsonl"), json_lines(&entries)).unwrap();
    for (model, name) in [("clip", "m"), ("bert", "expected")] {
        let build = format!("memory build --entries entries.jsonl --model {model} --out {name}");
        succeeds(folder, &build);
    }
    succeeds(folder, "memory delete m --ids 9");
    succeeds(folder, "memory delete expected --ids 9");
    let hits = |memory: &str| {
        let report = search(folder, &[memory, "--text", "blue fish"]);
        report["queries"][0]["hits"].clone()
    };
    let before = hits("m");
    // A new memory; the old one stays.
    let printed = succeeds(folder, "memory reencode m --model bert --out new");
    assert_eq!(printed, "new: generation 1, 2 entries, 0 deleted rows\n");
    assert_eq!(hits("new"), hits("expected"));
    assert_eq!(hits("m"), before);
    refused(folder, "memory reencode m --model bert --out new", "new: already exists");
    // In place, with keys of another width and a graph.
    succeeds(folder, "memory index m --quiet");
    succeeds(folder, "memory reencode m --model bert");
    let current = fs::read_to_string(folder.join("m/CURRENT")).unwrap();
    let generation = folder.join("m").join(current.split_whitespace().next().unwrap());
    let manifest = fs::read_to_string(generation.join("manifest.json")).unwrap();
    assert!(manifest.contains("\"graph\""), "{manifest}");
    assert_eq!(hits("m"), hits("expected"));
    assert_eq!(hits("m")[0]["id"], 5);
    let info = json(folder, "memory info m");
    assert_eq!((&info["width"], &info["deleted"]), (&json!(32), &json!(0)));
    assert_eq!(info["encoders"].as_array().unwrap().len(), 1);
    assert!(info["encoders"][0]["name"].as_str().unwrap().ends_with("bert"));
    succeeds(folder, "memory verify m");
    // The same bytes for any number of threads.
    let keys = |name: &str, options: &str| {
        succeeds(folder, &format!("memory reencode m --model clip --out {name} {options}"));
        fs::read(folder.join(name).join("gen-000001/keys.safetensors")).unwrap()
    };
    assert!(keys("t1", "--threads 1") == keys("t3", "--threads 3"));
    // Ids that deleted entries had are not used again.
    fs::write(folder.join("more.jsonl"), "{\"text\": \"new\"}\n").unwrap();
    succeeds(folder, "memory add m --entries more.jsonl --model bert --quiet");
    let report = search(folder, "m --text new -k 1");
    assert_eq!(ids(&report), [10]);
}

#[test]
fn entries_and_values_that_the_new_model_cannot_encode_are_refused() {
    let folder = &Folder::new();
    clip_folder(folder);
    bert_folder(folder);
    mixed_entries(folder);
    let build = "memory build --entries entries.jsonl --model clip --images pictures --out m";
    succeeds(folder, build);
    let re_encode = "memory reencode m --model bert";
    refused(folder, re_encode, "m: the entry 10 has only an image, but the model encodes texts");
    let skip = format!("{re_encode} --skip-unencodable");
    refused(folder, &skip, "would delete entries of m; write a new memory with --out");
    succeeds(folder, &format!("{skip} --out texts"));
    let info = json(folder, "memory info texts");
    assert_eq!(info["entries"], 4);
    let clip = "memory reencode m --model clip";
    refused(folder, clip, "m: the image of the entry 10 is not at red.png; give the base folder");
    succeeds(folder, &format!("{clip} --images pictures"));
    assert!(succeeds(folder, "memory info m").contains("generation 2"));

    // Values belong to the old model unless the user says otherwise.
    write_npy(folder, "keys.npy", &[1.0, 0.0, 0.0, 1.0], 2);
    write_npy(folder, "values.npy", &[0.5, 1.5, -2.0, 0.25], 2);
    fs::write(folder.join("two.txt"), "one\ntwo\n").unwrap();
    let build = "memory build --keys keys.npy --values values.npy --texts two.txt --out v";
    succeeds(folder, build);
    let re_encode = "memory reencode v --model bert";
    let part = "v: its entries have values (1 x 2 f16), which ";
    refused(folder, re_encode, &[part, "keep the old values with --keep-values"]);
    let value_bytes =
        |generation: &str| fs::read(folder.join("v").join(generation).join("values.safetensors"));
    let before = value_bytes("gen-000001").unwrap();
    succeeds(folder, &format!("{re_encode} --keep-values"));
    assert_eq!(value_bytes("gen-000002").unwrap(), before);
    succeeds(folder, "memory delete v --ids 1,2");
    refused(folder, &format!("{re_encode} --keep-values"), "v: has no entry to encode");
}

#[test]
fn a_killed_re_encoding_leaves_the_memory_unchanged() {
    let folder = &Folder::new();
    clip_folder(folder);
    bert_folder(folder);
    let texts: String = (0..20_000).map(|id| format!("text number {id}\n")).collect();
    fs::write(folder.join("texts.txt"), texts).unwrap();
    succeeds(folder, "memory build --texts texts.txt --model bert --out m --quiet");
    let before = search(folder, &["m", "--text", "text number seven"]);
    let arguments = "memory reencode m --model clip --batch 1 --quiet";
    let mut child = command(folder, arguments).stderr(Stdio::null()).spawn().unwrap();
    let keys = folder.join("m/gen-000002.partial/keys.safetensors");
    until("a generation is written", || keys.exists());
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(search(folder, &["m", "--text", "text number seven"]), before);
    succeeds(folder, "memory verify m");
    // The next change removes the unfinished generation.
    succeeds(folder, "memory delete m --ids 1");
    assert!(!folder.join("m/gen-000002.partial").exists());
}

#[test]
fn keys_of_two_models_are_not_mixed() {
    let folder = &Folder::new();
    clip_folder(folder);
    bert_folder(folder);
    fs::write(folder.join("one.txt"), "first\nsecond\n").unwrap();
    fs::write(folder.join("more.jsonl"), "{\"id\": 1, \"text\": \"new\"}\n").unwrap();
    fs::write(folder.join("added.jsonl"), "{\"id\": 7, \"text\": \"new\"}\n").unwrap();
    succeeds(folder, "memory build --texts one.txt --model bert --out m --quiet");
    write_npy(folder, "key.npy", &[1.0; 32], 32);
    write_npy(folder, "keys.npy", &[1.0; 24], 12);
    let (add, update) = ("memory add", "memory update");
    // Another model.
    for command in [
        "memory search m --text a --model clip",
        "memory add m --entries added.jsonl --model clip",
        "memory update m --entries more.jsonl --model clip",
        "memory add m --entries added.jsonl --model clip --same-model",
    ] {
        let parts = ["m: its keys come from ", "bert (SHA-256 ", "engram memory reencode"];
        refused(folder, command, &parts);
    }
    // A key file, which does not name its model.
    for command in [add, update] {
        let command = format!("{command} m --keys key.npy --entries");
        let entries = if command.starts_with(add) { "added.jsonl" } else { "more.jsonl" };
        let parts = ["key.npy: does not name the model", "add --same-model"];
        refused(folder, &format!("{command} {entries}"), &parts);
        succeeds(folder, &format!("{command} {entries} --same-model --quiet"));
    }
    // A memory that does not name its model.
    succeeds(folder, "memory build --keys keys.npy --out unknown --quiet");
    for command in ["add unknown --entries added.jsonl", "update unknown --entries more.jsonl"] {
        let command = format!("memory {command} --model clip");
        let part = "unknown: does not name the model of its keys, so keys of ";
        refused(folder, &command, &[part, "engram memory reencode"]);
        succeeds(folder, &format!("{command} --same-model --quiet"));
    }
    succeeds(folder, "memory add unknown --keys keys.npy --quiet");
}

#[test]
fn conditions_on_fields_filter_searches_and_lists() {
    let folder = &Folder::new();
    let keys: Vec<f32> = (0..40).flat_map(|id| [(id as f32).cos(), (id as f32).sin()]).collect();
    write_npy(folder, "keys.npy", &keys, 2);
    write_npy(folder, "query.npy", &[1.0, 0.1], 2);
    let source = |id: i64| if id % 3 == 0 { "kg" } else { "wit" };
    let year = |id: i64| 1990 + id % 20;
    let entry = |id| json!({"id": id, "source": source(id), "text": "x", "year": year(id)});
    fs::write(folder.join("e.jsonl"), json_lines(&(0..40).map(entry).collect::<Vec<_>>())).unwrap();
    succeeds(folder, "memory build --keys keys.npy --entries e.jsonl --out m --quiet");
    succeeds(folder, "memory index m --quiet");
    let found = |options: &str| ids(&search(folder, &format!("m --queries query.npy {options}")));
    let all = found("-k 40");
    type Test<'a> = &'a dyn Fn(i64) -> bool;
    let tests: [(&str, Test); 4] = [
        ("year>=2005", &|id| year(id) >= 2005),
        ("year<2000,source=kg", &|id| year(id) < 2000 && source(id) == "kg"),
        ("id=7", &|id| id == 7),
        ("year>3000", &|_| false),
    ];
    for (conditions, is_met) in tests {
        let best: Vec<i64> = all.iter().copied().filter(|id| is_met(*id)).take(5).collect();
        for index in ["exact", "graph"] {
            assert_eq!(found(&format!("-k 5 --where {conditions} --index {index}")), best);
        }
        let shown = succeeds(folder, &format!("memory show m --where {conditions}"));
        let expected: Vec<Value> = (0..40).filter(|id| is_met(*id)).map(entry).collect();
        assert_eq!(shown.trim(), json_lines(&expected).trim(), "{conditions}");
    }
    let shown = succeeds(folder, "memory show m 12 3");
    assert_eq!(shown.trim(), json_lines(&[entry(12), entry(3)]).trim());
    for (arguments, part) in [
        ("show m 99", "m: no entry has the id 99"),
        ("show m --where yaer>1", "\"yaer\"; the fields are document, id, source, text, year"),
        ("search m --queries query.npy --where yaer>1", "m: no entry has a text, a number"),
        ("show m --where year>=abc", "\"abc\" in year>=abc is no number, but \"year\""),
        ("show m --where year", "\"year\" does not begin with a condition"),
        ("search m", "--queries <FILE>|--text <TEXT>|--image <FILE>|--texts <FILE>"),
        ("build --out n", "--keys <FILE>|--model <MODEL>"),
        ("add m", "--keys <FILE>|--entries <FILE>|--texts <PATH>|--csv <FILE>"),
    ] {
        refused(folder, &format!("memory {arguments}"), part);
    }
}
