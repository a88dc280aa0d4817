//! `engram train`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use engram_eval::result::Measure;
use engram_train::studies::avformer::run::{AvformerSummary, train_avformer};
use engram_train::studies::patent::figure::in_words;
use engram_train::studies::patent::run::{PatentSummary, train_patent};
use engram_train::studies::reveal::needle::NeedleFigures;
use engram_train::studies::reveal::run::{RevealSummary, train_reveal};
use engram_train::studies::speech::run::{SpeechSummary, train_speech};
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
  engram train patent --recipe train/recipes/patent/minilm.toml --tiny --run runs/try
  engram train reveal --recipe train/recipes/reveal/laptop.toml --run runs/r1
  engram train speech --recipe train/recipes/speech/tiny.toml --run runs/s1")]
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
    /// A recogniser of speech
    Speech,
    /// Pictures for a frozen recogniser of speech
    Avformer,
}

impl Train {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        let options = RecipeOptions { tiny: self.tiny, set: self.set.clone() };
        let mut recipe = Recipe::load(&self.recipe, &options)?;
        let options = RunOptions {
            run: self.run.clone(),
            resume: self.resume,
            quiet: self.quiet,
            ..RunOptions::default()
        };
        if self.resume && !self.run.join("recipe.toml").is_file() {
            let note = format!("{}: no run to go on with; a new one begins", self.run.display());
            output::note(&note, false);
        }
        let summary = match self.study {
            Study::Patent => {
                let summary = train_patent(&mut recipe, &options)?;
                summary.map(|summary| (self.show(&summary, text), summary.check_failures))
            }
            Study::Reveal => {
                let summary = train_reveal(&mut recipe, &options)?;
                summary.map(|summary| (self.show(&summary, reveal_text), summary.check_failures))
            }
            Study::Speech => {
                let summary = train_speech(&mut recipe, &options)?;
                summary.map(|summary| (self.show(&summary, speech_text), summary.check_failures))
            }
            Study::Avformer => {
                let summary = train_avformer(&mut recipe, &options)?;
                summary.map(|summary| (self.show(&summary, avformer_text), summary.check_failures))
            }
        };
        let Some((shown, failures)) = summary else {
            return Ok(Outcome::CheckFailed);
        };
        shown?;
        Ok(if failures.is_empty() { Outcome::Done } else { Outcome::CheckFailed })
    }

    /// Prints a summary as JSON or as text.
    fn show<T: Serialize>(&self, summary: &T, text: fn(&T) -> String) -> anyhow::Result<()> {
        if self.json {
            let threads = rayon::current_num_threads();
            return output::print_json(&TrainReport { threads, summary });
        }
        output::print(&text(summary))
    }
}

/// The summary with what it does not depend on.
#[derive(Serialize)]
struct TrainReport<'a, T> {
    threads: usize,
    #[serde(flatten)]
    summary: &'a T,
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

/// A REVEAL run's figures as a table.
fn reveal_text(summary: &RevealSummary) -> String {
    let row = |name: &str, n: &str, figures: [&str; 3]| {
        let [exact, first, among] = figures;
        format!("{name:<22} {n:>5}  {exact:<24} {first:<24} {among}")
    };
    let mut lines = Vec::new();
    if !summary.figures.is_empty() {
        lines.push(row("test questions", "n", ["exact match", "recall@1", "recall@10"]));
    }
    for figures in &summary.figures {
        let words = [&figures.exact_match, &figures.recall_at_1, &figures.recall_at_10];
        let [exact, first, among] = words.map(in_words);
        let n = figures.exact_match.n.to_string();
        lines.push(row(&figures.questions, &n, [&exact, &first, &among]));
    }
    for judged in &summary.judged {
        let n = judged.measures.first().map_or(0, |measure| measure.n);
        lines.push(format!("test examples of {}: {n}", judged.name));
        for measure in &judged.measures {
            lines.push(format!("  {:<18} {}", measure.metric, in_words(measure)));
        }
    }
    if let Some(swap) = &summary.swap {
        let facts = format!("{} facts swapped in the memory", swap.facts);
        lines.push(format!("{facts}: answers follow {}", in_words(&swap.follow)));
        lines.push(format!(
            "  right before {}, still the old answer {}, either answer once deleted {}",
            in_words(&swap.before),
            in_words(&swap.stay),
            in_words(&swap.deleted)
        ));
    }
    for NeedleFigures { needles, others, accuracy, .. } in &summary.needles {
        let n = accuracy.n;
        let size = format!("haystack, {needles} of {}", needles + others);
        lines.push(format!("{size}: accuracy {} of {n}, chance 0.5", in_words(accuracy)));
    }
    lines.push(format!(
        "{} steps; seed {}; recipe {}",
        summary.steps,
        summary.seed,
        summary.recipe_hash.get(..12).unwrap_or(&summary.recipe_hash)
    ));
    lines.extend(summary.notes.iter().map(|note| format!("note: {note}")));
    lines.extend(summary.check_failures.iter().map(|failure| format!("check failed: {failure}")));
    lines.join("\n")
}

/// A recogniser's figures.
fn speech_text(summary: &SpeechSummary) -> String {
    let mut lines = Vec::new();
    if let Some(wer) = &summary.wer {
        lines.push(format!("test WER {} of {} utterances", in_words(wer), wer.n));
    }
    if let Some(errors) = &summary.names {
        lines.push(format!("  names {:.4}, other words {:.4}", errors.names, errors.others));
    }
    lines.push(format!(
        "{} steps; seed {}; recipe {}",
        summary.steps,
        summary.seed,
        summary.recipe_hash.get(..12).unwrap_or(&summary.recipe_hash)
    ));
    lines.extend(summary.check_failures.iter().map(|failure| format!("check failed: {failure}")));
    lines.join("\n")
}

/// The word error rates of an adapted recogniser.
fn avformer_text(summary: &AvformerSummary) -> String {
    let mut lines =
        vec![format!("{:<12} {:<10} {:>6}  {:<26} insertions", "utterances", "system", "n", "WER")];
    let test = &summary.test;
    for one in &test.systems {
        let (n, wer) = (one.wer.n, in_words(&one.wer));
        let (utterances, system) = (&one.utterances, &one.system);
        lines.push(format!(
            "{utterances:<12} {system:<10} {n:>6}  {wer:<26} {}",
            one.counts.insertions
        ));
    }
    for one in &test.differences {
        let [a, b] = &one.systems;
        let difference = in_words(&one.comparison.difference);
        lines.push(format!("{}: {a} less {b} {difference}", one.utterances));
    }
    if let Some([rescued, lost]) = test.rescued {
        lines.push(format!("words that the right frames rescue {rescued}, lose {lost}"));
    }
    if let Some(share) = test.put_in {
        lines.push(format!("clean clips with the name that wrong frames show: {share:.4}"));
    }
    for one in &test.sweep {
        let ratio = one.snr_db.map_or("clean".to_string(), |ratio| format!("{ratio} dB"));
        lines.push(format!(
            "{ratio:>8}: without frames {:.4}, right {:.4}, wrong {:.4} ({} clips)",
            one.nothing, one.right, one.wrong, one.n
        ));
    }
    let [trained, all] = summary.parameters;
    lines.push(format!(
        "{trained} numbers trained beside {all} frozen ({:.2} %), which stayed as they were",
        100.0 * trained as f64 / (trained + all).max(1) as f64
    ));
    lines.push(format!(
        "{} steps; seed {}; recipe {}",
        summary.steps,
        summary.seed,
        summary.recipe_hash.get(..12).unwrap_or(&summary.recipe_hash)
    ));
    lines.extend(summary.check_failures.iter().map(|failure| format!("check failed: {failure}")));
    lines.join("\n")
}
