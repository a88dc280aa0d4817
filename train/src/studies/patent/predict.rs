//! Prediction with a finished run.

use std::path::{Path, PathBuf};

use engram_data::patent::{Labels, PhrasePair, read_pairs_with_titles};
use engram_infer::finished_run::{RECIPE, SUMMARY, check_checksums};

use super::NAME;
use super::member::{self, CALIBRATION, Member};
use super::pairs::TrainedPairs;
use super::results::{STACKING, add_to, weighted_mean};
use super::run::{MemberSummary, PatentSummary};
use super::settings::{Combination, PatentModel};
use super::stacking::Stacking;
use crate::error::{Result, TrainError};
use crate::recipe::{Recipe, RecipeOptions};

/// Predicts similarities of rows: the members' calibrated scores, combined as the recipe says. A
/// run on `[data.pairs]` predicts scores in the range of its file.
///
/// `progress` receives the number of finished scores, of `members × passes × rows`.
///
/// # Errors
/// [`TrainError::Io`] if the run lacks a file.
pub fn predict(run: &Path, rows: &[PhrasePair], progress: &dyn Fn(usize)) -> Result<Vec<f64>> {
    let ensemble = Ensemble::read(run)?;
    let mut of_variants: Vec<Vec<f64>> = vec![Vec::new(); ensemble.weights.len()];
    let mut counts = vec![0.0; ensemble.weights.len()];
    for (folder, variant) in &ensemble.members {
        add_to(&mut of_variants[*variant], &Member::load(folder)?.predict(rows, progress)?, 1.0);
        counts[*variant] += 1.0;
    }
    for (scores, count) in of_variants.iter_mut().zip(counts) {
        scores.iter_mut().for_each(|score| *score /= count);
    }
    let scores = match &ensemble.stacking {
        Some(stacking) => stacking.predict(rows, &of_variants),
        None => weighted_mean(ensemble.weights.into_iter().zip(of_variants)),
    };
    Ok(match TrainedPairs::of_run(run)? {
        Some(pairs) => pairs.to_scores(scores),
        None => scores,
    })
}

/// Whether a folder has a run of this study, finished or not.
pub fn is_run(folder: &Path) -> bool {
    let recipe = Recipe::load(&folder.join(RECIPE), &RecipeOptions::default());
    folder.join(CALIBRATION).is_file() || recipe.is_ok_and(|recipe| recipe.study() == NAME)
}

/// Reads the rows to predict, with the columns and classes of the run's training.
///
/// # Errors
/// As [`predict`]; errors of the file.
pub fn read_rows(run: &Path, file: &Path) -> Result<Vec<PhrasePair>> {
    let members = Ensemble::read(run)?.members;
    let rows = match TrainedPairs::of_run(run)? {
        Some(pairs) => pairs.read(file),
        None => read_pairs_with_titles(file, Labels::Optional, &member::titles(&members[0].0)?),
    };
    Ok(rows?)
}

/// The number of scores in a prediction of `rows` rows, for a progress bar.
///
/// # Errors
/// As [`predict`].
pub fn prediction_work(run: &Path, rows: usize) -> Result<usize> {
    let mut work = 0;
    for (member, _) in Ensemble::read(run)?.members {
        let mut recipe = Recipe::load(&member.join(RECIPE), &RecipeOptions::default())?;
        work += recipe.model::<PatentModel>()?.passes * rows;
    }
    Ok(work)
}

/// The parts of a finished run.
struct Ensemble {
    /// Each member's folder and the index of its variant.
    members: Vec<(PathBuf, usize)>,
    /// The weight of each variant in a mean.
    weights: Vec<f64>,
    stacking: Option<Stacking>,
}

impl Ensemble {
    /// Reads the summary, which a run writes last. A single member is a run too.
    fn read(run: &Path) -> Result<Self> {
        let path = run.join(SUMMARY);
        let alone =
            || Self { members: vec![(run.to_path_buf(), 0)], weights: vec![1.0], stacking: None };
        if !path.exists() && run.join(CALIBRATION).is_file() {
            return Ok(alone());
        }
        let unfinished = |source: std::io::Error| {
            let kind = source.kind();
            let remedy = "no finished run of the patent study is here; train one with `engram \
                          train patent`, or continue one with --resume";
            TrainError::io(run)(std::io::Error::new(kind, format!("{remedy} ({source})")))
        };
        let text = std::fs::read(&path).map_err(unfinished)?;
        check_checksums(run)?;
        let summary: PatentSummary =
            serde_json::from_slice(&text).map_err(|e| TrainError::io(&path)(e.into()))?;
        let stacking = match summary.combine {
            Combination::Mean => None,
            Combination::Stacked => {
                let path = run.join(STACKING);
                let text = std::fs::read(&path).map_err(TrainError::io(&path))?;
                let read = serde_json::from_slice(&text);
                Some(read.map_err(|e| TrainError::io(&path)(e.into()))?)
            }
        };
        let mut weights = vec![1.0; summary.variants.len().max(1)];
        weights.iter_mut().zip(&summary.variants).for_each(|(w, variant)| *w = variant.weight);
        let fits = summary.members.iter().all(|member| member.variant < weights.len());
        Ok(match summary.members.as_slice() {
            [] => return Err(unfinished(std::io::Error::other("its summary has no members"))),
            _ if !fits => return Err(unfinished(std::io::Error::other("its summary is broken"))),
            [only] if only.run == Path::new(".") => alone(),
            members => {
                let member = |member: &MemberSummary| (run.join(&member.run), member.variant);
                Self { members: members.iter().map(member).collect(), weights, stacking }
            }
        })
    }
}
