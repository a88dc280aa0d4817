//! Runs the command in a folder, as a user does.

use std::fs;
use std::io::Write;
use std::ops::Deref;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use engram::memory::vectors::npy_bytes;
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

/// One text or a list of texts: the arguments of a command, or the parts of a message.
pub trait Texts {
    fn list(&self) -> Vec<&str>;

    /// The words of a command. A single text has spaces between them; the texts of a list may
    /// contain spaces.
    fn words(&self) -> Vec<&str> {
        match self.list()[..] {
            [text] => text.split_whitespace().collect(),
            _ => self.list(),
        }
    }
}

impl Texts for str {
    fn list(&self) -> Vec<&str> {
        vec![self]
    }
}

impl Texts for String {
    fn list(&self) -> Vec<&str> {
        vec![self]
    }
}

impl<T: AsRef<str>> Texts for [T] {
    fn list(&self) -> Vec<&str> {
        self.iter().map(AsRef::as_ref).collect()
    }
}

impl<T: AsRef<str>, const N: usize> Texts for [T; N] {
    fn list(&self) -> Vec<&str> {
        self.as_slice().list()
    }
}

impl<T: AsRef<str>> Texts for Vec<T> {
    fn list(&self) -> Vec<&str> {
        self.as_slice().list()
    }
}

/// The command in a folder.
pub fn command(folder: &Path, arguments: &(impl Texts + ?Sized)) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engram"));
    command.current_dir(folder).args(arguments.words());
    command
}

/// Runs the command.
pub fn engram(folder: &Path, arguments: &(impl Texts + ?Sized)) -> Output {
    command(folder, arguments).output().unwrap()
}

/// Runs the command with this standard input.
pub fn engram_reading(
    folder: &Path,
    arguments: &(impl Texts + ?Sized),
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
pub fn succeeds(folder: &Path, arguments: &(impl Texts + ?Sized)) -> String {
    printed(&engram(folder, arguments), &arguments.words().join(" "))
}

/// Runs the command with `--json`. Returns the JSON.
#[track_caller]
pub fn json(folder: &Path, arguments: &(impl Texts + ?Sized)) -> Value {
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
pub fn refused(folder: &Path, arguments: &(impl Texts + ?Sized), parts: &(impl Texts + ?Sized)) {
    refusal(&engram(folder, arguments), &arguments.words().join(" "), parts);
}

/// Checks a failed command as [`refused`] does.
#[track_caller]
pub fn refusal(output: &Output, arguments: &str, parts: &(impl Texts + ?Sized)) {
    let errors = errors(output);
    assert_eq!(output.status.code(), Some(2), "{arguments}: {errors}");
    for part in parts.list() {
        assert!(errors.contains(part), "{arguments}: expected {part:?} in: {errors}");
    }
    assert!(output.stdout.is_empty() && !errors.contains("panicked"), "{arguments}: {errors}");
}

/// The ids and scores of each query's hits in `memory search`.
#[track_caller]
pub fn hits(folder: &Path, arguments: &(impl Texts + ?Sized)) -> Vec<Vec<(i64, f64)>> {
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

/// Waits until a run has this number of log lines.
#[track_caller]
pub fn until_logged(run: &Path, lines: usize) {
    let log = || fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
    until("a step is made", || log().lines().count() >= lines);
}

/// Sends a signal, such as `-TERM`, to a process.
#[track_caller]
pub fn send_signal(process: u32, name: &str) {
    let sent = Command::new("kill").args([name, &process.to_string()]).status().expect("kill runs");
    assert!(sent.success());
}

/// Writes rows of this width as `.npy`.
#[track_caller]
pub fn write_npy(folder: &Path, name: &str, numbers: &[f32], width: usize) {
    fs::write(folder.join(name), npy_bytes(numbers, width).unwrap()).unwrap();
}
