//! Phrase pairs of the patent study (arXiv 2208.01171), in the format of
//! [`engram_textfile::phrases`]. A target of any length is accepted; the tokenizer truncates it.

use std::path::Path;

use engram_durable::write_file;
pub use engram_textfile::phrases::PhraseColumns;
use engram_textfile::phrases::{PhraseRow, read_phrases};
use engram_textfile::{Input, Location, TextError, without_formula};

use crate::DataError;
use crate::titles::ClassTitles;

/// A pair of phrases in a context, with or without a rating.
#[derive(Debug, Clone, PartialEq)]
pub struct PhrasePair {
    /// The id of the row, unique in its file.
    pub id: String,
    /// The anchor phrase.
    pub anchor: String,
    /// The phrase compared with the anchor.
    pub target: String,
    /// The CPC class of the comparison, such as `A47`; empty for pairs without classes.
    pub context: String,
    /// The similarity, from 0 (unrelated) to 1 (same); `None` if it is not given. Pairs of
    /// [`read_named_pairs`] may have any range.
    pub score: Option<f32>,
    /// The rating class of the research release, such as `Hypernym`; `None` if it is not given.
    pub rating: Option<String>,
}

/// Whether rows must have a score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Labels {
    /// Each row must have a score, as in training data.
    Required,
    /// The score column may be missing or blank, as in test data.
    Optional,
}

/// Reads the phrase pairs of a CSV file.
///
/// # Errors
/// `Text`, also for a score outside [0, 1]
pub fn read_pairs(path: impl AsRef<Path>, labels: Labels) -> Result<Vec<PhrasePair>, DataError> {
    read_pairs_with_titles(path, labels, None)
}

/// Like [`read_pairs`]; a context that is missing from `titles` is also an error.
///
/// # Errors
/// as [`read_pairs`]; `UnknownContext` with the nearest known context
pub fn read_pairs_with_titles(
    path: impl AsRef<Path>,
    labels: Labels,
    titles: Option<&ClassTitles>,
) -> Result<Vec<PhrasePair>, DataError> {
    let path = path.as_ref();
    let columns = PhraseColumns::default();
    let rows = read_phrases(Input::open(path)?, labels == Labels::Required, columns)?;
    let pair = |row: PhraseRow| {
        if let Some(score) = row.score.filter(|score| !(0.0..=1.0).contains(score)) {
            let reason = format!("score {score} is outside [0, 1]");
            let remedy = "scale the scores to numbers from 0 to 1";
            return Err(TextError::malformed(path, row.line, reason, remedy).into());
        }
        if let Some(titles) = titles
            && titles.title(&row.context).is_none()
        {
            let nearest = titles.nearest(&row.context).map(Into::into);
            let (location, context) = (Location::new(path, row.line), row.context);
            return Err(DataError::UnknownContext { location, nearest, context });
        }
        Ok(row.into())
    };
    rows.into_iter().map(pair).collect()
}

/// Reads pairs from a CSV with other column names. Scores may have any range.
///
/// # Errors
/// `Text`, also for a score that is not finite
pub fn read_named_pairs(
    path: impl AsRef<Path>,
    labels: Labels,
    columns: PhraseColumns<'_>,
) -> Result<Vec<PhrasePair>, DataError> {
    let path = path.as_ref();
    let rows = read_phrases(Input::open(path)?, labels == Labels::Required, columns)?;
    let pair = |row: PhraseRow| match row.score {
        Some(score) if !(score as f32).is_finite() => {
            let reason = format!("score {score} is too large");
            Err(TextError::malformed(path, row.line, reason, "scale the scores").into())
        }
        _ => Ok(row.into()),
    };
    rows.into_iter().map(pair).collect()
}

impl From<PhraseRow> for PhrasePair {
    fn from(row: PhraseRow) -> Self {
        Self {
            id: row.id,
            anchor: row.anchor,
            target: row.target,
            context: row.context,
            score: row.score.map(|score| score as f32),
            rating: row.rating,
        }
    }
}

/// Writes pairs in the Kaggle schema. The columns `score` and `rating` are written if any pair has
/// a value for them.
///
/// # Errors
/// `Io`
pub fn write_pairs(path: impl AsRef<Path>, pairs: &[PhrasePair]) -> Result<(), DataError> {
    let path = path.as_ref();
    let has_score = pairs.iter().any(|pair| pair.score.is_some());
    let has_rating = pairs.iter().any(|pair| pair.rating.is_some());
    let mut header = vec!["id", "anchor", "target", "context"];
    header.extend(has_rating.then_some("rating"));
    header.extend(has_score.then_some("score"));

    let io_error = |source| DataError::Io { path: path.into(), source };
    let mut writer = csv::Writer::from_writer(Vec::new());
    let mut write = |fields: &[&str]| writer.write_record(fields).map_err(|e| io_error(e.into()));
    write(&header)?;
    for pair in pairs {
        let score = pair.score.map(|score| score.to_string());
        let mut fields = vec![&*pair.id, &*pair.anchor, &*pair.target, &*pair.context];
        if has_rating {
            fields.push(pair.rating.as_deref().unwrap_or_default());
        }
        if has_score {
            fields.push(score.as_deref().unwrap_or_default());
        }
        write(&fields)?;
    }
    let bytes = writer.into_inner().map_err(|error| io_error(error.into_error()))?;
    write_file(path, &bytes).map_err(io_error)
}

/// Returns predictions as CSV: `id,score`, one line per pair. An id that a spreadsheet would compute
/// gets a quote; see [`without_formula`].
pub fn predictions_csv(pairs: &[PhrasePair], scores: &[f64]) -> Vec<u8> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    // Writing to memory cannot fail.
    let _ = writer.write_record(["id", "score"]);
    for (pair, score) in pairs.iter().zip(scores) {
        let _ = writer.write_record([&*without_formula(&pair.id), &format!("{score:.6}")]);
    }
    writer.into_inner().unwrap_or_default()
}
