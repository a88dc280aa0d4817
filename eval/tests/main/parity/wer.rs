//! Compares word and character errors with jiwer 4.0.0 (RapidFuzz 3.14.6), count by count.

use engram_eval::wer::counts::EditCounts;
use engram_eval::wer::rare_words::{BiasingLists, RareWords};
use engram_eval::wer::read::{Columns, Pairs, TextFormat, join, parse_pairs, parse_texts};
use engram_eval::wer::report::{WerOptions, evaluate};
use engram_eval::wer::tokens::TokenUnit;
use engram_eval::wer::{Alignment, count_errors, count_word_errors};
use serde_json::Value;

use super::{assert_close, json, text};

fn counts_of(row: &Value) -> EditCounts {
    let [hits, substitutions, deletions, insertions] =
        [0, 1, 2, 3].map(|column: usize| row[column].as_u64().expect("a count"));
    EditCounts { hits, substitutions, deletions, insertions }
}

#[test]
#[ignore = "needs ENGRAM_DATA: metrics/wer*"]
fn every_count_equals_jiwer() {
    for (pairs_file, expected_file) in [
        ("metrics/wer.jsonl.gz", "metrics/wer.expected.json.gz"),
        ("metrics/wer_edge.jsonl", "metrics/wer_edge.expected.json"),
        ("metrics/wer_long.jsonl.gz", "metrics/wer_long.expected.json"),
    ] {
        let pairs_text = text(pairs_file);
        let pairs = parse_pairs(pairs_file, &pairs_text, TextFormat::Jsonl, &Columns::default())
            .unwrap_or_else(|error| panic!("{error}"));
        let expected = json(expected_file);
        for (unit, key, rate) in
            [(TokenUnit::Word, "words", "wer"), (TokenUnit::Char, "chars", "cer")]
        {
            let counts = count_errors(Alignment::Jiwer, unit, &pairs.references, &pairs.hypotheses)
                .unwrap_or_else(|error| panic!("{error}"));
            let rows = expected["items"][key].as_array().expect("one row per pair");
            assert_eq!(rows.len(), counts.pairs.len());
            for ((row, counts), id) in rows.iter().zip(&counts.pairs).zip(&pairs.ids) {
                let description = format!("{pairs_file}, {key}, id {id}");
                assert_eq!(*counts, counts_of(row), "{description}");
                assert_close(counts.error_rate(), &row[4], 1e-12, &description);
                if unit == TokenUnit::Word {
                    assert_close(counts.match_error_rate(), &row[5], 1e-12, &description);
                    assert_close(counts.information_lost(), &row[6], 1e-12, &description);
                    assert_close(counts.information_preserved(), &row[7], 1e-12, &description);
                }
            }
            let corpus = &expected["corpus"][key];
            for (name, count) in [
                ("hits", counts.total.hits),
                ("substitutions", counts.total.substitutions),
                ("deletions", counts.total.deletions),
                ("insertions", counts.total.insertions),
            ] {
                assert_eq!(corpus[name], count, "{pairs_file}, {key}, {name}");
            }
            assert_close(counts.total.error_rate(), &corpus[rate], 1e-12, pairs_file);
        }
    }
}

fn libri_pairs<'a>(reference: &'a str, hypothesis: &'a str) -> Pairs<'a> {
    let parse = |text| parse_texts("libri", text, TextFormat::Tsv).expect("a table");
    join("libri", parse(reference), "libri", parse(hypothesis)).expect("the same ids")
}

/// The published results of a LibriSpeech system without and with a biasing list: WER, U-WER and
/// B-WER in per cent.
#[test]
#[ignore = "needs ENGRAM_DATA: wer-refs"]
fn published_values_are_reproduced_to_all_digits() {
    let reference = text("wer-refs/libri_test_other.ref.tsv");
    let rare = reference.lines().map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        (fields[0].to_owned(), serde_json::from_str(fields[2]).expect("a list of words"))
    });
    let rare = RareWords::PerPair(BiasingLists { file: String::new(), of_pair: rare.collect() });
    for (file, wer, u_wer, b_wer) in [
        ("b1", 9.607779454750396, 7.222352265230992, 30.560747663551403),
        ("s1_biasing100", 8.786275146628967, 7.122337369395442, 23.401869158878505),
    ] {
        let hypothesis = text(&format!("wer-refs/libri_test_other.{file}.hyp.tsv"));
        let mut options = WerOptions { rare_words: Some(rare.clone()), ..WerOptions::default() };
        options.bootstrap.resamples = 0;
        let report = evaluate(&libri_pairs(&reference, &hypothesis), &options).expect("a report");
        let rates = report.rare_words.expect("rare words");
        let counts = [report.counts, rates.others, rates.rare];
        for (counts, expected) in counts.into_iter().zip([wer, u_wer, b_wer]) {
            // The operations are in the order of the published script, so that the last digit is
            // equal.
            let per_cent = 100.0 * counts.errors() as f64 / counts.reference_tokens() as f64;
            assert_eq!(per_cent.to_string(), expected.to_string(), "{file}");
        }
        let rates = [report.evaluation.primary.value, rates.u_wer, rates.b_wer];
        for (rate, expected) in rates.into_iter().zip([wer, u_wer, b_wer]) {
            assert!((rate * 100.0 - expected).abs() < 1e-12, "{file}");
        }
        assert_eq!(report.counts.reference_tokens(), 52_343);
    }
}

#[test]
#[ignore = "needs ENGRAM_DATA: wer-refs"]
fn how2_is_read_from_trn() {
    let [reference, hypothesis] =
        ["ref", "hyp"].map(|side| text(&format!("wer-refs/how2_dev5.{side}.trn")));
    let parse = |text| parse_texts("how2", text, TextFormat::Trn).expect("trn lines");
    let pairs = join("how2", parse(&reference), "how2", parse(&hypothesis)).expect("ids");
    assert_eq!(pairs.ids.len(), 2305);
    let errors = count_word_errors(&pairs.references, &pairs.hypotheses).expect("pairs");
    assert_eq!(
        errors.total.reference_tokens() + errors.total.insertions,
        errors.total.hypothesis_tokens() + errors.total.deletions
    );
}
