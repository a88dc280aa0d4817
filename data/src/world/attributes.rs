//! The attributes of images in the embedded world, and the templates of their facts and questions.
//! The table is `attributes.json`. The thing is the object that an image shows; `{thing}` in a
//! template stands for its name.
//!
//! The made-up attributes have closed lists of [`ANSWERS`] answers. No answer is a word of an
//! image's name, of another list or of a template. No `a` or `an` before an answer gives away its
//! first letter. So only the fact gives the answer.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// The number of possible answers of each made-up attribute; chance is 1 / `ANSWERS`.
pub const ANSWERS: usize = 20;

/// The four sources; each has its own format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Triples; text only.
    Kg,
    /// Passages of one to three sentences; text only.
    Passages,
    /// Images with captions that do not name the thing.
    Pairs,
    /// Images with a question and its answer; neither names the thing.
    Vqa,
}

impl Source {
    /// All sources, in the order of the gates that a model computes for them.
    pub const ALL: [Self; 4] = [Self::Kg, Self::Passages, Self::Pairs, Self::Vqa];

    /// Returns the name in `entries.jsonl`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kg => "kg",
            Self::Passages => "passages",
            Self::Pairs => "pairs",
            Self::Vqa => "vqa",
        }
    }
}

/// An attribute of images. Exactly one source states it.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub struct Attribute {
    /// The name in `questions.jsonl`.
    pub name: &'static str,
    /// The source that states it.
    pub source: Source,
    /// All possible answers; empty for real facts.
    #[serde(default)]
    pub answers: Vec<&'static str>,
    /// Templates for statements. A statement is the relation of a triple, a sentence of a passage
    /// (with `{thing}` and `{answer}`), a caption (with `{answer}`), or the question of a
    /// question-answer pair.
    pub(super) statements: Vec<&'static str>,
    /// Templates for questions. They contain `{thing}` in sources whose entries name the thing.
    pub(super) questions: Vec<&'static str>,
    /// Templates for a yes-or-no question about one image, and about several images; `None` for
    /// attributes without such questions.
    pub(super) yes_or_no: Option<[&'static str; 2]>,
}

impl Attribute {
    /// Whether the facts are made up, so that only the memory gives the answers.
    pub fn made_up(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Returns the accuracy of random guessing; `None` for real facts.
    pub fn chance(&self) -> Option<f64> {
        self.made_up().then(|| 1.0 / self.answers.len() as f64)
    }
}

/// All attributes; entry ids depend on their order. The tests of the world check the table, so it
/// is never empty.
pub static ATTRIBUTES: LazyLock<Vec<Attribute>> =
    LazyLock::new(|| serde_json::from_str(include_str!("attributes.json")).unwrap_or_default());
