//! The model card that every finished run leaves as `README.md`.

use std::fmt::Write;
use std::fs;

use serde_json::Value;

use crate::error::{Result, TrainError};
use crate::recipe::Recipe;
use crate::study::Study;
use crate::trainer::RunSummary;

/// The card's text.
pub(crate) fn write<S: Study>(study: &S, recipe: &Recipe, summary: &RunSummary) -> Result<String> {
    let metric = study.primary_metric();
    let direction = if metric.higher_is_better { "higher" } else { "lower" };
    let mut card = format!("# A model of the study `{}`\n\n", study.name());
    let mut row = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(card, "| {name} | {} |", value.replace('|', "\\|").replace('\n', " "));
    };
    row("fact", "value");
    row("---", "---");
    if let Some((value, step)) = summary.best {
        let figure = format!("{value:.6} at step {step} ({direction} is better)");
        row(&format!("best {} of the last phase", metric.name), &figure);
    }
    for (name, count) in summary.last_evaluation.iter().flat_map(|e| &e.counts) {
        row(&format!("count of {name}"), &count.to_string());
    }
    for (name, value) in study.card() {
        row(&name, &value);
    }
    row("steps", &summary.steps.to_string());
    row("seed", &recipe.seed().to_string());
    row("recipe hash (SHA-256 of the resolved form)", &summary.recipe_hash);
    row("threads", &rayon::current_num_threads().to_string());
    row("engram-train", env!("CARGO_PKG_VERSION"));
    row("machine", &format!("{} {}", std::env::consts::OS, std::env::consts::ARCH));
    card.push_str("\n## Evaluations\n\n");
    card.push_str(&evaluations(summary)?);
    let name = study.name();
    let _ = write!(
        card,
        "\n## How to reproduce\n\n```\nengram train {name} --recipe recipe.toml --run AGAIN\n```\n\n\
         with the resolved recipe of this folder:\n\n```toml\n{}```\n",
        recipe.resolved()?
    );
    Ok(card)
}

/// A table of all evaluations, from `metrics.jsonl`.
fn evaluations(summary: &RunSummary) -> Result<String> {
    let path = summary.run.join("metrics.jsonl");
    let text = fs::read_to_string(&path).map_err(TrainError::io(&path))?;
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut table = String::new();
    let mut header = Vec::new();
    for line in lines.filter(|line| line["kind"] == "evaluation") {
        let Some(line) = line.as_object() else { continue };
        let shown = line.iter().filter(|(name, _)| *name != "kind" && !name.starts_with("count/"));
        let (names, values): (Vec<&String>, Vec<&Value>) = shown.unzip();
        if names != header.iter().collect::<Vec<_>>() {
            header = names.into_iter().cloned().collect();
            let rule = vec!["---"; header.len()].join(" | ");
            let _ = write!(table, "\n| {} |\n| {rule} |\n", header.join(" | "));
        }
        let cells: Vec<String> = values.into_iter().map(cell).collect();
        let _ = writeln!(table, "| {} |", cells.join(" | "));
    }
    Ok(table.trim_start().to_string())
}

fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => {
            number.as_f64().map_or_else(String::new, |number| format!("{number:.6}"))
        }
        other => other.to_string(),
    }
}
