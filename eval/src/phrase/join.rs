//! Joins gold rows and predictions by id; they must match one to one.

use std::collections::HashMap;

use engram_textfile::{UniqueIds, shortened};

use super::{GoldRow, Prediction};
use crate::error::{EvalError, Location};

/// The common fields of gold rows and predictions.
pub(super) trait Row {
    fn id(&self) -> &str;
    fn score(&self) -> f64;
    fn line(&self) -> Option<u64>;
}

impl Row for GoldRow {
    fn id(&self) -> &str {
        &self.id
    }
    fn score(&self) -> f64 {
        self.score
    }
    fn line(&self) -> Option<u64> {
        self.line
    }
}

impl Row for Prediction {
    fn id(&self) -> &str {
        &self.id
    }
    fn score(&self) -> f64 {
        self.score
    }
    fn line(&self) -> Option<u64> {
        self.line
    }
}

/// Indexes the rows by id. Checks that there are rows, that ids are present and unique, and that
/// scores are finite.
pub(super) fn checked_index<'a, R: Row>(
    rows: &'a [R],
    file: &str,
) -> Result<HashMap<&'a str, &'a R>, EvalError> {
    if rows.is_empty() {
        return Err(EvalError::Empty { file: file.to_owned() });
    }
    let mut ids = UniqueIds::with_capacity(rows.len());
    for row in rows {
        let location = Location::new(file, row.line());
        ids.add(row.id(), location.clone())?;
        if !row.score().is_finite() {
            let (id, score) = (shortened(row.id(), 60), row.score());
            let reason = format!("id `{id}`: score `{score}` is not a finite number");
            return Err(EvalError::Malformed { location, reason, remedy: "give a finite score" });
        }
    }
    let index = rows.iter().map(|row| (row.id(), row)).collect();
    Ok(index)
}

/// Returns the predicted score of each gold row, in gold order.
pub(super) fn join(
    gold: &[GoldRow],
    gold_file: &str,
    predictions: &[Prediction],
    predictions_file: &str,
) -> Result<Vec<f64>, EvalError> {
    let gold_index = checked_index(gold, gold_file)?;
    let prediction_index = checked_index(predictions, predictions_file)?;

    let mut missing = gold.iter().filter(|row| !prediction_index.contains_key(row.id.as_str()));
    if let Some(first) = missing.next() {
        return Err(EvalError::MissingPrediction {
            predictions: predictions_file.to_owned(),
            gold: Location::new(gold_file, first.line),
            id: shortened(&first.id, 60),
            missing: 1 + missing.count(),
            rows: gold.len(),
        });
    }
    let mut extra = predictions.iter().filter(|row| !gold_index.contains_key(row.id.as_str()));
    if let Some(first) = extra.next() {
        return Err(EvalError::ExtraPrediction {
            location: Location::new(predictions_file, first.line),
            gold: gold_file.to_owned(),
            id: shortened(&first.id, 60),
            extra: 1 + extra.count(),
            rows: predictions.len(),
        });
    }
    Ok(gold.iter().map(|row| prediction_index[row.id.as_str()].score).collect())
}
