//! The time of a step of REVEAL's training with values in the run's folder, and in an object store
//! whose requests take 20 ms.
//!
//! Usage: `cargo bench --features objects --bench reveal_values -- STEPS [REPEATS]`. Trains the
//! recipe `reveal/laptop` from a warm start for STEPS steps (200), with a refresh of the memory
//! every 50 steps, REPEATS times (2) in each way, in turn. The first steps do not count. The store
//! is in main memory. The values of a refresh are not in the cache.
#![allow(clippy::unwrap_used)]

#[path = "../memory/objects/benches/slow_store/mod.rs"]
mod slow_store;

use std::path::Path;
use std::sync::Arc;

use engram_memory_objects::{TierSettings, ValueTiers};
use engram_train::studies::reveal::run::train_reveal;
use engram_train::{Recipe, RecipeOptions, RunOptions, ValueStorages};
use serde_json::Value;
use slow_store::REQUEST;

const ADDRESS: &str = "memory://values";
/// The steps per line of `timing.jsonl`.
const LOGGED_STEPS: u64 = 10;
/// The steps that do not count.
const FIRST_STEPS: u64 = 2 * LOGGED_STEPS;

/// A store whose requests take [`REQUEST`], behind a cache in main memory.
fn store() -> ValueStorages {
    ValueStorages::new(|address| {
        let settings = TierSettings { target: Some(address.to_owned()), ..TierSettings::default() };
        Ok(Arc::new(ValueTiers::new(settings).with_store(slow_store::storage(address))))
    })
}

/// The seconds of a step, in a training with this number of steps that retrieve entries.
fn seconds_of_step(steps: u64, storages: ValueStorages, is_remote: bool) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let mut set = vec![
        "memory.refresh_every=50".to_owned(),
        "memory.refresh_lag=10".to_owned(),
        "phase.images.steps=1".to_owned(),
        "phase.warm-start.steps=1".to_owned(),
        "phase.questions.steps=1".to_owned(),
        format!("phase.fine-tune.steps={steps}"),
        format!("log.every_steps={LOGGED_STEPS}"),
        "check.metric_value=0.0".to_owned(),
        "data.evaluated_questions=1".to_owned(),
    ];
    set.extend(is_remote.then(|| format!("memory.values={ADDRESS:?}")));
    let recipe_options = RecipeOptions { tiny: false, set };
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/train/recipes/reveal/laptop.toml"));
    let mut recipe = Recipe::load(path, &recipe_options).unwrap();
    let run = folder.path().join("run");
    let options = RunOptions {
        run: run.clone(),
        quiet: true,
        value_storages: storages,
        ..RunOptions::default()
    };
    train_reveal(&mut recipe, &options).unwrap();
    let text = std::fs::read_to_string(run.join("timing.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let counted = lines.filter(|line| line["step"].as_u64().unwrap() > FIRST_STEPS);
    let seconds: Vec<f64> = counted.map(|line| line["seconds"].as_f64().unwrap()).collect();
    seconds.iter().sum::<f64>() / (seconds.len() as u64 * LOGGED_STEPS) as f64
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let steps = arguments.next().map_or(200, |steps| steps.parse().unwrap());
    let repeats: usize = arguments.next().map_or(2, |repeats| repeats.parse().unwrap());
    let (mut local, mut remote) = (0.0, 0.0);
    for repeat in 0..repeats {
        let times = [
            seconds_of_step(steps, ValueStorages::default(), false),
            seconds_of_step(steps, store(), true),
        ];
        let [local_ms, remote_ms] = times.map(|seconds| 1000.0 * seconds);
        println!("{repeat}: local {local_ms:.0} ms, remote {remote_ms:.0} ms");
        local += local_ms / repeats as f64;
        remote += remote_ms / repeats as f64;
    }
    println!(
        "a step: local {local:.0} ms, with {} ms a request {remote:.0} ms, ratio {:.2}",
        REQUEST.as_millis(),
        remote / local
    );
}
