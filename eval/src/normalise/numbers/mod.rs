//! Converts spelled-out numbers to digits: `EnglishNumberNormalizer` of the reference.
//!
//! | File | Method of the reference |
//! |---|---|
//! | `tokens.rs` | `preprocess`, and the split into words |
//! | `words.rs`, `value.rs`, this file | `process_words` |
//! | `currency.rs` | `postprocess` |

mod currency;
mod tokens;
mod value;
mod words;

use super::characters::decimal_digit;
pub(super) use currency::postprocess;
pub(super) use tokens::{replace_halves, split_words};
use value::Value;
use words::{NumberWord, number_word};

/// The byte range of a word in its text.
pub(super) type Span = std::ops::Range<usize>;

/// The class of a word in the number normaliser.
#[derive(Debug, Clone, Copy)]
enum Token<'a> {
    /// Digits, optionally with decimals. `prefix` is the currency symbol before them, if any.
    Written { prefix: Option<char>, number: &'a str },
    /// A word of a number.
    Word(NumberWord),
    /// Anything else.
    Other,
}

impl Token<'_> {
    /// Whether a sign word or an `and` before the token treats it as a number. It does not if the
    /// token has a currency symbol.
    fn can_be_numeric(self) -> bool {
        matches!(self, Token::Word(_) | Token::Written { prefix: None, .. })
    }
}

/// Writes the words, separated by single spaces, with numbers as digits.
pub(super) fn write_numbers(text: &str, words: &[Span], out: &mut String) {
    let mut conversion = Conversion { out, value: Value::default(), prefix: None };
    let mut previous = Token::Other;
    let mut next = words.first().map(|span| classify(&text[span.clone()]));
    let mut skip = false;
    for (position, span) in words.iter().enumerate() {
        let current = next.unwrap_or(Token::Other);
        let next_word = words.get(position + 1).map_or("", |span| &text[span.clone()]);
        next = (!next_word.is_empty()).then(|| classify(next_word));
        if !std::mem::take(&mut skip) {
            let word = &text[span.clone()];
            match current {
                Token::Other => conversion.write_other(word),
                Token::Written { prefix, number } => conversion.read_digits(word, prefix, number),
                Token::Word(meaning) => {
                    let context = Context { previous, word, next, next_word };
                    skip = conversion.number_word(meaning, context);
                }
            }
        }
        previous = current;
    }
    conversion.flush();
}

fn classify(word: &str) -> Token<'_> {
    let mut characters = word.chars();
    let prefix = characters.next().filter(|&first| matches!(first, '$' | '¢' | '€' | '£'));
    let number = if prefix.is_some() { characters.as_str() } else { word };
    if is_written_number(number) {
        return Token::Written { prefix, number };
    }
    match number_word(word) {
        Some(meaning) => Token::Word(meaning),
        None => Token::Other,
    }
}

/// Whether a word matches `^\d+(\.\d+)?$`.
fn is_written_number(word: &str) -> bool {
    if word.as_bytes().first().is_none_or(u8::is_ascii_lowercase) {
        return false;
    }
    let is_number =
        |part: &str| !part.is_empty() && part.chars().all(|c| decimal_digit(c).is_some());
    match word.split_once('.') {
        Some((whole, decimals)) => is_number(whole) && is_number(decimals),
        None => is_number(word),
    }
}

/// The words around a number word.
struct Context<'a> {
    previous: Token<'a>,
    word: &'a str,
    next: Option<Token<'a>>,
    next_word: &'a str,
}

/// The state of the conversion: the output, and the number that is being read (the pending number).
struct Conversion<'a> {
    out: &'a mut String,
    value: Value,
    /// Sign or currency symbol of the pending number; `None` without one.
    prefix: Option<char>,
}

impl Conversion<'_> {
    /// Writes a word after the prefix, if any. Clears the pending number and the prefix.
    fn write(&mut self, text: &str, suffix: &str) {
        start_word(self.out, self.prefix.take());
        self.out.push_str(text);
        self.out.push_str(suffix);
        self.value.clear();
    }

    /// Writes the pending number.
    fn write_value(&mut self, suffix: &str) {
        start_word(self.out, self.prefix.take());
        self.out.push_str(self.value.as_str());
        self.out.push_str(suffix);
        self.value.clear();
    }

    /// Writes the pending number with the ending of its last word, if that word has one.
    fn end_word(&mut self, ending: &str) {
        if !ending.is_empty() {
            self.write_value(ending);
        }
    }

    fn flush(&mut self) {
        if !self.value.is_absent() {
            self.write_value("");
        }
    }

    fn write_other(&mut self, word: &str) {
        self.flush();
        self.write(word, "");
    }

    fn read_digits(&mut self, word: &str, prefix: Option<char>, number: &str) {
        if self.value.ends_in_point() {
            self.value.append(word);
            return;
        }
        self.flush();
        self.prefix = prefix.or(self.prefix);
        self.value.set_written(number);
    }

    /// Processes a number word; returns true if it consumed the next word.
    fn number_word(&mut self, meaning: NumberWord, context: Context<'_>) -> bool {
        match meaning {
            NumberWord::Zero => {
                self.value.start_text();
                self.value.append("0");
            }
            NumberWord::Ones(ones, ending) => {
                self.add_ones(ones, context.previous);
                self.end_word(ending);
            }
            NumberWord::Tens(tens, ending) => {
                self.add_tens(tens);
                self.end_word(ending);
            }
            NumberWord::Multiplier(zeros, ending) => {
                self.multiply(zeros);
                self.end_word(ending);
            }
            NumberWord::Sign(sign) => {
                self.flush();
                if context.next.is_some_and(Token::can_be_numeric) {
                    self.prefix = Some(sign);
                } else {
                    self.write(context.word, "");
                }
            }
            NumberWord::Currency(symbol) => {
                if self.value.is_absent() {
                    self.write(context.word, "");
                } else {
                    self.prefix = Some(symbol);
                    self.write_value("");
                }
            }
            NumberWord::Per => {
                if !self.value.is_absent() && context.next_word == "cent" {
                    self.write_value("%");
                    return true;
                }
                self.write_other(context.word);
            }
            NumberWord::Percent => {
                if self.value.is_absent() {
                    self.write(context.word, "");
                } else {
                    self.write_value("%");
                }
            }
            NumberWord::And | NumberWord::Repeat(_) | NumberWord::Point => {
                return self.word_before_number(meaning, context);
            }
        }
        false
    }

    fn add_ones(&mut self, ones: u8, previous: Token<'_>) {
        let value = &mut self.value;
        if value.is_absent() {
            value.set_integer(ones, 0);
        } else if value.is_text() || matches!(previous, Token::Word(NumberWord::Ones(_, ""))) {
            if matches!(previous, Token::Word(NumberWord::Tens(_, ""))) && ones < 10 {
                value.replace_last(ones);
            } else {
                value.append_number(ones);
            }
        } else {
            value.add_or_append(ones);
        }
    }

    fn add_tens(&mut self, tens: u8) {
        if self.value.is_absent() {
            self.value.set_integer(tens, 0);
        } else if self.value.is_text() {
            self.value.append_number(tens);
        } else {
            self.value.add_or_append(tens);
        }
    }

    fn multiply(&mut self, zeros: u8) {
        if self.value.is_text() {
            if !self.value.scale_exactly(zeros) {
                self.write_value("");
                self.value.set_integer(1, zeros);
            }
        } else if self.value.is_absent() {
            self.value.set_integer(1, zeros);
        } else {
            self.value.scale_last_three(zeros);
        }
    }

    /// Processes `and`, `double`, `triple` and `point`, which need a number after them.
    fn word_before_number(&mut self, meaning: NumberWord, context: Context<'_>) -> bool {
        let Some(next) = context.next.filter(|next| next.can_be_numeric()) else {
            self.write_other(context.word);
            return false;
        };
        match meaning {
            NumberWord::Repeat(times) => {
                let digit = match next {
                    Token::Word(NumberWord::Zero) => 0,
                    Token::Word(NumberWord::Ones(ones, "")) => ones,
                    _ => {
                        self.write_other(context.word);
                        return false;
                    }
                };
                self.value.start_text();
                for _ in 0..times {
                    self.value.append_number(digit);
                }
                return true;
            }
            NumberWord::Point => {
                use NumberWord::{Ones, Tens, Zero};
                // Before any other number word, the reference drops "point".
                if matches!(
                    next,
                    Token::Written { .. } | Token::Word(Zero | Ones(_, "") | Tens(_, ""))
                ) {
                    self.value.start_text();
                    self.value.append(".");
                }
            }
            _ => {
                if !matches!(context.previous, Token::Word(NumberWord::Multiplier(_, ""))) {
                    self.write_other(context.word);
                }
            }
        }
        false
    }
}

/// Starts an output word: a space if needed, then the prefix.
fn start_word(out: &mut String, prefix: Option<char>) {
    if !out.is_empty() {
        out.push(' ');
    }
    out.extend(prefix);
}
