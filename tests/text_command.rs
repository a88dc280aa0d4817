//! `engram eval text`: formats, several references, outputs, and refused inputs.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn engram(folder: &Path, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engram"));
    command.arg("eval").args(arguments.split_whitespace()).current_dir(folder);
    command.output().expect("the program")
}

fn succeeds(folder: &Path, arguments: &str) -> String {
    let output = engram(folder, arguments);
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn json(folder: &Path, arguments: &str) -> Value {
    serde_json::from_str(&succeeds(folder, &format!("{arguments} --json"))).expect("JSON")
}

fn refused(folder: &Path, arguments: &str) -> String {
    let output = engram(folder, arguments);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{arguments}: {error}");
    error
}

/// Creates a temporary folder with these files.
fn folder_with(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("a file");
    }
    folder
}

/// chrF and chrF++ by sacrebleu 2.5.1 (`corpus_score` of `CHRF()` and of `CHRF(word_order=2)`),
/// with the first reference, then with both references.
const SACREBLEU: [[f64; 2]; 2] =
    [[39.634392060717104, 42.94668557550931], [42.64884127322788, 45.25436534092916]];

const HYPOTHESES: &str = "a cat sat\n\nGrüße aus 東京!\n";
const FIRST_REFERENCES: &str = "a cat sits\nnothing\nGrüße aus Tokio!\n";
const SECOND_REFERENCES: &str = "the cat sat\n\nein Gruß aus 東京!\n";

#[test]
fn one_and_several_references_give_sacrebleus_scores() {
    let folder = folder_with(&[
        ("hyp.txt", HYPOTHESES),
        ("1.txt", FIRST_REFERENCES),
        ("2.txt", SECOND_REFERENCES),
    ]);
    for (references, expected) in ["--ref 1.txt", "--ref 1.txt --ref 2.txt"].iter().zip(SACREBLEU) {
        for (metric, expected) in ["chrf", "chrf++"].iter().zip(expected) {
            let arguments = format!("text {references} --hyp hyp.txt --metric {metric}");
            let report = json(folder.path(), &arguments);
            assert_eq!((&report["metric"], &report["unit"]), (&(*metric).into(), &"points".into()));
            let value = report["value"].as_f64().expect("a number");
            assert!((value - expected).abs() < 1e-9, "{arguments}: {value}, not {expected}");
            assert_eq!((&report["n"], &report["detail"][*metric]), (&3.into(), &report["value"]));
            assert_eq!(report["interval"]["method"], "percentile bootstrap by line");
        }
    }
    let text = succeeds(folder.path(), "text --ref 1.txt --ref 2.txt --hyp hyp.txt --worst 2");
    assert!(
        text.starts_with("Texts, 3 lines, references per line: 2, normaliser none\n"),
        "{text}"
    );
    assert!(text.contains("Worst lines, by chrF\nline        2\nchrF        0.0000\n"), "{text}");
    assert!(text.contains("points"), "{text}");
}

#[test]
fn text_reads_the_formats_of_wer() {
    let tsv = |texts: &str| -> String {
        let row = |(line, text): (usize, &str)| format!("{line}\t{text}\n");
        texts.lines().enumerate().map(row).collect()
    };
    let jsonl = |texts: &str| -> String {
        let row = |(id, text): (usize, &str)| serde_json::json!({"id": id, "text": text});
        texts.lines().enumerate().map(|line| format!("{}\n", row(line))).collect()
    };
    let pairs = |line: (&str, &str)| serde_json::json!({"ref": line.0, "hyp": line.1}).to_string();
    let pairs =
        FIRST_REFERENCES.lines().zip(HYPOTHESES.lines()).map(pairs).collect::<Vec<_>>().join("\n");
    let folder = folder_with(&[
        ("hyp.tsv", &tsv(HYPOTHESES)),
        ("1.jsonl", &jsonl(FIRST_REFERENCES)),
        ("2.tsv", &tsv(SECOND_REFERENCES)),
        ("table.txt", &tsv(FIRST_REFERENCES)),
        ("pairs.jsonl", &pairs),
        ("short.tsv", "0\ta\n"),
        ("lines.txt", "a\n"),
        ("alternatives.trn", "{ a / b } (0)\nc (1)\nd (2)\n"),
    ]);
    for (arguments, expected) in [
        ("text --ref 1.jsonl --hyp hyp.tsv", SACREBLEU[0][0]),
        ("text --ref 1.jsonl --ref 2.tsv --hyp hyp.tsv", SACREBLEU[1][0]),
        ("text --pairs pairs.jsonl", SACREBLEU[0][0]),
    ] {
        let value = json(folder.path(), arguments)["value"].as_f64().expect("a number");
        assert!((value - expected).abs() < 1e-9, "{arguments}: {value}, not {expected}");
    }
    for (references, error) in [
        (
            "--ref table.txt",
            "table.txt: looks like a table: each line has a tab; read it as id<TAB>text (tsv) or as Kaldi's `text`: --format tsv or",
        ),
        ("--ref 1.jsonl --ref short.tsv", "hyp.tsv:2: id `1` is not in short.tsv"),
        ("--ref lines.txt", "lines.txt: has no ids, but hyp.tsv has"),
        ("--ref alternatives.trn", "alternatives.trn: has sclite's markup"),
        ("--ref missing.tsv", "missing.tsv: cannot be read"),
    ] {
        let message = refused(folder.path(), &format!("text {references} --hyp hyp.tsv"));
        assert!(message.contains(error), "{message}");
    }
    let error = refused(folder.path(), "text --ref 2.tsv --hyp hyp.tsv --metric bleu");
    assert!(error.contains("chrf, chrf++"), "{error}");
}

#[test]
fn systems_are_compared_by_their_items() {
    let lines = |texts: [&str; 2]| texts.map(|text| format!("{text}\n").repeat(20)).concat();
    let folder = folder_with(&[
        ("ref.txt", &lines(["the cat sat on the mat", "dogs run"])),
        ("a.txt", &lines(["the cat sat on a mat", "dogs run"])),
        ("b.txt", &lines(["a cat on mats", "a dog runs"])),
    ]);
    for system in ["a", "b"] {
        let files = format!("--items {system}.jsonl --html {system}.html");
        succeeds(folder.path(), &format!("text --ref ref.txt --hyp {system}.txt {files}"));
    }
    let items = std::fs::read_to_string(folder.path().join("a.jsonl")).expect("items");
    let item: Value = serde_json::from_str(items.lines().next().expect("a line")).expect("JSON");
    assert_eq!((&item["statistic"]["kind"], &item["id"]), (&"sums".into(), &"1".into()));
    assert_eq!(item["statistic"]["sums"].as_array().map(Vec::len), Some(18));
    let comparison = json(folder.path(), "compare a.jsonl b.jsonl");
    let report = json(folder.path(), "text --ref ref.txt --hyp a.txt");
    assert_eq!(
        (&comparison["a"]["value"], &comparison["a"]["ci95"]),
        (&report["value"], &report["ci95"])
    );
    assert_eq!(comparison["difference"]["unit"], "points");
    assert!(comparison["p_value"].as_f64().expect("a p-value") < 0.01, "{comparison}");
    assert!(comparison["permutation_p_value"].as_f64().expect("a p-value") < 0.01, "{comparison}");
    let page = std::fs::read_to_string(folder.path().join("b.html")).expect("a page");
    for part in ["chrF of a line", "text and references", "a cat on mats", "points"] {
        assert!(page.contains(part), "{part}");
    }
}
