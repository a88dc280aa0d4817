//! What can go wrong in an evaluation: each case names the file, the line, the reason and the next step.

use std::fmt;
use std::io;

use thiserror::Error;

use crate::metric::MetricError;
use crate::normalise::UnknownNormaliser;

/// A file, and the line in it where known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file, as given by the user.
    pub file: String,
    /// Line from 1; `None` for the whole file or for data that come from no file.
    pub line: Option<u64>,
}

impl Place {
    /// The whole of `file`, or a line in it.
    pub fn new(file: &str, line: impl Into<Option<u64>>) -> Self {
        Self { file: file.to_owned(), line: line.into() }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.file),
            None => f.write_str(&self.file),
        }
    }
}

/// Why an evaluation could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EvalError {
    /// The file cannot be opened or read.
    #[error("{file}: cannot be read: {source}; check the path and its permissions")]
    Read {
        /// The file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// The file holds no rows.
    #[error("{file}: has no rows; expected a header line and one line per row")]
    Empty {
        /// The file.
        file: String,
    },
    /// The bytes are not CSV text.
    #[error("{place}: {reason}; {remedy}")]
    Malformed {
        /// Where.
        place: Place,
        /// What is wrong.
        reason: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A needed column is not in the header.
    #[error(
        "{place}: column `{column}` is missing; the header has: {found}; rename or add the column"
    )]
    MissingColumn {
        /// The header line.
        place: Place,
        /// The column that is needed.
        column: String,
        /// The columns that are there.
        found: String,
    },
    /// A needed column is there twice.
    #[error("{place}: column `{column}` occurs twice; remove or rename one of them")]
    DoubledColumn {
        /// The header line.
        place: Place,
        /// The column.
        column: String,
    },
    /// A row has no id.
    #[error("{place}: the id is empty; every row needs its own id")]
    EmptyId {
        /// The row.
        place: Place,
    },
    /// A score is not a finite number.
    #[error(
        "{place}: id `{id}`: score `{found}` is not a finite number; write it as 0.25, with a point"
    )]
    BadScore {
        /// The row.
        place: Place,
        /// Its id.
        id: String,
        /// What stands there.
        found: String,
    },
    /// One id stands in two rows of a file.
    #[error("{place}: id `{id}` was already given at {first}; keep one of the two rows")]
    DoubledId {
        /// The later row.
        place: Place,
        /// The earlier row.
        first: Place,
        /// The id.
        id: String,
    },
    /// A gold row has no prediction.
    #[error(
        "{predictions}: no prediction for id `{id}` ({gold}), {missing} of {rows} ids missing in all; \
         give one row per gold row"
    )]
    MissingPrediction {
        /// The predictions.
        predictions: String,
        /// The first gold row without one.
        gold: Place,
        /// Its id.
        id: String,
        /// Number of gold rows without a prediction.
        missing: usize,
        /// Number of gold rows.
        rows: usize,
    },
    /// A prediction has no gold row.
    #[error(
        "{place}: id `{id}` is not in {gold}, {extra} of {rows} predictions without a gold row in all; \
         check that both files are of the same set"
    )]
    ExtraPrediction {
        /// The first prediction without a gold row.
        place: Place,
        /// The gold file.
        gold: String,
        /// Its id.
        id: String,
        /// Number of predictions without a gold row.
        extra: usize,
        /// Number of predictions.
        rows: usize,
    },
    /// Texts that belong together differ in number.
    #[error(
        "{references} references and {hypotheses} hypotheses; give one hypothesis for each reference"
    )]
    UnequalLengths {
        /// Number of references.
        references: usize,
        /// Number of hypotheses.
        hypotheses: usize,
    },
    /// Two results are not of one metric.
    #[error("{a} and {b} cannot be compared; give two results of one metric and normaliser")]
    Incomparable {
        /// The first file and what it is of.
        a: String,
        /// The second.
        b: String,
    },
    /// An option has a value that makes no sense.
    #[error("option `{option}` is {found}; expected {expected}")]
    BadOption {
        /// Name of the option.
        option: &'static str,
        /// Its value.
        found: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// A metric refuses its input.
    #[error(transparent)]
    Metric(#[from] MetricError),
    /// A pattern of the metric itself does not compile.
    #[error("a built-in pattern does not compile: {0}; please report this as a bug")]
    Pattern(#[from] regex::Error),
    /// No normaliser has that name.
    #[error(transparent)]
    UnknownNormaliser(#[from] UnknownNormaliser),
}
