//! The number words of the number normaliser.

use std::sync::LazyLock;

use super::super::WordTable;

use NumberWord::{
    And, Currency, Multiplier, MultiplierSuffixed, Ones, OnesSuffixed, Per, Percent, Point, Repeat,
    Sign, Tens, TensSuffixed, Zero,
};

/// The role of a word in a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberWord {
    /// `zero`, `oh`, `o`.
    Zero,
    /// `one` to `nineteen`.
    Ones(u8),
    /// `sixes`, `first`, `twelfth`: value and ending.
    OnesSuffixed(u8, &'static str),
    /// `twenty` to `ninety`.
    Tens(u8),
    /// `twenties`, `twentieth`: value and ending.
    TensSuffixed(u8, &'static str),
    /// `hundred` to `decillion`: number of zeros.
    Multiplier(u8),
    /// `hundreds`, `hundredth`: number of zeros and ending.
    MultiplierSuffixed(u8, &'static str),
    /// `minus`, `plus` and similar words before a number: the sign.
    Sign(char),
    /// `dollars` and similar words after a number: the symbol.
    Currency(char),
    /// `per`.
    Per,
    /// `percent`.
    Percent,
    /// `and`.
    And,
    /// `double` and `triple`: the number of repetitions of the next digit.
    Repeat(u8),
    /// `point`.
    Point,
}

/// The role of a word in a number; `None` for any other word.
pub(super) fn number_word(word: &str) -> Option<NumberWord> {
    if (1..=MAX_LENGTH).contains(&word.len()) { TABLE.get(word).copied() } else { None }
}

/// Whether "… and a half" after this word means ".5".
pub(super) fn can_have_a_half(word: &str) -> bool {
    matches!(number_word(word), Some(Zero | Ones(_) | Tens(_) | Multiplier(_)))
}

/// Length of "quadrillionth".
const MAX_LENGTH: usize = 13;

static TABLE: LazyLock<WordTable<NumberWord>> =
    LazyLock::new(|| include_str!("words.tsv").lines().filter_map(read_row).collect());

/// Reads a line `word<TAB>role`, followed by the value and the ending of roles that have them.
///
/// The reference derives the ordinals from the cardinals, so it has "nineth", but not "ninth".
fn read_row(row: &'static str) -> Option<(&'static str, NumberWord)> {
    let fields: Vec<&str> = row.split('\t').collect();
    let number = || fields.get(2)?.parse().ok();
    let symbol = || fields.get(2)?.chars().next();
    let role = match (*fields.get(1)?, fields.get(3).copied()) {
        ("zero", _) => Zero,
        ("ones", None) => Ones(number()?),
        ("ones", Some(ending)) => OnesSuffixed(number()?, ending),
        ("tens", None) => Tens(number()?),
        ("tens", Some(ending)) => TensSuffixed(number()?, ending),
        ("multiplier", None) => Multiplier(number()?),
        ("multiplier", Some(ending)) => MultiplierSuffixed(number()?, ending),
        ("sign", _) => Sign(symbol()?),
        ("currency", _) => Currency(symbol()?),
        ("per", _) => Per,
        ("percent", _) => Percent,
        ("and", _) => And,
        ("repeat", _) => Repeat(number()?),
        ("point", _) => Point,
        _ => return None,
    };
    Some((fields[0], role))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_in_the_table() {
        assert_eq!(TABLE.len(), 139);
        assert!(TABLE.keys().all(|word| word.len() <= MAX_LENGTH));
        assert_eq!(number_word("twelfth"), Some(OnesSuffixed(12, "th")));
        assert_eq!(number_word("euros"), Some(Currency('€')));
        assert_eq!(number_word("ninth"), None);
        assert_eq!(number_word(""), None);
    }

    #[test]
    fn a_half_needs_a_cardinal() {
        assert!(can_have_a_half("two") && can_have_a_half("oh") && can_have_a_half("million"));
        assert!(!can_have_a_half("second") && !can_have_a_half("millions"));
    }
}
