//! Runs of the patent study: the members of an ensemble.
//!
//! A run with folds has one folder for each member (`fold-0`, `fold-1`, …), each a run of the
//! trainer of its own that can be resumed; a run without folds is its only member. Beside a
//! member's weights lie `config.json`, `tokenizer.json`, `titles.tsv` and `calibration.json`, so
//! that it can predict on another machine. The run's own folder ends with `summary.json`, the
//! model card `README.md`, and the predictions that its figures are of, `held_out.csv` and
//! `validation.csv`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engram_data::DataError;
use engram_data::patent::{PhrasePair, predictions_csv};
use engram_eval::result::Measure;
use serde::{Deserialize, Serialize};

use super::card;
use super::corpus::Corpus;
use super::figure::figure;
use super::member::{HeldOutScores, Member};
use super::scorer::EncoderFiles;
use super::settings::{PatentData, PatentModel};
use super::study::PatentStudy;
use crate::checkpoint::write_file;
use crate::error::{Result, TrainError};
use crate::log;
use crate::recipe::Recipe;
use crate::run_folder::RunFolder;
use crate::study::StudyError;
use crate::trainer::{RunOptions, train, train_in};

pub(super) const SUMMARY: &str = "summary.json";

/// What a run of the study came to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PatentSummary {
    /// The recipe's hash.
    pub recipe_hash: String,
    /// The seed.
    pub seed: u64,
    /// Each member's figures.
    pub members: Vec<MemberSummary>,
    /// Pearson's r over the held-out rows of all members together, each scored by the member that
    /// was not trained on it, on a scale that its own score has no part in. Somewhat optimistic
    /// where `evaluation.keep_best` lets these rows choose the checkpoint.
    pub held_out: Measure,
    /// Pearson's r of the ensemble on the validation rows, which no fold has seen; `None` for a
    /// run without folds, where they are the held-out rows.
    pub validation: Option<Measure>,
    /// What a reader must know before citing the figures; empty when all is well.
    pub warnings: Vec<String>,
    /// What the recipe's `[check]` found wrong.
    pub check_failures: Vec<String>,
}

/// One member's figures.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MemberSummary {
    /// Its folder within the run's.
    pub run: PathBuf,
    /// Steps trained.
    pub steps: u64,
    /// Pearson's r on its held-out rows.
    pub held_out: Measure,
    /// Pearson's r on the validation rows; `None` where they are the held-out rows.
    pub validation: Option<Measure>,
}

/// Trains all members of a recipe. `None` if the run was stopped before its end.
///
/// # Errors
/// Those of reading the data and weights, and of [`train`].
pub fn train_patent(recipe: &mut Recipe, options: &RunOptions) -> Result<Option<PatentSummary>> {
    let (data, model) = settings(recipe)?;
    let corpus = Corpus::load(&data).map_err(|error| match error {
        DataError::TooFewGroups { .. } => {
            recipe.error("data.folds", format!("is too many: {error}"))
        }
        error => in_study("reading the data")(error),
    })?;
    for warning in corpus.warnings(true) {
        // Before the hours that a mistake in the data may cost.
        log::print(&format!("warning: {warning}"));
    }
    let files = EncoderFiles::find(&model).map_err(study_error("finding the weights"))?;
    let files = Arc::new(files);
    let folds = folds(&data);
    // Whatever can be refused is refused before the first of the members is trained.
    for fold in &folds {
        corpus.check_split(*fold).map_err(study_error("splitting the data"))?;
    }
    let mut inputs = files.inputs();
    inputs.extend(corpus.inputs());
    let recipe_text = recipe.resolved()?;
    let folder = RunFolder::open(&options.run, options.resume, &recipe_text, &inputs)?;
    let mut results = Results::default();
    for fold in folds {
        let (train_rows, held_out) = corpus.split(fold);
        let mut study = PatentStudy::new(
            model.clone(),
            recipe.batch().clone(),
            corpus.titles.clone(),
            (train_rows, held_out),
            files.clone(),
            recipe.seed(),
        );
        let name = fold.map_or(".".into(), |fold| format!("fold-{fold}"));
        let trained = match fold {
            Some(_) => {
                let (run, label) = (options.run.join(&name), Some(name.clone()));
                train(&mut study, recipe, &RunOptions { run, label, ..options.clone() })?
            }
            None => {
                study.set_warnings(corpus.warnings(false));
                train_in(&folder, &mut study, recipe, options)?
            }
        };
        if !trained.finished {
            return Ok(None);
        }
        let failures = trained.check.failures.iter();
        results.failures.extend(failures.map(|failure| match fold {
            Some(_) => format!("{name}: {failure}"),
            None => failure.clone(),
        }));
        let (member, held_out) = Member::finish(study, recipe, &trained)?;
        results.add(name.into(), trained.steps, (&member, held_out), fold.map(|_| &corpus))?;
    }
    let summary = results.summary(recipe, &corpus, data.folds > 0)?;
    results.write(&options.run, &corpus)?;
    if data.folds > 0 {
        let card = card::of_ensemble(&summary, recipe, &inputs)?;
        write_file(&options.run.join("README.md"), card.as_bytes())?;
    }
    // Last: a folder with a summary is a finished run.
    let json = serde_json::to_vec_pretty(&summary).map_err(in_study("the summary"))?;
    write_file(&options.run.join(SUMMARY), &json)?;
    Ok(Some(summary))
}

/// What the recipe says, as far as it fits together.
fn settings(recipe: &mut Recipe) -> Result<(PatentData, PatentModel)> {
    if recipe.study() != "patent" {
        return Err(recipe.error("study", "is not `patent`, which is to be trained"));
    }
    let data: PatentData = recipe.data()?;
    let model: PatentModel = recipe.model()?;
    if let Some((key, reason)) = model.conflict() {
        return Err(recipe.error(&format!("model.{key}"), reason));
    }
    if data.folds == 1 {
        return Err(recipe.error("data.folds", "is 1; give 0, or at least 2"));
    }
    if data.members > data.folds {
        return Err(recipe.error("data.members", "is more than there are folds"));
    }
    Ok((data, model))
}

/// The fold of each member; `None` for the only model of a recipe without folds.
fn folds(data: &PatentData) -> Vec<Option<usize>> {
    match (data.folds, data.members) {
        (0, _) => vec![None],
        (folds, 0) => (0..folds).map(Some).collect(),
        (_, members) => (0..members).map(Some).collect(),
    }
}

/// What the members' scores come to, so far.
#[derive(Default)]
struct Results {
    members: Vec<MemberSummary>,
    held_out_rows: Vec<PhrasePair>,
    held_out_scores: Vec<f64>,
    validation_sums: Vec<f64>,
    failures: Vec<String>,
}

impl Results {
    /// Measures a member; on the validation rows too where `corpus` is given.
    fn add(
        &mut self,
        run: PathBuf,
        steps: u64,
        (member, held_out): (&Member, HeldOutScores),
        corpus: Option<&Corpus>,
    ) -> Result<()> {
        let validation = match corpus {
            Some(corpus) => {
                let scores = member.predict(&corpus.validation, &|_| {})?;
                self.validation_sums.resize(scores.len(), 0.0);
                self.validation_sums.iter_mut().zip(&scores).for_each(|(sum, s)| *sum += s);
                Some(figure(&corpus.validation, &scores).map_err(in_study("validation"))?)
            }
            None => None,
        };
        let rows = member.held_out();
        let held_out_figure = figure(rows, &held_out.raw).map_err(in_study("held-out rows"))?;
        self.members.push(MemberSummary { run, steps, held_out: held_out_figure, validation });
        self.held_out_rows.extend_from_slice(rows);
        // A single model's r needs no scale, and its rows may all be of one anchor.
        self.held_out_scores.extend(match corpus {
            Some(_) => held_out.on_scale,
            None => held_out.raw,
        });
        Ok(())
    }

    /// The mean of the members' scores of the validation rows.
    fn validation_scores(&self) -> Vec<f64> {
        let count = self.members.len() as f64;
        self.validation_sums.iter().map(|sum| sum / count).collect()
    }

    fn summary(&self, recipe: &Recipe, corpus: &Corpus, folds: bool) -> Result<PatentSummary> {
        let held_out = figure(&self.held_out_rows, &self.held_out_scores);
        let held_out = held_out.map_err(in_study("held-out rows"))?;
        let validation = match folds {
            true => Some(figure(&corpus.validation, &self.validation_scores())),
            false => None,
        };
        let mut check_failures = self.failures.clone();
        let check = recipe.check();
        if let Some(wanted) = check.figure.filter(|_| folds)
            && (held_out.value.is_nan() || held_out.value < wanted - check.tolerance)
        {
            let (found, tolerance) = (held_out.value, check.tolerance);
            check_failures.push(format!(
                "all members: pearson is {found:.6}, the recipe expects {wanted} ± {tolerance}"
            ));
        }
        Ok(PatentSummary {
            recipe_hash: recipe.hash()?,
            seed: recipe.seed(),
            members: self.members.clone(),
            held_out,
            validation: validation.transpose().map_err(in_study("validation"))?,
            warnings: corpus.warnings(folds),
            check_failures,
        })
    }

    /// Writes the scores that the figures are of.
    fn write(&self, run: &Path, corpus: &Corpus) -> Result<()> {
        let file = |name: &str, rows: &[PhrasePair], scores: &[f64]| {
            write_file(&run.join(name), &predictions_csv(rows, scores))
        };
        file("held_out.csv", &self.held_out_rows, &self.held_out_scores)?;
        match self.validation_sums.is_empty() {
            true => Ok(()),
            false => file("validation.csv", &corpus.validation, &self.validation_scores()),
        }
    }
}

pub(super) fn in_study<E: std::error::Error + Send + Sync + 'static>(
    part: &'static str,
) -> impl Fn(E) -> TrainError {
    move |source| study_error(part)(Box::new(source))
}

pub(super) fn study_error(part: &'static str) -> impl Fn(StudyError) -> TrainError {
    move |source| TrainError::Study { study: "patent".into(), part, source }
}
