//! Helpers that run the command in a folder, as a user does.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs the command with space-separated arguments.
pub fn engram(folder: &Path, arguments: &str) -> Output {
    engram_with(folder, &arguments.split_whitespace().collect::<Vec<_>>())
}

/// Runs the command with arguments that may contain spaces.
pub fn engram_with(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engram"));
    command.current_dir(folder).args(arguments).output().unwrap()
}

/// Runs the command with this standard input.
pub fn engram_reading(folder: &Path, arguments: &[&str], input: impl AsRef<[u8]>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engram"));
    let command = command.current_dir(folder).args(arguments).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that is refused does not read its input.
    let _ = child.stdin.take().unwrap().write_all(input.as_ref());
    child.wait_with_output().unwrap()
}

/// Runs the command, which must succeed. Returns its standard output.
#[track_caller]
pub fn succeeds(folder: &Path, arguments: &str) -> String {
    printed(&engram(folder, arguments), arguments)
}

/// Returns the standard output of a command that must have succeeded.
#[track_caller]
pub fn printed(output: &Output, arguments: &str) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {errors}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Runs a command that must fail: exit code 2, empty standard output, and `part` in the message.
#[track_caller]
pub fn refused(folder: &Path, arguments: &str, part: &str) {
    let output = engram(folder, arguments);
    refusal(&output, arguments, &[part]);
}

/// Checks a failed command as [`refused`] does, for several parts of the message.
#[track_caller]
pub fn refusal(output: &Output, arguments: &str, parts: &[&str]) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments}: {errors}");
    for part in parts {
        assert!(errors.contains(part), "{arguments}: expected {part:?} in: {errors}");
    }
    assert!(output.stdout.is_empty(), "{arguments}");
}
