//! Prints the error counts of transcripts in sclite's format trn: of all utterances together, then
//! of each utterance with an error.
//!
//! `cargo run --release --example score_trn -- ref.trn hyp.trn [-D]`, in the folder `eval`

use std::path::Path;

use engram_eval::normalise::Normaliser;
use engram_eval::wer::Alignment;
use engram_eval::wer::read::{TextFormat, join, parse_texts};
use engram_eval::wer::report::{WerOptions, evaluate};
use engram_textfile::read_text;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [reference, hypothesis, flags @ ..] = arguments.as_slice() else {
        return Err("usage: score_trn REF HYP [-D]".into());
    };
    let (reference_text, hypothesis_text) =
        (read_text(Path::new(reference))?, read_text(Path::new(hypothesis))?);
    let mut pairs = join(
        reference,
        parse_texts(reference, &reference_text, TextFormat::Trn)?,
        hypothesis,
        parse_texts(hypothesis, &hypothesis_text, TextFormat::Trn)?,
    )?;
    pairs.markup.optional_deletions = flags.iter().any(|option| option == "-D");
    pairs.alignment = Alignment::Sclite;
    let options = WerOptions {
        worst: usize::MAX,
        normaliser: Normaliser::Lowercase,
        ..WerOptions::default()
    };
    let report = evaluate(&pairs, &options)?;
    println!("all {:?}", report.counts);
    for pair in &report.worst {
        println!("{} {:?} | {} | {}", pair.id, pair.counts, pair.reference, pair.hypothesis);
    }
    Ok(())
}
