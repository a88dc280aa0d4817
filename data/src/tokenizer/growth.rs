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
/// The number of bytes that a character may become in lower case.
const LOWERCASE_BYTES: f64 = 4.0;
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
    let parts = match serde_json::from_slice::<Parts>(json) {
        // For example a field that is there twice.
        Err(error) if error.is_data() => return Err(error.to_string()),
        parts => parts.unwrap_or_default(),
    };
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
    let Parts { normalizer, pre_tokenizer, decoder, .. } = parts;
    for (normalizer, other) in [(normalizer, pre_tokenizer), (Value::Null, decoder)] {
        let mut growth = Growth {
            bytes: 1.0,
            unicode_bytes: 1.0,
            written: String::new(),
            is_rewritten: false,
            has_table: false,
        };
        growth.add(&normalizer, true);
        growth.add(&other, false);
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
    /// The length of the longest list in a value.
    fn longest(value: &Value) -> usize {
        match value {
            Value::Array(list) => list.iter().map(longest).max().unwrap_or(0).max(list.len()),
            Value::Object(fields) => fields.values().map(longest).max().unwrap_or(0),
            _ => 0,
        }
    }
    /// The largest number of special tokens; `None` for a text that is written several times, and
    /// for values without names, which the library reads, too.
    fn count(step: &Value) -> Option<usize> {
        let list = |key: &str| step[key].as_array().map_or(&[][..], Vec::as_slice);
        let texts = list("single").iter().filter(|part| !part["Sequence"].is_null()).count();
        let own = list("single").len() * longest(&step["special_tokens"]).max(1);
        let inner = list("processors").iter().map(count).sum::<Option<usize>>()?;
        let is_named = step.is_object() || step.is_null();
        (texts <= 1 && is_named).then(|| own.saturating_add(inner))
    }
    match count(step) {
        Some(tokens) if tokens <= MAX_SPECIAL_TOKENS => Ok(()),
        Some(_) => Err(format!("it adds more than {MAX_SPECIAL_TOKENS} special tokens to a text")),
        None => Err("its post-processor writes a text several times".to_owned()),
    }
}

impl Growth {
    /// Adds a step, or the steps of a sequence. The library accepts steps without their type or with
    /// another one, so the fields of a step tell what it does.
    fn add(&mut self, step: &Value, is_normalizer: bool) {
        let lists = ["normalizers", "pretokenizers", "decoders"].map(|list| step[list].as_array());
        lists.into_iter().flatten().flatten().for_each(|part| self.add(part, is_normalizer));
        if step.is_null() || lists.iter().any(Option::is_some) {
            return;
        }
        if !step.is_object() {
            // The library also reads lists of values without names.
            self.bytes = f64::INFINITY;
            return;
        }
        let field = |key: &str| step[key].as_str();
        let pattern = step["pattern"]["String"].as_str().unwrap_or_default();
        let (factor, is_for_written) = if let Some(content) = field("content") {
            let length = content.len() as f64;
            let regex = step["pattern"]["Regex"].as_str().unwrap_or_default();
            if !pattern.is_empty() {
                let is_written =
                    self.is_rewritten || pattern.chars().any(|c| self.written.contains(c));
                (length / pattern.chars().count() as f64, is_written)
            } else if may_match_nothing(regex) {
                // Without characters to match, the content comes between all characters.
                (1.0 + length, true)
            } else {
                (length, true)
            }
        } else if let Some(text) = field("prepend").or(field("replacement")) {
            // The text comes before each text, or even before each part of a text.
            (1.0 + text.len() as f64, true)
        } else if field("type") == Some("ByteLevel") || !step["trim_offsets"].is_null() {
            // Each byte becomes a character of up to two bytes.
            self.is_rewritten |= !self.written.is_empty();
            (2.0, true)
        } else if field("suffix").or(field("word_delimiter_token")) == Some("") {
            // A space comes in the place of nothing, which is between all characters.
            (2.0, true)
        } else if let Some(table) = field("precompiled_charsmap") {
            let bytes = longest_entry(table);
            let is_usual = bytes <= MAX_ENTRY_BYTES && !self.has_table;
            self.has_table = true;
            if is_usual {
                return self.map_characters(bytes);
            }
            self.is_rewritten = true;
            (bytes, true)
        } else if is_normalizer && !matches!(field("type"), Some("Strip" | "StripAccents")) {
            let is_lowercase = field("type") == Some("Lowercase");
            return self.map_characters(if is_lowercase { LOWERCASE_BYTES } else { UNICODE_BYTES });
        } else {
            return;
        };
        self.bytes =
            if is_for_written { self.bytes * factor.max(1.0) } else { self.bytes.max(factor) };
        let written = ["content", "prepend", "replacement"].map(field);
        self.written.extend(written.into_iter().flatten());
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
