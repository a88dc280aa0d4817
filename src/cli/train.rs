//! `engram train`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use engram_eval::result::Measure;
use engram_train::studies::patent::figure::in_words;
use engram_train::studies::patent::run::{PatentSummary, train_patent};
use engram_train::studies::reveal::run::train_reveal;
use engram_train::{Recipe, RecipeOptions, RunOptions};
use serde::Serialize;

use super::{Outcome, output};

/// Train a study by a recipe.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram train patent --recipe train/recipes/patent/minilm.toml \\
      --set data.dir=patent-data --run runs/p1
  engram train patent --recipe train/recipes/patent/minilm.toml \\
      --set data.dir=patent-data --run runs/p1 --resume
  engram train patent --recipe train/recipes/patent/minilm.toml --tiny --run runs/try")]
pub struct Train {
    /// The study
    study: Study,
    /// The recipe, a TOML file
    #[arg(long, value_name = "FILE")]
    recipe: PathBuf,
    /// The run folder to write
    #[arg(long, value_name = "FOLDER")]
    run: PathBuf,
    /// Change a value of the recipe, for example `optimiser.learning_rate=2e-5` (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Go on with a run that was stopped, to the same bytes
    #[arg(long)]
    resume: bool,
    /// Use the recipe's `[tiny]` sizes: the same code in a minute or two
    #[arg(long)]
    tiny: bool,
    /// Show no progress
    #[arg(long)]
    quiet: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// A study that can be trained.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Study {
    /// Patent phrase similarity
    Patent,
    /// Answers about pictures out of a memory
    Reveal,
}

impl Train {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        let options = RecipeOptions { tiny: self.tiny, set: self.set };
        let mut recipe = Recipe::load(&self.recipe, &options)?;
        let options = RunOptions {
            run: self.run,
            resume: self.resume,
            quiet: self.quiet,
            ..RunOptions::default()
        };
        let summary = match self.study {
            Study::Patent => train_patent(&mut recipe, &options)?,
            Study::Reveal => {
                train_reveal(&mut recipe, &options)?;
                return Ok(Outcome::Done);
            }
        };
        let Some(summary) = summary else {
            return Ok(Outcome::CheckFailed);
        };
        if self.json {
            let threads = rayon::current_num_threads();
            output::print_json(&TrainReport { threads, summary: &summary })?;
        } else {
            output::print(&text(&summary))?;
        }
        let failed = !summary.check_failures.is_empty();
        Ok(if failed { Outcome::CheckFailed } else { Outcome::Done })
    }
}

/// The summary with what it does not depend on.
#[derive(Serialize)]
struct TrainReport<'a> {
    threads: usize,
    #[serde(flatten)]
    summary: &'a PatentSummary,
}

/// The summary as a table.
fn text(summary: &PatentSummary) -> String {
    let words = |figure: &Option<Measure>| figure.as_ref().map_or("-".to_string(), in_words);
    let names = summary.members.iter().map(|member| member.run.display().to_string().len());
    let width = names.max().unwrap_or(0).max(10);
    let row = |name: &str, steps: &str, held_out: &str, validation: &str| {
        format!("{name:<width$} {steps:>7}  {held_out:<24}  {validation}")
    };
    let mut lines = vec![row("member", "steps", "held-out r", "validation r")];
    for member in &summary.members {
        let (name, steps) = (member.run.display().to_string(), member.steps.to_string());
        let validation = words(&member.validation);
        lines.push(row(&name, &steps, &in_words(&member.held_out), &validation));
    }
    for variant in &summary.variants {
        let validation = words(&variant.validation);
        lines.push(row(&variant.name, "", &in_words(&variant.held_out), &validation));
    }
    if let Some(mean) = &summary.mean {
        let validation = words(&mean.validation);
        lines.push(row("their mean", "", &in_words(&mean.held_out), &validation));
    }
    let validation = words(&summary.validation);
    lines.push(row("all", "", &in_words(&summary.held_out), &validation));
    lines.push(format!(
        "rows: {} held out, {} validation; seed {}; recipe {}",
        summary.held_out.n,
        summary.validation.as_ref().map_or(0, |figure| figure.n),
        summary.seed,
        summary.recipe_hash.get(..12).unwrap_or(&summary.recipe_hash)
    ));
    for warning in &summary.warnings {
        lines.push(format!("warning: {warning}"));
    }
    for failure in &summary.check_failures {
        lines.push(format!("check failed: {failure}"));
    }
    lines.join("\n")
}
