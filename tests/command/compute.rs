//! Training on another device or in another precision: `[compute]`, `--device` and `ENGRAM_FUSED`.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// The number of compared steps of a training.
const STEPS: usize = 20;

/// Each study, its built-in recipe, and settings over the recipe's `[tiny]` sizes.
const TRAININGS: [(&str, &str, &[&str]); 4] = [
    ("patent", "patent/world", &[]),
    ("reveal", "reveal/laptop", &["phase.fine-tune.steps=5"]),
    ("clip", "clip/tiny", &["phase.clip.epochs=12"]),
    ("speech", "speech/tiny", &["phase.best_rq.steps=10", "phase.ctc.steps=10"]),
];

fn train(study: &str, recipe: &str, set: &[&str], run: &Path, is_fused: bool) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engram"));
    command.args(["train", study, "--recipe", recipe, "--tiny", "--run"]).arg(run);
    for set in ["log.every_steps=1"].iter().chain(set) {
        command.args(["--set", set]);
    }
    command.env("ENGRAM_FUSED", if is_fused { "1" } else { "0" }).output().expect("engram runs")
}

/// Returns the losses of the first steps.
fn losses(run: &Path) -> Vec<f64> {
    let log = fs::read_to_string(run.join("metrics.jsonl")).expect("a log");
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let losses = lines.filter_map(|line| (line["kind"] == "train").then(|| line["loss"].as_f64()));
    losses.take(STEPS).map(|loss| loss.expect("a loss")).collect()
}

fn largest_difference(losses: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(losses.len(), expected.len());
    let differences = losses.iter().zip(expected).map(|(a, b)| ((a - b) / b).abs());
    differences.fold(0.0, f64::max)
}

#[test]
fn candle_operations_and_bf16_train_like_the_fused_kernels() {
    let folder = tempfile::tempdir().expect("a folder");
    for (study, recipe, set) in TRAININGS {
        let run = |name: &str, set: &[&str], is_fused| {
            let run = folder.path().join(format!("{study}-{name}"));
            let output = train(study, recipe, set, &run, is_fused);
            // Exit code 1 is a failed `[check]`: the training is shorter than the recipe's.
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(matches!(output.status.code(), Some(0 | 1)), "{study} {name}: {error}");
            losses(&run)
        };
        let fused = run("fused", set, true);
        assert!(fused.len() >= 10, "{study}: {} steps", fused.len());
        let composite = largest_difference(&run("composite", set, false), &fused);
        assert!(composite < 1e-4, "{study}: {composite:e}");
        let half = [set, &["compute.precision=\"bf16\""]].concat();
        let half = largest_difference(&run("half", &half, true), &fused);
        assert!(half > 0.0 && half < 5e-2, "{study} in bf16: {half:e}");
    }
}

#[test]
fn a_device_or_precision_that_does_not_exist_is_refused_before_the_run_folder_is_created() {
    let folder = tempfile::tempdir().expect("a folder");
    for (set, expected) in [
        ("compute.device=\"tpu\"", "`cpu`, `cuda` or `cuda:N`"),
        ("compute.device=\"cuda:7\"", "cuda:7"),
        ("compute.precision=\"f16\"", "bf16"),
    ] {
        let run = folder.path().join("run");
        let output = train("patent", "patent/world", &[set], &run, true);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(expected), "{error}");
        assert!(!run.exists());
    }
}
