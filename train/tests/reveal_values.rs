//! REVEAL's memory outside of the run's folder needs a client and a single rank.

use std::path::Path;

use engram_train::distributed::Ranks;
use engram_train::studies::reveal::run::train_reveal;
use engram_train::{Recipe, RecipeOptions, RunOptions, TrainError, ValueStorages};

use crate::runs::quiet;

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

/// Object stores that no test opens.
fn storages() -> ValueStorages {
    ValueStorages::new(|address| panic!("{address} is opened"))
}

fn train(
    run: &Path,
    set: Option<String>,
    storages: ValueStorages,
    ranks: Ranks,
) -> Result<(), TrainError> {
    let recipe_options = RecipeOptions { tiny: true, set: set.into_iter().collect() };
    let mut recipe = Recipe::built_in("reveal/laptop", &recipe_options)?;
    let options = RunOptions { ranks, value_storages: storages, ..quiet(run) };
    train_reveal(&mut recipe, &options).map(drop)
}

#[test]
fn a_program_without_object_stores_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let set = Some("memory.values=\"store\"".to_owned());
    let error = train(&run, set, ValueStorages::default(), Ranks::default()).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("memory.values") && error.contains("`objects`"), "{error}");
}

#[test]
fn a_place_outside_of_the_folder_needs_a_single_rank_and_a_client() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let server = "memory.server=\"postgres://ann@db.example/wiki\"".to_owned();
    for set in [server.clone(), "memory.values=\"s3://bucket/run\"".to_owned()] {
        let errors = crate::threads::on_ranks(2, |rank| {
            let ranks = Ranks::new(rank);
            train(&run, Some(set.clone()), storages(), ranks).unwrap_err().to_string()
        });
        for error in errors {
            assert!(error.contains(&set[..13]) && error.contains("a single rank"), "{error}");
        }
    }
    let error = train(&run, Some(server), storages(), Ranks::default()).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("memory.server") && error.contains("`postgres`"), "{error}");
    assert!(!run.exists());
}
