//! Phrase pairs of the patent study (arXiv 2208.01171): the Kaggle schema
//! `id,anchor,target,context,score` and the research schema with `rating`.
//!
//! Columns may be in any order and letter case; columns that are not named here are ignored.
//! Without an `id` column, the row number (from 1) is the id. A target of any length is accepted;
//! the tokenizer truncates it.

use std::collections::HashMap;
use std::path::Path;

use engram_durable::write_file;

use crate::DataError;
use crate::table::{Row, Table, read_text};
use crate::titles::ClassTitles;

/// One pair of phrases in a context, rated or not.
#[derive(Debug, Clone, PartialEq)]
pub struct PhrasePair {
    /// The id of the row, unique in its file.
    pub id: String,
    /// The anchor phrase.
    pub anchor: String,
    /// The phrase compared with the anchor.
    pub target: String,
    /// The CPC class of the comparison, such as `A47`.
    pub context: String,
    /// The similarity, from 0 (unrelated) to 1 (same).
    pub score: Option<f32>,
    /// The rating class of the research release, such as `Hypernym`.
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
/// # Errors   a missing column, an invalid score, a duplicate id, an empty field, malformed
/// quoting, text that is not UTF-8, no rows: each with file, line and remedy
pub fn read_pairs(path: impl AsRef<Path>, labels: Labels) -> Result<Vec<PhrasePair>, DataError> {
    read(path.as_ref(), labels, None)
}

/// Like [`read_pairs`]; a context that is missing from `titles` is also an error.
///
/// # Errors   as [`read_pairs`]; `UnknownContext` with the nearest known context
pub fn read_pairs_with_titles(
    path: impl AsRef<Path>,
    labels: Labels,
    titles: &ClassTitles,
) -> Result<Vec<PhrasePair>, DataError> {
    read(path.as_ref(), labels, Some(titles))
}

/// Writes pairs in the Kaggle schema. `score` and `rating` are written if any row has them.
///
/// # Errors   `Io`
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

/// Returns predictions as CSV: `id,score`, one line per pair.
pub fn predictions_csv(pairs: &[PhrasePair], scores: &[f64]) -> Vec<u8> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    // Writing to memory cannot fail.
    let _ = writer.write_record(["id", "score"]);
    for (pair, score) in pairs.iter().zip(scores) {
        let _ = writer.write_record([pair.id.as_str(), &format!("{score:.6}")]);
    }
    writer.into_inner().unwrap_or_default()
}

fn read(
    path: &Path,
    labels: Labels,
    titles: Option<&ClassTitles>,
) -> Result<Vec<PhrasePair>, DataError> {
    let table = Table::parse(path, &read_text(path)?, b',')?;
    let id_column = table.column("id")?;
    let anchor_column = table.required_column("anchor")?;
    let target_column = table.required_column("target")?;
    let context_column = table.required_column("context")?;
    let rating_column = table.column("rating")?;
    let score_column = match labels {
        Labels::Required => Some(table.required_column("score")?),
        Labels::Optional => table.column("score")?,
    };

    let mut pairs = Vec::with_capacity(table.rows.len());
    let mut line_of_id: HashMap<String, usize> = HashMap::new();
    for (index, row) in table.rows.iter().enumerate() {
        let id = match id_column {
            Some(column) => filled(path, row, column, "id")?,
            None => (index + 1).to_string(),
        };
        if let Some(first) = line_of_id.insert(id.clone(), row.line) {
            return Err(DataError::DuplicateId { path: path.into(), id, first, second: row.line });
        }
        let context = filled(path, row, context_column, "context")?;
        if let Some(titles) = titles
            && titles.title(&context).is_none()
        {
            return Err(DataError::UnknownContext {
                path: path.into(),
                line: row.line,
                nearest: titles.nearest(&context).map(Into::into),
                context,
            });
        }
        pairs.push(PhrasePair {
            id,
            anchor: filled(path, row, anchor_column, "anchor")?,
            target: filled(path, row, target_column, "target")?,
            context,
            score: match score_column {
                Some(column) => score(path, row, column, labels)?,
                None => None,
            },
            rating: rating_column
                .map(|column| row.field(column).to_owned())
                .filter(|rating| !rating.is_empty()),
        });
    }
    Ok(pairs)
}

fn filled(path: &Path, row: &Row, column: usize, name: &'static str) -> Result<String, DataError> {
    match row.field(column) {
        "" => Err(DataError::EmptyField { path: path.into(), line: row.line, column: name }),
        text => Ok(text.to_owned()),
    }
}

fn score(path: &Path, row: &Row, column: usize, labels: Labels) -> Result<Option<f32>, DataError> {
    let text = row.field(column);
    if text.is_empty() && labels == Labels::Optional {
        return Ok(None);
    }
    let reason = match text.parse::<f32>() {
        Ok(score) if (0.0..=1.0).contains(&score) => return Ok(Some(score)),
        Ok(score) if score.is_finite() => "is outside [0, 1]",
        Ok(_) => "is not finite",
        Err(_) if text.is_empty() => "is blank",
        Err(_) => "is not a number",
    };
    Err(DataError::Score { path: path.into(), line: row.line, value: text.to_owned(), reason })
}
