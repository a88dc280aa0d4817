//! Errors of an evaluation. Each error names the file, the line, the reason and the remedy.

use thiserror::Error;

pub use engram_textfile::{Location, TextError};

use crate::metric::MetricError;
use crate::normalise::UnknownNormaliser;

/// Errors of an evaluation.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EvalError {
    /// A text file cannot be read, or its content has the wrong format.
    #[error(transparent)]
    Text(#[from] TextError),
    /// There is nothing to evaluate; `items` names the missing items, in the plural.
    #[error("there are no {items}; give at least one")]
    NothingToEvaluate {
        /// The missing items, in the plural.
        items: &'static str,
    },
    /// The content of a file does not look like the format in which it is read.
    #[error("{location}: {reason}; {remedy}")]
    OtherFormat {
        /// The location of the error.
        location: Location,
        /// The format that the content has.
        reason: &'static str,
        /// What to do.
        remedy: &'static str,
        /// The names of the formats as which the file can be read, the most likely one first.
        formats: &'static [&'static str],
        /// Whether the file holds both the references and the hypotheses.
        holds_both: bool,
    },
    /// A table, or the first of the JSON objects, has no column with one of the usual names.
    /// `column` is `ids`, `references` or `hypotheses`; `found` names the existing columns, as a
    /// part of the message.
    #[error("{location}: has no column of {column}{found}; name it")]
    NoColumn {
        /// The header of the table.
        location: Location,
        /// The missing column.
        column: &'static str,
        /// The existing columns, as a part of the message; may be empty.
        found: String,
    },
    /// A gold row (a reference, an annotation, a question) has no prediction.
    #[error(
        "{predictions}: no prediction for id `{id}` ({gold}), {missing} of {rows} ids are missing; \
         give one row per gold row"
    )]
    MissingPrediction {
        /// The name of the file of predictions.
        predictions: String,
        /// The first gold row without a prediction.
        gold: Location,
        /// The id of that row.
        id: String,
        /// Number of gold rows without a prediction.
        missing: usize,
        /// Number of gold rows.
        rows: usize,
    },
    /// The data cannot be scored as they are; another input or option would help.
    #[error("{location}: {reason}; {remedy}")]
    Needs {
        /// The location of the error.
        location: Location,
        /// What is missing or wrong.
        reason: String,
        /// What to do.
        remedy: &'static str,
        /// The input or option.
        need: Need,
    },
    /// A prediction has no gold row.
    #[error(
        "{location}: id `{id}` is not in {gold}, {extra} of {rows} predictions have no gold row; \
         check that both files belong to the same split"
    )]
    ExtraPrediction {
        /// The first prediction without a gold row.
        location: Location,
        /// The name of the file of gold rows.
        gold: String,
        /// The id of that prediction.
        id: String,
        /// Number of predictions without a gold row.
        extra: usize,
        /// Number of predictions.
        rows: usize,
    },
    /// The numbers of references and hypotheses differ.
    #[error(
        "{references} references and {hypotheses} hypotheses; give one hypothesis for each reference"
    )]
    LengthMismatch {
        /// Number of references.
        references: usize,
        /// Number of hypotheses.
        hypotheses: usize,
    },
    /// The items of two systems have different metrics, versions or normalisers. `a` and `b` are
    /// the files with their metrics.
    #[error("{a} and {b} cannot be compared; give two results with the same metric and normaliser")]
    Incomparable {
        /// The first file and its metric and normaliser.
        a: String,
        /// The second file and its metric and normaliser.
        b: String,
    },
    /// An option has an invalid value.
    #[error("option `{option}` is {found}; expected {expected}")]
    InvalidOption {
        /// Name of the option.
        option: &'static str,
        /// The given value.
        found: String,
        /// The allowed values, in words.
        expected: &'static str,
    },
    /// The input of a metric is invalid.
    #[error(transparent)]
    Metric(#[from] MetricError),
    /// A built-in pattern does not compile.
    #[error("a built-in pattern does not compile: {0}; please report this as a bug")]
    Pattern(#[from] regex::Error),
    /// The name of the normaliser is unknown.
    #[error(transparent)]
    UnknownNormaliser(#[from] UnknownNormaliser),
}

/// The error for a file without rows.
pub(crate) fn no_rows(file: &str) -> EvalError {
    malformed(file, None, "has no rows", "expected a header line and one line per row")
}

/// The input or option that [`EvalError::Needs`] names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// That each case was edited alone.
    SingleEdits,
    /// The file of question types.
    QuestionTypes,
    /// The file of passages.
    Passages,
}

/// The error for content in the wrong format: of a line, or of the whole file for `None`.
pub(crate) fn malformed(
    file: &str,
    line: impl Into<Option<u64>>,
    reason: impl Into<String>,
    remedy: &'static str,
) -> EvalError {
    TextError::malformed(file, line, reason, remedy).into()
}
