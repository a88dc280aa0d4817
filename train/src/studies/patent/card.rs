//! The model card of an ensemble.

use std::fmt::Write;

use super::figure::in_words;
use super::run::PatentSummary;
use crate::error::Result;
use crate::recipe::Recipe;
use crate::study::Inputs;

/// The card's text: `README.md` of a run with folds.
pub(super) fn of_ensemble(
    summary: &PatentSummary,
    recipe: &Recipe,
    inputs: &Inputs,
) -> Result<String> {
    let mut card =
        String::from("# An ensemble of the study `patent`\n\n| fact | value |\n| --- | --- |\n");
    let mut row = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(card, "| {name} | {value} |");
    };
    let metric = |what: &str| format!("{what}: Pearson's r, version {}", summary.held_out.version);
    row(&metric("held-out rows"), &in_words(&summary.held_out));
    row("count of held-out rows", &summary.held_out.n.to_string());
    if let Some(validation) = &summary.validation {
        row(&metric("validation rows, mean of the members"), &in_words(validation));
        row("count of validation rows", &validation.n.to_string());
    }
    if let Some(interval) = &summary.held_out.interval {
        row("intervals", &format!("{:.0} %, {}", interval.level * 100.0, interval.method));
    }
    for warning in &summary.warnings {
        row("warning", warning);
    }
    row("members", &summary.members.len().to_string());
    row("seed", &summary.seed.to_string());
    row("recipe hash (SHA-256 of the resolved form)", &summary.recipe_hash);
    row("threads", &rayon::current_num_threads().to_string());
    row("engram-train", env!("CARGO_PKG_VERSION"));
    row("machine", &format!("{} {}", std::env::consts::OS, std::env::consts::ARCH));
    for (name, hash) in inputs {
        row(&format!("SHA-256 of the {name}"), hash);
    }
    card.push_str("\n## Members\n\n| member | steps | held-out r | validation r |\n");
    card.push_str("| --- | --- | --- | --- |\n");
    for member in &summary.members {
        let validation = member.validation.as_ref().map_or("-".into(), in_words);
        let (run, held_out) = (member.run.display(), in_words(&member.held_out));
        let _ = writeln!(card, "| {run} | {} | {held_out} | {validation} |", member.steps);
    }
    let _ = write!(
        card,
        "\nEach member's held-out rows are those of its fold; their scores are in `held_out.csv`, \
         the ensemble's of the validation rows in `validation.csv`.\n\n## How to reproduce\n\n```\n\
         engram train patent --recipe recipe.toml --run AGAIN\n\
         engram predict AGAIN --input pairs.csv --output scores.csv\n```\n\n\
         with the resolved recipe of this folder:\n\n```toml\n{}```\n",
        recipe.resolved()?
    );
    Ok(card)
}
