//! Truncated and flipped files of every format that the command reads.
//!
//! Each command ends with exit code 0 and keeps the promise of its format, or with exit code 2 and
//! one line that names the file.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::formats::{self, Format, Promise};
use crate::program::{CommandResult, Engram};
use crate::random::Random;
use crate::report::Report;
use crate::scratch::{self, Scratch, Snapshot};
use crate::subjects::Shared;
use crate::tokenizers;

/// A change of a file.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// Truncated to this number of bytes.
    Truncate(usize),
    /// One flipped bit: byte and bit.
    Bit(usize, u8),
    /// One replaced byte: position and value.
    Byte(usize, u8),
    /// Four bytes with this value, for extreme lengths and counts: position and value.
    FourBytes(usize, u8),
}

impl Change {
    fn random(random: &mut Random, size: usize) -> Self {
        let index = random.below(size);
        match random.below(5) {
            0 => Self::Byte(index, random.below(256) as u8),
            1 => Self::FourBytes(index, [0, 0x7f, 0x80, 0xff][random.below(4)]),
            _ => Self::Bit(index, random.below(8) as u8),
        }
    }

    fn apply(self, bytes: &[u8]) -> Vec<u8> {
        let mut changed = bytes.to_vec();
        match self {
            Self::Truncate(size) => changed.truncate(size),
            Self::Bit(index, bit) => changed[index] ^= 1 << bit,
            Self::Byte(index, byte) => changed[index] = byte,
            Self::FourBytes(index, byte) => {
                changed.iter_mut().skip(index).take(4).for_each(|changed| *changed = byte);
            }
        }
        changed
    }
}

pub fn attack(report: &Report) -> Result<()> {
    let scratch = Scratch::new("corrupt")?;
    let shared = Shared::make(&scratch)?;
    for (number, format) in formats::all_formats(report, &shared)?.iter().enumerate() {
        attack_format(report, &scratch, format, number as u64)?;
    }
    tokenizers::attack(report, &scratch, &shared)
}

/// Changes the files of one format.
fn attack_format(report: &Report, scratch: &Scratch, format: &Format, number: u64) -> Result<()> {
    let mut files = Vec::new();
    list_files(&format.example, &format.example, &format.only, &mut files)?;
    let mut random = Random::new(report.seed, number);
    let limit = |short: f64, long: usize| {
        if report.long {
            (long as f64 * (0.03 / format.seconds).min(1.0)) as usize
        } else {
            (short / format.seconds) as usize
        }
    };
    let mut cases = Vec::new();
    for (file, bytes) in &files {
        let lengths = limit(0.5, 1_700) / files.len() + 1;
        for size in random.sample(bytes.len(), lengths) {
            cases.push((file, bytes, Change::Truncate(size)));
        }
    }
    for _ in 0..limit(0.8, 3_400) {
        // Each file has the same probability, so that small structured files get enough changes.
        let (file, bytes) = &files[random.below(files.len())];
        if !bytes.is_empty() {
            cases.push((file, bytes, Change::random(&mut random, bytes.len())));
        }
    }
    let workdir = scratch.join("intact");
    scratch::empty(&workdir)?;
    scratch::copy(&format.example, &workdir.join("example"))?;
    let (intact, output_files) = run_command(format, &workdir)?;
    anyhow::ensure!(
        format.promise == Promise::Refused || matches!(intact.code, Some(0 | 1)),
        "{}: the good example is refused: {intact}",
        format.name
    );
    let intact = (without_folder(&intact.stdout, &workdir), output_files);
    scratch::for_each(&cases, scratch, |(file, bytes, change), folder| {
        let example = folder.join("example");
        if format.in_place || !example.is_dir() {
            scratch::empty(&example)?;
            scratch::copy(&format.example, &example)?;
        }
        fs::write(example.join(file), change.apply(bytes))?;
        let (ended, output_files) = run_command(format, folder)?;
        fs::write(example.join(file), bytes)
            .or_else(|error| if format.in_place { Ok(()) } else { Err(error) })?;
        report.count_case();
        let case = format!("{}, {file}, {change:?}", format.name);
        if report.check_result(&ended, &case) {
            let output = (without_folder(&ended.stdout, folder), output_files);
            let changed = output != intact;
            check_promise(report, format, &example, &ended, changed, &case);
        }
        Ok(())
    })
}

/// Checks the promise. The error may name a file to which the changed file refers.
fn check_promise(
    report: &Report,
    format: &Format,
    example: &Path,
    ended: &CommandResult,
    changed: bool,
    case: &str,
) {
    let mut errors = ended.stderr.lines().filter(|line| !line.starts_with("warning: "));
    match ended.code {
        Some(1) if format.promise == Promise::Detected => {
            if !ended.stdout.contains(&*example.to_string_lossy()) {
                report.loss("a detected fault names no file", format!("{case}: {}", ended.stdout));
            }
        }
        Some(0 | 1) if changed && matches!(format.promise, Promise::Same | Promise::Detected) => {
            report.loss("a changed file gives another output", case);
        }
        Some(0 | 1) => {}
        Some(2) => {
            let folder = example.to_string_lossy();
            let error = errors.next().unwrap_or_default();
            if errors.next().is_some() {
                report.loss("an error has several lines", format!("{case}: {}", ended.error()));
            } else if !error.contains(&*folder) && format.promise != Promise::Refused {
                report.loss("an error names no file", format!("{case}: {}", ended.error()));
            }
        }
        _ => report.loss("a wrong exit code", format!("{case}: {ended}")),
    }
}

/// Runs the format's command. Returns its result and its output files.
fn run_command(format: &Format, folder: &Path) -> Result<(CommandResult, Snapshot)> {
    let output = folder.join("output");
    scratch::empty(&output)?;
    let line = format.line.replace("{}", &folder.join("example").to_string_lossy());
    let line = line.replace("{o}", &output.to_string_lossy());
    let ended = Engram::line(&line).seconds(20).run()?;
    Ok((ended, Snapshot::of(&output)?))
}

/// Removes the folder's path from an output.
pub fn without_folder(text: &str, folder: &Path) -> String {
    text.replace(&*folder.to_string_lossy(), "")
}

/// Adds the files below a folder whose names have one of the endings in `only`, or all files if
/// `only` is empty: name and content.
pub fn list_files(
    root: &Path,
    folder: &Path,
    only: &[&str],
    files: &mut Vec<(String, Vec<u8>)>,
) -> Result<()> {
    let mut entries: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        entries.push(entry?.path());
    }
    entries.sort();
    for path in entries {
        let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
        if path.is_dir() {
            list_files(root, &path, only, files)?;
        } else if only.is_empty() || only.iter().any(|ending| name.ends_with(ending)) {
            files.push((name, fs::read(&path)?));
        }
    }
    Ok(())
}
