//! Reads gold scores and predictions from CSV, and joins them by id; they must match one to one.

use engram_textfile::phrases::{PhraseColumns, read_phrases};
use engram_textfile::{Input, Table, UniqueIds, shortened, with_formula};

use super::{GoldRow, Prediction};
use crate::error::{EvalError, Location, malformed, no_rows};
use crate::ids::{FileIds, join};

/// Reads gold rows: columns `anchor`, `target`, `context`, `score`, and `id` and `rating` if
/// present (see [`engram_textfile::phrases`]).
///
/// # Errors
/// [`EvalError::Text`]
pub fn read_gold(input: Input<'_>) -> Result<Vec<GoldRow>, EvalError> {
    let rows = read_phrases(input, true, PhraseColumns::default())?.into_iter();
    Ok(rows
        .map(|row| GoldRow {
            id: row.id.trim().to_owned(),
            anchor: row.anchor,
            target: row.target,
            context: row.context,
            score: row.score.unwrap_or(f64::NAN),
            rating: row.rating,
            line: Some(row.line),
        })
        .collect())
}

/// Reads predictions: columns `id` and `score`; other columns are ignored.
///
/// # Errors
/// [`EvalError::Text`]
pub fn read_predictions(input: Input<'_>) -> Result<Vec<Prediction>, EvalError> {
    let mut table = Table::csv(input)?;
    let [id, score] = table.columns(["id", "score"])?;
    let mut rows = Vec::new();
    while table.advance()? {
        let (id, score) = (with_formula(table.required_field(id)?), table.number(score)?);
        let id = id.to_owned();
        rows.push(Prediction { id, score, line: Some(table.line()) });
    }
    checked_ids(table.file(), rows.iter().map(Prediction::fields))?;
    Ok(rows)
}

impl Prediction {
    fn fields(&self) -> (&str, f64, Option<u64>) {
        (&self.id, self.score, self.line)
    }
}

/// Checks that there are rows (id, score, line), that ids are present and unique, and that scores
/// are finite. Returns the ids.
fn checked_ids<'a>(
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
    let gold = checked_ids(gold_file, gold.iter().map(|row| (&*row.id, row.score, row.line)))?;
    let ids = checked_ids(predictions_file, predictions.iter().map(Prediction::fields))?;
    let joined = join(&gold, &ids, false)?;
    Ok(joined.into_iter().flatten().map(|index| predictions[index].score).collect())
}
