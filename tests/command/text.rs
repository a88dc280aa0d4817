//! `engram eval text`: formats, several references, outputs, and refused inputs.

use crate::running::{Folder, json, read_json_lines, refused, succeeds};

/// chrF and chrF++ by sacrebleu 2.5.1 (`corpus_score` of `CHRF()` and of `CHRF(word_order=2)`),
/// with the first reference, then with both references.
const SACREBLEU: [[f64; 2]; 2] =
    [[39.634392060717104, 42.94668557550931], [42.64884127322788, 45.25436534092916]];

const HYPOTHESES: &str = "a cat sat\n\nGrüße aus 東京!\n";
const FIRST_REFERENCES: &str = "a cat sits\nnothing\nGrüße aus Tokio!\n";
const SECOND_REFERENCES: &str = "the cat sat\n\nein Gruß aus 東京!\n";

#[test]
fn one_and_several_references_give_sacrebleus_scores() {
    let folder = &Folder::with(&[
        ("hyp.txt", HYPOTHESES),
        ("1.txt", FIRST_REFERENCES),
        ("2.txt", SECOND_REFERENCES),
    ]);
    for (references, expected) in ["--ref 1.txt", "--ref 1.txt --ref 2.txt"].iter().zip(SACREBLEU) {
        for (metric, expected) in ["chrf", "chrf++"].iter().zip(expected) {
            let arguments = format!("eval text {references} --hyp hyp.txt --metric {metric}");
            let report = json(folder, &arguments);
            assert_eq!((&report["metric"], &report["unit"]), (&(*metric).into(), &"points".into()));
            let value = report["value"].as_f64().unwrap();
            assert!((value - expected).abs() < 1e-9, "{arguments}: {value}, not {expected}");
            assert_eq!((&report["n"], &report["detail"][*metric]), (&3.into(), &report["value"]));
            assert_eq!(report["interval"]["method"], "percentile bootstrap by line");
        }
    }
    let text = succeeds(folder, "eval text --ref 1.txt --ref 2.txt --hyp hyp.txt --worst 2");
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
    let folder = &Folder::with(&[
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
        ("eval text --ref 1.jsonl --hyp hyp.tsv", SACREBLEU[0][0]),
        ("eval text --ref 1.jsonl --ref 2.tsv --hyp hyp.tsv", SACREBLEU[1][0]),
        ("eval text --pairs pairs.jsonl", SACREBLEU[0][0]),
        ("eval text --ref table.txt --hyp hyp.tsv", SACREBLEU[0][0]),
    ] {
        let value = json(folder, arguments)["value"].as_f64().unwrap();
        assert!((value - expected).abs() < 1e-9, "{arguments}: {value}, not {expected}");
    }
    for (references, error) in [
        ("--ref 1.jsonl --ref short.tsv", "hyp.tsv:2: id `1` is not in short.tsv"),
        ("--ref lines.txt", "lines.txt: has no ids, but hyp.tsv has"),
        ("--ref alternatives.trn", "alternatives.trn: has sclite's markup"),
        ("--ref missing.tsv", "missing.tsv: cannot be read"),
    ] {
        refused(folder, &format!("eval text {references} --hyp hyp.tsv"), error);
    }
    refused(folder, "eval text --ref 2.tsv --hyp hyp.tsv --metric bleu", "chrf, chrf++");
}

#[test]
fn systems_are_compared_by_their_items() {
    let lines = |texts: [&str; 2]| texts.map(|text| format!("{text}\n").repeat(20)).concat();
    let folder = &Folder::with(&[
        ("ref.txt", &lines(["the cat sat on the mat", "dogs run"])),
        ("a.txt", &lines(["the cat sat on a mat", "dogs run"])),
        ("b.txt", &lines(["a cat on mats", "a dog runs"])),
    ]);
    for system in ["a", "b"] {
        let files = format!("--items {system}.jsonl --html {system}.html");
        succeeds(folder, &format!("eval text --ref ref.txt --hyp {system}.txt {files}"));
    }
    let item = &read_json_lines(&folder.join("a.jsonl"))[0];
    assert_eq!((&item["statistic"]["kind"], &item["id"]), (&"sums".into(), &"1".into()));
    assert_eq!(item["statistic"]["sums"].as_array().map(Vec::len), Some(18));
    let comparison = json(folder, "eval compare a.jsonl b.jsonl");
    let report = json(folder, "eval text --ref ref.txt --hyp a.txt");
    assert_eq!(
        (&comparison["a"]["value"], &comparison["a"]["ci95"]),
        (&report["value"], &report["ci95"])
    );
    assert_eq!(comparison["difference"]["unit"], "points");
    assert!(comparison["p_value"].as_f64().unwrap() < 0.01, "{comparison}");
    assert!(comparison["permutation_p_value"].as_f64().unwrap() < 0.01, "{comparison}");
    let page = std::fs::read_to_string(folder.join("b.html")).unwrap();
    for part in ["chrF of a line", "text and references", "a cat on mats", "points"] {
        assert!(page.contains(part), "{part}");
    }
}
