//! `engram train`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use engram_train::studies::patent::run::{PatentSummary, train_patent};
use engram_train::{Recipe, RecipeOptions, RunOptions};

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
            stop_after_steps: None,
        };
        let summary = match self.study {
            Study::Patent => train_patent(&mut recipe, &options)?,
        };
        let Some(summary) = summary else {
            return Ok(Outcome::CheckFailed);
        };
        if self.json {
            output::print_json(&summary)?;
        } else {
            output::print(&text(&summary))?;
        }
        let failed = !summary.check_failures.is_empty();
        Ok(if failed { Outcome::CheckFailed } else { Outcome::Done })
    }
}

/// The summary as a table.
fn text(summary: &PatentSummary) -> String {
    let mut lines = vec!["member                    steps  held-out r  validation r".to_string()];
    for member in &summary.members {
        lines.push(format!(
            "{:<24} {:>6} {:>11.4} {:>13}",
            member.run.display(),
            member.steps,
            member.held_out_pearson,
            member.validation_pearson.map_or("-".to_string(), |r| format!("{r:.4}")),
        ));
    }
    let validation = summary.validation_pearson.map_or("-".to_string(), |r| format!("{r:.4}"));
    lines.push(format!("{:<31} {:>11.4} {:>13}", "all", summary.held_out_pearson, validation));
    lines.push(format!(
        "rows: {} held out, {} validation; seed {}; recipe {}",
        summary.held_out_rows,
        summary.validation_rows,
        summary.seed,
        summary.recipe_hash.get(..12).unwrap_or(&summary.recipe_hash)
    ));
    for failure in &summary.check_failures {
        lines.push(format!("check failed: {failure}"));
    }
    lines.join("\n")
}
