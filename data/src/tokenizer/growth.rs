//! Refuses a `tokenizer.json` that could make a short text fill the memory.
//!
//! A step may replace a character by a longer text, and the next step may do the same with each
//! character of that text. Six such steps in a small file would be enough.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;
use tokenizers::Decoder;
use tokenizers::normalizers::Replace;
use tokenizers::normalizers::replace::ReplacePattern;

/// The maximum number of bytes that a character may become.
const MAX_BYTES: f64 = 1000.0;
/// The number of bytes that a character may become in Unicode's longest normal form.
const UNICODE_BYTES: f64 = 33.0;
/// The largest usual entry of the table of a `Precompiled` step, in bytes.
const MAX_ENTRY_BYTES: f64 = 64.0;
/// The maximum number of characters of a word that is split into word pieces: the time grows with
/// its third power. Usual is 100.
const MAX_WORD_CHARS: u64 = 1000;
/// The maximum number of bytes of a name that is added to parts of words.
const MAX_NAME_BYTES: usize = 1000;
/// The maximum number of special tokens that a text gets.
const MAX_SPECIAL_TOKENS: usize = 1000;

/// The parts of a `tokenizer.json` that change texts.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Parts {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    model: Model,
    post_processor: Value,
}

/// The parts of a model that determine the time for a word.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Model {
    max_input_chars_per_word: Value,
    continuing_subword_prefix: Value,
    end_of_word_suffix: Value,
}

/// An upper bound on what the steps so far make of a character, in bytes.
struct Growth {
    bytes: f64,
    /// What a normal form makes of a character of the text.
    unicode_bytes: f64,
    /// The characters that the steps wrote.
    written: String,
    /// Whether a later step may have changed these characters to any others.
    is_rewritten: bool,
    has_table: bool,
}

/// Returns the reason if a character could become too long, or a text could get too many tokens.
/// Invalid JSON is left to the `tokenizers` library.
pub(super) fn check_growth(json: &[u8]) -> Result<(), String> {
    let parts: Parts = serde_json::from_slice(json).unwrap_or_default();
    let Model { max_input_chars_per_word: chars, continuing_subword_prefix: prefix, .. } =
        &parts.model;
    if chars.as_u64().is_some_and(|chars| chars > MAX_WORD_CHARS) {
        return Err(format!("its `max_input_chars_per_word` is above {MAX_WORD_CHARS}"));
    }
    let names = [prefix, &parts.model.end_of_word_suffix];
    if names.iter().any(|name| name.as_str().is_some_and(|name| name.len() > MAX_NAME_BYTES)) {
        return Err(format!("its prefix or suffix of tokens has more than {MAX_NAME_BYTES} bytes"));
    }
    check_post_processor(&parts.post_processor)?;
    for parts in [&[parts.normalizer, parts.pre_tokenizer][..], &[parts.decoder]] {
        let mut growth = Growth {
            bytes: 1.0,
            unicode_bytes: 1.0,
            written: String::new(),
            is_rewritten: false,
            has_table: false,
        };
        parts.iter().for_each(|part| growth.add(part));
        if growth.bytes * growth.unicode_bytes > MAX_BYTES {
            let reason = "its steps together could make a character longer than";
            return Err(format!("{reason} {MAX_BYTES} bytes"));
        }
    }
    Ok(())
}

/// Returns the reason if a step writes a text several times, or the steps together write too many
/// special tokens.
fn check_post_processor(step: &Value) -> Result<(), String> {
    fn count(step: &Value) -> Option<usize> {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let texts =
            list(&step["single"]).iter().filter(|part| part["Sequence"].is_object()).count();
        let ids = |part: &Value| {
            let id = part["SpecialToken"]["id"].as_str().unwrap_or_default();
            step["special_tokens"][id]["ids"].as_array().map_or(1, Vec::len)
        };
        let own = list(&step["single"]).iter().map(ids).sum::<usize>();
        let inner = list(&step["processors"]).iter().map(count).sum::<Option<usize>>()?;
        (texts <= 1).then(|| own.saturating_add(inner))
    }
    match count(step) {
        Some(tokens) if tokens <= MAX_SPECIAL_TOKENS => Ok(()),
        Some(_) => Err(format!("it adds more than {MAX_SPECIAL_TOKENS} special tokens to a text")),
        None => Err("its post-processor writes a text several times".to_owned()),
    }
}

impl Growth {
    /// Adds a step, or the steps of a sequence.
    fn add(&mut self, step: &Value) {
        for list in ["normalizers", "pretokenizers", "decoders"] {
            step[list].as_array().into_iter().flatten().for_each(|part| self.add(part));
        }
        let text = |key: &str| step[key].as_str().unwrap_or_default();
        let (content, pattern) = (text("content"), &step["pattern"]);
        let length = content.len() as f64;
        let (factor, is_for_written) = match (text("type"), pattern["String"].as_str()) {
            ("Replace", Some(pattern)) if !pattern.is_empty() => {
                let is_written =
                    self.is_rewritten || pattern.chars().any(|c| self.written.contains(c));
                (length / pattern.chars().count() as f64, is_written)
            }
            // Without characters to match, the content comes between all characters.
            ("Replace", _) if may_match_nothing(pattern["Regex"].as_str().unwrap_or_default()) => {
                (1.0 + length, true)
            }
            ("Replace", _) => (length, true),
            // The text comes before each text, or even before each part of a text.
            ("Prepend", _) => (1.0 + text("prepend").len() as f64, true),
            ("Metaspace", _) => (1.0 + text("replacement").len() as f64, true),
            // Each byte becomes a character of up to two bytes.
            ("ByteLevel", _) => {
                self.is_rewritten |= !self.written.is_empty();
                (2.0, true)
            }
            // A space comes in the place of nothing, which is between all characters.
            ("BPEDecoder", _) if text("suffix").is_empty() => (2.0, true),
            ("CTC", _) if text("word_delimiter_token").is_empty() => (2.0, true),
            ("Precompiled", _) => {
                let bytes = longest_entry(text("precompiled_charsmap"));
                let is_usual = bytes <= MAX_ENTRY_BYTES && !self.has_table;
                self.has_table = true;
                if is_usual {
                    return self.map_characters(bytes);
                }
                self.is_rewritten = true;
                (bytes, true)
            }
            ("NFC" | "NFD" | "NFKC" | "NFKD" | "Lowercase" | "StripAccents", _)
            | ("BertNormalizer" | "Nmt", _) => return self.map_characters(UNICODE_BYTES),
            _ => return,
        };
        self.bytes =
            if is_for_written { self.bytes * factor.max(1.0) } else { self.bytes.max(factor) };
        self.written.extend([content, text("prepend"), text("replacement")]);
    }

    /// Adds a step that maps each character to up to `bytes` bytes. A second such step finds only
    /// characters that stay, unless another step has written characters.
    fn map_characters(&mut self, bytes: f64) {
        self.is_rewritten |= !self.written.is_empty();
        match self.written.is_ascii() {
            true => self.unicode_bytes = self.unicode_bytes.max(bytes),
            false => self.bytes *= bytes,
        }
    }
}

/// The length in bytes of the longest entry of a `precompiled_charsmap`: the number of bytes of its
/// index, the index, and entries that end with a zero.
fn longest_entry(table: &str) -> f64 {
    let table = STANDARD.decode(table).unwrap_or_default();
    let Some((length, rest)) = table.split_first_chunk() else { return 1.0 };
    let entries = rest.get(u32::from_le_bytes(*length) as usize..).unwrap_or(rest);
    entries.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or_default().max(1) as f64
}

/// Whether a regular expression may match an empty part of a text.
fn may_match_nothing(regex: &str) -> bool {
    let looks_around =
        ["(?=", "(?!", "(?<", "\\b", "\\B", "\\K"].iter().any(|it| regex.contains(it));
    let replace = Replace::new(ReplacePattern::Regex(regex.to_owned()), "x");
    let replaced = replace.and_then(|replace| replace.decode_chain(vec!["\u{1}".to_owned()]));
    looks_around || replaced.is_ok_and(|texts| texts.concat().len() > 1)
}
