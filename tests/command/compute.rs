//! Training on another device or in another precision: `[compute]`, `--device` and `ENGRAM_FUSED`.

use std::path::Path;
use std::process::Output;

use crate::running::{Folder, command, errors, read_json_lines, refusal};

/// The number of compared steps of a training.
const STEPS: usize = 20;

/// Each study, its built-in recipe, and settings over the recipe's `[tiny]` sizes.
const TRAININGS: [(&str, &str, &[&str]); 4] = [
    ("patent", "patent/world", &[]),
    ("reveal", "reveal/laptop", &["phase.fine-tune.steps=5"]),
    ("clip", "clip/tiny", &["phase.clip.epochs=12"]),
    ("speech", "speech/tiny", &["phase.best_rq.steps=10", "phase.ctc.steps=10"]),
];

fn train(folder: &Path, study: &str, options: &str, set: &[&str], is_fused: bool) -> Output {
    let train = format!("train {study} --tiny --set log.every_steps=1 {options}");
    let mut command = command(folder, &train);
    set.iter().for_each(|set| _ = command.args(["--set", set]));
    command.env("ENGRAM_FUSED", if is_fused { "1" } else { "0" }).output().unwrap()
}

/// Returns the losses of the first steps.
fn losses(run: &Path) -> Vec<f64> {
    let lines = read_json_lines(&run.join("metrics.jsonl")).into_iter();
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
    let folder = &Folder::new();
    for (study, recipe, set) in TRAININGS {
        let run = |name: &str, set: &[&str], is_fused| {
            let run = format!("{study}-{name}");
            let options = format!("--recipe {recipe} --run {run}");
            let output = train(folder, study, &options, set, is_fused);
            // Exit code 1 is a failed `[check]`: the training is shorter than the recipe's.
            let code = output.status.code();
            assert!(matches!(code, Some(0 | 1)), "{study} {name}: {}", errors(&output));
            losses(&folder.join(run))
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
    let folder = &Folder::new();
    for (set, expected) in [
        ("compute.device=\"tpu\"", "`cpu`, `cuda` or `cuda:N`"),
        ("compute.device=\"cuda:7\"", "cuda:7"),
        ("compute.precision=\"f16\"", "bf16"),
    ] {
        let options = "--recipe patent/world --run run";
        refusal(&train(folder, "patent", options, &[set], true), set, expected);
        assert!(!folder.join("run").exists());
    }
}
