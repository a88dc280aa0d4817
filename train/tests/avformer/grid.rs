//! A grid of ablations on a frozen ASR model with random weights.

use std::path::Path;
use std::thread;

use engram_train::grid::{Grid, GridReport, run_grid};
use engram_train::studies::ALL;
use engram_train::studies::avformer::run::AvformerSummary;

use super::frozen::{Frozen, RECIPE, tensor, write_whisper};
use crate::runs::quiet_grid;

const GRID: &str = r#"
recipe = "test.toml"
main = "main"
shared = ["adapters"]
set = ["data.sweep_clips=0", "data.frozen_baseline=false"]

[[configuration]]
name = "main"
set = ["data.frozen_baseline=true"]

[[configuration]]
name = "one-frame"
set = ["data.frames=1", "model.projection.init_std=0.1"]

[[configuration]]
name = "audio-only"
set = ["phase.adapters.steps=10", "phase.projection.steps=0"]

[[claim]]
id = "test.frozen"
claim = "adapters change the transcripts"
better = "main:no_frames"
worse = "main:frozen"

[[claim]]
id = "test.audio_only"
claim = "a configuration is compared with another"
better = "main"
worse = "audio-only"
utterances = "clean"
"#;

fn grid() -> Grid {
    Grid::parse(GRID, Path::new("grid.toml"), RECIPE, Path::new("test.toml"), ALL).unwrap()
}

/// Settings for the grid's frozen models.
fn settings(frozen_models: &Frozen) -> [String; 2] {
    ["asr_model=whisper", "image_encoder=clip"].map(|setting| {
        let (key, name) = setting.split_once('=').unwrap();
        format!("model.{key}={}", frozen_models.path_text(name))
    })
}

#[test]
fn configurations_share_their_adapters_and_are_compared_on_the_same_utterances() {
    let frozen_models = Frozen::new();
    let grid = grid();
    let out = frozen_models.path("grid");
    let options = quiet_grid(&out, 2);
    let message = run_grid(&grid, &options, &mut |_| {}).unwrap_err().to_string();
    assert!(message.contains("model.asr_model") && message.contains("is missing"), "{message}");
    let grid = grid.with_settings(&settings(&frozen_models)).unwrap();
    let mut started = Vec::new();
    let report = run_grid(&grid, &options, &mut |progress| started.push(progress.clone())).unwrap();
    // Four runs per seed: the adapters that two configurations share, and three configurations.
    assert_eq!((started.len(), started[0].runs_left, started[7].runs_left), (8, 8, 1));
    let seed = out.join("seed-2");
    let name = "adapters.1.up.weight";
    assert_eq!(tensor(&seed.join("main"), name), tensor(&seed.join("one-frame"), name));
    assert!(tensor(&seed.join("main"), name) != tensor(&out.join("seed-1/main"), name));
    let projection = tensor(&seed.join("one-frame"), "projection.weight");
    assert!(projection.iter().all(|value| *value != 0.0), "it did not start from random values");
    assert!(!seed.join("main/checkpoints").exists());

    let main = &report.configurations[0];
    assert_eq!(main.metric("wer").unwrap().n, 12);
    assert_eq!(main.difference_from_main.value, 0.0);
    let audio_only_report = &report.configurations[2];
    assert!(audio_only_report.metric("wer_of_wrong_frames").unwrap().value.is_nan());
    let no_frames = audio_only_report.metric("wer_without_frames").unwrap();
    assert_eq!(audio_only_report.metric("wer").unwrap().value, no_frames.value);
    let [frozen, audio_only] =
        ["test.frozen", "test.audio_only"].map(|id| report.claim(id).unwrap());
    assert_eq!(frozen.comparison, "main:no_frames compared with main:frozen: wer");
    assert_eq!(audio_only.comparison, "main compared with audio-only: wer of clean");
    let [frozen_wer, no_frames_wer] = [0, 1].map(|system| frozen.compared[system].measure.value);
    assert!((frozen.test.measure.value - (no_frames_wer - frozen_wer)).abs() < 1e-12);
    let interval = frozen.test.measure.interval.as_ref().unwrap();
    assert!(interval.method.ends_with(" by name and seed"), "{}", interval.method);

    // Parameters that were trained before the shared start count, too.
    let whole = frozen_models.run("whole", "whisper", &["data.sweep_clips=0"]).parameters;
    let split = AvformerSummary::read(&out.join("seed-1/main")).unwrap().parameters;
    assert_eq!(split, whole);

    // Nothing is trained twice, and runs with other weights are not accepted.
    run_grid(&grid, &options, &mut |progress| panic!("{progress:?}")).unwrap();
    std::fs::remove_dir_all(frozen_models.path("whisper")).unwrap();
    write_whisper(&frozen_models.path("whisper"), 9);
    let message = run_grid(&grid, &options, &mut |_| {}).unwrap_err().to_string();
    assert!(message.contains("seed-1/") && message.contains("with different weights"), "{message}");
}

#[test]
fn two_processes_with_the_same_grid_share_its_runs() {
    let frozen_models = Frozen::new();
    let grid = grid().with_settings(&settings(&frozen_models)).unwrap();
    let options = |name: &str| quiet_grid(&frozen_models.path(name), 2);
    let run = |name: &str| -> (GridReport, Vec<String>) {
        let mut started = Vec::new();
        let report =
            run_grid(&grid, &options(name), &mut |progress| started.push(progress.run.clone()));
        (report.unwrap(), started)
    };
    let (report_alone, mut runs_alone) = run("alone");
    // Locks belong to open files, so threads are kept apart like processes.
    let [(first, runs_of_first), (second, runs_of_second)] = thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(|| run("together")));
        threads.map(|thread| thread.join().unwrap())
    });
    assert!(!runs_of_first.is_empty() && !runs_of_second.is_empty(), "{runs_of_first:?}");
    let mut runs_together = [runs_of_first, runs_of_second].concat();
    runs_alone.sort();
    runs_together.sort();
    assert_eq!(runs_together, runs_alone);
    let metrics = |report: &GridReport| -> Vec<f64> {
        report
            .configurations
            .iter()
            .map(|configuration| configuration.metrics[0].measure.value)
            .collect()
    };
    assert_eq!(metrics(&first), metrics(&report_alone));
    assert_eq!(serde_json::to_value(&first).unwrap(), serde_json::to_value(&second).unwrap());
}
