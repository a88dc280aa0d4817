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

static TABLE: LazyLock<WordTable<NumberWord>> = LazyLock::new(|| WORDS.into_iter().collect());

/// All number words. The reference derives the ordinals from the cardinals, so it has "nineth", but
/// not "ninth".
#[rustfmt::skip]
const WORDS: [(&str, NumberWord); 139] = [
    ("o", Zero), ("oh", Zero), ("zero", Zero),
    ("one", Ones(1)), ("two", Ones(2)), ("three", Ones(3)), ("four", Ones(4)), ("five", Ones(5)),
    ("six", Ones(6)), ("seven", Ones(7)), ("eight", Ones(8)), ("nine", Ones(9)), ("ten", Ones(10)),
    ("eleven", Ones(11)), ("twelve", Ones(12)), ("thirteen", Ones(13)), ("fourteen", Ones(14)),
    ("fifteen", Ones(15)), ("sixteen", Ones(16)), ("seventeen", Ones(17)), ("eighteen", Ones(18)),
    ("nineteen", Ones(19)),
    ("ones", OnesSuffixed(1, "s")), ("twos", OnesSuffixed(2, "s")),
    ("threes", OnesSuffixed(3, "s")), ("fours", OnesSuffixed(4, "s")),
    ("fives", OnesSuffixed(5, "s")), ("sixes", OnesSuffixed(6, "s")),
    ("sevens", OnesSuffixed(7, "s")), ("eights", OnesSuffixed(8, "s")),
    ("nines", OnesSuffixed(9, "s")), ("tens", OnesSuffixed(10, "s")),
    ("elevens", OnesSuffixed(11, "s")), ("twelves", OnesSuffixed(12, "s")),
    ("thirteens", OnesSuffixed(13, "s")), ("fourteens", OnesSuffixed(14, "s")),
    ("fifteens", OnesSuffixed(15, "s")), ("sixteens", OnesSuffixed(16, "s")),
    ("seventeens", OnesSuffixed(17, "s")), ("eighteens", OnesSuffixed(18, "s")),
    ("nineteens", OnesSuffixed(19, "s")), ("zeroth", OnesSuffixed(0, "th")),
    ("first", OnesSuffixed(1, "st")), ("second", OnesSuffixed(2, "nd")),
    ("third", OnesSuffixed(3, "rd")), ("fifth", OnesSuffixed(5, "th")),
    ("twelfth", OnesSuffixed(12, "th")), ("fourth", OnesSuffixed(4, "th")),
    ("sixth", OnesSuffixed(6, "th")), ("seventh", OnesSuffixed(7, "th")),
    ("eighth", OnesSuffixed(8, "th")), ("nineth", OnesSuffixed(9, "th")),
    ("tenth", OnesSuffixed(10, "th")), ("eleventh", OnesSuffixed(11, "th")),
    ("thirteenth", OnesSuffixed(13, "th")), ("fourteenth", OnesSuffixed(14, "th")),
    ("fifteenth", OnesSuffixed(15, "th")), ("sixteenth", OnesSuffixed(16, "th")),
    ("seventeenth", OnesSuffixed(17, "th")), ("eighteenth", OnesSuffixed(18, "th")),
    ("nineteenth", OnesSuffixed(19, "th")),
    ("twenty", Tens(20)), ("thirty", Tens(30)), ("forty", Tens(40)), ("fifty", Tens(50)),
    ("sixty", Tens(60)), ("seventy", Tens(70)), ("eighty", Tens(80)), ("ninety", Tens(90)),
    ("twenties", TensSuffixed(20, "s")), ("thirties", TensSuffixed(30, "s")),
    ("forties", TensSuffixed(40, "s")), ("fifties", TensSuffixed(50, "s")),
    ("sixties", TensSuffixed(60, "s")), ("seventies", TensSuffixed(70, "s")),
    ("eighties", TensSuffixed(80, "s")), ("nineties", TensSuffixed(90, "s")),
    ("twentieth", TensSuffixed(20, "th")), ("thirtieth", TensSuffixed(30, "th")),
    ("fortieth", TensSuffixed(40, "th")), ("fiftieth", TensSuffixed(50, "th")),
    ("sixtieth", TensSuffixed(60, "th")), ("seventieth", TensSuffixed(70, "th")),
    ("eightieth", TensSuffixed(80, "th")), ("ninetieth", TensSuffixed(90, "th")),
    ("hundred", Multiplier(2)), ("thousand", Multiplier(3)), ("million", Multiplier(6)),
    ("billion", Multiplier(9)), ("trillion", Multiplier(12)), ("quadrillion", Multiplier(15)),
    ("quintillion", Multiplier(18)), ("sextillion", Multiplier(21)), ("septillion", Multiplier(24)),
    ("octillion", Multiplier(27)), ("nonillion", Multiplier(30)), ("decillion", Multiplier(33)),
    ("hundreds", MultiplierSuffixed(2, "s")), ("thousands", MultiplierSuffixed(3, "s")),
    ("millions", MultiplierSuffixed(6, "s")), ("billions", MultiplierSuffixed(9, "s")),
    ("trillions", MultiplierSuffixed(12, "s")), ("quadrillions", MultiplierSuffixed(15, "s")),
    ("quintillions", MultiplierSuffixed(18, "s")), ("sextillions", MultiplierSuffixed(21, "s")),
    ("septillions", MultiplierSuffixed(24, "s")), ("octillions", MultiplierSuffixed(27, "s")),
    ("nonillions", MultiplierSuffixed(30, "s")), ("decillions", MultiplierSuffixed(33, "s")),
    ("hundredth", MultiplierSuffixed(2, "th")), ("thousandth", MultiplierSuffixed(3, "th")),
    ("millionth", MultiplierSuffixed(6, "th")), ("billionth", MultiplierSuffixed(9, "th")),
    ("trillionth", MultiplierSuffixed(12, "th")), ("quadrillionth", MultiplierSuffixed(15, "th")),
    ("quintillionth", MultiplierSuffixed(18, "th")), ("sextillionth", MultiplierSuffixed(21, "th")),
    ("septillionth", MultiplierSuffixed(24, "th")), ("octillionth", MultiplierSuffixed(27, "th")),
    ("nonillionth", MultiplierSuffixed(30, "th")), ("decillionth", MultiplierSuffixed(33, "th")),
    ("minus", Sign('-')), ("negative", Sign('-')), ("plus", Sign('+')), ("positive", Sign('+')),
    ("pound", Currency('£')), ("pounds", Currency('£')), ("euro", Currency('€')),
    ("euros", Currency('€')), ("dollar", Currency('$')), ("dollars", Currency('$')),
    ("cent", Currency('¢')), ("cents", Currency('¢')),
    ("per", Per), ("percent", Percent), ("and", And), ("double", Repeat(2)),
    ("triple", Repeat(3)), ("point", Point),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_found_and_is_not_too_long() {
        for (word, meaning) in WORDS {
            assert!(word.len() <= MAX_LENGTH, "{word}");
            assert_eq!(number_word(word), Some(meaning), "{word}");
        }
        assert_eq!(number_word("ninth"), None);
        assert_eq!(number_word(""), None);
    }

    #[test]
    fn a_half_needs_a_cardinal() {
        assert!(can_have_a_half("two") && can_have_a_half("oh") && can_have_a_half("million"));
        assert!(!can_have_a_half("second") && !can_have_a_half("millions"));
    }
}
