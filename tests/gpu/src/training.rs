//! Training of every study on the device: losses and metrics of small recipes, compared with f32 on
//! the CPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use engram_train::recipe::{Recipe, RecipeOptions};
use engram_train::registry;
use engram_train::studies::ALL;
use engram_train::trainer::RunOptions;
use serde_json::Value;

/// A small training: a study, its built-in recipe, and settings over the recipe's `[tiny]` sizes.
struct Training {
    study: &'static str,
    recipe: &'static str,
    settings: &'static [&'static str],
}

const TRAININGS: [Training; 5] = [
    Training { study: "patent", recipe: "patent/world", settings: &[] },
    Training { study: "reveal", recipe: "reveal/laptop", settings: &[] },
    Training { study: "clip", recipe: "clip/tiny", settings: &["phase.clip.epochs=10"] },
    Training { study: "speech", recipe: "speech/tiny", settings: &[] },
    Training { study: "avformer", recipe: "avformer/tiny", settings: &[] },
];

/// A finished training.
pub struct Trained {
    /// The losses of the logged steps.
    pub losses: Vec<f64>,
    /// The lines that the command would print.
    pub report: Vec<String>,
    /// The seconds that the training took, with its evaluations.
    pub seconds: f64,
}

/// Trains one study in `folder`. AVFormer starts from the ASR model of the speech training there.
fn train(training: &Training, device: &str, precision: &str, folder: &Path) -> Result<Trained> {
    let run = folder.join(training.study);
    let mut set: Vec<String> = training.settings.iter().map(|&set| set.to_string()).collect();
    set.push(format!("compute.device={device:?}"));
    set.push(format!("compute.precision={precision:?}"));
    set.push("log.every_steps=1".to_string());
    if training.study == "avformer" {
        set.push(format!("model.asr_model={:?}", folder.join("speech")));
        set.push(format!("model.image_encoder={:?}", folder.join("clip")));
    }
    let options = RecipeOptions { tiny: true, set };
    let mut recipe = Recipe::built_in(training.recipe, &options)?;
    let study = registry::find(ALL, training.study).context("the study is not registered")?;
    let options = RunOptions { quiet: true, ..RunOptions::new(run.clone()) };
    let start = Instant::now();
    let report = study.train(&mut recipe, &options)?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Trained { losses: losses(&run)?, report: report.lines, seconds })
}
