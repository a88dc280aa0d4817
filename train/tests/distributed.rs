//! Runs on several ranks have the bytes of a run on one rank.

use std::path::Path;

use engram_train::{RunOptions, RunSummary, TrainError};
use tempfile::tempdir;

use crate::runs::{self, assert_equal_runs, finished};
use crate::toy::{Overrides, Toy, recipe};

/// Trains on `size` ranks. Rank 0 uses the folder `run`. `overrides` gives each rank's overrides.
/// Returns the results by rank.
pub fn train_on(
    size: usize,
    run: &Path,
    set: &[&str],
    resume: bool,
    overrides: impl Fn(usize) -> Overrides + Sync,
) -> Vec<Result<RunSummary, TrainError>> {
    runs::train_on(size, run, |options| {
        let mut study = Toy::with_overrides(overrides(options.ranks.rank()));
        let options = RunOptions { resume, stop: study.stop.clone(), ..options };
        engram_train::train(&mut study, &recipe(set), &options)
    })
}

/// Trains to the end on `size` ranks, without overrides.
fn complete(size: usize, run: &Path, set: &[&str], resume: bool) {
    let summary = finished(train_on(size, run, set, resume, |_| Overrides::default()));
    assert!(summary.check.passed());
}

const EMA_AND_AWP: [&str; 3] = ["ema.decay=0.9", "awp.start_epoch=1", "awp.epsilon=0.01"];

/// Steps at the end of an epoch have fewer micro-batches, so that some ranks have none.
#[test]
fn any_number_of_ranks_gives_the_same_bytes() {
    for accumulate in 1..9 {
        let folder = tempdir().expect("a temporary folder");
        let accumulate_setting = format!("batch.accumulate={accumulate}");
        let mut set = vec![accumulate_setting.as_str()];
        set.extend(EMA_AND_AWP.iter().filter(|_| accumulate % 3 == 0));
        let reference = folder.path().join("one");
        complete(1, &reference, &set, false);
        for size in 2..=accumulate {
            let run = folder.path().join(size.to_string());
            complete(size, &run, &set, false);
            assert_equal_runs(&reference, &run);
        }
    }
}

#[test]
fn a_stopped_or_crashed_run_resumes_on_another_number_of_ranks() {
    let set = ["batch.accumulate=5", "evaluation.every_steps=1", "phase.0.epochs=4"];
    let folder = tempdir().expect("a temporary folder");
    let reference = folder.path().join("reference");
    complete(1, &reference, &set, false);
    // The call of `loss` counts on rank 0, which has one or two micro-batches in a step.
    let stops: [fn() -> Overrides; 3] = [
        || Overrides { stop_at_loss: Some(3), ..Overrides::default() },
        || Overrides { stop_at_evaluation: Some(2), ..Overrides::default() },
        || Overrides { crash_at_loss: Some(9), ..Overrides::default() },
    ];
    for (i, stop) in stops.iter().enumerate() {
        for (before, after) in [(3, 1), (4, 2), (1, 5)] {
            let run = folder.path().join(format!("{i}-{before}-{after}"));
            let overrides = |rank| if rank == 0 { stop() } else { Overrides::default() };
            let results = train_on(before, &run, &set, false, overrides);
            for result in &results {
                let stopped = matches!(result, Err(TrainError::Stopped { .. }));
                assert!(if i == 2 { result.is_err() } else { stopped }, "{result:?}");
            }
            complete(after, &run, &set, true);
            assert_equal_runs(&reference, &run);
        }
    }
}

#[test]
fn a_loss_that_is_not_finite_on_one_rank_skips_the_step_on_all() {
    let set = ["batch.accumulate=4"];
    let folder = tempdir().expect("a temporary folder");
    let runs = ["one", "several"].map(|name| folder.path().join(name));
    let nan =
        |nan_steps: &[u64]| Overrides { nan_steps: nan_steps.to_vec(), ..Overrides::default() };
    let results = train_on(1, &runs[0], &set, false, |_| nan(&[2, 5]));
    assert!(results.iter().all(Result::is_ok));
    // Only the last rank's loss is NaN.
    let on_last = |rank| if rank == 2 { nan(&[2, 5]) } else { Overrides::default() };
    let results = train_on(3, &runs[1], &set, false, on_last);
    assert!(results[0].is_ok(), "{:?}", results[0]);
    assert_equal_runs(&runs[0], &runs[1]);

    let run = folder.path().join("failing");
    let results = train_on(3, &run, &set, false, |rank| {
        if rank == 1 { nan(&[2, 3, 4]) } else { Overrides::default() }
    });
    for result in results {
        let error = result.expect_err("three skipped steps").to_string();
        assert!(error.contains("the loss was NaN in 3 steps in a row, up to step 4"), "{error}");
    }
}

#[test]
fn the_gradient_check_looks_at_the_sum_of_all_ranks() {
    let folder = tempdir().expect("a temporary folder");
    let detach = || Overrides { detach: true, ..Overrides::default() };
    // The micro-batches of one rank lack a gradient, but the sum has it.
    let some = train_on(2, &folder.path().join("some"), &["batch.accumulate=2"], false, |rank| {
        if rank == 1 { detach() } else { Overrides::default() }
    });
    assert!(some[0].is_ok(), "{:?}", some[0]);
    let none =
        train_on(2, &folder.path().join("none"), &["batch.accumulate=2"], false, |_| detach());
    for result in none {
        let error = result.expect_err("a missing gradient").to_string();
        assert!(error.contains("`head.bias`: no gradient reaches it"), "{error}");
    }
}

#[test]
fn more_ranks_than_micro_batches_and_different_recipes_are_errors() {
    let folder = tempdir().expect("a temporary folder");
    let run = folder.path().join("run");
    let results = train_on(3, &run, &["batch.accumulate=2"], false, |_| Overrides::default());
    for result in results {
        let error = result.expect_err("too many ranks").to_string();
        assert!(error.contains("is 2, but 3 ranks share the micro-batches"), "{error}");
    }
    assert!(!run.exists());
    let different = runs::train_on(2, &folder.path().join("other"), |options| {
        let seed = format!("seed={}", options.ranks.rank());
        engram_train::train(&mut Toy::default(), &recipe(&[&seed]), &options)
    });
    for result in different {
        let error = result.expect_err("other recipes").to_string();
        assert!(error.contains("rank 1 has another recipe"), "{error}");
    }
}
