//! REVEAL trained with the values of its memory in an object store.

use std::path::Path;
use std::sync::Arc;

use engram_memory::search::{Filter, Queries};
use engram_memory::{Memory, Method, Snapshot};
use engram_memory_objects::{TierSettings, ValueTiers};
use engram_train::distributed::Ranks;
use engram_train::studies::reveal::run::train_reveal;
use engram_train::{Recipe, RecipeOptions, RunOptions, StudyResult, TrainError, ValueStorages};

use crate::runs::{assert_same_bytes, lasting_files, quiet, with_causes};

/// The memory is refreshed several times.
pub const SETTINGS: [&str; 13] = [
    "batch.examples=16",
    "checkpoint.every_steps=4",
    "memory.refresh_every=6",
    "memory.refresh_lag=3",
    "phase.images.steps=1",
    "phase.warm-start.steps=1",
    "phase.questions.steps=5",
    "phase.fine-tune.steps=14",
    "log.every_steps=1",
    "log.tensorboard=false",
    "check.loss_at_most=100.0",
    "data.max_images=150",
    "data.evaluated_questions=8",
];

/// Tiers in front of the store at an address.
fn tiers(address: &str) -> ValueTiers {
    ValueTiers::new(TierSettings { target: Some(address.to_owned()), ..TierSettings::default() })
}

fn storages() -> ValueStorages {
    ValueStorages::new(|address| Ok(Arc::new(tiers(address))))
}

fn train(run: &Path, values: Option<&Path>, storages: ValueStorages) -> Result<(), TrainError> {
    let values = values.map(|store| format!("memory.values={:?}", store.display().to_string()));
    train_with(run, values, storages, Ranks::default())
}

fn train_with(
    run: &Path,
    set: Option<String>,
    storages: ValueStorages,
    ranks: Ranks,
) -> Result<(), TrainError> {
    let set = SETTINGS.iter().map(|set| (*set).to_owned()).chain(set);
    let recipe_options = RecipeOptions { tiny: true, set: set.collect() };
    let mut recipe = Recipe::built_in("reveal/laptop", &recipe_options)?;
    let (resume, value_storages) = (run.exists(), storages);
    let options = RunOptions { resume, ranks, value_storages, ..quiet(run) };
    train_reveal(&mut recipe, &options).map(drop)
}

/// The number of files below a folder whose names end like this.
fn count(folder: &Path, end: &str) -> usize {
    let files = lasting_files(folder).into_iter();
    files.filter(|(name, _)| name.to_string_lossy().ends_with(end)).count()
}

#[test]
fn values_in_a_store_train_to_the_same_bytes() -> StudyResult<()> {
    let folder = tempfile::tempdir()?;
    let [local, remote, store] = ["local", "remote", "store"].map(|name| folder.path().join(name));
    train(&local, None, ValueStorages::default())?;
    train(&remote, Some(&store), storages())?;
    assert_same_bytes(&local, &remote, &["model.safetensors", "metrics.jsonl", "test.jsonl"]);
    // The run's folder has the keys only. The store has the values of the phases, of the refreshes
    // and of the finished model.
    assert_eq!(count(&local.join("memory"), "values.safetensors"), 1);
    assert_eq!(count(&remote.join("memory"), "values.safetensors"), 0);
    assert!(count(&store.join("generations"), "") >= 4);

    // A run that was killed just before its end is finished.
    let summary = std::fs::read(remote.join("summary.json"))?;
    std::fs::remove_file(remote.join("summary.json"))?;
    train(&remote, Some(&store), storages())?;
    assert_eq!(std::fs::read(remote.join("summary.json"))?, summary);

    let address = store.display().to_string();
    let memories = [
        Memory::open(local.join("memory"))?,
        Memory::open_with(remote.join("memory"), Some(Arc::new(tiers(&address))))?,
    ];
    let [local, remote] = memories.map(|memory| memory.generation());
    let keys: Vec<f32> = (0..local.description().width).map(|i| (i as f32).sin()).collect();
    let queries = Queries { keys: &keys, k: 50 };
    let search = |memory: &dyn Snapshot| -> StudyResult<_> {
        let hits = memory.search(Method::Exact, queries, &Filter::default())?.hits.concat();
        let rows: Vec<_> = hits.iter().map(|hit| hit.row).collect();
        let values: Vec<u32> = memory.values(&rows)?.iter().map(|value| value.to_bits()).collect();
        Ok((hits.into_iter().map(|hit| hit.id).collect::<Vec<_>>(), values))
    };
    assert_eq!(search(&*local)?, search(&*remote)?);
    Ok(())
}

#[test]
fn a_program_without_object_stores_and_a_bad_address_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let run = folder.path().join("run");
    let error = |values: &Path, storages| train(&run, Some(values), storages).unwrap_err();
    let without = error(&folder.path().join("store"), ValueStorages::default()).to_string();
    assert!(without.contains("memory.values") && without.contains("`objects`"), "{without}");
    // The store is a file: the first memory cannot be stored.
    let causes = with_causes(&error(&file, storages()));
    assert!(causes.contains(&file.display().to_string()), "{causes}");
    assert!(!run.join("summary.json").exists());
}

#[test]
fn a_place_outside_of_the_folder_needs_a_single_rank_and_a_client() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let server = "memory.server=\"postgres://ann@db.example/wiki\"".to_owned();
    for set in [server.clone(), "memory.values=\"s3://bucket/run\"".to_owned()] {
        let errors = crate::threads::on_ranks(2, |rank| {
            let ranks = Ranks::new(rank);
            train_with(&run, Some(set.clone()), storages(), ranks).unwrap_err().to_string()
        });
        for error in errors {
            assert!(error.contains(&set[..13]) && error.contains("a single rank"), "{error}");
        }
    }
    let error = train_with(&run, Some(server), storages(), Ranks::default()).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("memory.server") && error.contains("`postgres`"), "{error}");
    assert!(!run.exists());
}
