//! CSV readers for gold scores and predictions.

use engram_textfile::phrases::{PhraseColumns, read_phrases};
use engram_textfile::{Input, Table};

use super::join::checked_ids;
use super::{GoldRow, Prediction};
use crate::error::EvalError;

/// Reads gold rows: columns `anchor`, `target`, `context`, `score`, and `id` and `rating` if
/// present (see [`engram_textfile::phrases`]).
///
/// # Errors
/// [`EvalError::Text`]
pub fn read_gold(input: Input<'_>) -> Result<Vec<GoldRow>, EvalError> {
    let rows = read_phrases(input, true, PhraseColumns::default())?.into_iter();
    Ok(rows
        .map(|row| GoldRow {
            id: row.id,
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
        let (id, score) = (table.required_field(id)?.to_owned(), table.number(score)?);
        rows.push(Prediction { id, score, line: Some(table.line()) });
    }
    checked_ids(table.file(), rows.iter().map(Prediction::fields))?;
    Ok(rows)
}
