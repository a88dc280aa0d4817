//! Scores transcripts: word error rate with a confidence interval, under two normalisers, and the
//! words that differ.
//!
//! ```text
//! cargo run --release --example score_wer
//! ```

use std::error::Error;

use engram::eval::normalise::Normaliser;
use engram::eval::wer::align;
use engram::eval::wer::alignment::Edit;
use engram::eval::wer::read::Pairs;
use engram::eval::wer::report::{WerOptions, evaluate};
use engram::eval::wer::tokens::TokenUnit;

const REFERENCES: [&str; 4] = [
    "The colour of the kite is blue.",
    "It's twenty-five dollars, isn't it?",
    "Look at the airplane!",
    "Mr. Smith doesn't know",
];
const HYPOTHESES: [&str; 4] = [
    "the color of the kite is blue",
    "it is $25 isn't it",
    "look at the dragon",
    "mister smith does not no",
];

fn main() -> Result<(), Box<dyn Error>> {
    let pairs = Pairs::new(&REFERENCES, &HYPOTHESES)?;
    for normaliser in [Normaliser::None, Normaliser::WhisperEnglish] {
        let report = evaluate(&pairs, &WerOptions { normaliser, ..WerOptions::default() })?;
        let wer = &report.evaluation.primary;
        let interval = wer.interval.as_ref().ok_or("too few pairs for an interval")?;
        println!(
            "{:<16} WER {:.3} [{:.3}, {:.3}], {} pairs",
            report.evaluation.normaliser, wer.value, interval.low, interval.high, wer.n
        );
    }
    for (reference, hypothesis) in REFERENCES.iter().zip(HYPOTHESES) {
        let [reference, hypothesis] =
            [*reference, hypothesis].map(|text| Normaliser::WhisperEnglish.normalise(text));
        println!("{}", alignment_text(&reference, &hypothesis));
    }
    Ok(())
}

/// An alignment on one line: `airplane>dragon` is a substitution, `-the` a deletion, `+a` an
/// insertion.
fn alignment_text(reference: &str, hypothesis: &str) -> String {
    let (mut reference_words, mut hypothesis_words) =
        (reference.split_whitespace(), hypothesis.split_whitespace());
    let edits = align(TokenUnit::Word, reference, hypothesis).into_iter().filter_map(|edit| {
        Some(match edit {
            Edit::Hit => hypothesis_words.next().and(reference_words.next())?.to_owned(),
            Edit::Substitution => {
                format!("{}>{}", reference_words.next()?, hypothesis_words.next()?)
            }
            Edit::Deletion => format!("-{}", reference_words.next()?),
            Edit::Insertion => format!("+{}", hypothesis_words.next()?),
        })
    });
    edits.collect::<Vec<_>>().join(" ")
}
