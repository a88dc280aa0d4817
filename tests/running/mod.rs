//! Runs the command in a folder, as a user does.
#![allow(dead_code)] // Not every test file needs all of it.

use std::path::Path;
use std::process::{Command, Output};

/// What the command gives for arguments, with spaces between them.
pub fn engram(folder: &Path, arguments: &str) -> Output {
    engram_with(folder, &arguments.split_whitespace().collect::<Vec<_>>())
}

/// The same for arguments that may have spaces in them.
pub fn engram_with(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engram"));
    command.current_dir(folder).args(arguments).output().unwrap()
}

/// What it prints; it has to end well.
#[track_caller]
pub fn done(folder: &Path, arguments: &str) -> String {
    printed(&engram(folder, arguments), arguments)
}

/// What a run printed that has to have ended well.
#[track_caller]
pub fn printed(output: &Output, arguments: &str) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {errors}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// It has to end with exit code 2, nothing printed, and a message that has `part` in it.
#[track_caller]
pub fn refused(folder: &Path, arguments: &str, part: &str) {
    let output = engram(folder, arguments);
    refusal(&output, arguments, &[part]);
}

/// The same of a run, and for several parts.
#[track_caller]
pub fn refusal(output: &Output, arguments: &str, parts: &[&str]) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments}: {errors}");
    for part in parts {
        assert!(errors.contains(part), "{arguments}: wanted {part:?}: {errors}");
    }
    assert!(output.stdout.is_empty(), "{arguments}");
}
