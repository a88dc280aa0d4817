//! Runs of the patent study: the members of an ensemble, and prediction from a finished run.
//!
//! A run with folds has one folder for each member (`fold-0`, `fold-1`, …), each a run of the
//! trainer of its own that can be resumed; a run without folds is its only member. Beside a
//! member's weights lie `config.json`, `tokenizer.json`, `titles.tsv` and `calibration.json`, so
//! that it can predict on another machine.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engram_data::patent::PhrasePair;
use engram_data::titles::ClassTitles;
use engram_eval::metric::pearson::pearson;
use engram_models::params::{ParameterGroup, Parameters};
use serde::{Deserialize, Serialize};

use super::corpus::Corpus;
use super::scorer::EncoderFiles;
use super::settings::{PatentData, PatentModel};
use super::study::{PatentStudy, gold_scores};
use crate::checkpoint::write_file;
use crate::error::{Result, TrainError};
use crate::recipe::{Recipe, RecipeOptions};
use crate::study::{Study, StudyError};
use crate::trainer::{RunOptions, RunSummary, train};

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const TITLES: &str = "titles.tsv";
const CALIBRATION: &str = "calibration.json";
const SUMMARY: &str = "summary.json";

/// The line that turns a member's scores into similarities, fitted on its held-out rows.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Calibration {
    slope: f64,
    intercept: f64,
}

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
    /// was not trained on it. Somewhat optimistic: these rows chose each member's checkpoint and
    /// its calibration. The validation rows chose nothing.
    pub held_out_pearson: f64,
    /// How many rows that is.
    pub held_out_rows: usize,
    /// Pearson's r of the ensemble on the validation rows, which no fold has seen; `None` for a
    /// run without folds, whose checkpoint they chose.
    pub validation_pearson: Option<f64>,
    /// How many validation rows there are.
    pub validation_rows: usize,
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
    pub held_out_pearson: f64,
    /// Pearson's r on the validation rows; `None` where they chose the checkpoint.
    pub validation_pearson: Option<f64>,
}

/// Trains all members of a recipe. `None` if the run was stopped before its end.
///
/// # Errors
/// Those of reading the data and weights, and of [`train`].
pub fn train_patent(recipe: &mut Recipe, options: &RunOptions) -> Result<Option<PatentSummary>> {
    let data: PatentData = recipe.data()?;
    let model: PatentModel = recipe.model()?;
    if let Some((key, reason)) = model.conflict() {
        return Err(recipe.error(&format!("model.{key}"), reason));
    }
    if data.folds == 1 || data.members > data.folds {
        let reason = "needs 0 folds or at least 2, and no more members than folds";
        return Err(recipe.error("data.folds", reason));
    }
    let corpus = Corpus::load(&data).map_err(in_part("reading the data"))?;
    let folds: Vec<Option<usize>> = match (data.folds, data.members) {
        (0, _) => vec![None],
        (folds, 0) => (0..folds).map(Some).collect(),
        (folds, members) => (0..folds.min(members)).map(Some).collect(),
    };
    let files = EncoderFiles::find(&model).map_err(in_part_boxed("finding the weights"))?;
    let files = Arc::new(files);
    let mut members = Vec::new();
    let (mut held_out_gold, mut held_out_scores) = (Vec::new(), Vec::new());
    let mut validation_scores = vec![0.0; corpus.validation.len()];
    let mut check_failures = Vec::new();
    let validation_gold = gold_scores(&corpus.validation);
    let count = folds.len();
    for (place, fold) in folds.into_iter().enumerate() {
        if count > 1 && !options.quiet {
            // Nobody listening is no error.
            let _ = writeln!(std::io::stderr(), "member {} of {count}", place + 1);
        }
        let run = match fold {
            Some(fold) => options.run.join(format!("fold-{fold}")),
            None => options.run.clone(),
        };
        let titles = corpus.titles.clone();
        let split = corpus.split(fold);
        let batch = recipe.batch().clone();
        let mut study =
            PatentStudy::new(model.clone(), batch, titles, split, files.clone(), recipe.seed());
        study.check_rows().map_err(in_part_boxed("splitting the data"))?;
        let options = RunOptions { run: run.clone(), ..options.clone() };
        let summary = train(&mut study, recipe, &options)?;
        if !summary.finished {
            return Ok(None);
        }
        let mut member = finish_member(&mut study, recipe, &summary, &corpus)?;
        held_out_gold.append(&mut member.held_out_gold);
        held_out_scores.append(&mut member.held_out_scores);
        for (sum, score) in validation_scores.iter_mut().zip(&member.validation_scores) {
            *sum += score;
        }
        let failures = summary.check.failures.iter();
        check_failures.extend(failures.map(|failure| format!("{}: {failure}", run.display())));
        members.push(MemberSummary {
            run: fold.map_or(".".into(), |fold| format!("fold-{fold}").into()),
            steps: summary.steps,
            held_out_pearson: member.held_out_pearson,
            validation_pearson: match fold {
                Some(_) => Some(correlation(&validation_gold, &member.validation_scores)?),
                None => None,
            },
        });
    }
    let summary = PatentSummary {
        recipe_hash: recipe.hash()?,
        seed: recipe.seed(),
        members,
        held_out_pearson: correlation(&held_out_gold, &held_out_scores)?,
        held_out_rows: held_out_gold.len(),
        validation_pearson: match data.folds {
            0 => None,
            _ => Some(correlation(&validation_gold, &validation_scores)?),
        },
        validation_rows: corpus.validation.len(),
        check_failures,
    };
    let path = options.run.join(SUMMARY);
    let json = serde_json::to_vec_pretty(&summary).map_err(|e| in_part("the summary")(e))?;
    write_file(&path, &json)?;
    Ok(Some(summary))
}

/// What a trained member leaves for the ensemble's figures.
struct FinishedMember {
    held_out_gold: Vec<f64>,
    held_out_scores: Vec<f64>,
    held_out_pearson: f64,
    validation_scores: Vec<f64>,
}

/// Loads the chosen weights, fits the calibration and writes what prediction needs.
fn finish_member(
    study: &mut PatentStudy,
    recipe: &Recipe,
    summary: &RunSummary,
    corpus: &Corpus,
) -> Result<FinishedMember> {
    load_weights(study, recipe.seed(), &summary.weights)?;
    let held_out_gold = gold_scores(study.held_out());
    let predict = |study: &PatentStudy, rows: &[PhrasePair]| {
        study.predict(rows, &|_| {}).map_err(in_part_boxed("predict"))
    };
    let raw = predict(study, study.held_out())?;
    let calibration = Calibration::fit(&raw, &held_out_gold);
    let run = &summary.run;
    write_file(&run.join(CONFIG), study.files().config_json.as_bytes())?;
    write_file(&run.join(TOKENIZER), &study.files().tokenizer_json)?;
    let titles: String =
        corpus.titles.iter().map(|(code, title)| format!("{code}\t{title}\n")).collect();
    write_file(&run.join(TITLES), format!("code\ttitle\n{titles}").as_bytes())?;
    let json = serde_json::to_vec_pretty(&calibration).map_err(|e| in_part("calibration")(e))?;
    write_file(&run.join(CALIBRATION), &json)?;
    Ok(FinishedMember {
        held_out_pearson: correlation(&held_out_gold, &raw)?,
        held_out_scores: raw.iter().map(|score| calibration.apply(*score)).collect(),
        held_out_gold,
        validation_scores: predict(study, &corpus.validation)?
            .iter()
            .map(|score| calibration.apply(*score))
            .collect(),
    })
}

/// Similarities of rows by a finished run: the mean of its members' calibrated scores.
///
/// `progress` is told how many of the `members × passes × rows` scores are done.
///
/// # Errors
/// [`TrainError::Io`] for a file that the run does not have.
pub fn predict(run: &Path, rows: &[PhrasePair], progress: &dyn Fn(usize)) -> Result<Vec<f64>> {
    let members = member_folders(run)?;
    let mut sums = vec![0.0; rows.len()];
    for member in &members {
        let mut recipe = Recipe::load(&member.join("recipe.toml"), &RecipeOptions::default())?;
        let model: PatentModel = recipe.model()?;
        if let Some((key, reason)) = model.conflict() {
            return Err(recipe.error(&format!("model.{key}"), reason));
        }
        let files = EncoderFiles::of_run(member, &model).map_err(in_part_boxed("loading"))?;
        let titles = ClassTitles::read(member.join(TITLES)).map_err(in_part("reading titles"))?;
        let nothing = (Vec::new(), Vec::new());
        let batch = recipe.batch().clone();
        let mut study =
            PatentStudy::new(model, batch, titles, nothing, files.into(), recipe.seed());
        load_weights(&mut study, recipe.seed(), &member.join("model.safetensors"))?;
        let path = member.join(CALIBRATION);
        let text = std::fs::read(&path).map_err(TrainError::io(&path))?;
        let calibration: Calibration = serde_json::from_slice(&text)
            .map_err(|e| TrainError::io(&path)(std::io::Error::other(e)))?;
        let scores = study.predict(rows, progress).map_err(in_part_boxed("predict"))?;
        for (sum, score) in sums.iter_mut().zip(scores) {
            *sum += calibration.apply(score);
        }
    }
    let count = members.len() as f64;
    Ok(sums.into_iter().map(|sum| sum / count).collect())
}

/// The class titles that a finished run was trained with.
///
/// # Errors
/// As [`predict`].
pub fn titles(run: &Path) -> Result<ClassTitles> {
    let members = member_folders(run)?;
    ClassTitles::read(members[0].join(TITLES)).map_err(in_part("reading titles"))
}

/// How many scores a prediction of `rows` rows computes, for a progress bar.
///
/// # Errors
/// As [`predict`].
pub fn prediction_work(run: &Path, rows: usize) -> Result<usize> {
    let mut work = 0;
    for member in member_folders(run)? {
        let mut recipe = Recipe::load(&member.join("recipe.toml"), &RecipeOptions::default())?;
        work += recipe.model::<PatentModel>()?.passes * rows;
    }
    Ok(work)
}

/// The folders of a run's members, in order, from the summary that a run writes last.
fn member_folders(run: &Path) -> Result<Vec<PathBuf>> {
    let path = run.join(SUMMARY);
    let unfinished = |source: std::io::Error| {
        let kind = source.kind();
        let remedy = "no finished run of the patent study is here; train one, or go on with one, \
                      with `engram train patent` and --resume";
        TrainError::io(run)(std::io::Error::new(kind, format!("{remedy} ({source})")))
    };
    let text = std::fs::read(&path).map_err(unfinished)?;
    let summary: PatentSummary = serde_json::from_slice(&text)
        .map_err(|e| TrainError::io(&path)(std::io::Error::other(e)))?;
    Ok(match summary.members.as_slice() {
        [only] if only.run == Path::new(".") => vec![run.to_path_buf()],
        members => members.iter().map(|member| run.join(&member.run)).collect(),
    })
}

/// Builds the study's model with every parameter plain and sets its values from a file.
fn load_weights(study: &mut PatentStudy, seed: u64, path: &Path) -> Result<()> {
    let frozen = vec![ParameterGroup::all_frozen()];
    let parameters: Parameters = study.build(frozen, seed).map_err(in_part_boxed("build"))?;
    parameters.load(path)?;
    Ok(())
}

impl Calibration {
    /// The least-squares line from scores to gold; flat where the scores are constant.
    fn fit(scores: &[f64], gold: &[f64]) -> Self {
        let count = scores.len().max(1) as f64;
        let mean = |values: &[f64]| values.iter().sum::<f64>() / count;
        let (mean_score, mean_gold) = (mean(scores), mean(gold));
        let (mut product, mut square) = (0.0, 0.0);
        for (score, gold) in scores.iter().zip(gold) {
            product += (score - mean_score) * (gold - mean_gold);
            square += (score - mean_score) * (score - mean_score);
        }
        let slope = if square > 0.0 { product / square } else { 0.0 };
        Self { slope, intercept: mean_gold - slope * mean_score }
    }

    fn apply(self, score: f64) -> f64 {
        self.slope.mul_add(score, self.intercept)
    }
}

fn correlation(gold: &[f64], scores: &[f64]) -> Result<f64> {
    pearson(gold, scores).map_err(in_part("correlation"))
}

fn in_part<E: std::error::Error + Send + Sync + 'static>(
    part: &'static str,
) -> impl Fn(E) -> TrainError {
    move |source| TrainError::Study { study: "patent".into(), part, source: Box::new(source) }
}

fn in_part_boxed(part: &'static str) -> impl Fn(StudyError) -> TrainError {
    move |source| TrainError::Study { study: "patent".into(), part, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calibration_is_the_least_squares_line() {
        let line = Calibration::fit(&[0.0, 1.0, 2.0], &[1.0, 3.0, 5.0]);
        assert!((line.slope - 2.0).abs() < 1e-12 && (line.intercept - 1.0).abs() < 1e-12);
        let flat = Calibration::fit(&[1.0, 1.0], &[0.0, 0.5]);
        assert_eq!((flat.slope, flat.intercept), (0.0, 0.25));
    }
}
