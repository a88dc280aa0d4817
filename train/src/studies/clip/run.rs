//! Training and testing one run.
//!
//! Besides the files of every run, the run folder has `config.json` and `preprocessor_config.json`
//! in the published form of a `CLIPVisionModelWithProjection`. So
//! [`engram_infer::encode::Encoder`] and `transformers` can open the folder. `summary.json` is
//! written last.

use engram_data::image::Preprocessing;
use engram_eval::result::Measure;
use engram_models::ModelError;
use engram_models::clip::CLIP_VISION;
use serde::{Deserialize, Serialize};

use super::NAME;
use super::evaluation::ACCURACY;
use super::images::ImageSet;
use super::names::NameVectors;
use super::settings::{ClipData, ClipModel};
use super::study::ClipStudy;
use crate::checkpoint::write_file;
use crate::checksums::train_and_finish;
use crate::error::Result;
use crate::grid::TestItems;
use crate::recipe::Recipe;
use crate::study::StudyResult;
use crate::trainer::{RunOptions, RunSummary};

/// The results of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClipSummary {
    /// The SHA-256 of the resolved recipe.
    pub recipe_hash: String,
    /// The seed.
    pub seed: u64,
    /// Steps trained.
    pub steps: u64,
    /// The number of candidate names.
    pub names: usize,
    /// The share of test views whose nearest name, among all names, is the name of their image.
    pub accuracy: Measure,
    /// The number of spoken names, which occur in the embedded world's speech.
    pub spoken_names: usize,
    /// The accuracy among spoken names only; `None` if there are none.
    pub spoken_accuracy: Option<Measure>,
    /// Failures of the recipe's `[check]`.
    pub check_failures: Vec<String>,
}

/// The feed of a phase, which has no keys.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoFeed {}

/// Trains an image encoder by a recipe, and tests it.
///
/// # Errors
/// [`TrainError::Recipe`](crate::TrainError::Recipe) naming the invalid setting; the errors of
/// [`train`](crate::train).
pub fn train_clip(recipe: &mut Recipe, options: &RunOptions) -> Result<ClipSummary> {
    recipe.expect_study(NAME)?;
    let (data, model) = settings(recipe)?;
    let size = u32::try_from(model.image_size).unwrap_or(u32::MAX);
    let images = ImageSet::new(data.images, size)?;
    if !(2..=images.len()).contains(&recipe.batch.examples) {
        let reason = format!("must be from 2 to {}, the number of images", images.len());
        return Err(recipe.error("batch.examples", reason));
    }
    let names: Vec<&str> = images.names().collect();
    let names = NameVectors::new(&names, &model.text_encoder);
    let names = names.map_err(|error| recipe.error("model.text_encoder", error))?;
    let batch = recipe.batch.clone();
    let mut study = ClipStudy::new(data, model, images, names, batch);
    train_and_finish(&mut study, recipe, options, |study, trained| finish(study, recipe, trained))
}

/// Reads and checks the study's part of the recipe, and fills in defaults.
pub(super) fn settings(recipe: &mut Recipe) -> Result<(ClipData, ClipModel)> {
    let (data, model): (ClipData, ClipModel) = (recipe.data()?, recipe.model()?);
    recipe.feed::<NoFeed>()?;
    recipe.check_key("data", data.first_invalid_key())?;
    // Checks the other settings with any width: the real width comes from the text encoder.
    match model.vision(1).validate() {
        Err(ModelError::BadConfig { what, reason }) => {
            return Err(recipe.error(&format!("model.{what}"), reason));
        }
        checked => checked?,
    }
    if !(0.0..=100f64.ln()).contains(&model.logit_scale_init_value) {
        let reason = "must be from 0 to 4.605, the logarithm of 100";
        return Err(recipe.error("model.logit_scale_init_value", reason));
    }
    recipe.check_batch(&["negatives"])?;
    if recipe.start.is_some() {
        let reason = "is not supported by this study: a finished run lacks the temperature";
        return Err(recipe.error("start", reason));
    }
    Ok((data, model))
}

/// Writes the encoder's files into the run folder, and runs the test.
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
    let processor_path = write("preprocessor_config.json", &study.images.preprocessor_config())?;
    if Preprocessing::read(&processor_path)? != study.images.preprocessing {
        return Err(format!(
            "{}: differs from the file used in training",
            processor_path.display()
        )
        .into());
    }
    study.publish(&trained.weights)?;
    let vision = study.open(&trained.weights, &recipe.compute()?)?;
    let predictions = study.test(&vision)?;
    TestItems::write(&trained.run, &ACCURACY, &predictions.items())?;
    Ok(ClipSummary {
        recipe_hash: trained.recipe_hash.clone(),
        seed: recipe.seed,
        steps: trained.steps,
        names: study.images.len(),
        accuracy: predictions.accuracy(),
        spoken_names: study.images.spoken.len(),
        spoken_accuracy: predictions.spoken_accuracy(),
        check_failures: trained.check.failures.clone(),
    })
}
