//! Which of the two words a reply says.
//!
//! # Source   nltk 3.9.2 `word_tokenize`, as visual-haystacks/vhs_benchmark `utils.py` calls it on the reply in lower case:
//! `tokenize/destructive.py` after the sentences of `tokenize/punkt.py`. Only the tokens `yes` and `no` are looked for,
//! so what cannot change them is left out: contractions of other words, and abbreviations, of which neither is one.
//! (nltk 3.10 came after the published figures; it finds the word in `no—` and `'no'` too.)

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

use crate::normalise::characters::is_space;

/// What is set apart by spaces, in the order of the reference; a reply is tokens with a space between them then.
static REWRITES: LazyLock<Result<Vec<Rewrite>, regex::Error>> = LazyLock::new(|| {
    compile(&[
        // Punkt: a full stop ends a sentence, and is a token there, before white space and before these marks.
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
        // Ending quotes, behind a space at either end.
        (r"^|$", " "),
        (r#"([»”’"]|'')"#, " $1 "),
        (r"\s+", " "),
        (r"([^' ])('[smd]|') ", "$1 $2 "),
        (r"([^' ])('ll|'re|'ve|n't) ", "$1 $2 "),
    ])
});

/// A pattern and its replacement.
type Rewrite = (Regex, &'static str);

/// Compiles every pattern, or none.
fn compile(rewrites: &[(&str, &'static str)]) -> Result<Vec<Rewrite>, regex::Error> {
    rewrites.iter().map(|(pattern, with)| Ok((Regex::new(pattern)?, *with))).collect()
}

/// Whether a reply says yes, and whether it says no.
///
/// # Errors   the first pattern that does not compile
pub(super) fn says(response: &str) -> Result<(bool, bool), regex::Error> {
    let lower = response.to_lowercase();
    if !lower.contains("yes") && !lower.contains("no") {
        return Ok((false, false));
    }
    let mut text = Cow::Borrowed(lower.as_str());
    for (pattern, with) in REWRITES.as_ref().map_err(Clone::clone)? {
        if let Cow::Owned(rewritten) = pattern.replace_all(&text, *with) {
            text = Cow::Owned(rewritten);
        }
    }
    let says = |word: &str| text.split(is_space).any(|token| token == word);
    Ok((says("yes"), says("no")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rewrites_are_patterns() {
        assert_eq!(REWRITES.as_ref().map(Vec::len), Ok(12));
        assert!(compile(&[("a", "b"), ("(", "c")]).is_err(), "one that is none is not left out");
    }

    /// As nltk 3.9.2 has it, with its English model of sentences.
    #[test]
    fn words_are_those_of_nltk() {
        let (yes, no, both, neither) = ((true, false), (false, true), (true, true), (false, false));
        for (response, wanted) in [
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
            assert_eq!(says(response), Ok(wanted), "{response:?}");
        }
    }
}
