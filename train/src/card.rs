//! The model card (`README.md`) of a finished run.

use std::fmt::Write;
use std::io::ErrorKind;
use std::path::Path;

use engram_eval::result::Measure;
use serde::Deserialize;
use serde_json::Value;

use crate::checkpoint::write_file;
use crate::error::{Result, TrainError};
use crate::log::METRICS;
use crate::program::Program;
use crate::recipe::Recipe;
use crate::registry::format_measure;
use crate::study::{Inputs, Study};
use crate::trainer::RunSummary;

/// The name of the file.
pub(crate) const CARD: &str = "README.md";
/// The row with a command that uses the model; `RUN` stands for the run's folder.
pub(crate) const USAGE: &str = "how to use it (RUN is this folder)";
/// The heading of the results.
const RESULTS: &str = "\n## Results\n";
/// The heading of the command to reproduce the run.
const REPRODUCTION: &str = "\n## How to reproduce\n";

/// A model card under construction: a title, a table of facts, then appended text.
pub(crate) struct Card {
    text: String,
}

impl Card {
    /// A card with an empty table.
    pub(crate) fn new(title: &str) -> Self {
        Self { text: format!("# {title}\n\n| fact | value |\n| --- | --- |\n") }
    }

    /// Adds a row to the table.
    pub(crate) fn row(&mut self, name: &str, value: &str) {
        let value = value.replace('|', "\\|").replace('\n', " ");
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "| {name} | {value} |");
    }

    /// Adds seed, recipe hash, thread count, program and machine: scores can depend on them.
    pub(crate) fn rows_of_run(&mut self, recipe: &Recipe) -> Result<()> {
        self.row("seed", &recipe.seed.to_string());
        self.row("recipe hash (SHA-256 of the resolved form)", &recipe.hash()?);
        self.row("threads", &rayon::current_num_threads().to_string());
        let program = Program::running()?;
        self.row("engram-train", &program.version);
        self.row("SHA-256 of the program", &program.sha256);
        self.row("machine", &format!("{} {}", std::env::consts::OS, std::env::consts::ARCH));
        Ok(())
    }

    /// Adds the SHA-256 of each input.
    pub(crate) fn rows_of_inputs(&mut self, inputs: &Inputs) {
        for (name, hash) in inputs {
            self.row(&format!("SHA-256 of the {name}"), hash);
        }
    }

    /// Adds text below the table.
    pub(crate) fn append(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// The complete text, which ends with the command to reproduce a run of this study.
    pub(crate) fn finish(mut self, recipe: &Recipe, study: &str) -> Result<String> {
        let _ = write!(
            self.text,
            "{REPRODUCTION}\nIn the folder where this run was started, because relative paths of its \
             recipe start there:\n\n```\nengram train {study} --recipe RUN/recipe.toml --run \
             NEW_FOLDER\n```\n\nRUN is this folder. Its resolved recipe:\n\n```toml\n{}```\n",
            recipe.resolved()?
        );
        Ok(self.text)
    }
}

/// Adds the results of a finished run to its model card, if it has a card without them.
pub(crate) fn add_results(run: &Path, summary: &Value) -> Result<()> {
    let path = run.join(CARD);
    let text = match engram_durable::read_text(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        text => text.map_err(TrainError::io(&path))?,
    };
    let mut rows = String::new();
    add_measures("", summary, &mut rows);
    match text.split_once(REPRODUCTION) {
        Some((start, end)) if !rows.is_empty() && !start.contains(RESULTS) => {
            let text = format!(
                "{start}{RESULTS}\n| key of `summary.json` | metric | value [95 % interval] | n |\n\
                 | --- | --- | --- | --- |\n{rows}{REPRODUCTION}{end}"
            );
            write_file(&path, text.as_bytes())
        }
        _ => Ok(()),
    }
}

/// Adds a row for each measure at and below the dotted path `key`. Entries of lists have their
/// names, or else their positions.
fn add_measures(key: &str, value: &Value, rows: &mut String) {
    if let Ok(measure) = Measure::deserialize(value) {
        let (metric, n) = (&measure.metric, measure.n);
        let _ = writeln!(rows, "| {key} | {metric} | {} | {n} |", format_measure(&measure));
    } else if let Value::Object(fields) = value {
        fields.iter().for_each(|(name, value)| add_measures(&join(key, name), value, rows));
    } else if let Value::Array(entries) = value {
        for (i, entry) in entries.iter().enumerate() {
            let names = ["name", "questions", "metric", "run"].iter();
            // The only member of a run has the run's own folder.
            let name =
                names.filter_map(|field| entry.get(field)?.as_str()).find(|name| *name != ".");
            add_measures(&join(key, name.unwrap_or(&i.to_string())), entry, rows);
        }
    }
}

/// A dotted path with one more part.
fn join(path: &str, part: &str) -> String {
    if path.is_empty() { part.to_owned() } else { format!("{path}.{part}") }
}

/// The card of one run. `counts` are the numbers of values in all parameters and in the trainable
/// parameters; `None` omits them.
pub(crate) fn of_run<S: Study>(
    study: &S,
    recipe: &Recipe,
    summary: &RunSummary,
    counts: Option<(usize, usize)>,
    inputs: &Inputs,
) -> Result<String> {
    let metric = study.primary_metric();
    let direction = if metric.higher_is_better { "higher" } else { "lower" };
    let mut card = Card::new(&study.card_title());
    if let Some((value, step)) = summary.best {
        let best = format!("{value:.6} at step {step} ({direction} is better)");
        card.row(&format!("best {} of the last phase", metric.name), &best);
    }
    for (name, count) in summary.last_evaluation.iter().flat_map(|e| &e.counts) {
        card.row(&format!("count of {name}"), &count.to_string());
    }
    for (name, value) in study.card() {
        card.row(&name, &value);
    }
    if let Some((total, trainable)) = counts {
        card.row("parameters", &format!("{total}, of which {trainable} are trainable"));
    }
    card.row("steps", &summary.steps.to_string());
    card.rows_of_run(recipe)?;
    card.rows_of_inputs(inputs);
    card.append("\n## Evaluations\n\n");
    card.append(&evaluations(summary)?);
    card.finish(recipe, study.name())
}

/// A table of all evaluations, from `metrics.jsonl`.
fn evaluations(summary: &RunSummary) -> Result<String> {
    let path = summary.run.join(METRICS);
    let text = engram_durable::read_text(&path).map_err(TrainError::io(&path))?;
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut table = String::new();
    let mut header = Vec::new();
    for line in lines.filter(|line| line["kind"] == "evaluation") {
        let Some(line) = line.as_object() else { continue };
        let fields = line.iter().filter(|(name, _)| *name != "kind" && !name.starts_with("count/"));
        let (names, values): (Vec<&String>, Vec<&Value>) = fields.unzip();
        if names != header.iter().collect::<Vec<_>>() {
            header = names.into_iter().cloned().collect();
            let separator = vec!["---"; header.len()].join(" | ");
            let _ = write!(table, "\n| {} |\n| {separator} |\n", header.join(" | "));
        }
        let cells: Vec<String> = values.into_iter().map(cell).collect();
        let _ = writeln!(table, "| {} |", cells.join(" | "));
    }
    Ok(table.trim_start().to_string())
}

/// The text of a table cell.
fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => {
            number.as_f64().map_or_else(String::new, |number| format!("{number:.6}"))
        }
        other => other.to_string(),
    }
}
