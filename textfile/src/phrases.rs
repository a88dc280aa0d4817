//! The table of phrase pairs of the patent study (arXiv 2208.01171): the Kaggle schema
//! `id,anchor,target,context,score` and the research schema with `rating`.
//!
//! Columns may be in any order and letter case; other columns are ignored. Without an `id` column,
//! the row number (from 1) is the id. Fields are trimmed, but not ids: predictions repeat them as
//! they are.

use crate::{Input, Table, TextError, UniqueIds};

/// Section letters and names of the CPC; the IPC has the same sections except Y.
pub const SECTIONS: [(char, &str); 9] = [
    ('A', "Human Necessities"),
    ('B', "Operations and Transport"),
    ('C', "Chemistry and Metallurgy"),
    ('D', "Textiles"),
    ('E', "Fixed Constructions"),
    ('F', "Mechanical Engineering"),
    ('G', "Physics"),
    ('H', "Electricity"),
    ('Y', "Emerging Cross-Sectional Technologies"),
];

/// One pair of phrases in a context.
#[derive(Debug, Clone, PartialEq)]
pub struct PhraseRow {
    /// The id, unique in the file.
    pub id: String,
    /// The anchor phrase.
    pub anchor: String,
    /// The phrase compared with the anchor.
    pub target: String,
    /// The CPC class of the comparison, such as `A47`; empty if [`PhraseColumns::context`] is
    /// `None`.
    pub context: String,
    /// The similarity, a finite number; `None` if the column is missing or the field is blank.
    pub score: Option<f64>,
    /// The rating class of the research release, such as `Hypernym`; `None` if the column is
    /// missing or the field is blank.
    pub rating: Option<String>,
    /// The first line of the row, from 1.
    pub line: u64,
}

/// The names of the columns of phrase pairs. The default is the Kaggle schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhraseColumns<'a> {
    /// The column of anchors.
    pub anchor: &'a str,
    /// The column of targets.
    pub target: &'a str,
    /// The column of contexts; with `None`, all contexts are empty.
    pub context: Option<&'a str>,
    /// The column of scores.
    pub score: &'a str,
}

impl Default for PhraseColumns<'static> {
    fn default() -> Self {
        Self { anchor: "anchor", target: "target", context: Some("context"), score: "score" }
    }
}

/// Reads phrase pairs. If `requires_score` is true, each row must have a score.
///
/// # Errors
/// as [`Table::csv`], [`Table::column`] and [`Table::advance`];
/// [`TextError::EmptyField`] for a blank id, anchor, target, context or required score;
/// [`TextError::DuplicateId`]; [`TextError::Malformed`] for a score that is not a finite number
pub fn read_phrases(
    input: Input<'_>,
    requires_score: bool,
    columns: PhraseColumns<'_>,
) -> Result<Vec<PhraseRow>, TextError> {
    let mut table = Table::csv(input)?;
    let id_column = table.optional_column("id")?;
    let [anchor, target] = table.columns([columns.anchor, columns.target])?;
    let context = columns.context.map(|name| table.column(name)).transpose()?;
    let rating = table.optional_column("rating")?;
    let score = if requires_score {
        Some(table.column(columns.score)?)
    } else {
        table.optional_column(columns.score)?
    };
    let (mut rows, mut ids) = (Vec::<PhraseRow>::new(), UniqueIds::with_capacity(0));
    while table.advance()? {
        let required = |column| table.required_field(column).map(str::to_owned);
        let id = match id_column {
            Some(column) => {
                table.required_field(column)?;
                table.field(column).to_owned()
            }
            None => (rows.len() + 1).to_string(),
        };
        ids.add(id.clone(), table.location())?;
        let is_filled = |column: &usize| !table.field(*column).trim().is_empty();
        rows.push(PhraseRow {
            id,
            anchor: required(anchor)?,
            target: required(target)?,
            context: context.map(required).transpose()?.unwrap_or_default(),
            score: score
                .filter(|column| requires_score || is_filled(column))
                .map(|column| table.number(column))
                .transpose()?,
            rating: rating.filter(is_filled).map(required).transpose()?,
            line: table.line(),
        });
    }
    Ok(rows)
}
