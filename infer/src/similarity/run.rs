//! A finished run that scores phrase pairs: a single model or an ensemble.

use std::path::{Path, PathBuf};

use engram_data::patent::{Labels, PhrasePair, read_pairs_with_titles};
use engram_models::compute::Compute;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::calibration::CALIBRATION;
use super::combination::{Combination, add_to, weighted_mean};
use super::member::{Member, titles};
use super::pairs::TrainedPairs;
use super::settings::ScorerSettings;
use super::stacking::{STACKING, Stacking};
use crate::error::{InferError, Result};
use crate::finished_run::{RECIPE, SUMMARY, check_checksums, study};

/// The value of `study` in the recipe of a run.
pub const STUDY: &str = "patent";

/// A finished run.
pub struct SimilarityRun {
    /// Each member's folder and the index of its variant.
    members: Vec<(PathBuf, usize)>,
    /// The weight of each variant in a mean.
    weights: Vec<f64>,
    stacking: Option<Stacking>,
    /// `None` for a run on phrase pairs with classes.
    pairs: Option<TrainedPairs>,
    compute: Compute,
}

/// The keys of `summary.json` that prediction needs.
#[derive(Deserialize)]
struct Summary {
    combine: Combination,
    members: Vec<SummaryMember>,
    variants: Vec<SummaryVariant>,
}

#[derive(Deserialize)]
struct SummaryMember {
    run: PathBuf,
    variant: usize,
}

#[derive(Deserialize)]
struct SummaryVariant {
    weight: f64,
}

impl SimilarityRun {
    /// Opens a finished run, or one member of its ensemble. Its models compute on `compute`.
    ///
    /// # Errors
    /// [`InferError::BadRun`] for a folder without a finished run;
    /// [`InferError::BadChecksum`] for a damaged file.
    pub fn open(run: &Path, compute: &Compute) -> Result<Self> {
        let pairs = TrainedPairs::of_run(run)?;
        let single = |pairs| Self {
            members: vec![(run.to_path_buf(), 0)],
            weights: vec![1.0],
            stacking: None,
            pairs,
            compute: compute.clone(),
        };
        let path = run.join(SUMMARY);
        if !path.exists() && run.join(CALIBRATION).is_file() {
            return Ok(single(pairs));
        }
        if !path.is_file() {
            let reason = "is not a finished run of the patent study; train one, or resume its \
                          training";
            return Err(InferError::bad_run(run, reason));
        }
        check_checksums(run)?;
        let summary: Summary = read_json(&path)?;
        let stacking = match summary.combine {
            Combination::Mean => None,
            Combination::Stacked => Some(read_json(&run.join(STACKING))?),
        };
        let mut weights = vec![1.0; summary.variants.len().max(1)];
        for (weight, variant) in weights.iter_mut().zip(&summary.variants) {
            *weight = variant.weight;
        }
        if summary.members.is_empty() {
            return Err(InferError::bad_run(&path, "has no members; train the run again"));
        }
        if summary.members.iter().any(|member| member.variant >= weights.len()) {
            let reason = "has a member of an unknown variant; train the run again";
            return Err(InferError::bad_run(&path, reason));
        }
        if let [only] = summary.members.as_slice()
            && only.run == Path::new(".")
        {
            return Ok(single(pairs));
        }
        let member = |member: SummaryMember| (run.join(member.run), member.variant);
        let members = summary.members.into_iter().map(member).collect();
        Ok(Self { members, weights, stacking, pairs, compute: compute.clone() })
    }

    /// Reads the rows to score, with the columns and classes of the run's training.
    ///
    /// # Errors
    /// [`InferError::Data`]
    pub fn read_rows(&self, file: &Path) -> Result<Vec<PhrasePair>> {
        Ok(match &self.pairs {
            Some(pairs) => pairs.read(file)?,
            None => {
                let titles = titles(&self.members[0].0)?;
                read_pairs_with_titles(file, Labels::Optional, Some(&titles))?
            }
        })
    }

    /// The number of scores that a prediction of `rows` rows computes, for a progress bar: one per
    /// member, pass and row.
    ///
    /// # Errors
    /// [`InferError::Io`] and [`InferError::BadRun`] for the recipe of a member.
    pub fn num_scores(&self, rows: usize) -> Result<usize> {
        let mut passes = 0;
        for (folder, _) in &self.members {
            passes += RunRecipe::read(folder)?.model.passes;
        }
        Ok(passes * rows)
    }

    /// Predicts similarities of rows: the members' calibrated scores, combined as in the recipe.
    /// A run on `[data.pairs]` predicts scores in the range of its file. `progress` receives the
    /// number of new scores.
    ///
    /// # Errors
    /// The errors of [`Member::open`] and [`Member::predict`].
    pub fn predict(&self, rows: &[PhrasePair], progress: &dyn Fn(usize)) -> Result<Vec<f64>> {
        let mut variant_scores: Vec<Vec<f64>> = vec![Vec::new(); self.weights.len()];
        let mut counts = vec![0.0; self.weights.len()];
        for (folder, variant) in &self.members {
            let member = Member::open(folder, &self.compute)?;
            add_to(&mut variant_scores[*variant], &member.predict(rows, progress)?);
            counts[*variant] += 1.0;
        }
        for (scores, count) in variant_scores.iter_mut().zip(counts) {
            scores.iter_mut().for_each(|score| *score /= count);
        }
        let mut scores = match &self.stacking {
            Some(stacking) => stacking.predict(rows, &variant_scores),
            None => weighted_mean(self.weights.iter().copied().zip(variant_scores)),
        };
        if let Some(TrainedPairs { range, .. }) = self.pairs {
            scores.iter_mut().for_each(|score| *score = range.to_score(*score));
        }
        Ok(scores)
    }
}

/// Whether a folder is a run of this study, finished or not.
pub fn is_run(folder: &Path) -> bool {
    folder.join(CALIBRATION).is_file() || study(folder).as_deref() == Some(STUDY)
}

/// The keys of a run's recipe that prediction needs. A run's recipe has all keys.
#[derive(Deserialize)]
pub(super) struct RunRecipe {
    pub(super) model: ScorerSettings,
}

impl RunRecipe {
    /// Reads and checks the recipe of a run.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(RECIPE);
        let text = engram_durable::read_text(&path).map_err(InferError::io(&path))?;
        let recipe: Self = toml::from_str(&text).map_err(|error| {
            let reason = format!("is not the recipe of a patent run: {}", error.message());
            InferError::bad_run(&path, reason)
        })?;
        if let Some((key, reason)) = recipe.model.first_invalid_key() {
            return Err(InferError::bad_run(&path, format!("`model.{key}` {reason}")));
        }
        Ok(recipe)
    }
}

/// Reads a JSON file of a run.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes = engram_durable::read_file(path).map_err(InferError::io(path))?;
    serde_json::from_slice(&bytes).map_err(|error| {
        let reason = format!("is damaged: {error}; restore it from a copy, or train again");
        InferError::bad_run(path, reason)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn unfinished_and_damaged_runs_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path();
        let error = || SimilarityRun::open(run, &Compute::cpu()).err().unwrap().to_string();
        assert!(error().contains("is not a finished run of the patent study"), "{}", error());
        for (summary, expected) in [
            ("{", "summary.json: is damaged: EOF"),
            (r#"{"combine": "mean", "variants": []}"#, "missing field `members`"),
            (r#"{"combine": "mean", "members": [], "variants": []}"#, "has no members"),
            (
                r#"{"combine": "mean", "members": [{"run": "fold-0", "variant": 1}], "variants": []}"#,
                "has a member of an unknown variant",
            ),
            (
                r#"{"combine": "stacked", "members": [], "variants": []}"#,
                "stacking.json: No such file",
            ),
        ] {
            fs::write(run.join(SUMMARY), summary).unwrap();
            assert!(error().contains(expected), "{expected}: {}", error());
        }
    }

    #[test]
    fn invalid_settings_of_a_member_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for (recipe, expected) in [
            ("[model]\nlayout = 3", "recipe.toml: is not the recipe of a patent run: "),
            ("[model]\npasses = 0", "recipe.toml: `model.passes` must be at least 1"),
        ] {
            fs::write(folder.path().join(RECIPE), recipe).unwrap();
            let error = RunRecipe::read(folder.path()).err().unwrap().to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }

    #[test]
    fn a_run_is_recognised_by_its_recipe() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_run(folder.path()));
        for (study, expected) in [("reveal", false), (STUDY, true)] {
            fs::write(folder.path().join(RECIPE), format!("study = {study:?}\nseed = 1")).unwrap();
            assert_eq!(is_run(folder.path()), expected);
        }
    }
}
