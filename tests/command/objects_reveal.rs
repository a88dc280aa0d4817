//! REVEAL with its memory's values in an object store (`memory.values`). Needs the feature
//! `objects`.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::running::{Folder, refused, succeeds};
use engram::memory::search::{Filter, Queries};
use engram::memory::{Memory, Method, Snapshot};
use engram_memory_objects::{TierSettings, ValueTiers};

/// The memory is refreshed several times.
const SETTINGS: &str = "--set batch.examples=16 --set checkpoint.every_steps=4 \
    --set memory.refresh_every=6 --set memory.refresh_lag=3 --set phase.images.steps=1 \
    --set phase.warm-start.steps=1 --set phase.questions.steps=5 --set phase.fine-tune.steps=14 \
    --set log.every_steps=1 --set log.tensorboard=false --set check.loss_at_most=100.0 \
    --set data.max_images=150 --set data.evaluated_questions=8";

fn train(run: &str, options: &str) -> String {
    format!("train reveal --recipe reveal/laptop --tiny --quiet --run {run} {SETTINGS} {options}")
}

/// The ids that a memory finds for some key, and their values.
fn search(memory: &Memory) -> (Vec<i64>, Vec<u32>) {
    let generation = memory.generation();
    let keys: Vec<f32> = (0..generation.description().width).map(|i| (i as f32).sin()).collect();
    let queries = Queries { keys: &keys, k: 50 };
    let found = generation.search(Method::Exact, queries, &Filter::default()).unwrap();
    let hits = found.hits.concat();
    let rows: Vec<_> = hits.iter().map(|hit| hit.row).collect();
    let values = generation.values(&rows).unwrap();
    let ids = hits.into_iter().map(|hit| hit.id).collect();
    (ids, values.iter().map(|value| value.to_bits()).collect())
}

/// The number of files below a folder whose names end like this.
fn count(folder: &Path, end: &str) -> usize {
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            if path.is_dir() {
                count(&path, end)
            } else {
                path.to_string_lossy().ends_with(end).into()
            }
        })
        .sum()
}

#[test]
fn values_in_a_store_train_to_the_same_bytes() {
    let folder = &Folder::new();
    let store = "--set memory.values=store";
    succeeds(folder, &train("local", ""));
    succeeds(folder, &train("remote", store));
    for file in ["model.safetensors", "metrics.jsonl", "test.jsonl"] {
        let [local, remote] =
            ["local", "remote"].map(|run| fs::read(folder.join(run).join(file)).unwrap());
        assert!(local == remote, "{file} differs");
    }
    // The run's folder has the keys only. The store has the values of the phases, of the refreshes
    // and of the finished model.
    assert_eq!(count(&folder.join("local/memory"), "values.safetensors"), 1);
    assert_eq!(count(&folder.join("remote/memory"), "values.safetensors"), 0);
    assert!(count(&folder.join("store/generations"), "") >= 4);

    // A run that was killed just before its end is finished.
    let summary = folder.join("remote/summary.json");
    let before = fs::read(&summary).unwrap();
    fs::remove_file(&summary).unwrap();
    succeeds(folder, &train("remote", &format!("{store} --resume")));
    assert_eq!(fs::read(&summary).unwrap(), before);

    // The values belong to this run.
    let parts = ["/store: has the values of another memory", "`--set memory.values=ADDRESS` gives"];
    refused(folder, &train("other", store), &parts);

    let address = folder.join("store").display().to_string();
    let tiers = ValueTiers::new(TierSettings { target: Some(address), ..TierSettings::default() });
    let local = Memory::open(folder.join("local/memory")).unwrap();
    let remote = Memory::open_with(folder.join("remote/memory"), Some(Arc::new(tiers))).unwrap();
    assert_eq!(search(&local), search(&remote));
}

#[test]
fn a_store_that_is_a_file_is_an_error() {
    let folder = &Folder::new();
    fs::write(folder.join("file"), "").unwrap();
    refused(folder, &train("run", "--set memory.values=file"), "file");
    assert!(!folder.join("run/summary.json").exists());
}
