//! Text normalisers for transcripts, applied before words are compared; equal to the reference
//! tools.
//!
//! | File | Content |
//! |---|---|
//! | `whisper_english.rs` | Whisper's English normaliser |
//! | `contractions.rs`, `symbols.rs`, `numbers/`, `spelling.rs` | the steps of the English normaliser |
//! | `basic.rs` | Whisper's normaliser for other languages |
//! | `jiwer_standardize.rs` | jiwer's `wer_standardize` |
//! | `articles.rs` | deletion of articles, which no reference tool has |
//! | `brackets.rs` | deletion of bracketed text, as in all reference normalisers |
//! | `characters.rs` | lower case, white space and word characters as in Python |
//!
//! The reference tools apply chains of regular expressions. Here, each step is a single pass over
//! the text, which takes linear time for any input and has a faster path for ASCII text.

mod articles;
mod basic;
mod brackets;
pub(crate) mod characters;
mod contractions;
mod jiwer_standardize;
mod numbers;
mod spelling;
mod symbols;
mod whisper_english;

pub use articles::without_article;
pub use basic::BasicOptions;

use std::collections::HashMap;
use std::fmt;

use foldhash::fast::RandomState;
use rayon::prelude::*;
use thiserror::Error;

/// A table of fixed words, looked up once per word of a text.
type WordTable<V> = HashMap<&'static str, V, RandomState>;

/// A text normaliser.
///
/// ```
/// use engram_eval::normalise::Normaliser;
///
/// let normaliser = Normaliser::parse("whisper-en")?;
/// assert_eq!(
///     normaliser.normalise("Mr. Smith's colour TV cost $20 million, um, in nineteen ninety-five!"),
///     "mister smith is color tv cost $20000000 in 1995",
/// );
/// # Ok::<(), engram_eval::normalise::UnknownNormaliser>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Normaliser {
    /// Returns the text unchanged.
    #[default]
    None,
    /// Lower-cases only, like sclite.
    Lowercase,
    /// jiwer's `wer_standardize`: lower case, contractions expanded, no `[…]` and `<…>`, single
    /// spaces.
    JiwerStandardize,
    /// Whisper's `BasicTextNormalizer`, for languages other than English.
    Basic(BasicOptions),
    /// Whisper's `EnglishTextNormalizer`.
    WhisperEnglish,
}

/// The text between two steps of a normaliser, with buffers that are reused for the next text.
#[derive(Debug, Default)]
struct Buffers {
    current: String,
    spare: String,
    words: Vec<numbers::Span>,
}

impl Buffers {
    /// Sets a text in lower case.
    fn set_lowercase(&mut self, text: &str) {
        self.current.clear();
        characters::lowercase_into(text, &mut self.current);
    }

    /// Replaces the text by the output of a step.
    fn apply<R>(&mut self, step: impl FnOnce(&str, &mut String) -> R) -> R {
        self.spare.clear();
        let result = step(&self.current, &mut self.spare);
        std::mem::swap(&mut self.current, &mut self.spare);
        result
    }
}

/// The error for an unknown normaliser name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown normaliser `{found}`; did you mean `{nearest}`? Known: {}", known_names())]
pub struct UnknownNormaliser {
    /// The given name.
    pub found: String,
    /// The most similar known name.
    pub nearest: &'static str,
}

impl Normaliser {
    /// Every normaliser, with every choice of options.
    pub const ALL: [Self; 8] = [
        Self::None,
        Self::Lowercase,
        Self::JiwerStandardize,
        Self::Basic(BasicOptions { remove_diacritics: false, split_letters: false }),
        Self::Basic(BasicOptions { remove_diacritics: true, split_letters: false }),
        Self::Basic(BasicOptions { remove_diacritics: false, split_letters: true }),
        Self::Basic(BasicOptions { remove_diacritics: true, split_letters: true }),
        Self::WhisperEnglish,
    ];

    /// The normalisers of `engram eval wer --compare-normalizers`.
    pub const COMMON: [Self; 4] = [
        Self::None,
        Self::JiwerStandardize,
        Self::Basic(BasicOptions { remove_diacritics: false, split_letters: false }),
        Self::WhisperEnglish,
    ];

    /// The stable name for the command line and the JSON results.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lowercase => "lowercase",
            Self::JiwerStandardize => "jiwer-standardize",
            Self::Basic(options) => match (options.remove_diacritics, options.split_letters) {
                (false, false) => "basic",
                (true, false) => "basic+remove-diacritics",
                (false, true) => "basic+split-letters",
                (true, true) => "basic+remove-diacritics+split-letters",
            },
            Self::WhisperEnglish => "whisper-en",
        }
    }

    /// The version of the output: the reference tool that it equals, or the version of Unicode. `1`
    /// for [`Normaliser::None`].
    pub fn version(self) -> &'static str {
        match self {
            Self::None => "1",
            Self::Lowercase => "Unicode 14",
            Self::JiwerStandardize => "jiwer 4.0.0 (Unicode 14)",
            Self::Basic(_) | Self::WhisperEnglish => "openai-whisper 20250625 (Unicode 14)",
        }
    }

    /// Name and version, as stored in results; `none` for no normaliser.
    pub fn name_and_version(self) -> String {
        match self {
            Self::None => "none".to_owned(),
            normaliser => format!("{}, {}", normaliser.name(), normaliser.version()),
        }
    }

    /// Returns the normaliser with the given name; upper and lower case are equal.
    ///
    /// # Errors
    /// [`UnknownNormaliser`], with the nearest known name
    pub fn parse(name: &str) -> Result<Self, UnknownNormaliser> {
        let lower = name.to_lowercase();
        if let Some(normaliser) = Self::ALL.into_iter().find(|known| known.name() == lower) {
            return Ok(normaliser);
        }
        let similarity = |known: &str| strsim::jaro_winkler(known, &lower);
        let nearest = Self::ALL
            .into_iter()
            .map(Self::name)
            .max_by(|a, b| similarity(a).total_cmp(&similarity(b)))
            .unwrap_or("none");
        Err(UnknownNormaliser { found: name.to_owned(), nearest })
    }

    /// Returns the normalised text.
    ///
    /// ```
    /// use engram_eval::normalise::{BasicOptions, Normaliser};
    ///
    /// let basic = Normaliser::Basic(BasicOptions::default());
    /// assert_eq!(basic.normalise("Él dijo: ¡Hola! (risas) [x] 10%"), "él dijo hola 10 ");
    /// ```
    pub fn normalise(self, text: &str) -> String {
        self.normalise_with(&mut Buffers::default(), text)
    }

    fn normalise_with(self, buffers: &mut Buffers, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        match self {
            Self::None => out.push_str(text),
            Self::Lowercase => characters::lowercase_into(text, &mut out),
            Self::JiwerStandardize => jiwer_standardize::standardize(text, buffers, &mut out),
            Self::Basic(options) => basic::normalise(text, options, buffers, &mut out),
            Self::WhisperEnglish => whisper_english::normalise(text, buffers, &mut out),
        }
        out
    }

    /// Returns the normalised texts in order; runs on all threads of the pool.
    pub fn normalise_all<T: AsRef<str> + Sync>(self, texts: &[T]) -> Vec<String> {
        let normalise =
            |buffers: &mut Buffers, text: &T| self.normalise_with(buffers, text.as_ref());
        texts.par_iter().map_init(Buffers::default, normalise).collect()
    }
}

impl fmt::Display for Normaliser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The names of all normalisers, for error messages.
fn known_names() -> String {
    Normaliser::ALL.map(Normaliser::name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back() {
        for normaliser in Normaliser::ALL {
            assert_eq!(Normaliser::parse(normaliser.name()), Ok(normaliser));
        }
        assert_eq!(Normaliser::parse("BASIC"), Ok(Normaliser::Basic(BasicOptions::default())));
    }

    #[test]
    fn an_unknown_name_gets_a_suggestion() {
        assert_eq!(Normaliser::parse("wisper_en").unwrap_err().nearest, "whisper-en");
        let message = Normaliser::parse("jiwer").unwrap_err().to_string();
        assert!(message.contains("did you mean `jiwer-standardize`?"), "{message}");
        assert!(message.contains("whisper-en"), "{message}");
        assert_eq!(Normaliser::parse("").unwrap_err().found, "");
    }

    #[test]
    fn whisper_english_equals_the_reference() {
        for (text, expected) in [
            ("I can't believe it's two and a half percent", "i can not believe it is 2.5%"),
            (
                "She'd gone to Dr. O'Neil's on the twenty-first",
                "she had gone to doctor 0 neil is on the 21st",
            ),
            ("one oh one dalmatians, [laughs] (music) ones", "101 dalmatians ones"),
            ("double seven point five per cent", "77.5%"),
            ("It is 1,000.50 dollars and 7 cents", "it is $1000.50 and ¢7"),
            ("you're gonna say we'll've won't", "you are going to say we will have will not"),
            ("minus five degrees; plus one", "-5 degrees +one"),
            ("£3 and ¢50 café naïve Ærø", "£3.50 cafe naive aero"),
            ("...", "."),
            ("and a half", ""),
            ("one, two, three", "123"),
            ("$1.5m", " one.5 m"),
            ("one dollar", " one"),
            ("can\u{2019}t", "can t"),
        ] {
            assert_eq!(Normaliser::WhisperEnglish.normalise(text), expected, "{text:?}");
        }
    }

    #[test]
    fn the_options_of_basic_can_be_combined() {
        let basic = |remove_diacritics, split_letters| {
            Normaliser::Basic(BasicOptions { remove_diacritics, split_letters })
        };
        assert_eq!(basic(false, false).normalise("ℂafé, ½ [a] (b)"), "café 1 2 ");
        assert_eq!(basic(true, false).normalise("ℂafé Ærø"), "cafe aero");
        assert_eq!(basic(false, true).normalise("né 한국\r\nx"), "n é 한 국 x");
        assert_eq!(basic(false, true).normalise(" Ab, c"), " a b c");
        assert_eq!(basic(true, true).normalise("né"), "n e");
    }
}
