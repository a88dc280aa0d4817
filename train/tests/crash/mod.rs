//! Interrupted runs, for tests of resuming.

use std::fmt::Debug;
use std::fs;
use std::path::Path;

use engram_train::{RunOptions, Stop, TrainError};

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
    let error = train(RunOptions { resume: true, ..RunOptions::default() });
    let error = error.expect_err("a file in place of a folder").to_string();
    assert!(error.contains(&obstacle.display().to_string()), "{error}");
    fs::remove_file(&obstacle).expect("the file");
}
