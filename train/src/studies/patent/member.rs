//! One trained model of a run: its files other than the weights, and its predictions.

use std::path::Path;

use engram_data::patent::PhrasePair;
use engram_data::titles::ClassTitles;
use engram_infer::finished_run::{WEIGHTS, check_checksums};
use engram_models::params::ParameterGroup;
use serde::{Deserialize, Serialize};

use super::NAME;
use super::scorer::{Scorer, files_of_run};
use super::settings::PatentModel;
use super::study::{PatentStudy, gold_scores};
use crate::checkpoint::write_file;
use crate::checksums::write_checksums;
use crate::error::{Result, TrainError};
use crate::recipe::{Recipe, RecipeOptions};
use crate::study::Study;
use crate::trainer::RunSummary;

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const TITLES: &str = "titles.tsv";
pub(super) const CALIBRATION: &str = "calibration.json";

/// A trained member in memory.
pub(super) struct Member {
    study: PatentStudy,
    scorer: Scorer,
    calibration: Calibration,
}

/// A member's scores of its held-out rows.
pub(super) struct HeldOutScores {
    /// The model's raw scores, on its own scale.
    pub(super) raw: Vec<f64>,
    /// Scores on the gold scale, for pooling with other members. The calibration of a row is fitted
    /// on the *other* half of the anchors.
    pub(super) on_scale: Vec<f64>,
}

impl Member {
    /// Loads the selected weights of a finished run, fits the calibration, and writes the files
    /// that prediction needs. Also returns the held-out scores.
    pub(super) fn finish(
        study: PatentStudy,
        recipe: &Recipe,
        summary: &RunSummary,
    ) -> Result<(Self, HeldOutScores)> {
        let scorer = load_weights(&study, recipe.seed(), &summary.weights)?;
        let raw = study
            .predict(&scorer, study.held_out(), &|_| {})
            .map_err(TrainError::in_study(NAME, "predict"))?;
        let gold = gold_scores(study.held_out());
        let calibration = Calibration::fit(&raw, &gold);
        let files = study.files();
        let run = &summary.run;
        write_file(&run.join(CONFIG), files.config_json.as_bytes())?;
        write_file(&run.join(TOKENIZER), &files.tokenizer_json)?;
        write_file(&run.join(TITLES), study.titles().to_tsv().as_bytes())?;
        let json = serde_json::to_vec_pretty(&calibration)
            .map_err(TrainError::in_study(NAME, "calibration"))?;
        write_file(&run.join(CALIBRATION), &json)?;
        write_checksums(run)?;
        let on_scale = cross_fitted(study.held_out(), &raw, &gold);
        Ok((Self { study, scorer, calibration }, HeldOutScores { raw, on_scale }))
    }

    /// Loads a member from its folder.
    ///
    /// # Errors
    /// [`TrainError::Io`] for a missing file;
    /// [`BadChecksum`](engram_infer::InferError::BadChecksum) for a damaged file.
    pub(super) fn load(folder: &Path) -> Result<Self> {
        check_checksums(folder)?;
        let mut recipe = Recipe::load(&folder.join("recipe.toml"), &RecipeOptions::default())?;
        let model: PatentModel = recipe.model()?;
        if let Some((key, reason)) = model.first_invalid_key() {
            return Err(recipe.error(&format!("model.{key}"), reason));
        }
        let files = files_of_run(folder, &model).map_err(TrainError::in_study(NAME, "loading"))?;
        let titles = titles(folder)?;
        let batch = recipe.batch().clone();
        let nothing = (Vec::new(), Vec::new());
        let study = PatentStudy::new(model, batch, titles, nothing, files.into());
        let scorer = load_weights(&study, recipe.seed(), &folder.join(WEIGHTS))?;
        let path = folder.join(CALIBRATION);
        let text = std::fs::read(&path).map_err(TrainError::io(&path))?;
        let calibration =
            serde_json::from_slice(&text).map_err(|e| TrainError::io(&path)(e.into()))?;
        Ok(Self { study, scorer, calibration })
    }

    /// Similarities of rows; `progress` is called after each score.
    pub(super) fn predict(
        &self,
        rows: &[PhrasePair],
        progress: &dyn Fn(usize),
    ) -> Result<Vec<f64>> {
        let raw = self.study.predict(&self.scorer, rows, progress);
        let raw = raw.map_err(TrainError::in_study(NAME, "predict"))?;
        Ok(raw.into_iter().map(|score| self.calibration.apply(score)).collect())
    }

    /// The rows held out of its training.
    pub(super) fn held_out(&self) -> &[PhrasePair] {
        self.study.held_out()
    }
}

/// The class titles used in the member's training.
pub(super) fn titles(folder: &Path) -> Result<ClassTitles> {
    ClassTitles::read(folder.join(TITLES)).map_err(TrainError::in_study(NAME, "reading titles"))
}

/// Builds the model with all parameters frozen, and loads their values from a file.
fn load_weights(study: &PatentStudy, seed: u64, path: &Path) -> Result<Scorer> {
    let built = study.build(vec![ParameterGroup::all_frozen()], seed);
    let (scorer, parameters) = built.map_err(TrainError::in_study(NAME, "build"))?;
    parameters.load(path)?;
    Ok(scorer)
}

/// A linear calibration from scores to similarities, fitted on held-out rows.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Calibration {
    slope: f64,
    intercept: f64,
}

impl Calibration {
    /// Fits the least-squares line from scores to gold; flat if the scores are constant.
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

/// Calibrates scores without using a row's own gold score: each half of the anchors is calibrated
/// by a line fitted on the other half.
fn cross_fitted(rows: &[PhrasePair], scores: &[f64], gold: &[f64]) -> Vec<f64> {
    let mut anchors: Vec<&str> = rows.iter().map(|row| row.anchor.as_str()).collect();
    anchors.sort_unstable();
    anchors.dedup();
    let halves: Vec<usize> = rows
        .iter()
        .map(|row| anchors.binary_search(&row.anchor.as_str()).unwrap_or(0) % 2)
        .collect();
    let line_of_other = |half: usize| {
        let pick = |values: &[f64]| -> Vec<f64> {
            let of_other = values.iter().zip(&halves).filter(|(_, h)| **h != half);
            of_other.map(|(value, _)| *value).collect()
        };
        Calibration::fit(&pick(scores), &pick(gold))
    };
    let lines = [line_of_other(0), line_of_other(1)];
    scores.iter().zip(&halves).map(|(score, half)| lines[*half].apply(*score)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calibration_fits_the_least_squares_line() {
        let line = Calibration::fit(&[0.0, 1.0, 2.0], &[1.0, 3.0, 5.0]);
        assert!((line.slope - 2.0).abs() < 1e-12 && (line.intercept - 1.0).abs() < 1e-12);
        let flat = Calibration::fit(&[1.0, 1.0], &[0.0, 0.5]);
        assert_eq!((flat.slope, flat.intercept), (0.0, 0.25));
    }

    #[test]
    fn the_calibration_of_a_row_ignores_its_own_gold_score() {
        let row = |anchor: &str| PhrasePair {
            id: anchor.into(),
            anchor: anchor.into(),
            target: "t".into(),
            context: "A01".into(),
            score: None,
            rating: None,
        };
        let rows: Vec<PhrasePair> = ["a", "b", "a", "b", "a", "b"].map(row).into();
        let scores = [0.0, 0.0, 1.0, 1.0, 2.0, 2.0];
        let gold = [0.0, 10.0, 1.0, 12.0, 2.0, 14.0];
        let found = cross_fitted(&rows, &scores, &gold);
        // Anchor `a` is calibrated by the line of `b`, 2 s + 10, and `b` by the line of `a`.
        for (found, expected) in found.iter().zip([10.0, 0.0, 12.0, 1.0, 14.0, 2.0]) {
            assert!((found - expected).abs() < 1e-12);
        }
    }
}
