//! The entry of a memory, which is a line of `entries.jsonl`. `engram-data` makes entries from data
//! sets, and `engram-memory` stores each entry with its key.
//!
//! ```
//! use engram_entry::{Entry, EntryLine};
//!
//! let passage = Entry::passage("passages", "Bern is a city.").of_document("Q70");
//! let line = serde_json::to_string(&passage)?;
//! assert_eq!(line, r#"{"source":"passages","document":"Q70","text":"Bern is a city."}"#);
//! let parsed: EntryLine = serde_json::from_str(&line)?;
//! assert_eq!(parsed, passage);
//! assert_eq!(parsed.with_id(3).text(), "Bern is a city.");
//! # Ok::<(), serde_json::Error>(())
//! ```

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// The source of an entry whose `source` is missing or null.
pub const DEFAULT_SOURCE: &str = "memory";

/// The kind of an entry, determined by the fields of its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// `text`: a passage.
    Text,
    /// `image`: the path or URL of an image.
    Image,
    /// `image` and `text`: an image with its caption.
    ImageText,
    /// `subject`, `relation`, `object`: an edge of a knowledge graph.
    Triple,
    /// `question` and `answer` (a text, or a list of texts).
    QuestionAnswer,
    /// No kind above has all its fields.
    Bare,
}

/// An entry. `Id` is `i64` for an entry of a memory, and `Option<i64>` for an [`EntryLine`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(serialize = "Id: Serialize + Copy + Into<Option<i64>>"), expecting = "a JSON object")]
pub struct Entry<Id = i64> {
    /// The id, at least 0 and unique within a memory.
    #[serde(skip_serializing_if = "is_none")]
    pub id: Id,
    /// The name of the source, such as `wikidata` or `vqa`; [`DEFAULT_SOURCE`] if it is missing or
    /// null.
    #[serde(default = "default_source", deserialize_with = "source_or_default")]
    pub source: String,
    /// The document that the entry comes from; `None` if it is not known. Retrieval for an example
    /// excludes the entries of the example's document.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "string_or_integer"
    )]
    pub document: Option<String>,
    /// All other fields, unchanged.
    #[serde(flatten)]
    pub payload: Map<String, Value>,
}

/// An entry whose id is optional. Readers of data sets set no id, and a line of a file may omit it.
/// An entry without an id gets one when it is added to a memory. The type of the id is a parameter,
/// so that [`Entry`] and [`EntryLine`] share their fields and methods.
pub type EntryLine = Entry<Option<i64>>;

impl Entry {
    /// Creates an entry without a payload.
    pub fn bare(id: i64) -> Self {
        EntryLine::new(DEFAULT_SOURCE, []).with_id(id)
    }
}

impl EntryLine {
    /// Creates an entry with these fields as its payload, without id and document.
    fn new<const N: usize>(source: &str, fields: [(&str, Value); N]) -> Self {
        let payload = fields.into_iter().map(|(field, value)| (field.to_owned(), value)).collect();
        Self { id: None, source: source.to_owned(), document: None, payload }
    }

    /// Creates a text passage.
    pub fn passage(source: &str, text: impl Into<String>) -> Self {
        Self::new(source, [("text", text.into().into())])
    }

    /// Creates an entry of an image, given by its path or URL, with its caption.
    pub fn image_text(source: &str, image: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(source, [("image", image.into().into()), ("text", text.into().into())])
    }

    /// Creates an edge of a knowledge graph.
    pub fn triple(
        source: &str,
        subject: impl Into<String>,
        relation: impl Into<String>,
        object: impl Into<String>,
    ) -> Self {
        let edge = [subject.into(), relation.into(), object.into()];
        let [subject, relation, object] = edge.map(Value::String);
        Self::new(source, [("subject", subject), ("relation", relation), ("object", object)])
    }

    /// Creates a question with all its answers, with or without an image.
    pub fn question_answer(
        source: &str,
        image: Option<String>,
        question: impl Into<String>,
        answers: Vec<String>,
    ) -> Self {
        let question = ("question", question.into().into());
        let answer = ("answer", answers.into());
        match image {
            None => Self::new(source, [question, answer]),
            Some(image) => Self::new(source, [("image", image.into()), question, answer]),
        }
    }

    /// Sets the id.
    pub fn with_id(self, id: i64) -> Entry {
        let Self { source, document, payload, .. } = self;
        Entry { id, source, document, payload }
    }
}

impl<Id> Entry<Id> {
    /// Sets the document.
    #[must_use]
    pub fn of_document(self, document: impl Into<String>) -> Self {
        Self { document: Some(document.into()), ..self }
    }

    /// Returns the path or URL of the image; `None` without an image.
    pub fn image(&self) -> Option<&str> {
        self.payload.get("image").and_then(Value::as_str)
    }

    /// Returns the kind of the entry. An entry can have the fields of several kinds. The first of
    /// these kinds applies: [`Kind::Triple`], [`Kind::QuestionAnswer`], [`Kind::ImageText`],
    /// [`Kind::Image`], [`Kind::Text`].
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

    /// Returns the text for the encoder: the fields of a [`Kind::Triple`] or a
    /// [`Kind::QuestionAnswer`] in one line; the field `text` for any other kind, or an empty text
    /// without this field.
    ///
    /// ```
    /// use engram_entry::Entry;
    ///
    /// let entry = Entry::triple("wikidata", "Bern", "capital of", "Switzerland");
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
}

fn is_none<Id: Copy + Into<Option<i64>>>(id: &Id) -> bool {
    (*id).into().is_none()
}

fn default_source() -> String {
    DEFAULT_SOURCE.to_owned()
}

fn source_or_default<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_else(default_source))
}

fn string_or_integer<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        Value::Number(number) if !number.is_f64() => Ok(Some(number.to_string())),
        other => {
            let reason = format!("the document {other} is neither a string nor an integer");
            Err(D::Error::custom(reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(fields: &str) -> Entry {
        serde_json::from_str(&format!("{{\"id\": 1{fields}}}")).unwrap()
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
    fn a_document_is_a_string_or_an_integer() {
        for (fields, document) in [
            (r#", "document": "7""#, Some("7")),
            (r#", "document": 7"#, Some("7")),
            (r#", "document": 18446744073709551615"#, Some("18446744073709551615")),
            (r#", "document": null, "source": null"#, None),
            ("", None),
        ] {
            assert_eq!(entry(fields).document.as_deref(), document);
            assert_eq!(entry(fields).source, DEFAULT_SOURCE);
        }
        let error = serde_json::from_str::<Entry>(r#"{"id": 1, "document": 7.5}"#).unwrap_err();
        assert!(error.to_string().starts_with("the document 7.5 is neither"), "{error}");
    }

    #[test]
    fn only_an_entry_of_a_memory_needs_an_id() {
        let line = r#"{"source":"vqa","image":"a.jpg","question":"what?","answer":["cat"]}"#;
        let parsed: EntryLine = serde_json::from_str(line).unwrap();
        let image = Some("a.jpg".to_owned());
        let expected = Entry::question_answer("vqa", image, "what?", vec!["cat".to_owned()]);
        assert_eq!(
            (&parsed, serde_json::to_string(&expected).unwrap().as_str()),
            (&expected, line)
        );
        let error = serde_json::from_str::<Entry>(line).unwrap_err();
        assert!(error.to_string().starts_with("missing field `id`"), "{error}");
        let with_id = serde_json::to_string(&expected.with_id(0)).unwrap();
        assert_eq!(with_id, line.replacen('{', "{\"id\":0,", 1));
    }
}
