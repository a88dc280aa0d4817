//! `engram train similarity`: a model for text pairs of a CSV, without a recipe file.
//!
//! The command writes a recipe of the study `patent` from its options and from the number of pairs.
//! The run folder has the complete recipe.

use std::fmt::Write as _;
use std::path::Path;

use clap::Args;
use engram_data::patent::PhrasePair;
use engram_eval::bootstrap::{BootstrapOptions, Resampling};
use engram_eval::compare::{Comparison, compare_pearson};
use engram_infer::encode::{Encoder, EncoderFiles};
use engram_infer::similarity::pairs::ScoreRange;
use engram_infer::similarity::run::SimilarityRun;
use engram_infer::similarity::zero_shot;
use engram_models::similarity::Pooling;
use engram_train::studies::patent::corpus::Corpus;
use engram_train::studies::patent::run::{PatentSummary, train_patent};
use engram_train::studies::patent::settings::PatentData;
use engram_train::{Recipe, RecipeOptions, RunOptions, Stop};
use serde::Serialize;

use super::super::paths::{InputPath, ModelName, NewFolder};
use super::super::{Outcome, output};
use super::column_names;
use super::ranks::RankSession;

/// The default sentence encoder, which the recipe `patent/minilm` also uses.
const DEFAULT_MODEL: &str = "hf://sentence-transformers/all-MiniLM-L6-v2";

/// Target number of optimiser steps. It determines the number of epochs (2 to 20).
const TARGET_STEPS: usize = 120;

/// Train a model that scores the similarity of two texts.
#[derive(Debug, Args)]
#[command(after_help = "\
The CSV has a header and one pair per row. Scores may have any range; predictions have the same
range. Pairs with the same first text are all trained on or all held out. Training starts from a
sentence encoder. The command compares the trained model with that encoder on the held-out pairs.

Examples:
  engram train similarity --csv pairs.csv --columns question,answer,rating --run runs/s
  engram score new_pairs.csv --model runs/s --out scores.csv
  engram train similarity --csv pairs.csv --run runs/s2 --set phase.train.epochs=20

runs/s/recipe.toml has all settings: `engram train patent --recipe runs/s/recipe.toml` repeats the
run. `engram recipe reference patent` describes the keys for --set.")]
pub(super) struct Similarity {
    /// Text pairs with scores: comma-separated values with a header
    #[arg(long, value_name = "FILE")]
    csv: InputPath,
    /// Columns of the first text, the second text and the score
    #[arg(long, value_name = "A,B,SCORE", default_value = "a,b,score", value_parser = parse_columns)]
    columns: [String; 3],
    /// The sentence encoder to start from: a folder, or hf://owner/name
    #[arg(long, value_name = "MODEL", default_value = DEFAULT_MODEL)]
    model: ModelName,
    /// Fraction of pairs to hold out for validation
    #[arg(long, value_name = "FRACTION", default_value_t = 0.2)]
    validation_fraction: f64,
    /// Seed of the split and of the training
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u32,
    /// Output folder of the run
    #[arg(long, value_name = "FOLDER")]
    pub(super) run: NewFolder,
    /// Change a value in the recipe, for example `optimiser.learning_rate=2e-5` (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Continue a stopped run
    #[arg(long)]
    resume: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// Parses the names of three columns.
fn parse_columns(text: &str) -> Result<[String; 3], String> {
    column_names(text, "give three names: first text, second text, score")
}

impl Similarity {
    pub(super) fn train(self, stop: Stop, session: &RankSession) -> anyhow::Result<Outcome> {
        let data = self.data();
        let mut corpus = Corpus::load(&data)?;
        let options = RecipeOptions { tiny: false, set: self.set.clone() };
        let text = self.recipe(&data, corpus.train.len(), &EncoderFiles::find(&self.model)?)?;
        let mut recipe =
            Recipe::parse(&text, Path::new("the recipe of `train similarity`"), &options)?;
        let changed_data: PatentData = recipe.data()?;
        if changed_data != data {
            corpus = Corpus::load(&changed_data)?;
        }
        let compute = recipe.compute()?;
        let validation = &corpus.validation;
        let encoder = Encoder::open(&self.model, &compute)?;
        let untrained = zero_shot::encoder_cosines(&encoder, validation, &|_| {})?;
        drop(encoder);
        let options = RunOptions {
            run: session.run_folder(&self.run),
            resume: self.resume,
            quiet: output::is_quiet(),
            stop,
            ranks: session.ranks(),
            ..RunOptions::default()
        };
        let summary = train_patent(&mut recipe, &options)?;
        let trained = SimilarityRun::open(&self.run, &compute)?.predict(validation, &|_| {})?;
        let report = Report {
            pairs: corpus.train.len() + validation.len(),
            training_pairs: corpus.train.len(),
            validation_pairs: validation.len(),
            range: corpus.range,
            comparison: compare(validation, &trained, &untrained)?,
            summary,
        };
        output::print_report(self.json, &report, || report.to_text(&self.run))?;
        let failed = !report.summary.check_failures.is_empty();
        Ok(if failed { Outcome::CheckFailed } else { Outcome::Done })
    }

    fn data(&self) -> PatentData {
        let mut data =
            PatentData { folds: 0, fold_seed: self.seed.into(), ..PatentData::default() };
        [data.pairs.anchor, data.pairs.target, data.pairs.score] = self.columns.clone();
        data.pairs.file = self.csv.display().to_string();
        data.pairs.validation_fraction = self.validation_fraction;
        data
    }

    /// The recipe for this number of training pairs and this encoder.
    fn recipe(
        &self,
        data: &PatentData,
        pairs: usize,
        encoder: &EncoderFiles,
    ) -> anyhow::Result<String> {
        let batch = if pairs < 2000 { 32 } else { 64 };
        let steps_per_epoch = pairs.div_ceil(batch).max(1);
        let epochs = TARGET_STEPS.div_ceil(steps_per_epoch).clamp(2, 20);
        let pairs = toml::to_string(&data.pairs)?;
        let (seed, model) = (self.seed, toml::Value::from(&*self.model));
        let max_tokens = encoder.config.max_tokens().min(256);
        if encoder.pooling.is_none() {
            output::note("the encoder's pooling cannot be trained; mean pooling is used");
        }
        let pooling = toml::Value::try_from(encoder.pooling.unwrap_or(Pooling::Mean))?;
        Ok(format!(
            "study = \"patent\"
seed = {seed}

[data]
folds = 0
fold_seed = {seed}

[data.pairs]
{pairs}
[model]
weights = {model}
layout = \"bi_encoder\"
group = \"row\"
context_title = false
max_tokens = {max_tokens}
pooling = {pooling}
loss = \"cosent\"
passes = 1

[batch]
examples = {batch}

[optimiser]
learning_rate = 5e-5

[schedule]
kind = \"linear\"
warmup_fraction = 0.1

[evaluation]
every_epochs = 0
keep_best = false

[[phase]]
name = \"train\"
epochs = {epochs}

[check]
files = [\"model.safetensors\", \"README.md\", \"metrics.jsonl\"]
"
        ))
    }
}

/// Compares the trained model with its encoder; intervals resample first texts.
fn compare(pairs: &[PhrasePair], trained: &[f64], untrained: &[f64]) -> anyhow::Result<Comparison> {
    let gold: Vec<f64> = pairs.iter().map(|pair| pair.score.map_or(f64::NAN, f64::from)).collect();
    let anchors: Vec<&str> = pairs.iter().map(|pair| pair.anchor.as_str()).collect();
    let resampling = Resampling::by_group("first text", &anchors);
    let options = BootstrapOptions::default();
    let mut comparison = compare_pearson(&gold, trained, untrained, &resampling, &options)?;
    comparison.systems = ["trained", "untrained encoder"].map(str::to_owned);
    Ok(comparison)
}

/// The results of the command.
#[derive(Serialize)]
struct Report {
    pairs: usize,
    training_pairs: usize,
    validation_pairs: usize,
    /// The range of the training scores, which is also the range of predictions. `None`
    /// without a file of pairs.
    range: Option<ScoreRange>,
    comparison: Comparison,
    summary: PatentSummary,
}

impl Report {
    fn to_text(&self, run: &Path) -> String {
        let Self { pairs, training_pairs, validation_pairs, comparison, .. } = self;
        let mut text = format!(
            "{pairs} pairs: {training_pairs} for training, {validation_pairs} for validation, with \
             different first texts\n"
        );
        if let Some(ScoreRange { minimum, maximum }) = self.range {
            let _ = writeln!(
                text,
                "Scores from {minimum} to {maximum} were scaled to 0 to 1; predictions are scaled \
                 back."
            );
        }
        let _ = writeln!(text, "\n{}\n{}", comparison.to_text().trim_end(), verdict(comparison));
        for warning in &self.summary.warnings {
            let _ = writeln!(text, "warning: {warning}");
        }
        for failure in &self.summary.check_failures {
            let _ = writeln!(text, "check failed: {failure}");
        }
        let run = run.display();
        text + &format!("Score other pairs: engram score pairs.csv --model {run} --out scores.csv")
    }
}

/// Whether training helped, in one sentence.
fn verdict(comparison: &Comparison) -> &'static str {
    let difference = &comparison.difference;
    let interval = difference.interval.as_ref();
    match interval {
        _ if difference.value.is_nan() => {
            "The comparison is undefined: the validation pairs are too few. Give more pairs, or hold \
             out a larger fraction (--validation-fraction)."
        }
        Some(interval) if interval.low > 0.0 => {
            "The trained model is better than the untrained encoder on the validation pairs."
        }
        Some(interval) if interval.high < 0.0 => {
            "The trained model is worse than the untrained encoder. Use the encoder, or give more \
             pairs."
        }
        _ if difference.value > 0.0 => {
            "The trained model scores higher, but the interval of the difference contains 0: these \
             pairs do not show that training helps. Give more pairs to decide."
        }
        _ => {
            "The trained model does not beat the untrained encoder on the validation pairs. Give \
             more pairs, or use the encoder."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_need_three_names() {
        let expected = ["x", "y z", "w"].map(str::to_owned);
        assert_eq!(parse_columns("x, y z,w"), Ok(expected));
        for bad in ["", "a,b", "a,b,c,d", "a,,c"] {
            assert!(parse_columns(bad).is_err(), "{bad}");
        }
    }
}
