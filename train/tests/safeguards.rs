//! Cases in which the trainer returns an error, skips a step, or stops.

use std::fs;

use engram_models::weights::Weights;
use engram_train::TrainError;
use tempfile::tempdir;

use crate::runs::lasting_files;
use crate::toy::{Overrides, Toy, train};

/// Trains a study with a fault. Returns the result and the folder that contains the run.
fn broken(
    overrides: Overrides,
) -> (Result<engram_train::RunSummary, TrainError>, tempfile::TempDir) {
    let folder = tempdir().expect("a temporary folder");
    let result = train(&mut Toy::with_overrides(overrides), &folder.path().join("run"), &[], false);
    (result, folder)
}

#[test]
fn a_parameter_without_a_gradient_is_named() {
    let (result, _folder) = broken(Overrides { detach: true, ..Overrides::default() });
    let error = result.expect_err("the check fails").to_string();
    assert!(error.contains("`head.bias`: no gradient reaches it"), "{error}");
    assert!(!error.contains("body") && error.contains("gradient_check"), "{error}");
}

#[test]
fn a_recipe_may_allow_a_parameter_without_a_gradient() {
    let folder = tempdir().expect("a temporary folder");
    let mut study = Toy::with_overrides(Overrides { detach: true, ..Overrides::default() });
    let set = [r#"gradient_check.allow=["head.*"]"#];
    train(&mut study, &folder.path().join("run"), &set, false).expect("it is allowed");
}

#[test]
fn an_unmatched_pattern_is_an_error_with_location_and_nearest_name() {
    let error_of = |set: &str| {
        let folder = tempdir().expect("a temporary folder");
        let run = folder.path().join("run");
        let error = train(&mut Toy::default(), &run, &[set], false);
        error.expect_err("the pattern matches nothing").to_string()
    };
    for (set, path) in [
        (r#"group=[{match="hed.**", rate=0.5}]"#, "group.0.match"),
        (r#"phase.second.group=[{match="hed.**", rate=0.5}]"#, "phase.1.group.0.match"),
        (r#"gradient_check.allow=["body.*", "hed.**"]"#, "gradient_check.allow.1"),
        (r#"awp.match=["hed.**"]"#, "awp.match.0"),
    ] {
        let error = error_of(set);
        let start = format!("--set {set}: `{path}` is `hed.**`, which matches none of the 4");
        assert!(error.starts_with(&start) && error.contains("similar name is `head."), "{error}");
    }
}

#[test]
fn an_awp_pattern_of_frozen_parameters_is_an_error() {
    let folder = tempdir().expect("a temporary folder");
    let set = [
        r#"awp.match=["head.*"]"#,
        r#"group=[{match="head.*", rate=0}]"#,
        "phase.first.group=[]",
        "phase.second.group=[]",
    ];
    let error = train(&mut Toy::default(), &folder.path().join("run"), &set, false);
    let error = error.expect_err("nothing is perturbed").to_string();
    assert!(error.contains("`awp.match` selects only frozen parameters"), "{error}");
}

#[test]
fn frozen_parameters_keep_their_bytes_and_changing_them_is_an_error() {
    let folder = tempdir().expect("a temporary folder");
    let run = folder.path().join("run");
    train(&mut Toy::default(), &run, &[], false).expect("an uninterrupted run");
    let values = |step: &str, name: &str, shape: &[usize]| -> Vec<f32> {
        let path = run.join(format!("checkpoints/step-{step}/parameters.safetensors"));
        let weights = Weights::open(&path).expect("weights");
        let device = candle_core::Device::Cpu;
        let tensor = weights.get(name, shape, candle_core::DType::F32, &device);
        tensor.and_then(|t| Ok(t.flatten_all()?.to_vec1()?)).expect("the tensor")
    };
    // With `keep = 2`, these checkpoints remain. Both are from phase two.
    let before_and_after = |name: &str, shape: &[usize]| {
        (values("00000015", name, shape), values("00000016", name, shape))
    };
    let (before, after) = before_and_after("body.weight", &[3, 8]);
    assert_eq!(before, after);
    let (before, after) = before_and_after("head.weight", &[8, 1]);
    assert_ne!(before, after);

    let (result, _folder) = broken(Overrides { change_frozen: true, ..Overrides::default() });
    let error = result.expect_err("the fingerprint differs");
    assert!(
        matches!(&error, TrainError::FrozenChanged { phase, .. } if phase == "second"),
        "{error}"
    );
}

#[test]
fn two_steps_with_nan_loss_are_skipped_and_the_third_is_an_error() {
    let (result, folder) = broken(Overrides { nan_steps: vec![2, 3, 7], ..Overrides::default() });
    result.expect("two steps in a row are skipped");
    let metrics = fs::read_to_string(folder.path().join("run/metrics.jsonl")).expect("metrics");
    assert!(metrics.lines().next().is_some_and(|l| l.contains("\"skipped_steps\":2")), "{metrics}");

    let (result, folder) =
        broken(Overrides { nan_steps: vec![6, 7, 8, 9], ..Overrides::default() });
    let error = result.expect_err("three in a row");
    let TrainError::NotFinite {
        step: 8, consecutive_steps: 3, newest_checkpoint: Some(path), ..
    } = &error
    else {
        panic!("{error}");
    };
    assert!(path.ends_with("step-00000005") && path.join("manifest.json").exists(), "{error}");
    let text = error.to_string();
    assert!(text.contains("new run in another folder with a lower `optimiser.lear"), "{text}");
    drop(folder);
}

/// Runs the test of skipped steps in a process of its own; the toy study trains with `quiet`.
#[test]
fn a_skipped_step_is_reported_even_with_quiet() {
    let output = std::process::Command::new(std::env::current_exe().expect("this test"))
        .args([
            "--exact",
            "safeguards::two_steps_with_nan_loss_are_skipped_and_the_third_is_an_error",
        ])
        .arg("--nocapture")
        .output()
        .expect("the test in its own process");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("step 2 is skipped: the loss was NaN\n"), "{text}");
    assert!(!text.contains("mse"), "{text}");
}

#[test]
fn a_file_instead_of_a_run_folder_is_named_with_a_remedy() {
    let folder = tempdir().expect("a temporary folder");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("a file");
    for run in [file.clone(), file.join("run")] {
        let error = train(&mut Toy::default(), &run, &[], false).expect_err("a file");
        let text = error.to_string();
        assert!(text.contains("is a file") && text.contains("move the file"), "{text}");
    }
    let options = engram_train::RecipeOptions::default();
    let error_of = |path: &std::path::Path| {
        engram_train::Recipe::load(path, &options).map(|_| ()).expect_err("no recipe").to_string()
    };
    assert!(error_of(&folder.path().join("no.toml")).contains("check the path"));
    assert!(error_of(folder.path()).contains("name a file in it"));
}

#[test]
fn early_stopping_ends_a_phase_without_improvement() {
    let folder = tempdir().expect("a temporary folder");
    let evaluation_values = vec![0.5, 0.6, 0.7, 0.1];
    let mut study = Toy::with_overrides(Overrides { evaluation_values, ..Overrides::default() });
    let set = ["evaluation.every_steps=1", "evaluation.early_stop=2", "phase.second.steps=1"];
    let run = folder.path().join("run");
    let summary = train(&mut study, &run, &set, false).expect("an uninterrupted run");
    // Three steps of the first phase, one of the second.
    assert_eq!(summary.steps, 4);
    assert_eq!(summary.best, Some((0.1, 4)));
}

#[test]
fn a_run_folder_in_use_is_refused_with_the_process_id() {
    let folder = tempdir().expect("a temporary folder");
    let path = folder.path().join(".lock");
    fs::write(&path, "4711\n").expect("a lock file");
    let holder = fs::File::open(&path).expect("the lock file");
    holder.try_lock().expect("a lock");
    let error = train(&mut Toy::default(), folder.path(), &[], false).expect_err("in use");
    assert!(error.to_string().contains("process 4711"), "{error}");
    drop(holder);
    train(&mut Toy::crashing(1), folder.path(), &[], false).expect_err("a crash");
}

#[test]
fn a_folder_with_another_run_is_refused_and_stays_unchanged() {
    let folder = tempdir().expect("a temporary folder");
    train(&mut Toy::crashing(6), folder.path(), &[], false).expect_err("a crash");
    let before = lasting_files(folder.path());
    let error = train(&mut Toy::default(), folder.path(), &[], false).expect_err("not empty");
    assert!(error.to_string().contains("resume it"), "{error}");
    let error = train(&mut Toy::default(), folder.path(), &["seed=9"], true);
    let error = error.expect_err("another recipe").to_string();
    assert!(error.contains("`seed` was 7, is now 9"), "{error}");
    // The keys have the paths that `--set` takes, in every phase.
    let set = ["phase.first.epochs=3", "phase.second.group.0.rate=0.5", "ema.decay=0.5"];
    let error = train(&mut Toy::default(), folder.path(), &set, true);
    let error = error.expect_err("another recipe").to_string();
    let changes = "(`ema.decay` was not set, is now 0.5; `phase.first.epochs` was 2, is now 3; \
                   `phase.second.group.0.rate` was 0.0, is now 0.5)";
    assert!(error.contains(changes), "{error}");
    assert_eq!(before, lasting_files(folder.path()));
}

const FULL_DISK_RUN: &str = "ENGRAM_TEST_FULL_DISK_RUN";
const EACH_STEP: [&str; 2] = ["checkpoint.every_steps=1", "log.every_steps=100"];

/// A limit on file sizes makes a write fail half-way, like a full disk.
#[test]
#[cfg(unix)]
fn a_write_that_fails_leaves_no_half_checkpoint() {
    if let Some(run) = std::env::var_os(FULL_DISK_RUN) {
        // This runs in the process with the limit.
        let error = train(&mut Toy::default(), run.as_ref(), &EACH_STEP, true);
        let error = error.expect_err("the optimiser's state does not fit");
        assert!(error.to_string().contains("optimiser.safetensors"), "{error}");
        return;
    }
    let folder = tempdir().expect("a temporary folder");
    let run = folder.path().join("run");
    train(&mut Toy::crashing(1), &run, &EACH_STEP, false).expect_err("a crash");
    let before = lasting_files(&run);
    let output = std::process::Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$0\" --exact \"$1\""])
        .arg(std::env::current_exe().expect("this test"))
        .arg("safeguards::a_write_that_fails_leaves_no_half_checkpoint")
        .env(FULL_DISK_RUN, &run)
        .output()
        .expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    assert_eq!(before, lasting_files(&run));
    let entries = fs::read_dir(run.join("checkpoints")).expect("checkpoints").flatten();
    let names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    train(&mut Toy::default(), &run, &EACH_STEP, true).expect("with space, the run continues");
}

#[test]
fn failed_conditions_of_the_check_are_counted_and_the_card_is_written() {
    let folder = tempdir().expect("a temporary folder");
    let set = ["check.files=[\"nowhere\"]", "check.loss_at_most=0.0", "check.metric_value=0.0"];
    let run = folder.path().join("run");
    let summary = train(&mut Toy::default(), &run, &set, false).expect("an uninterrupted run");
    assert_eq!(summary.check.failures.len(), 3, "{:?}", summary.check.failures);
    let card = fs::read_to_string(run.join("README.md")).expect("the card");
    for part in ["training examples", "| seed | 7 |", "study = \"toy\"", "| step | phase |"] {
        assert!(card.contains(part), "no {part} in\n{card}");
    }
}

#[test]
fn examples_that_cannot_be_used_have_no_weight() {
    let folder = tempdir().expect("a temporary folder");
    let first_lines = |name: &str, unusable: &[usize], accumulate: &str| {
        let run = folder.path().join(name);
        let unusable = unusable.to_vec();
        let mut study = Toy::with_overrides(Overrides { unusable, ..Overrides::default() });
        train(&mut study, &run, &["log.every_steps=1", accumulate], false).expect("a run");
        let log = fs::read_to_string(run.join("metrics.jsonl")).expect("a log");
        let lines = log.lines().take(2).map(|line| serde_json::from_str(line).expect("JSON"));
        lines.collect::<Vec<serde_json::Value>>()
    };
    let both = first_lines("both", &[1], "batch.accumulate=2");
    let first_alone = first_lines("first-alone", &[], "batch.accumulate=1");
    for key in ["loss", "gradient_norm", "examples"] {
        assert_eq!(both[0][key], first_alone[0][key], "{key}");
    }
    let none = first_lines("none", &[0, 1], "batch.accumulate=2");
    assert_eq!((&none[0]["skipped_steps"], &none[0]["loss"]), (&1.into(), &().into()));
    assert!(none[1]["loss"].is_f64() && none[1]["skipped_steps"].is_null());
}
