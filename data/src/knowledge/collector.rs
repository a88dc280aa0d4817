//! Where the readers give what they find, and the counts of what became of every row.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::Knowledge;
use crate::DataError;

/// Why a row became no entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// Not as the format has it; only with [`Collector::skipping_bad_rows`].
    Malformed,
    /// Of another language than was asked for.
    OtherLanguage,
    /// Of another split than was asked for.
    OtherSplit,
    /// Without any text.
    NoText,
    /// Without a picture.
    NoImage,
    /// A label without a description.
    NoDescription,
    /// A question without an answer.
    NoAnswer,
    /// An answer to a question that is not there.
    NoQuestion,
    /// Of fewer characters than were asked for.
    TooShort,
    /// An edge from an entity to itself.
    Loop,
    /// A second label of an id; the first one counts.
    SecondLabel,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "malformed",
            Self::OtherLanguage => "of another language",
            Self::OtherSplit => "of another split",
            Self::NoText => "without text",
            Self::NoImage => "without a picture",
            Self::NoDescription => "without a description",
            Self::NoAnswer => "without an answer",
            Self::NoQuestion => "without their question",
            Self::TooShort => "too short",
            Self::Loop => "from an entity to itself",
            Self::SecondLabel => "second labels",
        })
    }
}

/// What else is worth knowing of the entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Note {
    /// Subjects and objects that stand as their ids, as no label is known.
    EntityWithoutLabel,
    /// Relations that stand as their ids, as no label is known.
    RelationWithoutLabel,
    /// Edges that were not turned round, as too many have that relation and object.
    TooFrequentToReverse,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EntityWithoutLabel => "subjects or objects without a label",
            Self::RelationWithoutLabel => "relations without a label",
            Self::TooFrequentToReverse => "edges not turned round",
        })
    }
}

/// What became of the rows of a data set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Rows of tables and items of lists that were read; blank lines are none.
    pub rows: u64,
    /// Entries made of them.
    pub entries: u64,
    /// Rows that became no entry.
    pub left_out: BTreeMap<Reason, u64>,
    /// What else happened.
    pub notes: BTreeMap<Note, u64>,
}

/// Takes what the readers find, and counts.
pub struct Collector<'s> {
    sink: Box<dyn FnMut(Knowledge) -> Result<(), DataError> + 's>,
    skips_bad_rows: bool,
    counts: Counts,
}

impl<'s> Collector<'s> {
    /// Hands each piece of knowledge to `sink`; an error of it ends the reading.
    pub fn new(sink: impl FnMut(Knowledge) -> Result<(), DataError> + 's) -> Self {
        Self { sink: Box::new(sink), skips_bad_rows: false, counts: Counts::default() }
    }

    /// Counts malformed rows instead of ending the reading at the first of them.
    #[must_use]
    pub fn skipping_bad_rows(self, skips_bad_rows: bool) -> Self {
        Self { skips_bad_rows, ..self }
    }

    /// What has become of the rows so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(super) fn row(&mut self) {
        self.counts.rows += 1;
    }

    pub(super) fn give(&mut self, knowledge: Knowledge) -> Result<(), DataError> {
        self.counts.entries += 1;
        (self.sink)(knowledge)
    }

    pub(super) fn leave_out(&mut self, reason: Reason) {
        *self.counts.left_out.entry(reason).or_default() += 1;
    }

    pub(super) fn note(&mut self, note: Note) {
        *self.counts.notes.entry(note).or_default() += 1;
    }

    /// What a row gave; `None` for a malformed row that is passed over.
    pub(super) fn accept<T>(&mut self, row: Result<T, DataError>) -> Result<Option<T>, DataError> {
        match row {
            Err(_) if self.skips_bad_rows => {
                self.leave_out(Reason::Malformed);
                Ok(None)
            }
            row => row.map(Some),
        }
    }
}
