//! Properties that hold for any input of the readers, tokenizers, normalisers and metrics. The
//! inputs are random, but the same in every run.
//!
//! | File | Properties |
//! |---|---|
//! | `readers` | no fuzz target panics |
//! | `texts` | tokenizers and normalisers |
//! | `metrics` | values stay within their limits and equal their definitions |
//! | `threads` | no result depends on the number of threads |

mod metrics;
mod readers;
mod texts;
mod threads;

use engram_eval::bootstrap::BootstrapOptions;
use engram_eval::caption::{
    AnnotatedImage, CaptionAnnotations, CaptionOptions, CaptionResult, CaptionResults,
    evaluate as evaluate_captions,
};
use engram_eval::ids::Id;
use engram_eval::normalise::Normaliser;
use engram_eval::result::ReportOptions;
use engram_eval::retrieval::{Cutoffs, RetrievalReport, evaluate, parse_queries};
use engram_eval::tokenize::ptb;
use engram_eval::wer::read::Pairs;
use engram_eval::wer::report::{self, WerOptions, WerReport};
use engram_eval::wer::tokens::words;
use engram_eval::{phrase, vqa};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::targets;

/// Tests `property` on `cases` random inputs; a failure prints the smallest failing input found.
fn check_property<S: Strategy>(cases: u32, inputs: S, property: impl Fn(S::Value)) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, random);
    let outcome = runner.run(&inputs, |input| {
        property(input);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

/// The number of cases of a property: `base`, multiplied by the environment variable
/// `PROPERTY_FACTOR` if it is set.
fn cases(base: u32) -> u32 {
    let factor = std::env::var("PROPERTY_FACTOR").ok().and_then(|factor| factor.parse().ok());
    base.saturating_mul(factor.unwrap_or(1))
}

/// Pieces of text for which a tokenizer, normaliser or reader has a special rule, separated by
/// spaces.
const PIECES: &str = "a b the dog runs twenty one half and point million double oh per cent dollars \
    1 9 0 1,000 3.5 $ €0 ¢5 % - -- . ... , ; ?! ' '' n't 's won can \" ` ( ) [ ] < > &amp; &quot; \
    http:// www. @x.org Mr. U.S. K. \u{301} é Σ İ \u{1F469}\u{200D} \u{AD} ٣ \0 \u{10FFFF}";
/// Further pieces, which contain white space.
const SPACED_PIECES: [&str; 9] =
    [" ", "  ", "\t", "\u{a0}", "\u{3000}", "\r", "\u{2028}", "\u{85}", "<a b=\""];

/// Text made of special pieces, or any text.
fn text(pieces: usize) -> impl Strategy<Value = String> {
    let special: Vec<&str> = PIECES.split(' ').chain(SPACED_PIECES).collect();
    let piece = prop_oneof![
        6 => select(special).prop_map(str::to_owned),
        2 => Just(" ".to_owned()),
        1 => any::<char>().prop_map(String::from),
    ];
    vec(piece, 0..pieces).prop_map(|pieces| pieces.concat())
}

/// A sentence of few different words: hypotheses and references share words and n-grams.
fn sentence(max_words: usize) -> impl Strategy<Value = String> {
    let word = select(vec!["a", "b", "c", "d", "dog", "runs", "é"]);
    vec(word, 0..max_words).prop_map(|words| words.join(" "))
}

fn wer_report(references: &[String], hypotheses: &[String]) -> WerReport {
    let options = WerOptions {
        bootstrap: BootstrapOptions { resamples: 40, ..BootstrapOptions::default() },
        worst: 5,
        confusions: 5,
        items: true,
        ..WerOptions::default()
    };
    let pairs = Pairs::new(references, hypotheses).expect("as many");
    report::evaluate(&pairs, &options).expect("pairs")
}

/// Annotations with one or more references per image, and results for them.
fn captions(references: &[String], hypotheses: &[String]) -> (CaptionAnnotations, CaptionResults) {
    let rows = references.iter().zip(hypotheses).enumerate();
    let id = |row: usize| Id(row.to_string().into());
    let image = |(row, (reference, _)): (usize, (&String, &String))| AnnotatedImage {
        id: id(row),
        domain: Some(["in-domain", "out-domain"][row % 2].to_owned()),
        references: vec![reference.clone(), "a dog runs".to_owned()],
    };
    let result = |(row, (_, hypothesis)): (usize, (&String, &String))| CaptionResult {
        image_id: id(row),
        caption: hypothesis.clone(),
    };
    let annotations =
        CaptionAnnotations { file: "a".to_owned(), images: rows.clone().map(image).collect() };
    (annotations, CaptionResults { file: "r".to_owned(), results: rows.map(result).collect() })
}

fn caption_scores(
    references: &[String],
    hypotheses: &[String],
) -> engram_eval::caption::CaptionScores {
    let (annotations, results) = captions(references, hypotheses);
    evaluate_captions(&annotations, &results, &CaptionOptions::default()).expect("the ids match")
}

/// JSON lines with a query for each index: the words of `relevant` are its relevant ids, the words
/// of `ranked` its retrieved ids.
fn queries(relevant: &[String], ranked: &[String]) -> String {
    let distinct_words = |text: &String| {
        let mut words = Vec::new();
        text.split(' ').for_each(|word| {
            if !words.contains(&word) {
                words.push(word);
            }
        });
        words.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let line = |(row, (relevant, ranked)): (usize, (&String, &String))| {
        let (relevant, ranked) = (distinct_words(relevant), distinct_words(ranked));
        serde_json::json!({"id": row, "ranked": ranked, "relevant": relevant}).to_string() + "\n"
    };
    relevant.iter().zip(ranked).enumerate().map(line).collect()
}

fn retrieval_report(queries: &str) -> RetrievalReport {
    let cutoffs = Cutoffs { recall: vec![1, 2, 3, 5, usize::MAX], ..Cutoffs::default() };
    let bootstrap = BootstrapOptions { resamples: 40, ..BootstrapOptions::default() };
    let options = ReportOptions { bootstrap, ..ReportOptions::default() };
    evaluate(&parse_queries("q", queries).expect("queries"), &cutoffs, &options).expect("a report")
}
