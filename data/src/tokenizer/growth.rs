//! Refuses a `tokenizer.json` that could make a short text fill the memory.
//!
//! A step may replace a character by a longer text, and the next step may do the same with each
//! character of that text. Six such steps in a small file would be enough.

use serde::Deserialize;
use serde_json::Value;
use tokenizers::Decoder;
use tokenizers::normalizers::Replace;
use tokenizers::normalizers::replace::ReplacePattern;

/// The maximum number of bytes that a character may become.
const MAX_BYTES: f64 = 1000.0;

/// The parts of a `tokenizer.json` that change texts.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Parts {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
}

/// An upper bound on what the steps so far make of a character, in bytes.
struct Growth {
    bytes: f64,
    /// The characters that the steps wrote.
    written: String,
}

/// Returns the reason if a character could become too long. Invalid JSON is left to the
/// `tokenizers` library.
pub(super) fn check_growth(json: &[u8]) -> Result<(), String> {
    let parts: Parts = serde_json::from_slice(json).unwrap_or_default();
    for parts in [&[parts.normalizer, parts.pre_tokenizer][..], &[parts.decoder]] {
        let mut growth = Growth { bytes: 1.0, written: String::new() };
        parts.iter().for_each(|part| growth.add(part));
        if growth.bytes > MAX_BYTES {
            let reason = "its steps together could make a character longer than";
            return Err(format!("{reason} {MAX_BYTES} bytes"));
        }
    }
    Ok(())
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
                let is_written = pattern.chars().any(|c| self.written.contains(c));
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
            ("ByteLevel", _) => (2.0, true),
            _ => return,
        };
        self.bytes =
            if is_for_written { self.bytes * factor.max(1.0) } else { self.bytes.max(factor) };
        self.written.extend([content, text("prepend"), text("replacement")]);
    }
}

/// Whether a regular expression may match an empty part of a text.
fn may_match_nothing(regex: &str) -> bool {
    let looks_around =
        ["(?=", "(?!", "(?<", "\\b", "\\B", "\\K"].iter().any(|it| regex.contains(it));
    let replace = Replace::new(ReplacePattern::Regex(regex.to_owned()), "x");
    let replaced = replace.and_then(|replace| replace.decode_chain(vec!["\u{1}".to_owned()]));
    looks_around || replaced.is_ok_and(|texts| texts.concat().len() > 1)
}
