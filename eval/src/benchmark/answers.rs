//! Normalises and compares answers as the published scripts do. These are written in Python, so
//! words, white space and digits are Python's.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use regex::Regex;

use crate::error::EvalError;
use crate::normalise::characters::{decimal_digit, is_space, is_word, lowercase_into};
use crate::vqa::answer::rewrite_word;

/// An answer in lower case without ASCII punctuation and articles, as in SQuAD. InfoSeek, KILT and
/// ViQuAE use it.
pub(super) fn squad(text: &str) -> String {
    normalised(&lowercase(text), |c| c.is_ascii_punctuation(), &["a", "an", "the"], |word| word)
}

/// An answer as in Encyclopedic-VQA: other punctuation is removed, too, and small numbers and
/// contractions are written in one way.
pub(super) fn encyclopedic(text: &str) -> String {
    const PREFIX: &str = "<extra_id_0> ";
    let lower = lowercase(text).replace(['\n', '\t'], " ");
    let lower = lower.trim_matches(is_space);
    let lower =
        if lower.starts_with(PREFIX) { lower.replace(PREFIX, "") } else { lower.to_owned() };
    let is_removed = |c: char| c.is_ascii_punctuation() || matches!(c, '‘' | '’' | '´');
    fn word(word: &str) -> &str {
        match word {
            "true" | "entailment" => "yes",
            "false" | "contradiction" => "no",
            word => rewrite_word(word).unwrap_or(word),
        }
    }
    normalised(&lower, is_removed, &["the answer is", "a", "an", "the"], word)
}

pub(super) fn lowercase(text: &str) -> String {
    let mut lower = String::with_capacity(text.len());
    lowercase_into(text, &mut lower);
    lower
}

/// Removes characters, then whole `phrases`, and joins the words by single spaces.
fn normalised(
    text: &str,
    is_removed: impl Fn(char) -> bool,
    phrases: &[&str],
    word: impl Fn(&str) -> &str,
) -> String {
    let text: String = text.chars().filter(|c| !is_removed(*c)).collect();
    let mut kept = String::with_capacity(text.len());
    let (mut at, mut in_word) = (0, false);
    while let Some(c) = text[at..].chars().next() {
        let starts_word = is_word(c) && !in_word;
        let ends = |phrase: &&&str| {
            let rest = text[at..].strip_prefix(**phrase);
            rest.is_some_and(|rest| !rest.starts_with(is_word))
        };
        match phrases.iter().find(ends).filter(|_| starts_word) {
            Some(phrase) => {
                kept.push(' ');
                (at, in_word) = (at + phrase.len(), true);
            }
            None => {
                kept.push(c);
                (at, in_word) = (at + c.len_utf8(), is_word(c));
            }
        }
    }
    let words = kept.split(is_space).filter(|part| !part.is_empty()).map(word);
    words.collect::<Vec<_>>().join(" ")
}

/// Whether a list of answers has an intersection over union of at least 0.5 with the reference
/// list, whose parts are separated by `&&`. `None` if the reference list is empty.
pub(super) fn encyclopedic_lists_match(reference: &str, candidate: &str) -> Option<bool> {
    let set = |parts: std::str::Split<'_, &str>| -> HashSet<String> {
        parts.map(encyclopedic).filter(|part| !part.is_empty()).collect()
    };
    let reference = set(reference.split("&&"));
    let candidate = candidate.replace(" and ", ",").replace(" & ", ",");
    let candidate = set(candidate.split(","));
    let common = reference.intersection(&candidate).count();
    let all = reference.union(&candidate).count();
    (!reference.is_empty()).then(|| common as f64 / all as f64 >= 0.5)
}

/// The F1 of the words of two normalised answers.
pub(super) fn word_f1(prediction: &str, reference: &str) -> f64 {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let (mut predicted, mut expected, mut common) = (0.0, 0.0, 0.0);
    for word in reference.split(' ').filter(|word| !word.is_empty()) {
        *counts.entry(word).or_default() += 1;
        expected += 1.0;
    }
    for word in prediction.split(' ').filter(|word| !word.is_empty()) {
        predicted += 1.0;
        if let Some(count @ 1..) = counts.get_mut(word) {
            *count -= 1;
            common += 1.0;
        }
    }
    if common == 0.0 {
        return 0.0;
    }
    let (precision, recall) = (common / predicted, common / expected);
    2.0 * precision * recall / (precision + recall)
}

/// Whether a normalised text has the normalised answer between word boundaries, as by the regular
/// expression `\banswer\b`.
pub(super) fn contains_words(text: &str, answer: &str) -> bool {
    let boundary = |at: usize| {
        let before = text[..at].chars().next_back().is_some_and(is_word);
        before != text[at..].starts_with(is_word)
    };
    if answer.is_empty() {
        return text.contains(is_word);
    }
    // Matches may overlap, so the search goes on one character after each.
    let mut start = 0;
    while let Some(found) = text[start..].find(answer) {
        let at = start + found;
        if boundary(at) && boundary(at + answer.len()) {
            return true;
        }
        start = at + text[at..].chars().next().map_or(1, char::len_utf8);
    }
    false
}

/// The numbers of an answer, as in InfoSeek.
enum Numbers {
    One(f64),
    Range([f64; 2]),
}

/// Whether the numbers of a text are in the range of the answer, or overlap it by at least half, as
/// in InfoSeek.
pub(super) fn number_matches(text: &str, answer: [f64; 2]) -> Result<bool, EvalError> {
    let is_within = |number: f64| answer[0] <= number && number <= answer[1];
    Ok(match numbers(text)? {
        Numbers::One(number) => is_within(number),
        Numbers::Range(range) if range.into_iter().all(is_within) => true,
        Numbers::Range(range) => {
            let [(low, high), (from, to)] = [range, answer].map(|[a, b]| (a.min(b), a.max(b)));
            let overlap = (high.min(to) - low.max(from)).max(0.0);
            let lengths = (high - low + 1e-12) + (to - from + 1e-12);
            overlap / (lengths - overlap) >= 0.5 - 1e-12
        }
    })
}

static NUMBER: LazyLock<Result<Regex, regex::Error>> =
    LazyLock::new(|| Regex::new(r"[-+]?[.]?\d+(?:,\d\d\d)*[.]?\d*(?:[eE][-+]?\d+)?"));

/// The first two numbers. A hyphen after a digit is no sign. Two numbers in falling order count as
/// the first one, and no numbers as the range from 0 to 0.
fn numbers(text: &str) -> Result<Numbers, EvalError> {
    let number = NUMBER.as_ref().map_err(|error| error.clone())?;
    let mut cleaned = String::with_capacity(text.len() + 8);
    let mut after_digit = false;
    for c in text.chars() {
        match c {
            '-' if after_digit => cleaned.push_str(" - "),
            c => cleaned.push(c),
        }
        after_digit = is_digit(c);
    }
    let ascii = |c: char| decimal_digit(c).map_or(c, |digit| char::from(b'0' + digit));
    let parsed = number.find_iter(&cleaned).filter_map(|found| {
        let found: String = found.as_str().chars().filter(|c| *c != ',').map(ascii).collect();
        let found = found.trim_matches('.');
        let is_single = found.matches('.').count() <= 1;
        if is_single { found } else { found.split('.').next()? }.parse::<f64>().ok()
    });
    Ok(match parsed.take(2).collect::<Vec<_>>()[..] {
        [first, second] if first <= second => Numbers::Range([first, second]),
        [first, ..] => Numbers::One(first),
        [] => Numbers::Range([0.0, 0.0]),
    })
}

/// Like `str.isdigit`: also superscripts and digits in circles.
fn is_digit(c: char) -> bool {
    const OTHERS: &str = "²³¹⁰⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉①②③④⑤⑥⑦⑧⑨⑴⑵⑶⑷⑸⑹⑺⑻⑼⒈⒉⒊⒋⒌⒍⒎⒏⒐⓪⓵⓶⓷⓸⓹⓺⓻⓼⓽⓿❶❷❸❹❺❻❼❽❾";
    decimal_digit(c).is_some() || OTHERS.contains(c)
}
