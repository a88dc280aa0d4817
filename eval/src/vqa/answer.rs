//! Answers as the VQA evaluation script compares them, its mistakes included.
//!
//! # Source   GT-Vision-Lab/VQA a013f00, `vqaEval.py`: `processPunctuation`, `processDigitArticle`

use super::contractions::contraction;
use crate::normalise::characters::{decimal_digit, is_space, lowercase_into};

/// The marks that are taken out, in the script's order.
const PUNCTUATION: [char; 21] = [
    ';', '/', '[', ']', '"', '{', '}', '(', ')', '=', '+', '\\', '_', '-', '>', '<', '@', '`', ',',
    '?', '!',
];

/// The script gives a flag where the number of replacements belongs, so no more full stops than this go.
const MOST_STOPS: usize = 32;

fn is_digit(letter: char) -> bool {
    decimal_digit(letter).is_some()
}

/// Line ends and tabs as spaces, and no white space at the ends.
pub(super) fn tidied(answer: &str) -> String {
    answer.replace(['\n', '\t'], " ").trim_matches(is_space).to_owned()
}

/// An answer without punctuation and articles, numbers up to ten as digits, contractions with their apostrophes.
///
/// ```
/// use engram_eval::vqa::answer::normalised;
///
/// assert_eq!(normalised("The two dogs."), "2 dogs");
/// assert_eq!(normalised("1,000 people"), "1000 people");
/// assert_eq!(normalised("t-shirt"), "t shirt");
/// ```
pub fn normalised(answer: &str) -> String {
    without_articles(&without_punctuation(answer))
}

/// A mark with a space at either side, or any mark where a comma stands between two digits, goes; another mark becomes
/// a space.
fn without_punctuation(answer: &str) -> String {
    let letters: Vec<char> = answer.chars().collect();
    let digits_around_comma =
        letters.windows(3).any(|w| is_digit(w[0]) && w[1] == ',' && is_digit(w[2]));
    let mut out = answer.to_owned();
    for mark in PUNCTUATION {
        if !out.contains(mark) {
            continue;
        }
        let beside_space = letters.windows(2).any(|w| w == [mark, ' '] || w == [' ', mark]);
        out = out.replace(mark, if beside_space || digits_around_comma { "" } else { " " });
    }
    without_stops(&out)
}

/// Without full stops that no digit follows.
fn without_stops(text: &str) -> String {
    let (mut out, mut left) = (String::with_capacity(text.len()), MOST_STOPS);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let stop = letter == '.' && left > 0 && !letters.peek().is_some_and(|next| is_digit(*next));
        if stop {
            left -= 1;
        } else {
            out.push(letter);
        }
    }
    out
}

fn without_articles(text: &str) -> String {
    let mut lower = String::with_capacity(text.len());
    lowercase_into(text, &mut lower);
    let mut words = Vec::new();
    for word in lower.split(is_space).filter(|word| !word.is_empty()) {
        let word = match word {
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
            "a" | "an" | "the" => continue,
            word => contraction(word).unwrap_or(word),
        };
        words.push(word);
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_become_what_the_script_makes_of_them() {
        for (answer, wanted) in [
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
            ("n/a", "n"),
            ("", ""),
        ] {
            assert_eq!(normalised(answer), wanted, "{answer:?}");
        }
        let stops = normalised(&"x. ".repeat(40));
        assert_eq!(stops.matches('.').count(), 8);
    }
}
