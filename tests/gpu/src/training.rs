//! Small trainings of every study on a device: losses and times, compared with f32 on the CPU.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use engram_train::recipe::{Recipe, RecipeOptions};
use engram_train::studies::ALL;
use engram_train::{METRICS, RunOptions, registry};
use serde_json::Value;

use crate::inference::largest_error;

/// The number of compared steps of each phase.
const STEPS: usize = 20;

/// A study, its built-in recipe, and settings over the recipe's `[tiny]` sizes.
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

/// A training on the device and on the CPU in f32.
pub struct Comparison {
    /// The study.
    pub study: &'static str,
    /// The largest difference of the losses over the first steps, divided by the CPU's loss.
    pub loss_error: f64,
    /// The seconds on the device, with evaluations.
    pub seconds: f64,
    /// The seconds on the CPU, with evaluations.
    pub cpu_seconds: f64,
}

/// Trains every study on the CPU in f32, and on the device.
pub fn compare_trainings(device: &str, precision: &str, folder: &Path) -> Result<Vec<Comparison>> {
    let mut comparisons = Vec::new();
    let (on_cpu, on_device) = (folder.join("cpu"), folder.join(precision));
    for training in &TRAININGS {
        let context = || format!("training {} on {device} in {precision}", training.study);
        let (expected, cpu_seconds) = train(training, "cpu", "f32", &on_cpu)?;
        let (losses, seconds) =
            train(training, device, precision, &on_device).with_context(context)?;
        ensure!(losses.len() == expected.len(), "{}: other steps", training.study);
        let errors = losses.iter().zip(&expected).take(STEPS).map(|(a, b)| (a - b).abs() / b.abs());
        let loss_error = largest_error(errors);
        comparisons.push(Comparison { study: training.study, loss_error, seconds, cpu_seconds });
    }
    Ok(comparisons)
}

/// Trains one study in `folder`, unless it is trained there already. Returns the losses of its
/// steps, and the seconds. AVFormer adapts the ASR model of the speech training.
fn train(
    training: &Training,
    device: &str,
    precision: &str,
    folder: &Path,
) -> Result<(Vec<f64>, f64)> {
    let run = folder.join(training.study);
    let mut set: Vec<String> = training.settings.iter().map(|set| set.to_string()).collect();
    set.push(format!("compute.device={device:?}"));
    set.push(format!("compute.precision={precision:?}"));
    set.push("log.every_steps=1".to_string());
    if training.study == "avformer" {
        // The same frozen models for all devices.
        let frozen = folder.parent().context("the folder has no parent")?.join("cpu");
        set.push(format!("model.asr_model={:?}", frozen.join("speech")));
        set.push(format!("model.image_encoder={:?}", frozen.join("clip")));
    }
    let start = Instant::now();
    if !run.join("summary.json").is_file() {
        let mut recipe = Recipe::built_in(training.recipe, &RecipeOptions { tiny: true, set })?;
        let study = registry::find(ALL, training.study).context("the study is not registered")?;
        let options = RunOptions { run: run.clone(), quiet: true, ..RunOptions::default() };
        (study.train)(&mut recipe, &options)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let log = fs::read_to_string(run.join(METRICS))?;
    let lines = log.lines().map(serde_json::from_str::<Value>).collect::<Result<Vec<_>, _>>()?;
    let steps = lines.iter().filter(|line| line["kind"] == "train");
    Ok((steps.filter_map(|line| line["loss"].as_f64()).collect(), seconds))
}
