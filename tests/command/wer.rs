//! `engram eval wer`: transcripts of every format, and refused inputs.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const REFERENCE: &str = "i am { going to / gonna } leave (spk1-001)\nwell (uh) that is fine (spk1-002)\n\
                         ;; a comment\nshe said { um / uh / @ } nothing (spk1-003)\n";
const HYPOTHESIS: &str = "I am gonna leave (spk1-001)\nwell that is fine (spk1-002)\nshe said \
                          nothing (spk1-003)\n";

fn wer(folder: &Path, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engram"));
    command.args(["eval", "wer"]).args(arguments.split_whitespace()).current_dir(folder);
    command.output().expect("the program")
}

fn json(folder: &Path, arguments: &str) -> Value {
    let output = wer(folder, &format!("{arguments} --json"));
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn refused(folder: &Path, arguments: &str) -> String {
    let output = wer(folder, arguments);
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

#[test]
fn sclite_markup_is_scored_as_in_sclite() {
    let folder =
        folder_with(&[("ref.trn", REFERENCE), ("hyp.trn", HYPOTHESIS), ("ref", REFERENCE)]);
    let files = "--ref ref.trn --hyp hyp.trn";
    for (options, errors) in
        [("", 2), ("--normalizer lowercase", 1), ("--normalizer lowercase -D", 0)]
    {
        let report = json(folder.path(), &format!("{files} {options}"));
        assert_eq!(report["detail"]["reference_words"], 12, "{options}");
        assert_eq!(report["value"], f64::from(errors) / 12.0, "{options}");
        assert_eq!(report["alignment"], "sclite");
    }
    let error = refused(folder.path(), "--ref ref --hyp hyp.trn");
    assert!(
        error.contains("ref: looks like sclite's trn") && error.contains("--format trn"),
        "{error}"
    );
    let error = refused(folder.path(), "--ref ref --hyp ref --format lines -D");
    assert!(error.contains("--optional-deletions needs a .trn file"), "{error}");
}

#[test]
fn kaldi_text_is_read_from_files_and_folders() {
    let reference = "spk1-u1 hello you\nspk1-u2 good day\n";
    let hypothesis = "spk1-u2 good\nspk1-u1 hello you\n";
    let folder =
        folder_with(&[("text", reference), ("hyp.txt", hypothesis), ("bad.txt", "spk1-u1 a\n")]);
    let files = "--ref text --hyp hyp.txt";
    let output = wer(folder.path(), files);
    let note = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && note.contains("read as Kaldi's `id text`"), "{note}");
    for options in ["", "--format kaldi"] {
        let report = json(folder.path(), &format!("{files} {options}"));
        assert_eq!((&report["value"], &report["n"]), (&0.25.into(), &2.into()));
    }
    // The file is read as plain lines only on request.
    let plain = json(folder.path(), &format!("{files} --format plain"));
    assert_eq!(plain["detail"]["reference_words"], 6);
    let error = refused(folder.path(), "--ref text --hyp bad.txt");
    assert!(error.contains("Kaldi") && error.contains("--format kaldi"), "{error}");
    let kaldi = folder.path().join("data");
    std::fs::create_dir(&kaldi).expect("a folder");
    std::fs::write(kaldi.join("text"), reference).expect("a file");
    std::fs::write(kaldi.join("utt2spk"), "spk1-u1 spk1\n").expect("a file");
    assert_eq!(json(folder.path(), "--ref data --hyp hyp.txt")["value"], 0.25);
    let error = refused(folder.path(), "--ref data --hyp bad.txt");
    assert!(error.contains("bad.txt: no prediction for id `spk1-u2` (data/text:2)"), "{error}");
}

#[test]
fn manifests_and_tables_are_read_by_their_columns() {
    let nemo = |id: &str, text: &str, pred_text: &str| {
        format!(
            "{{\"audio_filepath\": \"{id}.wav\", \"duration\": 1.5, \"text\": \"{text}\", \
                 \"pred_text\": \"{pred_text}\"}}\n"
        )
    };
    let manifest = nemo("a", "hello you", "hello you") + &nemo("b", "good day", "good");
    let other_manifest = nemo("a", "hello you", "hello you") + &nemo("c", "good day", "good");
    let folder = folder_with(&[
        ("manifest.json", &manifest),
        ("other.json", &other_manifest),
        ("both.csv", "ID,Sentence,Output\na,\"hello, you\",\"hello, you\"\nb,good day,good\n"),
        ("ref.csv", "utterance_id,transcript\nb,good day\na,hello you\n"),
        ("hyp.tsv", "path\tsentence\na\thello you\nb\tgood\n"),
    ]);
    for arguments in [
        "--pairs manifest.json",
        "--ref manifest.json --hyp manifest.json",
        "--pairs both.csv --ref-column sentence --hyp-column output",
        "--ref ref.csv --hyp hyp.tsv",
        "--ref ref.csv --hyp both.csv --hyp-column output --normalizer basic",
    ] {
        let report = json(folder.path(), arguments);
        assert_eq!((&report["value"], &report["n"]), (&0.25.into(), &2.into()), "{arguments}");
    }
    for (arguments, expected) in [
        ("--ref manifest.json --hyp other.json", "no prediction for id `b.wav` (manifest.json:2)"),
        ("--ref manifest.json --hyp hyp.tsv", "no prediction for id `a.wav` (manifest.json:1)"),
        (
            "--pairs both.csv",
            "both.csv:1: has no column of hypotheses; it has: ID, Sentence, Output",
        ),
        ("--pairs ref.csv --hyp-column text", "ref.csv:1: has no `text`; it has: utterance_id"),
        ("--ref both.csv --hyp hyp.tsv --id-column nr", "both.csv:1: has no `nr`; it has"),
    ] {
        let error = refused(folder.path(), arguments);
        assert!(error.contains(expected), "{arguments}: {error}");
    }
}

#[test]
fn files_of_other_formats_are_refused_with_a_remedy() {
    let folder = folder_with(&[
        ("lines.txt", "{\"id\": 1, \"text\": \"a b\"}\n{\"id\": 2, \"text\": \"c\"}\n"),
        ("table.txt", "u1\ta b\nu2\tc\n"),
        ("csv.txt", "id,text\nu1,a b\n"),
        ("words.ctm", "f 1 0.0 0.5 hello\nf 1 0.5 0.5 you\n"),
    ]);
    for (file, remedy) in [
        ("lines.txt", "--format jsonl"),
        ("table.txt", "--format tsv"),
        ("csv.txt", "--format csv"),
        ("words.ctm", ".trn"),
    ] {
        let error = refused(folder.path(), &format!("--ref {file} --hyp {file}"));
        assert!(error.contains(file) && error.contains(remedy), "{error}");
    }
    let report = json(folder.path(), "--ref lines.txt --hyp lines.txt --format json");
    assert_eq!(report["detail"]["reference_words"], 3);
}

#[test]
fn zero_errors_have_an_interval_above_zero() {
    let lines = "one two\n".repeat(100);
    let folder = folder_with(&[("a.txt", &lines)]);
    let report = json(folder.path(), "--ref a.txt --hyp a.txt");
    assert_eq!(report["interval"]["method"], "rule of three by utterance");
    assert!((report["ci95"][1].as_f64().expect("a limit") - 0.02996).abs() < 1e-5, "{report}");
    let sentences = report["secondary"].as_array().expect("measures");
    let sentences = sentences.iter().find(|measure| measure["metric"] == "sentence_error_rate");
    let interval = &sentences.expect("the measure")["interval"];
    assert_eq!(interval["method"], "exact binomial by utterance");
    assert!((interval["high"].as_f64().expect("a limit") - 0.036217).abs() < 1e-5, "{interval}");
}
