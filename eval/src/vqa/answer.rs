//! Normalises answers as the VQA evaluation script does, including its bugs.
//!
//! # Source   GT-Vision-Lab/VQA a013f00, `vqaEval.py`: `processPunctuation`, `processDigitArticle`

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

use foldhash::fast::RandomState;

use crate::normalise::characters::{decimal_digit, is_space, lowercase_into};

/// The punctuation marks that the script removes, in its order.
const PUNCTUATION: [u8; 21] = *b";/[]\"{}()=+\\_-><@`,?!";

/// The script passes a regex flag as the replacement count, so it removes at most 32 full stops.
const MAX_REMOVED_STOPS: usize = 32;

/// The contractions of the script, with its bugs: for example, `somebody'd` loses its apostrophe.
/// Each word with its replacement, one `word<TAB>replacement` per line.
///
/// The script looks up lower-case words, so its four keys with a capital letter (`Im`, `Ive`,
/// `Id've`, `I'dve`) never match. They are omitted here.
static CONTRACTIONS: LazyLock<HashMap<&str, &str, RandomState>> = LazyLock::new(|| {
    include_str!("contractions.tsv").lines().filter_map(|line| line.split_once('\t')).collect()
});

fn is_digit(character: char) -> bool {
    decimal_digit(character).is_some()
}

/// Replaces line ends and tabs by spaces, and trims white space.
pub(super) fn without_line_ends(answer: &str) -> Cow<'_, str> {
    if !answer.contains(['\n', '\t']) {
        return answer.trim_matches(is_space).into();
    }
    answer.replace(['\n', '\t'], " ").trim_matches(is_space).to_owned().into()
}

/// Normalises an answer: removes punctuation and articles, writes numbers up to ten as digits, and
/// adds apostrophes to contractions.
pub fn normalise_answer(answer: &str) -> String {
    Normaliser::default().normalise(answer).to_owned()
}

/// Computes [`normalise_answer`] with reusable buffers, for many answers.
#[derive(Debug, Default)]
pub(super) struct Normaliser {
    without_marks: String,
    without_full_stops: String,
    lower: String,
    words: String,
}

impl Normaliser {
    pub(super) fn normalise(&mut self, answer: &str) -> &str {
        let text = remove_punctuation(answer, &mut self.without_marks);
        let text = remove_full_stops(text, &mut self.without_full_stops);
        self.lower.clear();
        lowercase_into(text, &mut self.lower);
        self.words.clear();
        let words = self.lower.split(is_space).filter(|word| !word.is_empty());
        for word in words.filter_map(rewrite_word) {
            if !self.words.is_empty() {
                self.words.push(' ');
            }
            self.words.push_str(word);
        }
        &self.words
    }
}

/// Removes each punctuation mark that occurs anywhere in the answer with a space beside it. If a
/// comma stands between two digits, removes all marks. Other marks become spaces.
fn remove_punctuation<'a>(answer: &'a str, out: &'a mut String) -> &'a str {
    let bytes = answer.as_bytes();
    let (mut has_marks, mut is_removed) = (false, [false; PUNCTUATION.len()]);
    for (at, mark) in
        bytes.iter().enumerate().filter_map(|(at, byte)| Some((at, mark_index(*byte)?)))
    {
        has_marks = true;
        is_removed[mark] |= bytes.get(at + 1) == Some(&b' ') || answer[..at].ends_with(' ');
        if PUNCTUATION[mark] == b','
            && answer[..at].ends_with(is_digit)
            && answer[at + 1..].starts_with(is_digit)
        {
            is_removed = [true; PUNCTUATION.len()];
        }
    }
    if !has_marks {
        return answer;
    }
    out.clear();
    let characters = answer.chars().filter_map(|character| {
        match u8::try_from(character).ok().and_then(mark_index) {
            None => Some(character),
            Some(mark) => (!is_removed[mark]).then_some(' '),
        }
    });
    out.extend(characters);
    out
}

/// Index of a punctuation mark in [`PUNCTUATION`]; `None` for other bytes.
fn mark_index(byte: u8) -> Option<usize> {
    if byte.is_ascii_alphanumeric() || byte == b' ' {
        return None;
    }
    PUNCTUATION.iter().position(|mark| *mark == byte)
}

/// Removes full stops that are not followed by a digit.
fn remove_full_stops<'a>(text: &'a str, out: &'a mut String) -> &'a str {
    if !text.contains('.') {
        return text;
    }
    out.clear();
    let mut removals_left = MAX_REMOVED_STOPS;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let is_removed = character == '.'
            && removals_left > 0
            && !characters.peek().is_some_and(|next| is_digit(*next));
        if is_removed {
            removals_left -= 1;
        } else {
            out.push(character);
        }
    }
    out
}

/// Rewrites a word: numbers up to ten become digits, and contractions get their apostrophe. Other
/// words are unchanged. Returns `None` for an article.
pub(crate) fn rewrite_word(word: &str) -> Option<&str> {
    Some(match word {
        "none" | "zero" => "0",
        "one" => "1",
        "two" => "2",
        "three" => "3",
        "four" => "4",
        "five" => "5",
        "six" => "6",
        "seven" => "7",
        "eight" => "8",
        "nine" => "9",
        "ten" => "10",
        "a" | "an" | "the" => return None,
        word => CONTRACTIONS.get(word).copied().unwrap_or(word),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_normalised_as_by_the_script() {
        for (answer, expected) in [
            ("The two dogs.", "2 dogs"),
            ("1,000 people", "1000 people"),
            ("t-shirt", "t shirt"),
            ("dont know", "don't know"),
            ("A cat/dog", "cat dog"),
            ("3.5 miles", "3.5 miles"),
            ("U.S.", "us"),
            ("it's 5:30 p.m.", "it's 5:30 pm"),
            ("none", "0"),
            ("black & white", "black & white"),
            ("what?!", "what"),
            ("10%", "10%"),
            ("o'clock", "o'clock"),
            ("(left)", "left"),
            ("red,blue", "red blue"),
            ("a-b c- d", "ab c d"),
            ("I'm Im ive", "i'm im ive"),
            ("somebody'd its", "somebodyd its"),
            ("n/a", "n"),
            ("", ""),
        ] {
            assert_eq!(normalise_answer(answer), expected, "{answer:?}");
        }
        assert_eq!(CONTRACTIONS.len(), 116);
        let normalised = normalise_answer(&"x. ".repeat(40));
        assert_eq!(normalised.matches('.').count(), 8);
    }
}
