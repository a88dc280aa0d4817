//! Finds "yes" and "no" among the tokens of a reply.
//!
//! # Source   nltk 3.9.2 `word_tokenize`, which visual-haystacks/vhs_benchmark `utils.py` calls on
//! the lower-cased reply: `tokenize/destructive.py` after the sentence splitter
//! `tokenize/punkt.py`. Rules that cannot affect the tokens `yes` and `no` are omitted:
//! contractions of other words, and abbreviations. nltk 3.10 also finds `no` in `no—` and `'no'`,
//! but the published results are from an earlier version.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

use crate::normalise::characters::is_space;

/// Regular expressions that put spaces around tokens, in the order of nltk. Afterwards the reply is
/// split at spaces.
static REWRITES: LazyLock<Result<Vec<Rewrite>, regex::Error>> = LazyLock::new(|| {
    compile(&[
        // Punkt: a full stop before white space or one of these marks ends a sentence and is a
        // token.
        (r#"([^.])\.(\s|[)";}\]*:@'({\[!?]|$)"#, "$1 . $2"),
        // Starting quotes.
        (r"([«“‘„]|`+)", " $1 "),
        (r"'([\w--mtsdn])\b", "' $1"),
        // Punctuation.
        (r#"([^.])(\.)([\])}>"'»”’ ]*)\s*$"#, "$1 $2 $3 "),
        (r"([:,])(\D|$)", " $1 $2"),
        (r"(\.{2,}|[;@#$%&?!*])", " $1 "),
        // Brackets, dashes.
        (r"(--|[\]\[(){}<>])", " $1 "),
        // Ending quotes, after a space is added at both ends.
        (r"^|$", " "),
        (r#"([»”’"]|'')"#, " $1 "),
        (r"\s+", " "),
        (r"([^' ])('[smd]|') ", "$1 $2 "),
        (r"([^' ])('ll|'re|'ve|n't) ", "$1 $2 "),
    ])
});

/// A pattern and its replacement.
type Rewrite = (Regex, &'static str);

/// Compiles all patterns, or returns the first error.
fn compile(rewrites: &[(&str, &'static str)]) -> Result<Vec<Rewrite>, regex::Error> {
    rewrites.iter().map(|(pattern, replacement)| Ok((Regex::new(pattern)?, *replacement))).collect()
}

/// Whether a reply contains the token "yes", and whether it contains "no".
///
/// # Errors
/// the first pattern that does not compile
pub(super) fn contains_yes_no(response: &str) -> Result<(bool, bool), regex::Error> {
    let lower = response.to_lowercase();
    if !lower.contains("yes") && !lower.contains("no") {
        return Ok((false, false));
    }
    let mut text = Cow::Borrowed(lower.as_str());
    for (pattern, replacement) in REWRITES.as_ref().map_err(Clone::clone)? {
        if let Cow::Owned(rewritten) = pattern.replace_all(&text, *replacement) {
            text = Cow::Owned(rewritten);
        }
    }
    let contains = |word: &str| text.split(is_space).any(|token| token == word);
    Ok((contains("yes"), contains("no")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rewrite_compiles() {
        assert_eq!(REWRITES.as_ref().map(Vec::len), Ok(12));
        assert!(compile(&[("a", "b"), ("(", "c")]).is_err(), "an invalid pattern is an error");
    }

    /// Expected values are from nltk 3.9.2 with its English sentence model.
    #[test]
    fn answer_words_equal_nltk() {
        let (yes, no, both, neither) = ((true, false), (false, true), (true, true), (false, false));
        for (response, expected) in [
            ("Yes.", yes),
            ("YES!", yes),
            ("yes'", yes),
            ("\"Yes\"", yes),
            ("**Yes**", yes),
            ("(no)", no),
            ("No. There is none.", no),
            ("no.\nthere is none", no),
            ("\"no.\" is it", no),
            ("no's", no),
            ("no...", no),
            ("yes,no", both),
            ("yes:no", both),
            ("yes--no", both),
            ("Yes, or no?", both),
            ("“yes” – ‘no’", both),
            ("no—yes.", neither),
            ("'yes'", neither),
            ("Yes/No", neither),
            ("no-one", neither),
            ("yes-no", neither),
            ("nope", neither),
            ("nothing, yesterday", neither),
            ("_yes_", neither),
            ("~no", neither),
            ("yes…", neither),
            ("no.5", neither),
            ("no,5", neither),
            ("yes.no", neither),
            ("", neither),
        ] {
            assert_eq!(contains_yes_no(response), Ok(expected), "{response:?}");
        }
    }
}
