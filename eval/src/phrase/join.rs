//! Joins gold rows and predictions by id; they must match one to one.

use engram_textfile::{UniqueIds, shortened};

use super::{GoldRow, Prediction};
use crate::error::{EvalError, Location, malformed, no_rows};
use crate::ids::{FileIds, join};

impl GoldRow {
    fn fields(&self) -> (&str, f64, Option<u64>) {
        (&self.id, self.score, self.line)
    }
}

impl Prediction {
    pub(super) fn fields(&self) -> (&str, f64, Option<u64>) {
        (&self.id, self.score, self.line)
    }
}

/// Checks that there are rows (id, score, line), that ids are present and unique, and that scores
/// are finite. Returns the ids.
pub(super) fn checked_ids<'a>(
    file: &'a str,
    rows: impl Iterator<Item = (&'a str, f64, Option<u64>)>,
) -> Result<FileIds<'a>, EvalError> {
    let (mut unique, mut ids) = (UniqueIds::with_capacity(0), Vec::new());
    for (id, score, line) in rows {
        unique.add(id, Location::new(file, line))?;
        if !score.is_finite() {
            let id = shortened(id, 60);
            let reason = format!("id `{id}`: score `{score}` is not a finite number");
            return Err(malformed(file, line, reason, "give a finite score"));
        }
        ids.push((id, line));
    }
    if ids.is_empty() {
        return Err(no_rows(file));
    }
    Ok(FileIds { file, rows: ids })
}

/// Returns the predicted score of each gold row, in gold order.
pub(super) fn predicted_scores(
    gold: &[GoldRow],
    gold_file: &str,
    predictions: &[Prediction],
    predictions_file: &str,
) -> Result<Vec<f64>, EvalError> {
    let gold = checked_ids(gold_file, gold.iter().map(GoldRow::fields))?;
    let ids = checked_ids(predictions_file, predictions.iter().map(Prediction::fields))?;
    let joined = join(&gold, &ids, false)?;
    Ok(joined.into_iter().flatten().map(|index| predictions[index].score).collect())
}
