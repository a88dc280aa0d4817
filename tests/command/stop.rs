//! Signals stop training, and a resumed run gives the same bytes as an uninterrupted run.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::equal_runs::reproducible_files;
use crate::running::{Folder, command, errors, send_signal, until_logged};

/// A patent run with enough steps to be stopped during training.
fn train_command(run: &Path, options: &[&str]) -> Command {
    let train = "train patent --recipe patent/world --tiny --quiet --threads 1 \
                 --set phase.0.epochs=100 --set checkpoint.every_steps=1000 --run";
    let mut command = command(run.parent().unwrap(), train);
    command.arg(run).args(options).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Starts a run and sends a signal after a number of log lines.
fn run_until_signal(run: &Path, name: &str, lines: usize) -> Output {
    let child = train_command(run, &[]).spawn().expect("engram starts");
    until_logged(run, lines);
    send_signal(child.id(), name);
    child.wait_with_output().expect("an end")
}

#[test]
fn a_signal_leaves_a_checkpoint_and_prints_the_command_to_continue() {
    let folder = &Folder::new();
    let reference = folder.join("uninterrupted");
    let uninterrupted = train_command(&reference, &[]).output().unwrap();
    let code = uninterrupted.status.code();
    assert!(matches!(code, Some(0 | 1)), "{}", errors(&uninterrupted));
    for (name, expected) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let run = folder.join(format!("it's{name}"));
        let output = run_until_signal(&run, name, 1);
        let error = errors(&output);
        assert_eq!(output.status.code(), Some(expected), "{error}");
        assert!(error.contains("Continue with:") && error.contains("--resume"), "{error}");
        let pointer = fs::read_to_string(run.join("checkpoints/LATEST")).unwrap();
        assert!(pointer.starts_with("stop-"), "{pointer}");
        // A shell can run the printed command.
        let resume = error.lines().last().unwrap().trim();
        let resumed = Command::new("sh").args(["-c", resume]).output().unwrap();
        assert_eq!(resumed.status.code(), code, "{resume}: {}", errors(&resumed));
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
    let folder = &Folder::new();
    let run = folder.join("run");
    // A pipe that never delivers the manifest: the run waits for its data.
    let pipe = folder.join("train.jsonl");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let data = ["train", "validation", "test"].map(|key| format!(" --set data.{key}=train.jsonl"));
    let train = format!("train speech --recipe speech/tiny --quiet --run run{}", data.concat());
    let mut command = command(folder, &train);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The pipe opens when the run reads it.
    let _manifest = fs::File::options().write(true).open(&pipe).unwrap();
    send_signal(child.id(), "-TERM");
    let output = child.wait_with_output().unwrap();
    let error = errors(&output);
    assert_eq!(output.status.code(), Some(143), "{error}");
    assert!(error.contains("stopped before the first checkpoint"), "{error}");
    assert!(!run.exists());
}
