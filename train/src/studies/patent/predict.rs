//! Prediction from a finished run.

use std::path::{Path, PathBuf};

use engram_data::patent::PhrasePair;
use engram_data::titles::ClassTitles;

use super::member::{self, CALIBRATION, Member};
use super::results::add_to;
use super::run::{PatentSummary, SUMMARY};
use super::settings::PatentModel;
use crate::error::{Result, TrainError};
use crate::recipe::{Recipe, RecipeOptions};

/// Similarities of rows by a finished run: the weighted mean of its members' calibrated scores.
///
/// `progress` is told how many of the `members × passes × rows` scores are done.
///
/// # Errors
/// [`TrainError::Io`] for a file that the run does not have.
pub fn predict(run: &Path, rows: &[PhrasePair], progress: &dyn Fn(usize)) -> Result<Vec<f64>> {
    let (mut sums, mut total) = (Vec::new(), 0.0);
    for (folder, weight) in members(run)? {
        add_to(&mut sums, &Member::load(&folder)?.predict(rows, progress)?, weight);
        total += weight;
    }
    Ok(sums.into_iter().map(|sum| sum / total).collect())
}

/// The class titles that a finished run was trained with.
///
/// # Errors
/// As [`predict`].
pub fn titles(run: &Path) -> Result<ClassTitles> {
    member::titles(&members(run)?[0].0)
}

/// How many scores a prediction of `rows` rows computes, for a progress bar.
///
/// # Errors
/// As [`predict`].
pub fn prediction_work(run: &Path, rows: usize) -> Result<usize> {
    let mut work = 0;
    for (member, _) in members(run)? {
        let mut recipe = Recipe::load(&member.join("recipe.toml"), &RecipeOptions::default())?;
        work += recipe.model::<PatentModel>()?.passes * rows;
    }
    Ok(work)
}

/// The folders and weights of a run's members, in order, from the summary that a run writes last; a member is
/// a run by itself.
fn members(run: &Path) -> Result<Vec<(PathBuf, f64)>> {
    let path = run.join(SUMMARY);
    if !path.exists() && run.join(CALIBRATION).is_file() {
        return Ok(vec![(run.to_path_buf(), 1.0)]);
    }
    let unfinished = |source: std::io::Error| {
        let kind = source.kind();
        let remedy = "no finished run of the patent study is here; train one, or go on with one, \
                      with `engram train patent` and --resume";
        TrainError::io(run)(std::io::Error::new(kind, format!("{remedy} ({source})")))
    };
    let text = std::fs::read(&path).map_err(unfinished)?;
    let summary: PatentSummary =
        serde_json::from_slice(&text).map_err(|e| TrainError::io(&path)(e.into()))?;
    Ok(match summary.members.as_slice() {
        [] => return Err(unfinished(std::io::Error::other("its summary has no members"))),
        [only] if only.run == Path::new(".") => vec![(run.to_path_buf(), 1.0)],
        members => members.iter().map(|member| (run.join(&member.run), member.weight)).collect(),
    })
}
