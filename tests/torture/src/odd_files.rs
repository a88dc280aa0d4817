//! Files that are not what their names say: links to other files, pipes, endless files, names with
//! control characters, and lists of checksums with lost lines.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::corrupt::list_files;
use crate::formats::{self, Format};
use crate::program::Engram;
use crate::report::Report;
use crate::scratch::{self, Scratch};
use crate::subjects::{Kind, Shared, Subject};

/// A prefix of file names: it adds a row to a table, and changes the colour and the direction of a
/// terminal's text.
const NAME: &str = "a\tb\nc\t\u{1b}[31m\u{202e}";
/// The list of a run's checksums.
const CHECKSUMS: &str = "run.sha256";

pub fn attack(report: &Report) -> Result<()> {
    let scratch = Scratch::new("files")?;
    let shared = Shared::make(&scratch)?;
    scratch::for_each(&shared.subjects(report.long)?, &scratch, |subject, folder| {
        for is_symbolic in [false, true] {
            attack_links(report, subject, folder, is_symbolic)?;
        }
        Ok(())
    })?;
    let formats = formats::all_formats(report, &shared)?;
    let numbers: Vec<usize> = (0..formats.len()).collect();
    scratch::for_each(&numbers, &scratch, |number, folder| {
        let format = &formats[*number];
        let mut files = Vec::new();
        list_files(&format.example, &format.example, &format.only, &mut files)?;
        // A named pipe takes seconds, because the command waits for a writer.
        let is_chosen = report.long || (*number as u64 + report.seed).is_multiple_of(9);
        for (file, _) in &files {
            attack_kind(report, format, folder, file, Some("/dev/zero"))?;
            if is_chosen {
                attack_kind(report, format, folder, file, None)?;
            }
            attack_name(report, format, folder, file)?;
        }
        attack_checksums(report, format, folder)
    })
}

/// Repeats a command on files that have second names elsewhere. The other names must keep their
/// content.
fn attack_links(
    report: &Report,
    subject: &Subject,
    folder: &Path,
    is_symbolic: bool,
) -> Result<()> {
    let [workdir, outside] = ["workdir", "outside"].map(|name| folder.join(name));
    subject.prepare(&workdir)?;
    scratch::empty(&outside)?;
    if matches!(subject.kind, Kind::Run | Kind::Runs) {
        subject.command(&workdir).must_run()?;
    }
    // A symbolic link that the user names as the output is followed. A lock is no link.
    if is_symbolic && subject.kind == Kind::Files {
        return Ok(());
    }
    let mut files = Vec::new();
    list_files(&workdir, &workdir, &[], &mut files)?;
    for (name, _) in &files {
        let (inside, outside) = (workdir.join(name), outside.join(name));
        fs::create_dir_all(outside.parent().context("a folder")?)?;
        if !is_symbolic {
            fs::hard_link(&inside, &outside)?;
        } else if !name.to_lowercase().ends_with("lock") {
            fs::rename(&inside, &outside)?;
            symlink(&outside, &inside)?;
        }
    }
    let before = contents(&outside)?;
    let ended = subject.repeat_command(&workdir).run()?;
    report.count_case();
    let case = format!("{}, {} links", subject.name, if is_symbolic { "symbolic" } else { "hard" });
    report.check_result(&ended, &case);
    if contents(&outside)? != before {
        report.loss("a file outside was changed through a link", format!("{case}: {ended}"));
    }
    Ok(())
}

/// All files below a folder with their bytes.
fn contents(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = Vec::new();
    list_files(folder, folder, &[], &mut files)?;
    Ok(files.into_iter().collect())
}

/// Copies the example of a format, and returns its folder.
fn example_of(format: &Format, folder: &Path) -> Result<PathBuf> {
    let example = folder.join("example");
    scratch::empty(&example)?;
    scratch::copy(&format.example, &example)?;
    scratch::empty(&folder.join("output"))?;
    Ok(example)
}

/// The command of a format. `rename` changes the words of its line.
fn command(format: &Format, folder: &Path, rename: impl Fn(&str) -> String) -> Engram {
    let [example, output] =
        ["example", "output"].map(|name| folder.join(name).to_string_lossy().into_owned());
    let words = format.line.split_whitespace();
    Engram::new(words.map(|word| rename(word).replace("{}", &example).replace("{o}", &output)))
        .seconds(20)
}

/// Replaces a file by a link to `target`, or by a pipe that never has a writer.
fn attack_kind(
    report: &Report,
    format: &Format,
    folder: &Path,
    file: &str,
    target: Option<&str>,
) -> Result<()> {
    let path = example_of(format, folder)?.join(file);
    scratch::remove(&path)?;
    match target {
        Some(target) => symlink(target, &path)?,
        None => anyhow::ensure!(Command::new("mkfifo").arg(&path).status()?.success(), "mkfifo"),
    }
    let ended = command(format, folder, str::to_owned).run()?;
    report.count_case();
    let case = format!("{}, {file} is {}", format.name, target.unwrap_or("a pipe"));
    if report.check_result(&ended, &case) && !matches!(ended.code, Some(0..=2)) {
        report.loss("a wrong exit code", format!("{case}: {ended}"));
    }
    Ok(())
}

/// Gives a file a name with control characters. They must not reach the terminal or a table.
fn attack_name(report: &Report, format: &Format, folder: &Path, file: &str) -> Result<()> {
    let example = example_of(format, folder)?;
    let (above, name) = file.rsplit_once('/').map_or(("", file), |(above, name)| (above, name));
    fs::rename(example.join(file), example.join(above).join(format!("{NAME}{name}")))?;
    let hostile = |word: &str| match word {
        "--quiet" => "-v".to_owned(),
        word => word.replace(&format!("/{name}"), &format!("/{NAME}{name}")),
    };
    let ended = command(format, folder, hostile).run()?;
    report.count_case();
    let case = format!("{}, {file} with a hostile name", format.name);
    report.check_result(&ended, &case);
    let is_raw = |c: char| c.is_control() && c != '\n' && c != '\t' || c == '\u{202e}';
    if ended.stderr.contains(is_raw) {
        report.loss("a control character reaches the terminal", format!("{case}: {ended:?}"));
    }
    for (output, bytes) in contents(&folder.join("output"))? {
        let is_table = output.ends_with(".tsv") || output.ends_with(".csv");
        if is_table && String::from_utf8_lossy(&bytes).contains("\nc\t") {
            report.loss("a name adds a row to a table", format!("{case}: {output}"));
        }
    }
    Ok(())
}

/// Drops lines of a list of checksums. The command must refuse the folder.
fn attack_checksums(report: &Report, format: &Format, folder: &Path) -> Result<()> {
    let Ok(list) = fs::read_to_string(format.example.join(CHECKSUMS)) else { return Ok(()) };
    for dropped in list.split_inclusive('\n').chain([list.as_str()]) {
        let example = example_of(format, folder)?;
        fs::write(example.join(CHECKSUMS), list.replace(dropped, ""))?;
        let ended = command(format, folder, str::to_owned).run()?;
        report.count_case();
        let case = format!("{}, without {dropped:?}", format.name);
        if report.check_result(&ended, &case) && ended.code != Some(2) {
            report.loss("an incomplete list of checksums is trusted", format!("{case}: {ended}"));
        }
    }
    Ok(())
}
