//! Training and testing one run.
//!
//! Besides the files of every run, the run folder has `config.json` and `test/`: references, and
//! transcripts and items of each system, for `engram eval`. `summary.json` is written last. The
//! weights file has only the adapters and the projection.

use std::collections::BTreeMap;
use std::path::Path;

use engram_infer::asr::AvformerRunConfig;
use engram_infer::finished_run::SUMMARY;
use serde::{Deserialize, Serialize};

use super::NAME;
use super::evaluate::TestMetrics;
use super::settings::{AvformerData, AvformerFeed, AvformerModel};
use super::study::AvformerStudy;
use crate::checkpoint::write_file;
use crate::checksums::train_and_finish;
use crate::error::{Result, TrainError};
use crate::recipe::Recipe;
use crate::run_folder::read_summary;
use crate::study::StudyResult;
use crate::trainer::{RunOptions, RunSummary};

/// The results of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AvformerSummary {
    /// The SHA-256 of the resolved recipe.
    pub recipe_hash: String,
    /// The seed.
    pub seed: u64,
    /// Steps trained.
    pub steps: u64,
    /// The number of parameter values that a phase trained or that came from the run in `[start]`,
    /// and the number of values of the frozen ASR model.
    pub parameters: [usize; 2],
    /// The SHA-256 of the frozen ASR model's parameters, before training and after.
    pub frozen: [String; 2],
    /// Skipped clips, each with the reason.
    pub skipped: Vec<String>,
    /// The test results.
    #[serde(flatten)]
    pub test: TestMetrics,
    /// Failures of the recipe's `[check]`.
    pub check_failures: Vec<String>,
}

impl AvformerSummary {
    /// Reads the summary of a finished run.
    ///
    /// # Errors
    /// [`TrainError::Io`]; [`TrainError::Data`] for a summary that is broken or of another version.
    pub fn read(run: &Path) -> Result<Self> {
        read_summary(&run.join(SUMMARY))
    }
}

/// Trains adapters and the projection by a recipe, and tests them.
///
/// # Errors
/// Errors of reading the data and the frozen models, and of [`train`](crate::train);
/// [`TrainError::FrozenChanged`] if the ASR model changed.
pub fn train_avformer(recipe: &mut Recipe, options: &RunOptions) -> Result<AvformerSummary> {
    recipe.expect_study(NAME)?;
    recipe.fill_start_hash()?;
    let (data, model, feeds) = complete_settings(recipe)?;
    let batch = recipe.batch.clone();
    let study = AvformerStudy::new(data, model, feeds, batch, &recipe.compute()?, options.quiet);
    let mut study = study.map_err(TrainError::in_study(NAME, "reading the data"))?;
    check_start(&study, recipe)?;
    let fingerprint = |study: &AvformerStudy| study.asr_model.parameters().fingerprint(|_| true);
    let before = fingerprint(&study)?;
    train_and_finish(&mut study, recipe, options, |study, trained| {
        let after = fingerprint(study)?;
        if before != after {
            let phase = "the whole run".to_string();
            return Err(TrainError::FrozenChanged { phase, before, after }.into());
        }
        finish(study, recipe, trained, [before, after])
    })
}

/// The study's part of a recipe: `[data]`, `[model]` and the feed of each phase.
type Settings = (AvformerData, AvformerModel, Vec<AvformerFeed>);

/// Reads the study's part of the recipe and fills in defaults. It is an error if `[model]` does not
/// name the frozen models.
pub(super) fn complete_settings(recipe: &mut Recipe) -> Result<Settings> {
    let (data, model, feeds) = settings(recipe)?;
    let required_keys = [
        ("asr_model", &model.asr_model, true),
        ("image_encoder", &model.image_encoder, feeds.iter().any(|feed| feed.frames)),
    ];
    for (key, value, is_needed) in required_keys {
        if is_needed && value.is_empty() {
            let reason = "is missing: set hf://owner/name, or a folder";
            return Err(recipe.error(&format!("model.{key}"), reason));
        }
    }
    Ok((data, model, feeds))
}

/// Reads and checks the study's part of the recipe, and fills in defaults.
pub(super) fn settings(recipe: &mut Recipe) -> Result<Settings> {
    let (data, model): (AvformerData, AvformerModel) = (recipe.data()?, recipe.model()?);
    let feeds: Vec<AvformerFeed> = recipe.feed()?;
    recipe.check_key("data", data.first_invalid_key())?;
    recipe.check_key("model", model.first_invalid_key())?;
    for (phase, feed) in recipe.phases.iter().zip(&feeds) {
        let path = format!("phase.{}.feed", phase.name);
        recipe.check_key(&path, feed.first_invalid_key(&data))?;
    }
    recipe.check_batch(&[])?;
    Ok((data, model, feeds))
}

/// Returns an error if the run in `[start]` was trained with other frozen models.
fn check_start(study: &AvformerStudy, recipe: &Recipe) -> Result<()> {
    let Some(start) = recipe.start.as_ref() else { return Ok(()) };
    let start_config = AvformerRunConfig::read(&start.run)?;
    let asr_model = study.asr_model.weights_sha256()?;
    let pairs = [
        ("ASR model", &start_config.asr_model_sha256, &asr_model),
        ("image encoder", &start_config.image_encoder_sha256, &study.encoder_sha256),
        (
            "image preprocessing",
            &start_config.image_encoder_inputs_sha256,
            &study.encoder_inputs_sha256,
        ),
    ];
    for (model, start_sha256, own_sha256) in pairs {
        // The hash of an image encoder is empty for a run without frames.
        if start_sha256 != own_sha256 && !start_sha256.is_empty() && !own_sha256.is_empty() {
            let reason = format!(
                "names {}, which was trained with another {model}; use the same for both",
                start.run.display()
            );
            return Err(recipe.error("start.run", reason));
        }
    }
    Ok(())
}

/// Writes the configuration into the run folder, and runs the test.
fn finish(
    study: &AvformerStudy,
    recipe: &Recipe,
    trained: &RunSummary,
    frozen: [String; 2],
) -> StudyResult<AvformerSummary> {
    let avformer = study.load(&trained.weights)?;
    let mut trained_parameters = BTreeMap::new();
    for phase in &recipe.phases {
        trained_parameters.extend(study.trainable(recipe.groups(phase))?);
    }
    // Parameters trained by the run in `[start]` count too.
    if let Some(start) = recipe.start.as_ref() {
        let all_parameters = study.trainable(Vec::new())?;
        trained_parameters
            .extend(all_parameters.into_iter().filter(|(name, _)| start.loads_parameter(name)));
    }
    let model = &study.model;
    let run_config = AvformerRunConfig {
        model_type: AvformerRunConfig::MODEL_TYPE.to_string(),
        avformer: model.avformer(),
        asr_model: model.asr_model.clone(),
        asr_model_sha256: study.asr_model.weights_sha256()?,
        language: study.asr_model.language().map(str::to_owned),
        image_encoder: model.image_encoder.clone(),
        image_encoder_sha256: study.encoder_sha256.clone(),
        image_encoder_inputs_sha256: study.encoder_inputs_sha256.clone(),
        image_width: study.image_width(),
        frames: study.data.frames,
        silence_seconds: study.data.silence_seconds,
    };
    write_file(
        &trained.run.join(AvformerRunConfig::FILE),
        &serde_json::to_vec_pretty(&run_config)?,
    )?;
    Ok(AvformerSummary {
        recipe_hash: trained.recipe_hash.clone(),
        seed: recipe.seed,
        steps: trained.steps,
        parameters: [
            trained_parameters.values().sum(),
            study.asr_model.parameters().value_counts().0,
        ],
        frozen,
        skipped: study.corpus.skipped(),
        test: study.test(&avformer, &trained.run)?,
        check_failures: trained.check.failures.clone(),
    })
}
