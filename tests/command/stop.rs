//! Signals stop training, and a resumed run gives the same bytes as an uninterrupted run.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::equal_runs::reproducible_files;

const RECIPE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/train/recipes/patent/world.toml");

/// A patent run with enough steps to be stopped during training.
fn train_command(run: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engram"));
    command.args(["train", "patent", "--tiny", "--quiet", "--threads", "1", "--recipe", RECIPE]);
    command.args(["--set", "phase.0.epochs=40", "--set", "checkpoint.every_steps=1000"]);
    command.arg("--run").arg(run).args(options).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn send_signal(process: u32, name: &str) {
    let sent = Command::new("kill").args([name, &process.to_string()]).status().expect("kill runs");
    assert!(sent.success());
}

/// Starts a run and sends a signal after a number of log lines.
fn run_until_signal(run: &Path, name: &str, lines: usize) -> Output {
    let child = train_command(run, &[]).spawn().expect("engram starts");
    let start = Instant::now();
    let log = || fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
    while log().lines().count() < lines {
        assert!(start.elapsed() < Duration::from_secs(120), "no step was made");
        thread::sleep(Duration::from_millis(2));
    }
    send_signal(child.id(), name);
    child.wait_with_output().expect("an end")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_signal_leaves_a_checkpoint_and_prints_the_command_to_continue() {
    let folder = tempfile::tempdir().unwrap();
    let reference = folder.path().join("uninterrupted");
    let uninterrupted = train_command(&reference, &[]).output().unwrap();
    let code = uninterrupted.status.code();
    assert!(matches!(code, Some(0 | 1)), "{}", text(&uninterrupted.stderr));
    for (name, expected) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let run = folder.path().join(format!("it's{name}"));
        let output = run_until_signal(&run, name, 1);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(expected), "{error}");
        assert!(error.contains("Continue with:") && error.contains("--resume"), "{error}");
        let pointer = fs::read_to_string(run.join("checkpoints/LATEST")).unwrap();
        assert!(pointer.starts_with("stop-"), "{pointer}");
        // A shell can run the printed command.
        let resume = error.lines().last().unwrap().trim();
        let resumed = Command::new("sh").args(["-c", resume]).output().unwrap();
        assert_eq!(resumed.status.code(), code, "{resume}: {}", text(&resumed.stderr));
        let (resumed_files, reference_files) =
            (reproducible_files(&run, |_| true), reproducible_files(&reference, |_| true));
        for (resumed_file, file) in resumed_files.iter().zip(&reference_files) {
            let [resumed_path, path] = [resumed_file.0.display(), file.0.display()];
            assert!(resumed_file == file, "{name}: {resumed_path} and {path}");
        }
        assert_eq!(resumed_files.len(), reference_files.len());
    }
}

#[test]
fn before_the_first_step_there_is_nothing_to_save() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    // A pipe that never delivers the manifest: the run waits for its data.
    let pipe = folder.path().join("train.jsonl");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let data = |name: &str| format!("data.{name}={}", pipe.display());
    let recipe = concat!(env!("CARGO_MANIFEST_DIR"), "/train/recipes/speech/tiny.toml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_engram"));
    command.args(["train", "speech", "--quiet", "--recipe", recipe, "--run"]).arg(&run);
    for name in ["train", "validation", "test"] {
        command.args(["--set", &data(name)]);
    }
    let child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("engram starts");
    thread::sleep(Duration::from_millis(1500));
    send_signal(child.id(), "-TERM");
    let output = child.wait_with_output().expect("an end");
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(143), "{error}");
    assert!(error.contains("stopped before the first checkpoint"), "{error}");
    assert!(!run.exists());
}

#[test]
fn a_flipped_byte_of_a_run_is_an_error_that_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    assert!(
        train_command(&run, &["--set", "phase.0.epochs=1"]).output().unwrap().status.code()
            < Some(2)
    );
    let pairs = folder.path().join("pairs.csv");
    fs::write(&pairs, "id,anchor,target,context\n1,steel rod,iron bar,A61\n").unwrap();
    let score = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_engram"));
        command.arg("score").arg(&pairs).arg("--model").arg(&run).arg("--out");
        command.arg(folder.path().join("scores.csv")).args(["--quiet", "--force"]).output().unwrap()
    };
    let intact = score();
    assert_eq!(intact.status.code(), Some(0), "{}", text(&intact.stderr));
    for name in ["model.safetensors", "tokenizer.json", "config.json", "titles.tsv"] {
        let path = run.join(name);
        let original = fs::read(&path).unwrap();
        let mut bytes = original.clone();
        let index = bytes.len() - 2;
        bytes[index] ^= 1;
        fs::write(&path, bytes).unwrap();
        let output = score();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{name}: {error}");
        assert!(error.contains(name) && error.contains("SHA-256"), "{error}");
        fs::write(&path, original).unwrap();
    }
}
