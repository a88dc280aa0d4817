//! Knowledge that a memory can hold: what the readers give, and the lines of a memory's `entries.jsonl`.
//!
//! A reader takes an [`Input`] (plain or gzip) and gives to a [`Collector`], which counts what was left out and why:
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
//! let options = web::WebOptions { least_characters: 5, ..Default::default() };
//! web::read(Input::new("cc12m.tsv", table.as_bytes())?, &options, &mut to)?;
//! assert_eq!(to.counts().left_out[&Reason::TooShort], 1);
//! drop(to);
//! assert_eq!(found.len(), 1);
//! # Ok::<(), engram_data::DataError>(())
//! ```

pub mod coco;
mod collector;
mod input;
pub(crate) mod json;
pub(crate) mod lines;
pub mod vqa;
pub mod web;
pub mod wikidata;
pub mod wit;

use serde::{Deserialize, Serialize};

pub use self::collector::{Collector, Counts, Note, Reason};
pub use self::input::Input;

/// What REVEAL's released code puts between the parts of a text.
pub const SEPARATOR: &str = " <extra_id_99> ";

/// A piece of knowledge: a line of `entries.jsonl`.
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
    /// Its number in the memory; the memory counts where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<i64>,
    /// The source that it comes from: `wikidata`, `wit`, `cc12m`, `vqa`.
    pub source: String,
    /// What it was made of: an example may not retrieve the knowledge of its own document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<String>,
    /// What it says.
    #[serde(flatten)]
    pub content: Content,
}

/// What a piece of knowledge says. A picture is given by its path or address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// An edge of a knowledge graph.
    Triple {
        /// What it is about.
        subject: String,
        /// How the two belong together.
        relation: String,
        /// What is said of the subject.
        object: String,
    },
    /// A question with its answers, about a picture or not.
    QuestionAnswer {
        /// The picture.
        #[serde(skip_serializing_if = "Option::is_none")]
        image: Option<String>,
        /// The question.
        question: String,
        /// All its answers.
        answer: Vec<String>,
    },
    /// A picture with its caption.
    ImageText {
        /// The picture.
        image: String,
        /// The caption.
        text: String,
    },
    /// A picture alone.
    Image {
        /// The picture.
        image: String,
    },
    /// A passage.
    Text {
        /// The passage.
        text: String,
    },
}

impl Knowledge {
    /// Knowledge of a source, without a number and of no document.
    pub fn new(source: &str, content: Content) -> Self {
        Self { id: None, source: source.to_owned(), document: None, content }
    }

    /// The same, made of a document.
    #[must_use]
    pub fn of_document(self, document: impl Into<String>) -> Self {
        Self { document: Some(document.into()), ..self }
    }
}
