//! Runs on one or several ranks, interrupted runs, and comparisons of runs.

use std::error::Error;
use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};

use engram_train::distributed::Ranks;
use engram_train::grid::GridOptions;
use engram_train::{Recipe, RecipeOptions, RunOptions, Stop, TrainError};

use crate::equal_runs::reproducible_files;
use crate::threads::on_ranks;

/// A recipe's text with settings.
pub fn recipe<S: ToString>(text: &str, set: &[S]) -> Result<Recipe, TrainError> {
    let set = set.iter().map(ToString::to_string).collect();
    Recipe::parse(text, Path::new("test.toml"), &RecipeOptions { tiny: false, set })
}

/// The options of a run in this folder, without progress.
pub fn quiet(run: &Path) -> RunOptions {
    RunOptions { run: run.to_path_buf(), quiet: true, ..RunOptions::default() }
}

/// The options of a grid in this folder, without progress.
pub fn quiet_grid(out: &Path, seeds: u64) -> GridOptions {
    let (out, stop) = (out.to_path_buf(), Stop::default());
    GridOptions { out, seeds, quiet: true, reuse: false, stop }
}

/// The options of a run that continues.
pub fn resumed() -> RunOptions {
    RunOptions { resume: true, ..RunOptions::default() }
}

/// Calls `train` on each rank, with the options of its run. The run of rank 0 is in the folder
/// `run`. Returns the results by rank.
pub fn train_on<T: Send>(
    size: usize,
    run: &Path,
    train: impl Fn(RunOptions) -> T + Sync,
) -> Vec<T> {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    on_ranks(size, |rank| {
        let ranks = Ranks::new(rank);
        let own = scratch.path().join(ranks.rank().to_string());
        let run = if ranks.rank() == 0 { run.to_path_buf() } else { own };
        train(RunOptions { ranks, ..quiet(&run) })
    })
}

/// Expects that rank 0 has finished its run, and the other ranks their parts. Returns the result.
#[track_caller]
pub fn finished<T: Debug>(results: Vec<Result<T, TrainError>>) -> T {
    let mut results = results.into_iter();
    let first = results.next().expect("rank 0").expect("a finished run");
    for (index, result) in results.enumerate() {
        let is_other = matches!(&result, Err(TrainError::OtherRank { rank }) if *rank == index + 1);
        assert!(is_other, "rank {}: {result:?}", index + 1);
    }
    first
}

/// Trains a new run until the checkpoint of `step`, which cannot be written, as on a full disk. The
/// run can then be resumed from the previous checkpoint.
pub fn crash_at_checkpoint<T: Debug>(
    run: &Path,
    step: u64,
    train: impl Fn(RunOptions) -> Result<T, TrainError>,
) {
    let stop = Stop::default();
    stop.request();
    let error = train(RunOptions { stop, ..RunOptions::default() }).expect_err("a stop request");
    assert!(matches!(error, TrainError::Stopped { step: 0, .. }), "{error}");
    let obstacle = run.join(format!("checkpoints/step-{step:08}"));
    fs::write(&obstacle, "in the way").expect("a file");
    let error = train(resumed()).expect_err("a file in place of a folder").to_string();
    assert!(error.contains(&obstacle.display().to_string()), "{error}");
    fs::remove_file(&obstacle).expect("the file");
}

/// Every file of a run that has to equal the file of an identical run, with its bytes.
pub fn lasting_files(run: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    reproducible_files(run, |_| true)
}

/// Asserts that two runs have the same files and bytes.
#[track_caller]
pub fn assert_equal_runs(a: &Path, b: &Path) {
    assert_equal_files(&lasting_files(a), &lasting_files(b));
}

/// Asserts that two lists have the same files and bytes.
#[track_caller]
pub fn assert_equal_files(a: &[(PathBuf, Vec<u8>)], b: &[(PathBuf, Vec<u8>)]) {
    let names = |files: &[(PathBuf, Vec<u8>)]| -> Vec<PathBuf> {
        files.iter().map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(names(a), names(b));
    assert!(a.len() > 5, "{:?}", names(a));
    for ((name, a), (_, b)) in a.iter().zip(b) {
        assert!(a == b, "{} differs", name.display());
    }
}

/// Asserts that two runs have the same bytes in these files.
#[track_caller]
pub fn assert_same_bytes(a: &Path, b: &Path, files: &[&str]) {
    for file in files {
        let [a, b] = [a, b].map(|run| fs::read(run.join(file)).expect("a file"));
        assert!(a == b, "{file} differs");
    }
}

/// An error with its causes.
pub fn with_causes(error: &TrainError) -> String {
    let causes = std::iter::successors(Some(error as &(dyn Error + 'static)), |&e| e.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
