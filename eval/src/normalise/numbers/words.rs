//! The number words of the number normaliser.

use std::sync::LazyLock;

use super::super::WordTable;

use NumberWord::{And, Currency, Multiplier, Ones, Per, Percent, Point, Repeat, Sign, Tens, Zero};

/// The role of a word in a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberWord {
    /// `zero`, `oh`, `o`.
    Zero,
    /// `one` to `nineteen`, and `sixes`, `first`, `twelfth`: value, and ending (may be empty).
    Ones(u8, &'static str),
    /// `twenty` to `ninety`, and `twenties`, `twentieth`: value and ending.
    Tens(u8, &'static str),
    /// `hundred` to `decillion`, and `hundreds`, `hundredth`: number of zeros and ending.
    Multiplier(u8, &'static str),
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
    matches!(number_word(word), Some(Zero | Ones(_, "") | Tens(_, "") | Multiplier(_, "")))
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
    let ending = fields.get(3).copied().unwrap_or_default();
    let role = match *fields.get(1)? {
        "zero" => Zero,
        "ones" => Ones(number()?, ending),
        "tens" => Tens(number()?, ending),
        "multiplier" => Multiplier(number()?, ending),
        "sign" => Sign(symbol()?),
        "currency" => Currency(symbol()?),
        "per" => Per,
        "percent" => Percent,
        "and" => And,
        "repeat" => Repeat(number()?),
        "point" => Point,
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
        assert_eq!(number_word("twelfth"), Some(Ones(12, "th")));
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
