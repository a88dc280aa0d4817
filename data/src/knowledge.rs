//! Knowledge items for a memory: the output of the readers, and the lines of a memory's
//! `entries.jsonl`.
//!
//! A reader takes an [`Input`] (plain or gzip) and passes its items to a [`Collector`]. The
//! collector counts the skipped rows by reason:
//!
//! ```
//! use engram_data::knowledge::{Collector, Input, Reason, web};
//!
//! let table = "http://a.example/1.jpg\ta dog runs\nhttp://a.example/2.jpg\ta\n";
//! let mut found = Vec::new();
//! let mut to = Collector::new(|knowledge| {
//!     found.push(knowledge);
//!     Ok(())
//! });
//! let options = web::WebOptions { min_characters: 5, ..Default::default() };
//! web::read(Input::new("cc12m.tsv", table.as_bytes())?, &options, &mut to)?;
//! assert_eq!(to.counts().skipped[&Reason::TooShort], 1);
//! drop(to);
//! assert_eq!(found.len(), 1);
//! # Ok::<(), engram_data::DataError>(())
//! ```

pub mod coco;
mod collector;
pub(crate) mod json;
pub mod vqa;
pub mod web;
pub mod wikidata;
pub mod wit;

pub use engram_textfile::Input;
use serde::{Deserialize, Serialize};

pub use self::collector::{Collector, Counts, Note, Reason};

/// The separator between the parts of a text in REVEAL's released code.
pub const SEPARATOR: &str = " <extra_id_99> ";

/// A knowledge item: a line of `entries.jsonl`.
///
/// ```
/// use engram_data::knowledge::{Content, Knowledge};
///
/// let content = Content::Text { text: "Bern is the capital of Switzerland.".to_owned() };
/// let knowledge = Knowledge::new("passages", content).of_document("Q70");
/// let line = serde_json::to_string(&knowledge).unwrap();
/// assert_eq!(
///     line,
///     r#"{"source":"passages","document":"Q70","text":"Bern is the capital of Switzerland."}"#,
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Knowledge {
    /// The id in the memory; without it, the memory numbers its entries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<i64>,
    /// The source (corpus) of the item: `wikidata`, `wit`, `cc12m`, `vqa`.
    pub source: String,
    /// The document of the item. An example may not retrieve knowledge from its own document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<String>,
    /// The content.
    #[serde(flatten)]
    pub content: Content,
}

/// The content of a knowledge item. An image is given by its path or URL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// An edge of a knowledge graph.
    Triple {
        /// The subject entity.
        subject: String,
        /// The relation between subject and object.
        relation: String,
        /// The object entity.
        object: String,
    },
    /// A question with its answers, with or without an image.
    QuestionAnswer {
        /// The image.
        #[serde(skip_serializing_if = "Option::is_none")]
        image: Option<String>,
        /// The question.
        question: String,
        /// All its answers.
        answer: Vec<String>,
    },
    /// An image with its caption.
    ImageText {
        /// The image.
        image: String,
        /// The caption.
        text: String,
    },
    /// An image alone.
    Image {
        /// The image.
        image: String,
    },
    /// A text passage.
    Text {
        /// The passage.
        text: String,
    },
}

impl Knowledge {
    /// Creates an item of a source, without id and document.
    pub fn new(source: &str, content: Content) -> Self {
        Self { id: None, source: source.to_owned(), document: None, content }
    }

    /// Returns the item with this document.
    #[must_use]
    pub fn of_document(self, document: impl Into<String>) -> Self {
        Self { document: Some(document.into()), ..self }
    }
}
