//! The model card of an ensemble.

use std::fmt::Write;

use super::run::PatentSummary;
use super::study::COMMAND;
use crate::card::{Card, USAGE};
use crate::error::Result;
use crate::recipe::Recipe;
use crate::registry::format_measure;
use crate::study::Inputs;

/// The text of the model card, for a run with folds.
pub(super) fn of_ensemble(
    summary: &PatentSummary,
    recipe: &Recipe,
    inputs: &Inputs,
) -> Result<String> {
    let mut card = Card::new("An ensemble of the study `patent`");
    let metric = |what: &str| format!("{what}: Pearson's r, version {}", summary.held_out.version);
    card.row(&metric("held-out rows"), &format_measure(&summary.held_out));
    card.row("count of held-out rows", &summary.held_out.n.to_string());
    if let Some(validation) = &summary.validation {
        card.row(&metric("validation rows, all members"), &format_measure(validation));
        card.row("count of validation rows", &validation.n.to_string());
    }
    if let Some(interval) = &summary.held_out.interval {
        card.row("intervals", &format!("{:.0} %, {}", interval.level * 100.0, interval.method));
    }
    if let Some(mean) = &summary.mean {
        card.row("combination", "stacked on the held-out rows");
        card.row(
            "held-out rows: Pearson's r of the weighted mean",
            &format_measure(&mean.held_out),
        );
        if let Some(validation) = &mean.validation {
            card.row(
                "validation rows: Pearson's r of the weighted mean",
                &format_measure(validation),
            );
        }
    }
    for variant in &summary.variants {
        let held_out = format!("{} (held-out)", format_measure(&variant.held_out));
        let validation = variant
            .validation
            .as_ref()
            .map(|measure| format!(", {} (validation)", format_measure(measure)));
        let measures = held_out + &validation.unwrap_or_default();
        let name = format!("variant {}, weight {}: Pearson's r", variant.name, variant.weight);
        card.row(&name, &measures);
    }
    for warning in &summary.warnings {
        card.row("warning", warning);
    }
    card.row(USAGE, COMMAND);
    card.row("members", &summary.members.len().to_string());
    card.rows_of_run(recipe)?;
    card.rows_of_inputs(inputs);
    let mut members =
        String::from("\n## Members\n\n| member | steps | held-out r | validation r |\n");
    members.push_str("| --- | --- | --- | --- |\n");
    for member in &summary.members {
        let validation = member.validation.as_ref().map_or("-".into(), format_measure);
        let (run, held_out) = (member.run.display(), format_measure(&member.held_out));
        // Writing to a string cannot fail.
        let _ = writeln!(members, "| {run} | {} | {held_out} | {validation} |", member.steps);
    }
    card.append(&members);
    card.append(
        "\nA member's held-out rows are those of its fold. `held_out.csv` has the scores of all \
         held-out rows, `validation.csv` the ensemble's scores of the validation rows.\n",
    );
    card.finish(recipe, "engram train patent --recipe recipe.toml --run NEW_FOLDER")
}
