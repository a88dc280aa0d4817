//! `engram eval wer`: transcripts of every format, and refused inputs.

use std::fs;

use crate::running::{Folder, engram, errors, json, refused};

const REFERENCE: &str = "i am { going to / gonna } leave (spk1-001)\nwell (uh) that is fine (spk1-002)\n\
                         ;; a comment\nshe said { um / uh / @ } nothing (spk1-003)\n";
const HYPOTHESIS: &str = "I am gonna leave (spk1-001)\nwell that is fine (spk1-002)\nshe said \
                          nothing (spk1-003)\n";

#[test]
fn sclite_markup_is_scored_as_in_sclite() {
    let folder =
        &Folder::with(&[("ref.trn", REFERENCE), ("hyp.trn", HYPOTHESIS), ("ref", REFERENCE)]);
    let files = "--ref ref.trn --hyp hyp.trn";
    for (options, errors) in
        [("", 2), ("--normalizer lowercase", 1), ("--normalizer lowercase -D", 0)]
    {
        let report = json(folder, &format!("eval wer {files} {options}"));
        assert_eq!(report["detail"]["reference_words"], 12, "{options}");
        assert_eq!(report["value"], f64::from(errors) / 12.0, "{options}");
        assert_eq!(report["alignment"], "sclite");
    }
    let parts = ["ref: looks like sclite's trn", "give it the ending of its format (.trn"];
    refused(folder, "eval wer --ref ref --hyp hyp.trn", &parts);
    let lines = "eval wer --ref ref --hyp ref --format lines -D";
    refused(folder, lines, "--optional-deletions needs a .trn file");
}

#[test]
fn kaldi_text_is_read_from_files_and_folders() {
    let reference = "84-1211-0001 hello you\n84-1211-0002 good day\n";
    let hypothesis = "84-1211-0002 good\n84-1211-0001 hello you\n";
    let folder = &Folder::with(&[
        ("text", reference),
        ("hyp.txt", hypothesis),
        ("bad.txt", "84-1211-0001 a\n"),
    ]);
    let files = "--ref text --hyp hyp.txt";
    let output = engram(folder, &format!("eval wer {files}"));
    let note = errors(&output);
    assert!(output.status.success() && note.contains("read as Kaldi's `id text`"), "{note}");
    for options in ["", "--format kaldi"] {
        let report = json(folder, &format!("eval wer {files} {options}"));
        assert_eq!((&report["value"], &report["n"]), (&0.25.into(), &2.into()));
    }
    // The file is read as plain lines only on request.
    let plain = json(folder, &format!("eval wer {files} --format plain"));
    assert_eq!(plain["detail"]["reference_words"], 6);
    refused(folder, "eval wer --ref text --hyp bad.txt", &["Kaldi", "--format kaldi"]);
    let kaldi = folder.join("data");
    fs::create_dir(&kaldi).unwrap();
    fs::write(kaldi.join("text"), reference).unwrap();
    fs::write(kaldi.join("utt2spk"), "84-1211-0001 spk1\n").unwrap();
    assert_eq!(json(folder, "eval wer --ref data --hyp hyp.txt")["value"], 0.25);
    let missing = "bad.txt: no prediction for id `84-1211-0002` (data/text:2)";
    refused(folder, "eval wer --ref data --hyp bad.txt", missing);
    // Words such as x86_64 may be ids.
    let files = [("p.txt", "x86_64 a\nmp3_player b\n"), ("c.csv", "id,text\nu1,a b\nu2,c\n")];
    let kaldi_and_others = [
        ("k", "u2 c\nu1 a\n"),
        ("s.srt", "1\n00:00:01,000 --> 00:00:02,500\nhello\n"),
        ("t.trn", "a b (u1)\nc (u2)\n"),
        ("t.txt", "a b (u1)\nc (u2)\n"),
    ];
    let folder = &Folder::with(&[&files[..], &kaldi_and_others].concat());
    for format in ["kaldi", "lines"] {
        let command = "eval wer --ref p.txt --hyp p.txt";
        refused(folder, command, &["looks like Kaldi's `text`", &format!("--format {format}")]);
        assert_eq!(json(folder, &format!("{command} --format {format}"))["value"], 0.0);
    }
    let report = json(folder, "eval wer --ref c.csv --hyp k --quiet");
    let formats = [&report["sources"][0]["format"], &report["sources"][1]["format"]];
    let expected = (&(1.0 / 3.0).into(), [&"csv".into(), &"kaldi".into()]);
    assert_eq!((&report["value"], formats), expected);
    let text = String::from_utf8(engram(folder, "eval wer --ref c.csv --hyp k").stdout).unwrap();
    assert!(text.contains("hypotheses   k (kaldi)"), "{text}");
    let named = "give it the ending of its format (.trn";
    refused(folder, "eval wer --ref c.csv --hyp t.txt", &["looks like sclite's trn", named]);
    assert_eq!(json(folder, "eval wer --ref c.csv --hyp t.trn")["value"], 0.0);
    let error = errors(&engram(folder, "eval wer --ref s.srt --hyp s.srt"));
    assert!(error.contains("subtitles") && !error.contains("--format"), "{error}");
    let table = "eval wer --ref c.csv --hyp c.csv --table .";
    refused(folder, table, "is a folder, not a file; give the path of a file in it");
}

#[test]
fn first_words_that_may_be_ids_are_scored_and_the_format_is_reported() {
    let texts = [("ref.txt", "COVID-19 cases rise\n"), ("hyp.txt", "COVID-19 cases rose\n")];
    let folder = &Folder::with(&texts);
    let files = "--ref ref.txt --hyp hyp.txt --quiet";
    let report = json(folder, &format!("eval wer {files} --html page.html"));
    assert_eq!(
        (&report["value"], report["sources"][0]["format"].as_str()),
        (&(1.0 / 3.0).into(), Some("lines"))
    );
    assert!(fs::read_to_string(folder.join("page.html")).unwrap().contains("read as lines"));
    for command in ["wer", "text"] {
        let report = json(folder, &format!("eval {command} {files} --format kaldi"));
        assert_eq!(report["sources"][1]["format"], "kaldi");
    }
    let warning = errors(&engram(folder, &format!("eval text {files}")));
    assert!(warning.contains("if these are ids, give --format kaldi"), "{warning}");
}

#[test]
fn speaker_files_of_kaldi_are_tables() {
    let folder = &Folder::with(&[
        ("a.tsv", "u1\ta b\nu2\tc d\n"),
        ("utt2spk", "u1 s1\nu2  s2\r\n"),
        ("spk2gender", "s2 f\ns1 m\n"),
    ]);
    let files = "eval wer --ref a.tsv --hyp a.tsv";
    for (table, by, groups) in
        [("utt2spk", "speaker", ["s1", "s2"]), ("spk2gender", "gender", ["f", "m"])]
    {
        let report = json(folder, &format!("{files} --table {table} --by {by} --cluster speaker"));
        let rows = report["breakdowns"][0]["rows"].as_array().unwrap().iter();
        assert_eq!(rows.map(|row| row["name"].as_str().unwrap()).collect::<Vec<_>>(), groups);
    }
    let missing = "column `gender` is missing; the header has: id, speaker";
    refused(folder, &format!("{files} --table utt2spk --by gender"), missing);
    fs::write(folder.join("spk2gender"), "s1 m\n").unwrap();
    refused(
        folder,
        &format!("{files} --table spk2gender --by gender"),
        "no line for the speaker `s2`",
    );
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
    let folder = &Folder::with(&[
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
        let report = json(folder, &format!("eval wer {arguments}"));
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
        refused(folder, &format!("eval wer {arguments}"), expected);
    }
}

#[test]
fn files_of_other_formats_are_refused_with_a_remedy() {
    let folder = &Folder::with(&[
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
        refused(folder, &format!("eval wer --ref {file} --hyp {file}"), &[file, remedy]);
    }
    let report = json(folder, "eval wer --ref lines.txt --hyp lines.txt --format json");
    assert_eq!(report["detail"]["reference_words"], 3);
}

#[test]
fn zero_errors_have_an_interval_above_zero() {
    let lines = "one two\n".repeat(100);
    let folder = &Folder::with(&[("a.txt", &lines)]);
    let report = json(folder, "eval wer --ref a.txt --hyp a.txt");
    assert_eq!(report["interval"]["method"], "rule of three by utterance");
    assert!((report["ci95"][1].as_f64().unwrap() - 0.02996).abs() < 1e-5, "{report}");
    let sentences = report["secondary"].as_array().unwrap();
    let sentences = sentences.iter().find(|measure| measure["metric"] == "sentence_error_rate");
    let interval = &sentences.unwrap()["interval"];
    assert_eq!(interval["method"], "exact binomial by utterance");
    assert!((interval["high"].as_f64().unwrap() - 0.036217).abs() < 1e-5, "{interval}");
}
