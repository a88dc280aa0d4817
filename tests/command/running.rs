//! Runs the command in a folder, as a user does.

use std::fs;
use std::io::Write;
use std::ops::Deref;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// A temporary folder.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A folder with these files.
    pub fn with(files: &[(&str, &str)]) -> Self {
        let folder = Self::new();
        files.iter().for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
        folder
    }
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        self.0.path()
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        self
    }
}

/// The arguments of a command: words with spaces between them, or a list of words that may contain
/// spaces.
pub trait Arguments {
    fn words(&self) -> Vec<&str>;
}

impl Arguments for str {
    fn words(&self) -> Vec<&str> {
        self.split_whitespace().collect()
    }
}

impl Arguments for String {
    fn words(&self) -> Vec<&str> {
        self.as_str().words()
    }
}

impl Arguments for Vec<&str> {
    fn words(&self) -> Vec<&str> {
        self.clone()
    }
}

impl Arguments for Vec<String> {
    fn words(&self) -> Vec<&str> {
        self.iter().map(String::as_str).collect()
    }
}

impl Arguments for [&str] {
    fn words(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl<const N: usize> Arguments for [&str; N] {
    fn words(&self) -> Vec<&str> {
        self.to_vec()
    }
}

/// Parts of a message: one text, or several.
pub trait Parts {
    fn parts(&self) -> Vec<&str>;
}

impl Parts for str {
    fn parts(&self) -> Vec<&str> {
        vec![self]
    }
}

impl Parts for String {
    fn parts(&self) -> Vec<&str> {
        vec![self]
    }
}

impl Parts for [&str] {
    fn parts(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl<const N: usize> Parts for [&str; N] {
    fn parts(&self) -> Vec<&str> {
        self.to_vec()
    }
}

/// The command in a folder.
pub fn command(folder: &Path, arguments: &(impl Arguments + ?Sized)) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engram"));
    command.current_dir(folder).args(arguments.words());
    command
}

/// Runs the command.
pub fn engram(folder: &Path, arguments: &(impl Arguments + ?Sized)) -> Output {
    command(folder, arguments).output().unwrap()
}

/// Runs the command with this standard input.
pub fn engram_reading(
    folder: &Path,
    arguments: &(impl Arguments + ?Sized),
    input: impl AsRef<[u8]>,
) -> Output {
    let mut command = command(folder, arguments);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    // A command that is refused does not read its input.
    let _ = child.stdin.take().unwrap().write_all(input.as_ref());
    child.wait_with_output().unwrap()
}

/// Runs the command, which must succeed. Returns its standard output.
#[track_caller]
pub fn succeeds(folder: &Path, arguments: &(impl Arguments + ?Sized)) -> String {
    printed(&engram(folder, arguments), &arguments.words().join(" "))
}

/// Runs the command with `--json`. Returns the JSON.
#[track_caller]
pub fn json(folder: &Path, arguments: &(impl Arguments + ?Sized)) -> Value {
    let arguments = [arguments.words(), vec!["--json"]].concat();
    serde_json::from_str(&succeeds(folder, &arguments)).unwrap()
}

/// Returns the standard output of a command that must have succeeded.
#[track_caller]
pub fn printed(output: &Output, arguments: &str) -> String {
    assert!(output.status.success(), "{arguments}: {}", errors(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The standard error of a command.
pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a command that must fail: exit code 2, empty standard output, and all parts in the message.
#[track_caller]
pub fn refused(
    folder: &Path,
    arguments: &(impl Arguments + ?Sized),
    parts: &(impl Parts + ?Sized),
) {
    refusal(&engram(folder, arguments), &arguments.words().join(" "), parts);
}

/// Checks a failed command as [`refused`] does.
#[track_caller]
pub fn refusal(output: &Output, arguments: &str, parts: &(impl Parts + ?Sized)) {
    let errors = errors(output);
    assert_eq!(output.status.code(), Some(2), "{arguments}: {errors}");
    for part in parts.parts() {
        assert!(errors.contains(part), "{arguments}: expected {part:?} in: {errors}");
    }
    assert!(output.stdout.is_empty() && !errors.contains("panicked"), "{arguments}: {errors}");
}

/// The ids and scores of each query's hits in `memory search`.
#[track_caller]
pub fn hits(folder: &Path, arguments: &(impl Arguments + ?Sized)) -> Vec<Vec<(i64, f64)>> {
    let report = json(folder, &[vec!["memory", "search"], arguments.words()].concat());
    let hit = |hit: &Value| (hit["id"].as_i64().unwrap(), hit["score"].as_f64().unwrap());
    let hits = |query: &Value| query["hits"].as_array().unwrap().iter().map(hit).collect();
    report["queries"].as_array().unwrap().iter().map(hits).collect()
}

/// Reads a file of JSON.
#[track_caller]
pub fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Reads a file of JSON lines.
#[track_caller]
pub fn read_json_lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The folder that an environment variable names, for tests that are ignored by default.
pub fn folder_of(variable: &str) -> std::path::PathBuf {
    std::env::var_os(variable).unwrap_or_else(|| panic!("set {variable} to a folder")).into()
}

/// Reads all files in a folder and its subfolders, with their paths in the folder.
pub fn read_files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        let name = name.into_string().unwrap();
        if path.is_dir() {
            let inner = read_files(&path).into_iter();
            files.extend(inner.map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)));
        } else {
            files.push((name, fs::read(&path).unwrap()));
        }
    }
    files.sort();
    files
}

/// Copies a folder with its contents.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for (name, bytes) in read_files(from) {
        let to = to.join(name);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::write(to, bytes).unwrap();
    }
}

/// Waits until a condition holds; after five minutes, the test fails.
#[track_caller]
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(300), "{what}: not in time");
        thread::sleep(Duration::from_millis(2));
    }
}
