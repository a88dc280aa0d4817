//! Truncated and flipped files of every format that the command reads.
//!
//! Each command ends with exit code 0 and keeps the promise of its format, or with exit code 2 and
//! one line that names the file.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::formats::{self, Format, Promise};
use crate::program::{Ended, Engram};
use crate::random::Random;
use crate::report::Report;
use crate::scratch::{self, Scratch, Snapshot};
use crate::subjects::Shared;
use crate::tokenizers;

/// A change of a file.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// Truncated to this number of bytes.
    Cut(usize),
    /// One flipped bit: byte and bit.
    Bit(usize, u8),
    /// One replaced byte: position and value.
    Byte(usize, u8),
    /// Four bytes with this value, for extreme lengths and counts: position and value.
    Four(usize, u8),
}

impl Change {
    fn random(random: &mut Random, size: usize) -> Self {
        let at = random.below(size);
        match random.below(5) {
            0 => Self::Byte(at, random.below(256) as u8),
            1 => Self::Four(at, [0, 0x7f, 0x80, 0xff][random.below(4)]),
            _ => Self::Bit(at, random.below(8) as u8),
        }
    }

    fn apply(self, bytes: &[u8]) -> Vec<u8> {
        let mut changed = bytes.to_vec();
        match self {
            Self::Cut(size) => changed.truncate(size),
            Self::Bit(at, bit) => changed[at] ^= 1 << bit,
            Self::Byte(at, byte) => changed[at] = byte,
            Self::Four(at, byte) => changed.iter_mut().skip(at).take(4).for_each(|b| *b = byte),
        }
        changed
    }
}

pub fn attack(report: &Report) -> Result<()> {
    let scratch = Scratch::new("corrupt")?;
    let shared = Shared::make(&scratch)?;
    for (number, format) in formats::all(report, &shared)?.iter().enumerate() {
        run(report, &scratch, format, number as u64)?;
    }
    tokenizers::attack(report, &scratch, &shared)
}

fn run(report: &Report, scratch: &Scratch, format: &Format, number: u64) -> Result<()> {
    let mut files = Vec::new();
    list(&format.example, &format.example, &format.only, &mut files)?;
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
        let lengths = limit(0.8, 1_700) / files.len() + 1;
        for size in random.sample(bytes.len(), lengths) {
            cases.push((file, bytes, Change::Cut(size)));
        }
    }
    for _ in 0..limit(1.2, 3_400) {
        // Each file has the same probability, so that small structured files get enough changes.
        let (file, bytes) = &files[random.below(files.len())];
        if !bytes.is_empty() {
            cases.push((file, bytes, Change::random(&mut random, bytes.len())));
        }
    }
    let workdir = scratch.join("intact");
    scratch::empty(&workdir)?;
    scratch::copy(&format.example, &workdir.join("example"))?;
    let (intact, written) = command(format, &workdir)?;
    anyhow::ensure!(
        format.promise == Promise::Refused || matches!(intact.code, Some(0 | 1)),
        "{}: the good example is refused: {intact}",
        format.name
    );
    let intact = (without_folder(&intact.stdout, &workdir), written);
    scratch::each(&cases, scratch, |(file, bytes, change), folder| {
        let example = folder.join("example");
        if format.in_place || !example.is_dir() {
            scratch::empty(&example)?;
            scratch::copy(&format.example, &example)?;
        }
        fs::write(example.join(file), change.apply(bytes))?;
        let (ended, written) = command(format, folder)?;
        fs::write(example.join(file), bytes)
            .or_else(|error| if format.in_place { Ok(()) } else { Err(error) })?;
        report.case();
        let at = format!("{}, {file}, {change:?}", format.name);
        if report.check_result(&ended, &at) {
            let output = (without_folder(&ended.stdout, folder), written);
            let changed = output != intact;
            judge(report, format, &example, &ended, changed, &at);
        }
        Ok(())
    })
}

/// Checks the promise. The error may name a file to which the changed file refers.
fn judge(report: &Report, format: &Format, example: &Path, ended: &Ended, changed: bool, at: &str) {
    let mut errors = ended.stderr.lines().filter(|line| !line.starts_with("warning: "));
    match ended.code {
        Some(1) if format.promise == Promise::Found => {
            if !ended.stdout.contains(&*example.to_string_lossy()) {
                report.loss("a fault names no file", format!("{at}: {}", ended.stdout));
            }
        }
        Some(0 | 1) if changed && matches!(format.promise, Promise::Same | Promise::Found) => {
            report.loss("a changed file gives another output", at);
        }
        Some(0 | 1) => {}
        Some(2) => {
            let folder = example.to_string_lossy();
            let error = errors.next().unwrap_or_default();
            if errors.next().is_some() {
                report.loss("an error has several lines", format!("{at}: {}", ended.error()));
            } else if !error.contains(&*folder) && format.promise != Promise::Refused {
                report.loss("an error names no file", format!("{at}: {}", ended.error()));
            }
        }
        _ => report.loss("a wrong exit code", format!("{at}: {ended}")),
    }
}

/// Runs the format's command. Returns its result and its output files.
fn command(format: &Format, folder: &Path) -> Result<(Ended, Snapshot)> {
    let output = folder.join("output");
    scratch::empty(&output)?;
    let line = format.line.replace("{}", &folder.join("example").to_string_lossy());
    let line = line.replace("{o}", &output.to_string_lossy());
    let ended = Engram::line(&line).seconds(20).run()?;
    Ok((ended, Snapshot::of(&output)?))
}

/// Removes the folder's path from an output.
fn without_folder(text: &str, folder: &Path) -> String {
    text.replace(&*folder.to_string_lossy(), "")
}

fn list(root: &Path, folder: &Path, only: &[&str], to: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
    let mut entries: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        entries.push(entry?.path());
    }
    entries.sort();
    for path in entries {
        let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
        if path.is_dir() {
            list(root, &path, only, to)?;
        } else if only.is_empty() || only.iter().any(|end| name.ends_with(end)) {
            to.push((name, fs::read(&path)?));
        }
    }
    Ok(())
}
