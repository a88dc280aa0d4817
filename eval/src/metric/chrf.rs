//! chrF and chrF++, equal to sacrebleu: F-scores of character and word n-grams.
//!
//! | metric | n-grams | sacrebleu's signature |
//! |---|---|---|
//! | chrF | 1 to 6 characters | `case:mixed\|eff:yes\|nc:6\|nw:0\|space:no` |
//! | chrF++ | 1 to 6 characters, 1 and 2 words | `case:mixed\|eff:yes\|nc:6\|nw:2\|space:no` |
//!
//! For each order there are three sums: the n-grams of the hypothesis, the n-grams of the
//! reference, and the matches. Precision and recall are averaged over the orders in which both
//! texts have n-grams (the effective order). The F-score has β = 2: recall has twice the weight of
//! precision. Character n-grams skip white space. With several references, a text is scored against
//! the reference with the highest score.
//!
//! # Source   Popović 2015 and 2017; sacrebleu 2.5.1 `metrics/chrf.py`

use std::collections::HashMap;

use super::registry::Sums;
use super::{MetricInfo, Unit};
use crate::normalise::characters::is_space;

/// chrF, from 0 to 100.
pub const CHRF: MetricInfo = MetricInfo::higher("chrf", Unit::Points);
/// chrF++, from 0 to 100.
pub const CHRF_PLUS_PLUS: MetricInfo = MetricInfo::higher("chrf++", Unit::Points);

/// The highest order of character n-grams.
const CHAR_ORDER: usize = 6;
/// The highest order of word n-grams in chrF++.
const WORD_ORDER: usize = 2;
/// β² of the F-score, where β is the weight of recall relative to precision.
const BETA_SQUARED: f64 = 4.0;

/// The sums of chrF.
pub(super) const SUMS: Sums = Sums { count: 3 * CHAR_ORDER, value: chrf, of_text: Some(chrf_sums) };
/// The sums of chrF++.
pub(super) const SUMS_PLUS_PLUS: Sums =
    Sums { count: 3 * (CHAR_ORDER + WORD_ORDER), value: chrf, of_text: Some(chrf_plus_plus_sums) };

/// Computes the score, from 0 to 100, from the sums of one or many texts. For each order, `sums`
/// has the n-grams of the hypothesis, the n-grams of the reference, and the matches.
///
/// ```
/// use engram_eval::metric::chrf::{chrf, chrf_sums};
///
/// let sums = chrf_sums("a cat sat", &["a cat sits", "the cat sat"]);
/// assert!((chrf(&sums) - 53.60977455172623).abs() < 1e-9);
/// ```
pub fn chrf(sums: &[f64]) -> f64 {
    let (mut precision, mut recall, mut orders) = (0.0, 0.0, 0.0);
    for order in sums.chunks_exact(3) {
        let [hypothesis, reference, matches] = [order[0], order[1], order[2]];
        if hypothesis > 0.0 && reference > 0.0 {
            precision += matches / hypothesis;
            recall += matches / reference;
            orders += 1.0;
        }
    }
    if orders == 0.0 || precision + recall == 0.0 {
        return 0.0;
    }
    let (precision, recall) = (precision / orders, recall / orders);
    100.0 * ((1.0 + BETA_SQUARED) * precision * recall / (BETA_SQUARED * precision + recall))
}

/// The sums of chrF against the reference with the highest score; of equal scores, the first
/// reference.
pub fn chrf_sums(hypothesis: &str, references: &[&str]) -> Vec<f64> {
    best_sums(hypothesis, references, 0)
}

/// The sums of chrF++, like [`chrf_sums`].
pub fn chrf_plus_plus_sums(hypothesis: &str, references: &[&str]) -> Vec<f64> {
    best_sums(hypothesis, references, WORD_ORDER)
}

fn best_sums(hypothesis: &str, references: &[&str], word_order: usize) -> Vec<f64> {
    let mut words = HashMap::new();
    let hypothesis = ngrams(hypothesis, word_order, &mut words);
    let mut best = (-1.0, vec![0.0; 3 * (CHAR_ORDER + word_order)]);
    for reference in references {
        let reference = ngrams(reference, word_order, &mut words);
        let ngrams_by_order = hypothesis.iter().zip(&reference);
        let sums: Vec<f64> = ngrams_by_order.flat_map(|(h, r)| order_sums(h, r)).collect();
        let score = chrf(&sums);
        if score > best.0 {
            best = (score, sums);
        }
    }
    best.1
}

/// The sums of one order. If the reference has no n-grams, the n-grams of the hypothesis count as
/// 0.
fn order_sums(hypothesis: &[u128], reference: &[u128]) -> [f64; 3] {
    let counted = if reference.is_empty() { 0 } else { hypothesis.len() };
    [counted as f64, reference.len() as f64, in_common(hypothesis, reference) as f64]
}

/// Number of n-grams in both sorted lists. A repeated n-gram counts as often as in the list that
/// has it less often.
fn in_common(a: &[u128], b: &[u128]) -> usize {
    let (mut i, mut j, mut common) = (0, 0, 0);
    while let (Some(left), Some(right)) = (a.get(i), b.get(j)) {
        common += usize::from(left == right);
        i += usize::from(left <= right);
        j += usize::from(right <= left);
    }
    common
}

/// The sorted n-grams of a text, one list per order: characters, then words. `words` numbers the
/// words of all texts that are compared.
fn ngrams<'t>(
    text: &'t str,
    word_order: usize,
    words: &mut HashMap<&'t str, u128>,
) -> Vec<Vec<u128>> {
    // 21 bits hold a code point, so an n-gram of six fits into 126 bits. 1 is added, so that no
    // character is 0.
    let chars: Vec<u128> =
        text.chars().filter(|c| !is_space(*c)).map(|c| u128::from(u32::from(c)) + 1).collect();
    let mut orders: Vec<_> = (1..=CHAR_ORDER).map(|n| sorted_ngrams(&chars, n, 21)).collect();
    if word_order > 0 {
        let mut word_numbers = Vec::new();
        for word in text.split(is_space).filter(|word| !word.is_empty()).flat_map(split_mark) {
            let next = words.len() as u128 + 1;
            word_numbers.push(*words.entry(word).or_insert(next));
        }
        orders.extend((1..=word_order).map(|n| sorted_ngrams(&word_numbers, n, 64)));
    }
    orders
}

fn sorted_ngrams(tokens: &[u128], order: usize, bits: u32) -> Vec<u128> {
    let key = |ngram: &[u128]| ngram.iter().fold(0, |key, token| key << bits | token);
    let mut keys: Vec<u128> = tokens.windows(order).map(key).collect();
    keys.sort_unstable();
    keys
}

/// Splits one punctuation mark off the end of a word, or off its start if the end has none.
fn split_mark(word: &str) -> impl Iterator<Item = &str> {
    let is_mark = |c: char| c.is_ascii_punctuation();
    let mark = match word.chars().count() {
        1 => None,
        _ if word.ends_with(is_mark) => Some(word.len() - 1),
        _ if word.starts_with(is_mark) => Some(1),
        _ => None,
    };
    let (first, rest) = word.split_at(mark.unwrap_or(word.len()));
    [first, rest].into_iter().filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_split_off_once() {
        let parts = |word: &'static str| split_mark(word).collect::<Vec<_>>();
        assert_eq!(parts("(hi)"), ["(hi", ")"]);
        assert_eq!(parts("\"so"), ["\"", "so"]);
        assert_eq!(parts("..."), ["..", "."]);
        assert_eq!(parts("!"), ["!"]);
        assert_eq!(parts("é"), ["é"]);
        assert_eq!(parts("é."), ["é", "."]);
        assert_eq!(parts("«é»"), ["«é»"]);
    }

    #[test]
    fn texts_without_common_ngrams_score_0() {
        for (hypothesis, reference) in
            [("", ""), ("a", ""), ("", "a"), ("a", "b"), (" \u{1c}", "a")]
        {
            assert_eq!(chrf(&chrf_sums(hypothesis, &[reference])), 0.0);
        }
        assert_eq!(chrf_sums("a", &[""])[..3], [0.0; 3]);
        assert_eq!(chrf(&chrf_sums("ab  c", &["a\u{a0}bc"])), 100.0);
    }

    #[test]
    fn ngrams_match_as_often_as_both_have_them() {
        assert_eq!(in_common(&[1, 1, 1, 3], &[1, 1, 2, 3, 3]), 3);
        let sums = chrf_plus_plus_sums("a a b", &["a b a c"]);
        assert_eq!(sums[18..], [3.0, 4.0, 3.0, 2.0, 3.0, 1.0]);
    }
}
