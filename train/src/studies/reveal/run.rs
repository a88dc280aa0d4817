//! A run of the study.

use super::settings::{RevealData, RevealMemory, RevealModel};
use super::study::RevealStudy;
use crate::error::{Result, TrainError};
use crate::recipe::Recipe;
use crate::study::StudyError;
use crate::trainer::{RunOptions, RunSummary, train};

/// Trains by a recipe.
///
/// # Errors
/// Those of reading the data, and of [`train`].
pub fn train_reveal(recipe: &mut Recipe, options: &RunOptions) -> Result<RunSummary> {
    if recipe.study() != "reveal" {
        return Err(recipe.error("study", "is not `reveal`, which is to be trained"));
    }
    let data: RevealData = recipe.data()?;
    let model: RevealModel = recipe.model()?;
    let memory: RevealMemory = recipe.memory()?;
    let feeds = recipe.feed()?;
    let study = RevealStudy::new(
        (data, model, memory),
        feeds,
        recipe.batch().clone(),
        recipe.seed(),
        options.run.clone(),
    );
    let mut study = study.map_err(in_study("reading the data"))?;
    train(&mut study, recipe, options)
}

fn in_study(part: &'static str) -> impl Fn(StudyError) -> TrainError {
    move |source| TrainError::Study { study: "reveal".into(), part, source }
}
