//! `batch.negatives = "step"`: contrastive losses over all micro-batches of a step.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::safetensors::load;
use candle_core::{DType, Device};
use engram_train::studies::clip::run::train_clip;
use engram_train::studies::patent::run::train_patent;
use engram_train::{RunOptions, TrainError};

use crate::clip::RECIPE;
use crate::runs::{self, finished, quiet, recipe, train_on};

/// Three steps with all 40 images, without momentum, so that a gradient's error shows.
const SETTINGS: [&str; 7] = [
    "data.test_views=1",
    "batch.examples=40",
    "optimiser.rule={ kind = \"sgd\", momentum = 0.0 }",
    "optimiser.learning_rate=0.5",
    "optimiser.clip_norm=0.0",
    "schedule.kind=constant",
    "phase.clip.epochs=3",
];

fn train(options: &RunOptions, set: &[&str]) -> Result<(), TrainError> {
    train_clip(&mut recipe(RECIPE, &[&SETTINGS, set].concat())?, options).map(drop)
}

/// The parameters by name, and the loss and the temperature of each step.
fn results(run: &Path) -> (BTreeMap<String, Vec<f32>>, Vec<f64>) {
    let tensors = load(run.join("model.safetensors"), &Device::Cpu).unwrap();
    let values = tensors.into_iter().map(|(name, tensor)| {
        let tensor = tensor.to_dtype(DType::F32).unwrap();
        (name, tensor.flatten_all().unwrap().to_vec1().unwrap())
    });
    let log = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str(line).unwrap());
    let steps = lines.filter(|line: &serde_json::Value| line.get("loss").is_some());
    let logged = steps.flat_map(|line| {
        let number = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name}: {line}"));
        [number("loss"), number("loss/temperature")]
    });
    (values.collect(), logged.collect())
}

/// The largest difference of parameters, and of logged values.
fn difference(a: &Path, b: &Path) -> (f32, f64) {
    let ((a, logged_a), (b, logged_b)) = (results(a), results(b));
    assert_eq!(logged_a.len(), 6);
    let pairs = a.values().flatten().zip(b.values().flatten());
    let parameters = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let logged = logged_a.iter().zip(&logged_b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    (parameters, logged)
}

/// Four micro-batches of 10 images train like one of 40.
#[test]
fn the_size_of_micro_batches_does_not_change_the_training() {
    for all_names in ["false", "true"] {
        let folder = tempfile::tempdir().unwrap();
        let all_names = format!("data.all_names={all_names}");
        let run = |name: &str, set: &[&str]| {
            let run = folder.path().join(name);
            train(&quiet(&run), &[set, &[all_names.as_str()]].concat()).unwrap();
            run
        };
        let micro_batches = ["batch.examples=10", "batch.accumulate=4"];
        let whole = run("whole", &[]);
        let step = run("step", &[&micro_batches[..], &["batch.negatives=step"]].concat());
        let (parameters, logged) = difference(&whole, &step);
        assert!(parameters < 2e-6 && logged < 2e-6, "{all_names}: {parameters} {logged}");
        // The gradients of ordinary micro-batches differ.
        let (parameters, logged) = difference(&whole, &run("ordinary", &micro_batches));
        assert!(parameters > 1e-3 && logged > 0.1, "{all_names}: {parameters} {logged}");
    }
}

#[test]
fn any_number_of_ranks_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let set = ["batch.examples=10", "batch.accumulate=3", "batch.negatives=step"];
    let weights = |size: usize| {
        let run = folder.path().join(size.to_string());
        finished(train_on(size, &run, |options| train(&options, &set)));
        let read = |file: &str| std::fs::read(run.join(file)).unwrap();
        (read("model.safetensors"), read("metrics.jsonl"))
    };
    let one = weights(1);
    for size in [2, 3] {
        assert!(one == weights(size), "{size} ranks");
    }
}

#[test]
fn a_study_without_a_contrastive_loss_refuses_it() {
    let recipe = RECIPE.replace("\"clip\"", "\"patent\"");
    let (before, after) = recipe.split_once("[data]").unwrap();
    let (_, after) = after.split_once("[batch]").unwrap();
    let recipe = format!("{before}[batch]\nnegatives = \"step\"{after}");
    let mut recipe = runs::recipe::<&str>(&recipe, &[]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let error = train_patent(&mut recipe, &quiet(&folder.path().join("run")))
        .expect_err("no contrastive loss")
        .to_string();
    assert!(error.contains("batch.negatives"), "{error}");
}
