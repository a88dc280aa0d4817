//! The errors of rare words (B-WER) and of the other words (U-WER), as in contextual biasing.
//!
//! A hit, a substitution and a deletion count for the group of the reference word, an insertion for
//! the group of the inserted word.
//!
//! # Source   D. Le and others, "Contextualized streaming end-to-end speech recognition with
//! trie-based deep biasing and shallow fusion", arXiv 2104.02194

use std::collections::{HashMap, HashSet};

use engram_textfile::{check_line_ends, message_in_line, non_blank_lines, shortened};
use serde::{Deserialize, Serialize};

use super::PairAligner;
use super::alignment::Edit;
use super::counts::EditCounts;
use super::read::{Pairs, check_ids};
use super::tokens::{TokenUnit, words};
use crate::error::{EvalError, malformed};

const BIASING_REMEDY: &str =
    "give a line for each utterance: id<TAB>text<TAB>JSON list of its rare words";

/// The definition of rare words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RareWords {
    /// One list for all pairs.
    List(HashSet<String>),
    /// The words with at most this many occurrences in all references together.
    MaxCount(u64),
    /// One list per pair.
    PerPair(BiasingLists),
}

/// One list of rare words per pair, by id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BiasingLists {
    /// The file name, for error messages.
    pub file: String,
    /// The rare words of each pair.
    pub of_pair: HashMap<String, HashSet<String>>,
}

/// The errors of rare words and of the other words.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RareWordErrors {
    /// Counts of the rare (biasing) words.
    pub rare: EditCounts,
    /// Counts of the other words.
    pub others: EditCounts,
    /// B-WER: the error rate of the rare words.
    pub b_wer: f64,
    /// U-WER: the error rate of the other words.
    pub u_wer: f64,
}

/// Parses a list of rare words, one word per line.
///
/// # Errors
/// [`EvalError::Text`] for a line of several words, which would never match, and for a file
/// without words
pub fn parse_word_list(file: &str, text: &str) -> Result<HashSet<String>, EvalError> {
    let remedy = "give one word per line";
    check_line_ends(file, text)?;
    let mut list = HashSet::new();
    for (line, row) in non_blank_lines(text) {
        let word = row.trim();
        if word.contains(' ') {
            return Err(malformed(file, line, "has more than one word", remedy));
        }
        list.insert(word.to_owned());
    }
    if list.is_empty() { Err(malformed(file, None, "has no words", remedy)) } else { Ok(list) }
}

/// Parses the rare words of each pair from lines `id<TAB>text<TAB>JSON list`. The text is ignored.
///
/// # Errors
/// [`EvalError::Text`] with the line, also for an empty or duplicate id
pub fn parse_biasing_lists(file: &str, text: &str) -> Result<BiasingLists, EvalError> {
    check_line_ends(file, text)?;
    let mut lists: Vec<(&str, u64, HashSet<String>)> = Vec::new();
    for (line, row) in non_blank_lines(text) {
        let mut fields = row.split('\t');
        let (id, words) = (fields.next().unwrap_or_default().trim(), fields.nth(1));
        let words =
            words.ok_or_else(|| malformed(file, line, "has no third field", BIASING_REMEDY))?;
        let words = serde_json::from_str(words).map_err(|error| {
            let reason = format!("has no list of words: {}", message_in_line(&error));
            malformed(file, line, reason, BIASING_REMEDY)
        })?;
        lists.push((id, line, words));
    }
    if lists.is_empty() {
        return Err(malformed(file, None, "has no lines", BIASING_REMEDY));
    }
    check_ids(file, lists.iter().map(|(id, line, _)| (*id, *line)))?;
    let of_pair = lists.into_iter().map(|(id, _, words)| (id.to_owned(), words)).collect();
    Ok(BiasingLists { file: file.to_owned(), of_pair })
}

/// Counts the errors of rare words and of the other words.
///
/// # Errors
/// [`EvalError::Text`] for a pair without a list
pub fn rare_word_errors(
    pairs: &Pairs<'_>,
    rare_words: &RareWords,
) -> Result<RareWordErrors, EvalError> {
    let mut frequencies: HashMap<&str, u64> = HashMap::new();
    if let RareWords::MaxCount(_) = rare_words {
        for word in pairs.references.iter().flat_map(|reference| words(reference)) {
            *frequencies.entry(word).or_default() += 1;
        }
    }
    let mut aligner = PairAligner::new(pairs.alignment);
    let (mut rare, mut others) = (EditCounts::default(), EditCounts::default());
    let texts = pairs.ids.iter().zip(&pairs.references).zip(&pairs.hypotheses);
    for ((id, reference), hypothesis) in texts {
        let pair_list = match rare_words {
            RareWords::PerPair(lists) => {
                let id = id.trim();
                Some(lists.of_pair.get(id).ok_or_else(|| {
                    let reason = format!("has no line for the utterance `{}`", shortened(id, 60));
                    malformed(&lists.file, None, reason, BIASING_REMEDY)
                })?)
            }
            _ => None,
        };
        let is_rare = |word: &str| match (rare_words, pair_list) {
            (RareWords::List(list), _) => list.contains(word),
            (RareWords::MaxCount(max), _) => frequencies.get(word).copied().unwrap_or(0) <= *max,
            (RareWords::PerPair(_), pair_list) => {
                pair_list.is_some_and(|pair_list| pair_list.contains(word))
            }
        };
        for step in aligner.align_tokens(TokenUnit::Word, reference, hypothesis) {
            let is_insertion = step.edit == Edit::Insertion;
            let word = if is_insertion { step.hypothesis } else { step.reference };
            let counts = if is_rare(word) { &mut rare } else { &mut others };
            *counts += EditCounts::of(&[step.edit]);
        }
    }
    let (b_wer, u_wer) = (rare.error_rate(), others.error_rate());
    Ok(RareWordErrors { rare, others, b_wer, u_wer })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_list_has_one_word_per_line() {
        let words = parse_word_list("f", "a\r\n\n b \na\n").unwrap();
        assert_eq!(words, HashSet::from(["a", "b"].map(str::to_owned)));
        let error_message = |text: &str| parse_word_list("f", text).unwrap_err().to_string();
        assert!(error_message(" \n\n").starts_with("f: has no words; give one word per line"));
        assert!(error_message("a\nnew york\n").starts_with("f:2: has more than one word"));
        assert!(error_message("a\rb\r").starts_with("f:1: ends its lines with a carriage return"));
    }

    #[test]
    fn biasing_lists_are_read_by_id() {
        let lists = parse_biasing_lists("f", "u1\ta b\t[\"b\"]\n\n u2 \t\t[]\tmore\n").unwrap();
        assert_eq!(lists.of_pair["u1"], HashSet::from(["b".to_owned()]));
        assert!(lists.of_pair["u2"].is_empty());
        for (text, expected) in [
            ("", "f: has no lines; give a line for each utterance"),
            ("\nu1\tx\n", "f:2: has no third field"),
            ("u1\tx\t[1]\n", "f:1: has no list of words: invalid type"),
            ("u1\tx\t[]\nu1\tx\t[]\n", "f:2: id `u1` was already given"),
            ("\tx\t[]\n", "f:1: id is empty"),
        ] {
            let error = parse_biasing_lists("f", text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn a_pair_without_a_list_is_named() {
        let pairs = Pairs {
            ids: vec!["u1".into()],
            references: vec!["a".into()],
            hypotheses: vec!["b".into()],
            ..Pairs::default()
        };
        let lists = BiasingLists { file: "f".to_owned(), ..BiasingLists::default() };
        let error = rare_word_errors(&pairs, &RareWords::PerPair(lists)).unwrap_err().to_string();
        assert!(error.starts_with("f: has no line for the utterance `u1`; give a line"), "{error}");
    }
}
