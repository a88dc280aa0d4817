//! Training of the patent study: one run, or the members of an ensemble.
//!
//! A run with folds has one folder per member: `fold-0`, `fold-1`, … If the recipe has variants,
//! each fold has a member per variant: `fold-0-NAME`. Each member is a training run that can be
//! resumed. A run without folds is its own only member.
//!
//! A member's folder also has `config.json`, `tokenizer.json`, `titles.tsv` and `calibration.json`,
//! so that the member can predict on another machine. The run's folder has `summary.json`, the
//! model card `README.md`, and the scores from which the metrics are computed: `held_out.csv` and
//! `validation.csv`, also per variant. With stacking it has `stacking.json`.

use std::path::PathBuf;
use std::sync::Arc;

use engram_data::DataError;
use engram_eval::result::Measure;
use engram_infer::encode::EncoderFiles;
use engram_infer::similarity::combination::Combination;
use engram_infer::similarity::sequences::Sequencer;
use engram_infer::similarity::settings::ScorerSettings;
use serde::{Deserialize, Serialize};

use super::NAME;
use super::card;
use super::corpus::Corpus;
use super::encoder::find_files;
use super::member;
use super::pairs;
use super::results::{MemberScores, Results};
use super::settings::PatentData;
use super::study::PatentStudy;
use crate::card::CARD;
use crate::checkpoint::write_file;
use crate::checksums::finish_run;
use crate::error::{Result, TrainError};
use crate::log;
use crate::recipe::{Recipe, Variant};
use crate::run_folder::RunFolder;
use crate::trainer::{RunOptions, train, train_in};

/// The results of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PatentSummary {
    /// The SHA-256 of the resolved recipe.
    pub recipe_hash: String,
    /// The seed.
    pub seed: u64,
    /// How the members' scores are combined.
    pub combine: Combination,
    /// The metrics of each member.
    pub members: Vec<MemberSummary>,
    /// The metrics of each of the recipe's variants, if it has any.
    pub variants: Vec<VariantSummary>,
    /// Pearson's r of the ensemble over the held-out rows of all folds. Each row is scored by the
    /// members not trained on it, with a calibration that does not use the row's gold score. The
    /// value is somewhat too high if `evaluation.keep_best` selects the checkpoint on these rows.
    pub held_out: Measure,
    /// Pearson's r of the ensemble on the validation rows, on which no member is trained. `None`
    /// for a run without folds: its validation rows are the held-out rows.
    pub validation: Option<Measure>,
    /// The metrics of the weighted mean of the scores, for comparison; `None` without stacking.
    pub mean: Option<CombinedSummary>,
    /// Caveats about the metrics; empty if there are none.
    pub warnings: Vec<String>,
    /// Failures of the recipe's `[check]`.
    pub check_failures: Vec<String>,
}

/// The metrics of one member.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MemberSummary {
    /// The member's folder, relative to the run's folder.
    pub run: PathBuf,
    /// The index of the member's variant, counted from 0.
    pub variant: usize,
    /// Steps trained.
    pub steps: u64,
    /// Pearson's r on the member's held-out rows.
    pub held_out: Measure,
    /// Pearson's r on the validation rows; `None` if these are the held-out rows.
    pub validation: Option<Measure>,
}

/// The metrics of one way to combine the members' scores.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CombinedSummary {
    /// As [`PatentSummary::held_out`].
    pub held_out: Measure,
    /// As [`PatentSummary::validation`].
    pub validation: Option<Measure>,
}

/// The metrics of all members of one variant.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VariantSummary {
    /// The name of the variant.
    pub name: String,
    /// The weight in the ensemble's mean.
    pub weight: f64,
    /// As [`PatentSummary::held_out`].
    pub held_out: Measure,
    /// As [`PatentSummary::validation`].
    pub validation: Option<Measure>,
}

/// Trains all members of a recipe, and tests them.
///
/// # Errors
/// Errors of reading the data and weights, and of [`train`].
pub fn train_patent(recipe: &mut Recipe, options: &RunOptions) -> Result<PatentSummary> {
    let (data, _) = settings(recipe)?;
    recipe.check_start()?;
    // A missing device is an error before the run folder is created.
    let compute = recipe.compute()?;
    options.ranks.check(recipe)?;
    let corpus = Corpus::load(&data).map_err(|error| match error {
        DataError::TooFewGroups { .. } if data.folds > 0 => {
            recipe.error("data.folds", format!("is too large: {error}"))
        }
        error => TrainError::in_study(NAME, "reading the data")(error),
    })?;
    for warning in corpus.warnings(false) {
        // Printed before hours of training.
        log::print(&format!("warning: {warning}"));
    }
    let variants = variants(recipe, &data)?;
    let mut inputs = corpus.inputs();
    for variant in &variants {
        for (input, hash) in variant.files.inputs() {
            match (inputs.get(&input), &variant.variant.name) {
                (Some(existing), Some(name)) if *existing != hash => {
                    inputs.insert(format!("{input} of {name}"), hash)
                }
                _ => inputs.insert(input, hash),
            };
        }
    }
    let folds = folds(&data);
    // Checks all members before the first one is trained.
    for fold in &folds {
        corpus.check_split(*fold).map_err(TrainError::in_study(NAME, "splitting the data"))?;
    }
    let recipe_text = recipe.resolved()?;
    let folder = RunFolder::open(&options.run, options.resume, &recipe_text, &inputs)?;
    let mut results = Results::new(variants.iter().map(|variant| &variant.variant), data.combine);
    for fold in folds {
        for (index, PatentVariant { variant, settings, files }) in variants.iter().enumerate() {
            let sequencer = Sequencer::new(files.clone(), corpus.titles.clone(), settings.clone());
            let batch = variant.recipe.batch.clone();
            let (train_rows, held_out) = corpus.split(fold);
            let warnings = match fold {
                Some(_) => Vec::new(),
                None => corpus.warnings(validation_selects(&data, &variant.recipe)),
            };
            let pairs = (!data.pairs.is_unused()).then(|| data.pairs.clone());
            let mut study =
                PatentStudy::new(sequencer, batch, train_rows, held_out, warnings, pairs);
            let name = member_name(fold, variant);
            let trained = match fold {
                Some(_) => {
                    let (run, label) = (options.run.join(&name), Some(name.clone()));
                    let options = RunOptions { run, label, ..options.clone() };
                    train(&mut study, &variant.recipe, &options)
                }
                None => train_in(&folder, &mut study, &variant.recipe, options),
            };
            let trained = match trained {
                // The other ranks only train.
                Err(TrainError::OtherRank { .. }) => continue,
                trained => trained?,
            };
            let failures = trained.check.failures.iter();
            results.add_failures(failures.map(|failure| match fold {
                Some(_) => format!("{name}: {failure}"),
                None => failure.clone(),
            }));
            let (run, steps) = (name.into(), trained.steps);
            let trained = member::finish(study, &trained, &compute)?;
            let scores = MemberScores { run, variant: index, steps, trained };
            results.add(scores, fold.map(|_| &corpus))?;
        }
    }
    options.ranks.end()?;
    let combined = results.combined(&corpus);
    let summary = results.summary(recipe, &corpus, &combined, &data)?;
    results.write(&options.run, &corpus, &combined)?;
    if let Some(range) = corpus.range {
        pairs::write(&data.pairs, range, &options.run)?;
    }
    if data.folds > 0 {
        let card = card::of_ensemble(&summary, recipe, &inputs)?;
        write_file(&options.run.join(CARD), card.as_bytes())?;
    }
    finish_run(&options.run, &summary)?;
    Ok(summary)
}

/// Reads and checks the study's part of the recipe.
pub(super) fn settings(recipe: &mut Recipe) -> Result<(PatentData, ScorerSettings)> {
    recipe.expect_study(NAME)?;
    let data: PatentData = recipe.data()?;
    let model: ScorerSettings = recipe.model()?;
    recipe.check_key("model", model.first_invalid_key())?;
    if data.folds == 1 {
        return Err(recipe.error("data.folds", "is 1; must be 0, or at least 2"));
    }
    if data.combine == Combination::Stacked && data.folds == 0 {
        return Err(recipe.error("data.combine", "is `stacked`, which needs `data.folds`"));
    }
    if !data.pairs.is_unused() && data.folds > 0 {
        return Err(recipe.error("data.folds", "must be 0 with `data.pairs`"));
    }
    if data.members > data.folds {
        return Err(recipe.error("data.members", "exceeds the number of folds"));
    }
    recipe.check_batch(&["tokens"])?;
    Ok((data, model))
}

/// Whether the validation rows may select the checkpoint.
pub(super) fn validation_selects(data: &PatentData, recipe: &Recipe) -> bool {
    data.folds == 0 && recipe.evaluation.keep_best
}

/// One variant, with the files of its initial encoder.
struct PatentVariant {
    variant: Variant,
    settings: ScorerSettings,
    files: Arc<EncoderFiles>,
}

/// Reads all variants with their initial files, and checks their settings.
fn variants(recipe: &Recipe, data: &PatentData) -> Result<Vec<PatentVariant>> {
    let mut variants = Vec::new();
    for (index, mut variant) in recipe.variants()?.into_iter().enumerate() {
        let (variant_data, settings) = settings(&mut variant.recipe)?;
        if variant.name.is_some() && data.folds == 0 {
            let reason = "needs `data.folds`: variants are trained on folds";
            return Err(recipe.error("variant", reason));
        }
        if variant_data != *data {
            let path = format!("variant.{index}.data");
            return Err(recipe.error(&path, "cannot differ: variants share folds and rows"));
        }
        let files = find_files(&settings)?.into();
        variants.push(PatentVariant { variant, settings, files });
    }
    Ok(variants)
}

/// The folder of a member, relative to the run's folder. `fold` is `None` for a recipe without
/// folds.
fn member_name(fold: Option<usize>, variant: &Variant) -> String {
    match (fold, &variant.name) {
        (None, _) => ".".into(),
        (Some(fold), None) => format!("fold-{fold}"),
        (Some(fold), Some(name)) => format!("fold-{fold}-{name}"),
    }
}

/// The folds to train members for; a single `None` for a recipe without folds.
fn folds(data: &PatentData) -> Vec<Option<usize>> {
    match (data.folds, data.members) {
        (0, _) => vec![None],
        (folds, 0) => (0..folds).map(Some).collect(),
        (_, members) => (0..members).map(Some).collect(),
    }
}
