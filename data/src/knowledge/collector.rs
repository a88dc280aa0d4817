//! Receives the entries of the readers, and counts the outcome of each record: a row of a table, a
//! line, or an item of a list.

use std::collections::BTreeMap;
use std::fmt;

use engram_textfile::TextError;
use serde::Serialize;

use super::EntryLine;
use crate::DataError;

/// The reason why a record was skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// Invalid format; only with [`Collector::skip_malformed`].
    Malformed,
    /// A language other than the requested one.
    OtherLanguage,
    /// A split other than the requested ones.
    OtherSplit,
    /// No text.
    NoText,
    /// No image.
    NoImage,
    /// A label without a description.
    NoDescription,
    /// A question without an answer.
    NoAnswer,
    /// An answer without its question.
    NoQuestion,
    /// Fewer characters than requested.
    TooShort,
    /// An edge from an entity to itself.
    SelfLoop,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "malformed",
            Self::OtherLanguage => "in another language",
            Self::OtherSplit => "in another split",
            Self::NoText => "without text",
            Self::NoImage => "without an image",
            Self::NoDescription => "without a description",
            Self::NoAnswer => "without an answer",
            Self::NoQuestion => "without their question",
            Self::TooShort => "too short",
            Self::SelfLoop => "from an entity to itself",
        })
    }
}

/// A note on the entries, besides skipped records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Note {
    /// Subjects and objects written as ids, because they have no label.
    EntityWithoutLabel,
    /// Relations written as ids, because they have no label.
    RelationWithoutLabel,
    /// Edges without a reverse edge, because their relation and object are too frequent.
    TooFrequentToReverse,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EntityWithoutLabel => "subjects or objects without a label",
            Self::RelationWithoutLabel => "relations without a label",
            Self::TooFrequentToReverse => "edges without a reverse edge",
        })
    }
}

/// The outcome of the records of a data set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Rows of tables and items of lists that were read, without blank lines.
    pub records: u64,
    /// Entries made from the records.
    pub entries: u64,
    /// Skipped records, by reason.
    pub skipped: BTreeMap<Reason, u64>,
    /// Notes on the entries.
    pub notes: BTreeMap<Note, u64>,
}

/// Receives the entries of the readers and counts records.
pub struct Collector<'s> {
    sink: Box<dyn FnMut(EntryLine) -> Result<(), DataError> + 's>,
    skips_bad_rows: bool,
    counts: Counts,
}

impl<'s> Collector<'s> {
    /// Passes each entry to `sink`. An error of `sink` stops the reader.
    pub fn new(sink: impl FnMut(EntryLine) -> Result<(), DataError> + 's) -> Self {
        Self { sink: Box::new(sink), skips_bad_rows: false, counts: Counts::default() }
    }

    /// Sets whether malformed records are skipped and counted. By default, the first one is an
    /// error.
    #[must_use]
    pub fn skip_malformed(self, skips_bad_rows: bool) -> Self {
        Self { skips_bad_rows, ..self }
    }

    /// Returns a collector that ignores all entries, for files of labels and counts. It also skips
    /// malformed records if this one does.
    #[must_use]
    pub fn discarding(&self) -> Collector<'static> {
        Collector::new(|_| Ok(())).skip_malformed(self.skips_bad_rows)
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Counts a record.
    pub fn count_record(&mut self) {
        self.counts.records += 1;
    }

    /// Counts an entry and passes it to the sink.
    ///
    /// # Errors
    /// The errors of the sink.
    pub fn emit(&mut self, entry: EntryLine) -> Result<(), DataError> {
        self.counts.entries += 1;
        (self.sink)(entry)
    }

    /// Counts a skipped record.
    pub fn skip(&mut self, reason: Reason) {
        *self.counts.skipped.entry(reason).or_default() += 1;
    }

    /// Counts a note.
    pub fn note(&mut self, note: Note) {
        *self.counts.notes.entry(note).or_default() += 1;
    }

    /// Unwraps a record; returns `None` if it is malformed and skipped.
    ///
    /// # Errors
    /// The error of a malformed record, unless such records are skipped.
    pub fn accept<T>(
        &mut self,
        record: Result<T, impl Into<DataError>>,
    ) -> Result<Option<T>, DataError> {
        match record {
            Err(_) if self.skips_bad_rows => {
                self.skip(Reason::Malformed);
                Ok(None)
            }
            record => record.map(Some).map_err(Into::into),
        }
    }

    /// Moves a reader to its next well-formed record, and counts all records on the way; returns
    /// `false` at the end.
    ///
    /// # Errors
    /// The errors of `advance`, except those of skipped records.
    pub fn next_record(
        &mut self,
        mut advance: impl FnMut() -> Result<bool, TextError>,
    ) -> Result<bool, DataError> {
        loop {
            let result = advance();
            match &result {
                Ok(false) => return Ok(false),
                Err(error) if !error.can_continue() => return result.map_err(Into::into),
                _ => self.count_record(),
            }
            if self.accept(result)?.is_some() {
                return Ok(true);
            }
        }
    }
}
