//! Errors of rare words apart from the others: B-WER and U-WER of contextual biasing.
//!
//! # Source   D. Le and others, "Contextualized streaming end-to-end speech recognition with trie-based deep biasing
//! and shallow fusion", arXiv 2104.02194: a reference word counts for the side it is on, an insertion for the side of
//! the word that was put in.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::PairAligner;
use super::alignment::Edit;
use super::confusions::tokens;
use super::counts::EditCounts;
use super::read::Pairs;
use super::tokens::{Unit, words};
use crate::error::EvalError;

/// Which words are rare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RareWords {
    /// The same words for all pairs.
    List(HashSet<String>),
    /// The words that stand at most so often in all references together.
    AtMost(u64),
    /// Each pair's own words, by its id.
    OfPair(HashMap<String, HashSet<String>>),
}

/// The errors on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RareWordErrors {
    /// Of the rare (biasing) words.
    pub rare: EditCounts,
    /// Of the others.
    pub others: EditCounts,
    /// B-WER: the error rate of the rare words.
    pub b_wer: f64,
    /// U-WER: the error rate of the others.
    pub u_wer: f64,
}

/// Counts the errors of rare words and of the others.
///
/// # Errors   [`EvalError::BadOption`] for a pair that has no list of its own
pub fn rare_word_errors(
    pairs: &Pairs<'_>,
    rare_words: &RareWords,
) -> Result<RareWordErrors, EvalError> {
    let mut frequencies: HashMap<&str, u64> = HashMap::new();
    if let RareWords::AtMost(_) = rare_words {
        for word in pairs.references.iter().flat_map(|reference| words(reference)) {
            *frequencies.entry(word).or_default() += 1;
        }
    }
    let mut aligner = PairAligner::default();
    let (mut rare, mut others) = (EditCounts::default(), EditCounts::default());
    let rows = pairs.ids.iter().zip(&pairs.references).zip(&pairs.hypotheses);
    for ((id, reference), hypothesis) in rows {
        let own = match rare_words {
            RareWords::OfPair(lists) => {
                Some(lists.get(&**id).ok_or_else(|| EvalError::BadOption {
                    option: "biasing",
                    found: format!("a file without the utterance `{id}`"),
                    expected: "one line for each utterance",
                })?)
            }
            _ => None,
        };
        let is_rare = |word: &str| match (rare_words, own) {
            (RareWords::List(list), _) => list.contains(word),
            (RareWords::AtMost(most), _) => frequencies.get(word).copied().unwrap_or(0) <= *most,
            (RareWords::OfPair(_), own) => own.is_some_and(|own| own.contains(word)),
        };
        let (said, heard) = (tokens(reference, Unit::Word), tokens(hypothesis, Unit::Word));
        let (mut i, mut j) = (0, 0);
        for edit in aligner.align(Unit::Word, reference, hypothesis) {
            let word = if *edit == Edit::Insertion { heard[j] } else { said[i] };
            let side = if is_rare(word) { &mut rare } else { &mut others };
            *side += EditCounts::of(&[*edit]);
            i += usize::from(*edit != Edit::Insertion);
            j += usize::from(*edit != Edit::Deletion);
        }
    }
    let (b_wer, u_wer) = (rare.error_rate(), others.error_rate());
    Ok(RareWordErrors { rare, others, b_wer, u_wer })
}
