//! The table of phrase pairs of the patent study (arXiv 2208.01171): the Kaggle schema
//! `id,anchor,target,context,score` and the research schema with `rating`.
//!
//! Columns may be in any order and letter case; other columns are ignored. Without an `id` column,
//! the row number (from 1) is the id. Fields are trimmed.

use crate::{Input, Table, TextError, UniqueIds};

/// One pair of phrases in a context.
#[derive(Debug, Clone, PartialEq)]
pub struct PhraseRow {
    /// The id, unique in the file.
    pub id: String,
    /// The anchor phrase.
    pub anchor: String,
    /// The phrase compared with the anchor.
    pub target: String,
    /// The CPC class of the comparison, such as `A47`.
    pub context: String,
    /// The similarity, a finite number; `None` if the column is missing or the field is blank.
    pub score: Option<f64>,
    /// The rating class of the research release, such as `Hypernym`; `None` if the column is
    /// missing or the field is blank.
    pub rating: Option<String>,
    /// The first line of the row, from 1.
    pub line: u64,
}

/// Reads phrase pairs. With `is_scored`, each row must have a score.
///
/// # Errors   as [`Table::csv`], [`Table::column`] and [`Table::advance`];
/// [`TextError::EmptyField`]; [`TextError::DuplicateId`]; [`TextError::Malformed`] for a score that
/// is not a finite number
pub fn read_phrases(input: Input<'_>, is_scored: bool) -> Result<Vec<PhraseRow>, TextError> {
    let mut table = Table::csv(input)?;
    let id_column = table.optional_column("id")?;
    let [anchor, target, context] = table.columns(["anchor", "target", "context"])?;
    let rating = table.optional_column("rating")?;
    let score = match is_scored {
        true => Some(table.column("score")?),
        false => table.optional_column("score")?,
    };
    let (mut rows, mut ids) = (Vec::<PhraseRow>::new(), UniqueIds::with_capacity(0));
    while table.advance()? {
        let filled = |column| table.filled(column).map(str::to_owned);
        let id = match id_column {
            Some(column) => filled(column)?,
            None => (rows.len() + 1).to_string(),
        };
        ids.add(id.clone(), table.location())?;
        let is_filled = |column: &usize| !table.field(*column).trim().is_empty();
        rows.push(PhraseRow {
            id,
            anchor: filled(anchor)?,
            target: filled(target)?,
            context: filled(context)?,
            score: score
                .filter(|column| is_scored || is_filled(column))
                .map(|column| table.number(column))
                .transpose()?,
            rating: rating.filter(is_filled).map(filled).transpose()?,
            line: table.line(),
        });
    }
    Ok(rows)
}
