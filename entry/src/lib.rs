//! The entry of a key: one of REVEAL's kinds, with its source and document.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// The source of entries without a source.
pub const DEFAULT_SOURCE: &str = "memory";

/// The kind of an entry, determined by the fields of its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// `text`: a passage.
    Text,
    /// `image`: the path or address of an image.
    Image,
    /// `image` and `text`: an image with its caption.
    ImageText,
    /// `subject`, `relation`, `object`: an edge of a knowledge graph.
    Triple,
    /// `question` and `answer` (a text, or a list of texts).
    QuestionAnswer,
    /// None of the fields above.
    Bare,
}

/// An entry of the memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The id, at least 0 and unique in a memory.
    pub id: i64,
    /// The source of the entry: `wikidata`, `wit`, `cc12m`, `vqa`.
    pub source: String,
    /// The document that the entry comes from. An example may not retrieve entries of its own
    /// document.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "text_or_number")]
    pub document: Option<String>,
    /// All other fields, unchanged.
    #[serde(flatten)]
    pub payload: Map<String, Value>,
}

impl Entry {
    /// An entry without a payload.
    pub fn bare(id: i64) -> Self {
        Self { id, source: DEFAULT_SOURCE.to_owned(), document: None, payload: Map::new() }
    }

    /// The path of its image.
    pub fn image(&self) -> Option<&str> {
        self.payload.get("image").and_then(Value::as_str)
    }

    /// The kind of the entry.
    pub fn kind(&self) -> Kind {
        let has = |field: &str| self.payload.contains_key(field);
        match () {
            () if has("subject") && has("relation") && has("object") => Kind::Triple,
            () if has("question") && has("answer") => Kind::QuestionAnswer,
            () if has("image") && has("text") => Kind::ImageText,
            () if has("image") => Kind::Image,
            () if has("text") => Kind::Text,
            () => Kind::Bare,
        }
    }

    /// Returns the text for the encoder: triples and questions as lines of text. Empty for an image
    /// without text.
    ///
    /// ```
    /// use engram_memory::Entry;
    ///
    /// let mut entry = Entry::bare(3);
    /// for (field, value) in [("subject", "Bern"), ("relation", "capital of"), ("object", "Switzerland")] {
    ///     entry.payload.insert(field.to_owned(), value.into());
    /// }
    /// assert_eq!(entry.text(), "Bern capital of Switzerland");
    /// ```
    pub fn text(&self) -> String {
        let field = |name: &str| match self.payload.get(name) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(texts)) => {
                texts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
            }
            Some(other) => other.to_string(),
            None => String::new(),
        };
        match self.kind() {
            Kind::Triple => {
                format!("{} {} {}", field("subject"), field("relation"), field("object"))
            }
            // The format of VQA knowledge in REVEAL's released code.
            Kind::QuestionAnswer => {
                format!("Question: {} Answer: {}", field("question"), field("answer"))
            }
            _ => field("text"),
        }
    }

    /// The hash of the document's name, which the search compares.
    pub(crate) fn document_hash(&self) -> u64 {
        self.document.as_deref().map_or(0, document_hash)
    }
}

/// Returns the first 8 bytes of the SHA-256 of a document's name. It is never 0, because 0 means no
/// document.
pub(crate) fn document_hash(document: &str) -> u64 {
    let digest = Sha256::digest(document.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first).max(1)
}

fn text_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum TextOrNumber {
        Text(String),
        Number(i64),
    }
    Ok(Option::<TextOrNumber>::deserialize(deserializer)?.map(|document| match document {
        TextOrNumber::Text(text) => text,
        TextOrNumber::Number(number) => number.to_string(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(fields: &str) -> Entry {
        serde_json::from_str(&format!("{{\"id\": 1, \"source\": \"s\"{fields}}}")).unwrap()
    }

    #[test]
    fn the_kind_follows_from_the_fields() {
        for (fields, kind, text) in [
            ("", Kind::Bare, ""),
            (r#", "text": "a passage""#, Kind::Text, "a passage"),
            (r#", "image": "a.jpg""#, Kind::Image, ""),
            (r#", "image": "a.jpg", "text": "a dog""#, Kind::ImageText, "a dog"),
            (r#", "subject": "a", "relation": "is", "object": "b""#, Kind::Triple, "a is b"),
            (
                r#", "question": "what?", "answer": ["cat", "dog"]"#,
                Kind::QuestionAnswer,
                "Question: what? Answer: cat, dog",
            ),
        ] {
            let entry = entry(fields);
            assert_eq!((entry.kind(), entry.text().as_str()), (kind, text));
        }
    }

    #[test]
    fn a_document_is_a_text_or_a_number() {
        assert_eq!(entry(r#", "document": 7"#).document.as_deref(), Some("7"));
        assert_eq!(entry(r#", "document": "7""#).document_hash(), document_hash("7"));
        assert_eq!(entry("").document_hash(), 0);
        assert_ne!(document_hash(""), 0);
    }
}
