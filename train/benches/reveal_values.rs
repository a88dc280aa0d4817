//! The time of a step of REVEAL's training with values in the run's folder, and in an object store
//! whose requests take 20 ms.
//!
//! Usage: `cargo bench --bench reveal_values -- STEPS`. Trains the recipe `reveal/laptop` from a warm
//! start, for 20 steps and for STEPS more, with a refresh of the memory every 50 steps. The time of a
//! step is the difference. The store is in main memory. The values of a refresh are not in the cache.
#![allow(clippy::unwrap_used)]

#[path = "../../memory/objects/benches/slow_store/mod.rs"]
mod slow_store;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use engram_memory_objects::{TierSettings, ValueTiers};
use engram_train::studies::reveal::run::train_reveal;
use engram_train::{Recipe, RecipeOptions, RunOptions, ValueStorages};
use slow_store::REQUEST;

const ADDRESS: &str = "memory://values";
/// The steps whose time is subtracted.
const FIRST_STEPS: usize = 20;

/// A store whose requests take [`REQUEST`], behind a cache in main memory.
fn store() -> ValueStorages {
    ValueStorages::new(|address| {
        let settings = TierSettings { target: Some(address.to_owned()), ..TierSettings::default() };
        Ok(Arc::new(ValueTiers::new(settings).with_store(slow_store::storage(address))))
    })
}

/// The seconds of a training with this number of steps that retrieve entries.
fn seconds(steps: usize, storages: Option<ValueStorages>) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let mut set = vec![
        "memory.refresh_every=50".to_owned(),
        "memory.refresh_lag=10".to_owned(),
        "phase.images.steps=1".to_owned(),
        "phase.warm-start.steps=1".to_owned(),
        "phase.questions.steps=1".to_owned(),
        format!("phase.fine-tune.steps={steps}"),
        "check.metric_value=0.0".to_owned(),
        "data.evaluated_questions=1".to_owned(),
    ];
    set.extend(storages.is_some().then(|| format!("memory.values={ADDRESS:?}")));
    let recipe_options = RecipeOptions { tiny: false, set };
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/recipes/reveal/laptop.toml"));
    let mut recipe = Recipe::load(path, &recipe_options).unwrap();
    let options = RunOptions {
        run: folder.path().join("run"),
        quiet: true,
        value_storages: storages.unwrap_or_default(),
        ..RunOptions::default()
    };
    let start = Instant::now();
    train_reveal(&mut recipe, &options).unwrap();
    start.elapsed().as_secs_f64()
}

fn main() {
    let argument = std::env::args().skip(1).find(|argument| argument != "--bench");
    let steps: usize = argument.map_or(100, |steps| steps.parse().unwrap());
    let step = |storages: fn() -> Option<ValueStorages>| {
        let more = seconds(FIRST_STEPS + steps, storages());
        1000.0 * (more - seconds(FIRST_STEPS, storages())) / steps as f64
    };
    let (local, remote) = (step(|| None), step(|| Some(store())));
    println!(
        "{steps} steps: local {local:.0} ms, with {} ms a request {remote:.0} ms, ratio {:.2}",
        REQUEST.as_millis(),
        remote / local
    );
}
