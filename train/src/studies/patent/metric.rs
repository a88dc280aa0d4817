//! Pearson's r of scored rows with its interval, as in `engram eval phrase`.

use engram_data::patent::PhrasePair;
use engram_eval::EvalError;
use engram_eval::phrase::{GoldRow, PhraseOptions, Prediction, measure};
use engram_eval::result::Measure;

/// Pearson's r between `scores` and the rows' gold scores. The interval resamples whole anchors.
///
/// # Errors
/// [`EvalError`] if there are fewer than two rows, or a row has no score.
pub fn pearson_measure(rows: &[PhrasePair], scores: &[f64]) -> Result<Measure, EvalError> {
    let gold: Vec<GoldRow> = rows
        .iter()
        .map(|row| GoldRow {
            id: row.id.clone(),
            anchor: row.anchor.clone(),
            target: row.target.clone(),
            context: row.context.clone(),
            score: row.score.map_or(f64::NAN, f64::from),
            rating: row.rating.clone(),
            line: None,
        })
        .collect();
    let prediction = |(row, score): (&PhrasePair, &f64)| Prediction {
        id: row.id.clone(),
        score: *score,
        line: None,
    };
    let predictions: Vec<Prediction> = rows.iter().zip(scores).map(prediction).collect();
    measure(&gold, &predictions, &PhraseOptions::default())
}
