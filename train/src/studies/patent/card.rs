//! The model card of an ensemble.

use super::NAME;
use super::run::PatentSummary;
use super::study::COMMAND;
use crate::card::{Card, USAGE};
use crate::error::Result;
use crate::recipe::Recipe;
use crate::study::Inputs;

/// The text of the model card, for a run with folds.
pub(super) fn of_ensemble(
    summary: &PatentSummary,
    recipe: &Recipe,
    inputs: &Inputs,
) -> Result<String> {
    let mut card = Card::new("An ensemble of the study `patent`");
    if let Some(interval) = &summary.held_out.interval {
        card.row("intervals", &format!("{:.0} %, {}", interval.level * 100.0, interval.method));
    }
    if summary.mean.is_some() {
        card.row("combination", "stacked on the held-out rows");
    }
    for warning in &summary.warnings {
        card.row("warning", warning);
    }
    card.row(USAGE, COMMAND);
    card.row("members", &summary.members.len().to_string());
    card.rows_of_run(recipe)?;
    card.rows_of_inputs(inputs);
    card.append(
        "\nA member's held-out rows are those of its fold. `held_out.csv` has the scores of all \
         held-out rows, `validation.csv` the ensemble's scores of the validation rows.\n",
    );
    card.finish(recipe, NAME)
}
