//! Compares the edit counts of transcripts with markup with sclite's counts.

use engram_eval::normalise::Normaliser;
use engram_eval::wer::Alignment;
use engram_eval::wer::counts::EditCounts;
use engram_eval::wer::read::{TextFormat, join, parse_texts};
use engram_eval::wer::report::{WerOptions, WerReport, evaluate};

const ROWS: &str = include_str!("../../reference/sclite.tsv");

/// Case 09: the published example of alternatives, the null word and optionally deletable words.
const REFERENCE: &str = "\
i am { going to / gonna } leave (spk1-001)
well (uh) that is fine (spk1-002)
she said { um / uh / @ } nothing (spk1-003)
;; a comment line as sclite has it
";
const HYPOTHESIS: &str = "\
i am gonna leave (spk1-001)
well that is fine (spk1-002)
she said nothing (spk1-003)
";

fn score(
    reference: &str,
    hypothesis: &str,
    optional_deletions: bool,
    normaliser: Normaliser,
) -> WerReport {
    let parse = |text| parse_texts("trn", text, TextFormat::Trn).expect("trn");
    let mut pairs = join("r", parse(reference), "h", parse(hypothesis)).expect("pairs");
    pairs.alignment = Alignment::Sclite;
    pairs.markup.optional_deletions = optional_deletions;
    let options = WerOptions { normaliser, confusions: 5, worst: 5, ..WerOptions::default() };
    evaluate(&pairs, &options).expect("a report")
}

#[test]
fn every_pair_has_the_counts_of_sclite() {
    let rows = ROWS.lines().filter(|row| !row.starts_with('#'));
    let mut failed = Vec::new();
    for row in rows.clone() {
        let fields: Vec<&str> = row.split('\t').collect();
        let [reference, hypothesis] = [fields[0], fields[1]].map(|text| format!("{text} (u-1)\n"));
        for (expected, optional_deletions, normaliser) in [
            (fields[2], false, Normaliser::Lowercase),
            (fields[3], true, Normaliser::Lowercase),
            (fields[4], false, Normaliser::None),
        ] {
            let counts = score(&reference, &hypothesis, optional_deletions, normaliser).counts;
            let EditCounts { hits, substitutions, deletions, insertions } = counts;
            let counts = format!("{hits} {substitutions} {deletions} {insertions}");
            if counts != expected {
                failed.push(format!("{row}: {counts}, -D {optional_deletions}, {normaliser}"));
            }
        }
    }
    assert!(rows.count() >= 200 && failed.is_empty(), "{failed:#?}");
}

#[test]
fn one_of_twelve_words_is_wrong_and_none_with_optional_deletions() {
    let report = score(REFERENCE, HYPOTHESIS, false, Normaliser::None);
    assert_eq!((report.counts.errors(), report.counts.reference_tokens()), (1, 12));
    // The confusions and the worst pairs use the chosen words too.
    assert_eq!(report.confusions.unwrap().deletions, [("(uh)".to_owned(), 1)]);
    assert_eq!(report.worst[0].reference, "well (uh) that is fine");
    assert_eq!(report.alignment, Alignment::Sclite);
    let report = score(REFERENCE, HYPOTHESIS, true, Normaliser::None);
    assert_eq!((report.counts.errors(), report.counts.reference_tokens()), (0, 12));
}

#[test]
fn alternatives_are_chosen_after_the_normaliser() {
    let (reference, hypothesis) = (
        "so { YES / YEAH } i think- (a-1)\n{ it is / it's } on { 20 / a } (a-2)\n",
        "so yeah I think (a-1)\nit's on twenty (a-2)\n",
    );
    let errors = |normaliser| score(reference, hypothesis, false, normaliser).counts.errors();
    assert_eq!(errors(Normaliser::None), 4);
    assert_eq!(errors(Normaliser::Lowercase), 2);
    assert_eq!(errors(Normaliser::WhisperEnglish), 0);
}

#[test]
fn errors_name_invalid_markup() {
    let error = parse_texts("ref.trn", "a { b (u1)", TextFormat::Trn).unwrap_err().to_string();
    let expected = "ref.trn:1: has a `{` without a `}`; write alternatives";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn a_text_that_is_too_long_for_the_alignment_is_refused() {
    let words = "a b ".repeat(3000);
    let text = format!("{{ a / b }} {words}(u1)\n");
    let parse = || parse_texts("f", &text, TextFormat::Trn).expect("trn");
    let pairs = join("r", parse(), "h", parse()).unwrap();
    let error = evaluate(&pairs, &WerOptions::default()).unwrap_err().to_string();
    assert!(error.starts_with("utterance u1: is too long for a choice of alternatives"), "{error}");
}
