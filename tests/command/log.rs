//! The lines on standard error: `-v`, `-q` and `--log-format json`.

use std::fs;
use std::path::Path;

use crate::running::{Folder, engram, errors, refused, succeeds, write_npy};
use serde_json::Value;

/// A search that prints a warning and writes the ids to standard output.
const SEARCH: &str = "memory search m --queries keys.npy -k 1 --index graph --out -";

fn build_memory(folder: &Path) {
    write_npy(folder, "keys.npy", &[1.0, 0.0, 0.0, 1.0], 2);
    succeeds(folder, "memory build --keys keys.npy --out m -q");
}

/// Standard error as JSON lines.
fn json_lines(folder: &Path, arguments: &str) -> Vec<Value> {
    let output = engram(folder, arguments);
    let lines = String::from_utf8(output.stderr).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[test]
fn quiet_and_verbose_select_the_log_lines() {
    let folder = &Folder::new();
    build_memory(folder);
    let lines = |options: &str| {
        let output = engram(folder, &format!("{SEARCH} {options}"));
        assert!(output.status.success());
        (String::from_utf8(output.stderr).unwrap(), output.stdout)
    };
    let (normal, ids) = lines("");
    // A warning stays.
    assert!(normal.starts_with("warning: m has no graph"), "{normal}");
    assert_eq!(lines("-q"), (normal.clone(), ids.clone()));
    let (verbose, same) = lines("-v");
    assert_eq!(same, ids);
    for part in ["reads argument=--queries path=", "keys.npy", "done seconds=", &normal] {
        assert!(verbose.contains(part), "{part}: {verbose}");
    }
    refused(folder, &format!("{SEARCH} -v -q"), "cannot be used with");
}

#[test]
fn messages_have_no_passwords_and_no_control_characters() {
    let folder = &Folder::new();
    let recipe = ["train", "patent", "--recipe", "patent/world", "--run", "r", "--set"];
    let key = ["data.dir=https://u:secret@h/a"];
    for (arguments, part) in [
        (vec!["https://u:secret@h/a"], "https://u:***@h/a"),
        ([&recipe[..], &key].concat(), "data.dir: the address has a password or a token"),
        (
            vec!["-v", "score", "a\u{1b}[1mb\u{202e}", "--model", "m", "--out", "o"],
            "a\\u001b[1mb\\u202e",
        ),
    ] {
        refused(folder, &arguments[..], part);
        let error = errors(&engram(folder, &arguments[..]));
        assert!(!error.contains("secret") && !error.contains(['\u{1b}', '\u{202e}']), "{error}");
    }
    assert!(!folder.join("r").exists());
}

#[test]
fn json_logs_have_one_object_per_line() {
    let folder = &Folder::new();
    build_memory(folder);
    let lines = json_lines(folder, &format!("{SEARCH} --log-format json"));
    let [warning] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(warning["level"], "WARN");
    assert!(warning["message"].as_str().unwrap().contains("m has no graph"));
    assert!(warning["timestamp"].as_str().unwrap().ends_with('Z'));
    // Errors of the command line and of the command, and a report when standard output is an output
    // file.
    for (arguments, level, part) in [
        ("memory info none --log-format json", "ERROR", "none"),
        ("--log-format=json memory info", "ERROR", "<FOLDER>"),
        ("eval wer --pairs p.jsonl --items - --log-format json -q", "INFO", "Word error rate"),
        ("train patent --recipe patent/world --run m --log-format json", "ERROR", "m"),
    ] {
        fs::write(folder.join("p.jsonl"), "{\"id\": 1, \"ref\": \"a\", \"hyp\": \"b\"}\n").unwrap();
        let lines = json_lines(folder, arguments);
        let [line] = &lines[..] else { panic!("{arguments}: {lines:?}") };
        assert_eq!(line["level"], level, "{arguments}");
        assert!(line["message"].as_str().unwrap().contains(part), "{arguments}: {line}");
    }
}
