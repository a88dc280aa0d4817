//! A run of the study.
//!
//! Its folder ends with what every run has, and beside the weights `config.json` and `preprocessor_config.json` in the
//! published form of a `CLIPVisionModelWithProjection`, so that [`crate::encode::Encoder`] and `transformers` open it;
//! and `summary.json`, written last.

use engram_data::image::Preprocessing;
use engram_eval::result::Measure;
use engram_models::ModelError;
use engram_models::clip::CLIP_VISION;
use serde::{Deserialize, Serialize};

use super::names::NameVectors;
use super::pictures::ShownPictures;
use super::settings::{ClipData, ClipModel};
use super::study::ClipStudy;
use crate::checkpoint::write_file;
use crate::checksums::finish_run;
use crate::error::{Result, TrainError};
use crate::recipe::Recipe;
use crate::study::{StudyError, StudyResult};
use crate::trainer::{RunOptions, RunSummary, train};

/// What a run of the study came to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClipSummary {
    /// The recipe's hash.
    pub recipe_hash: String,
    /// The seed.
    pub seed: u64,
    /// Steps trained.
    pub steps: u64,
    /// How many names there are to choose from.
    pub names: usize,
    /// The share of the test's views whose nearest name, of all, is the right one.
    pub accuracy: Measure,
    /// How many of the names are spoken by the voices of the embedded world.
    pub spoken_names: usize,
    /// The same share among these names alone; `None` where there is none.
    pub spoken_accuracy: Option<Measure>,
    /// What the recipe's `[check]` found wrong.
    pub check_failures: Vec<String>,
}

/// What the study reads of a phase: nothing.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoFeed {}

/// Trains by a recipe; `None` if the run was stopped before its end.
///
/// # Errors
/// [`TrainError::Recipe`] naming the setting that cannot be; those of [`train`].
pub fn train_clip(recipe: &mut Recipe, options: &RunOptions) -> Result<Option<ClipSummary>> {
    if recipe.study() != "clip" {
        return Err(recipe.error("study", "is not `clip`, which is to be trained"));
    }
    let (data, model) = settings(recipe)?;
    let size = u32::try_from(model.image_size).unwrap_or(u32::MAX);
    let shown = ShownPictures::new(data.pictures, size)?;
    if !(2..=shown.len()).contains(&recipe.batch().examples) {
        let reason = format!("has to be 2 to {}, the number of pictures", shown.len());
        return Err(recipe.error("batch.examples", reason));
    }
    let names: Vec<&str> = shown.names().collect();
    let names = NameVectors::new(&names, &model.text_encoder);
    let names = names.map_err(|error| recipe.error("model.text_encoder", error))?;
    let batch = recipe.batch().clone();
    let mut study = ClipStudy::new((data, model), (shown, names), batch, recipe.seed());
    let trained = train(&mut study, recipe, options)?;
    if !trained.finished {
        return Ok(None);
    }
    let summary =
        finish(&study, recipe, &trained).map_err(in_study("measuring the finished run"))?;
    finish_run(&options.run, &summary)?;
    Ok(Some(summary))
}

/// Reads what the recipe says of the study, which fills in the defaults, and checks it.
fn settings(recipe: &mut Recipe) -> Result<(ClipData, ClipModel)> {
    let (data, model): (ClipData, ClipModel) = (recipe.data()?, recipe.model()?);
    recipe.feed::<NoFeed>()?;
    if let Some((key, reason)) = data.conflict() {
        return Err(recipe.error(&format!("data.{key}"), reason));
    }
    // The width of the text vectors is not a setting: any will do to check the others.
    match model.vision(1).validate() {
        Err(ModelError::BadConfig { what, reason }) => {
            return Err(recipe.error(&format!("model.{what}"), reason));
        }
        checked => checked?,
    }
    if !(0.0..=100f64.ln()).contains(&model.logit_scale_init_value) {
        let reason = "has to be 0 to 4.605, the logarithm of 100";
        return Err(recipe.error("model.logit_scale_init_value", reason));
    }
    if recipe.batch().tokens > 0 {
        return Err(recipe.error("batch.tokens", "is not known to this study; give batch.examples"));
    }
    if recipe.start().is_some() {
        let reason = "is not known to this study: a finished run's weights lack the temperature";
        return Err(recipe.error("start", reason));
    }
    Ok((data, model))
}

/// Makes the run an encoder's folder and looks at the test.
fn finish(study: &ClipStudy, recipe: &Recipe, trained: &RunSummary) -> StudyResult<ClipSummary> {
    let mut config = serde_json::to_value(study.vision_config())?;
    config["model_type"] = CLIP_VISION.into();
    config["architectures"] = vec!["CLIPVisionModelWithProjection"].into();
    let write = |name: &str, content: &serde_json::Value| -> StudyResult<_> {
        let path = trained.run.join(name);
        write_file(&path, &serde_json::to_vec_pretty(content)?)?;
        Ok(path)
    };
    write("config.json", &config)?;
    let processor = write("preprocessor_config.json", &study.shown().processor())?;
    if Preprocessing::read(&processor)? != *study.shown().preprocessing() {
        return Err(format!("{}: is not what was trained with", processor.display()).into());
    }
    let vision = study.publish(&trained.weights)?;
    let told = study.test(&vision)?;
    Ok(ClipSummary {
        recipe_hash: trained.recipe_hash.clone(),
        seed: recipe.seed(),
        steps: trained.steps,
        names: study.shown().len(),
        accuracy: told.accuracy(),
        spoken_names: study.shown().spoken().len(),
        spoken_accuracy: told.spoken_accuracy(),
        check_failures: trained.check.failures.clone(),
    })
}

fn in_study(part: &'static str) -> impl Fn(StudyError) -> TrainError {
    move |source| TrainError::Study { study: "clip".into(), part, source }
}
