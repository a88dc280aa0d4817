//! `engram train`.

mod plots;
mod tables;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use engram_train::studies::avformer::run::train_avformer;
use engram_train::studies::clip::run::train_clip;
use engram_train::studies::patent::run::train_patent;
use engram_train::studies::reveal::run::train_reveal;
use engram_train::studies::speech::run::train_speech;
use engram_train::{Recipe, RecipeOptions, RunOptions, Stop};
use serde::Serialize;

use super::interrupt::Interrupt;
use super::transcribe::OnError;
use super::{Outcome, output};
pub(super) use tables::corrected_word_text;

/// Train a model as a recipe describes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram train patent --recipe train/recipes/patent/minilm.toml \\
      --set data.dir=patent-data --run runs/p1
  engram train patent --recipe train/recipes/patent/minilm.toml \\
      --set data.dir=patent-data --run runs/p1 --resume
  engram train patent --recipe train/recipes/patent/minilm.toml --tiny --run runs/try
  engram train reveal --recipe train/recipes/reveal/laptop.toml --run runs/r1
  engram train speech --recipe train/recipes/speech/tiny.toml --run runs/s1
  engram train clip --recipe train/recipes/clip/tiny.toml --run runs/clip
  engram train avformer --recipe train/recipes/avformer/tiny.toml --run runs/a1 \\
      --set model.asr_model=whisper-tiny.en --set model.image_encoder=runs/clip")]
pub struct Train {
    /// The study
    study: Study,
    /// The recipe (TOML)
    #[arg(long, value_name = "FILE")]
    recipe: PathBuf,
    /// Output folder of the run
    #[arg(long, value_name = "FOLDER")]
    run: PathBuf,
    /// Change a value in the recipe, for example `optimiser.learning_rate=2e-5` (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// AVFormer: how to treat clips whose audio or image files cannot be decoded; sets the recipe's
    /// data.on_error
    #[arg(long, value_name = "ACTION")]
    on_error: Option<OnError>,
    /// Continue a stopped run (Ctrl-C stops a run after a checkpoint). The result is byte-identical
    /// to a run without a stop
    #[arg(long)]
    resume: bool,
    /// Use the recipe's `[tiny]` sizes: trains in a minute or two
    #[arg(long)]
    tiny: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// A study that can be trained.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Study {
    /// Patent phrase similarity
    Patent,
    /// Visual question answering with a retrieval memory (REVEAL)
    Reveal,
    /// Speech recognition (ASR)
    Speech,
    /// A frozen ASR model with added image input (AVFormer)
    Avformer,
    /// An image encoder, trained as CLIP
    Clip,
}

impl Train {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        let interrupt = Interrupt::watch(Some(self.run.clone()))?;
        interrupt.finish(self.train(interrupt.stop()))
    }

    fn train(&self, stop: Stop) -> anyhow::Result<Outcome> {
        let mut set = self.set.clone();
        if let Some(action) = self.on_error {
            anyhow::ensure!(
                matches!(self.study, Study::Avformer),
                "--on-error is only for avformer; leave it out"
            );
            set.push(format!(
                "data.on_error={}",
                if action == OnError::Skip { "skip" } else { "stop" }
            ));
        }
        let options = RecipeOptions { tiny: self.tiny, set };
        let mut recipe = Recipe::load(&self.recipe, &options)?;
        let options = RunOptions {
            run: self.run.clone(),
            resume: self.resume,
            quiet: output::is_quiet(),
            stop,
            ..RunOptions::default()
        };
        if self.resume && !self.run.join("recipe.toml").is_file() {
            let note = format!("{}: no run to continue; starting a new run", self.run.display());
            output::warn(&note);
        }
        let summary = match self.study {
            Study::Patent => {
                let summary = train_patent(&mut recipe, &options)?;
                summary.map(|summary| (self.show(&summary, tables::patent), summary.check_failures))
            }
            Study::Reveal => {
                let summary = train_reveal(&mut recipe, &options)?;
                summary.map(|summary| (self.show(&summary, tables::reveal), summary.check_failures))
            }
            Study::Speech => {
                let summary = train_speech(&mut recipe, &options)?;
                summary.map(|summary| (self.show(&summary, tables::speech), summary.check_failures))
            }
            Study::Avformer => {
                let summary = train_avformer(&mut recipe, &options)?;
                if let Some(summary) = &summary {
                    plots::avformer(summary, &self.run)?;
                }
                summary
                    .map(|summary| (self.show(&summary, tables::avformer), summary.check_failures))
            }
            Study::Clip => {
                let summary = train_clip(&mut recipe, &options)?;
                summary.map(|summary| (self.show(&summary, tables::clip), summary.check_failures))
            }
        };
        let Some((printed, failures)) = summary else {
            return Ok(Outcome::CheckFailed);
        };
        printed?;
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

/// The summary with the number of threads, which does not change the results.
#[derive(Serialize)]
struct TrainReport<'a, T> {
    threads: usize,
    #[serde(flatten)]
    summary: &'a T,
}
