//! A refused command deletes nothing, and no command changes files that it did not write
//! (`sweep.txt`). A sweep of an object store removes no values that a memory's folder reads.

use std::fs;
use std::path::Path;

use anyhow::{Result, bail};

use crate::program::Engram;
use crate::report::Report;
use crate::scratch::{self, Scratch};
use crate::subjects::{Shared, table};

/// Files of a user with names similar to those of the program's temporary files and checkpoints.
const USER_FILES: [&str; 21] = [
    ".env.sample",
    ".env.backup",
    ".bashrc.backup",
    ".git.bundle",
    "notes.txt",
    ".lock",
    "LOCK",
    ".CURRENT.backup",
    ".metrics.jsonl.AbCdEf",
    ".config.json.a1b2c3",
    ".model.safetensors.engram-notes",
    ".notes.engram-backup",
    "gen-000002.partial/notes.txt",
    "gen-000009/notes.txt",
    "gen-000010.pack",
    "gen-backup/keys.safetensors",
    "checkpoints/notes.txt",
    "checkpoints/.step-00000032.backup/notes.txt",
    ".engram-unfinished-a1b2c3/notes.txt",
    "memory/notes.txt",
    "out.partial/notes.txt",
];

/// A command, and the user's files in its folder.
struct Case {
    line: &'static str,
    /// The content of the folder, as in `sweep.txt`.
    content: &'static str,
    names: Vec<&'static str>,
}

pub fn attack(report: &Report) -> Result<()> {
    let scratch = Scratch::new("sweep")?;
    let shared = Shared::make(&scratch)?;
    let mut cases = Vec::new();
    for fields in table(include_str!("../sweep.txt")) {
        let [content, line] = fields[..] else {
            bail!("sweep.txt: {fields:?}: two fields are needed")
        };
        if content == "foreign" {
            // A command may mistake a folder with one file for an empty folder.
            cases.extend(USER_FILES.map(|name| Case { line, content, names: vec![name] }));
        }
        // The memory or the run has its own locks.
        let mut names = USER_FILES.to_vec();
        names.retain(|name| content == "foreign" || !name.to_lowercase().ends_with("lock"));
        cases.push(Case { line, content, names });
    }
    scratch::for_each(&cases, &scratch, |case, folder| {
        report.count_case();
        let workdir = folder.join("workdir");
        scratch::empty(&workdir)?;
        if case.content != "foreign" {
            scratch::copy(&shared.folder.join(case.content), &workdir)?;
        }
        check_user_files(report, &shared, case, &workdir)
    })?;
    let folder = scratch.join("store");
    two_memories_at_one_address(report, &shared, &folder)
}

/// Pushes two memories to one address several times, and sweeps it. Both memories, and a copy of
/// the first one's folder from before later pushes, must keep their values.
fn two_memories_at_one_address(report: &Report, shared: &Shared, folder: &Path) -> Result<()> {
    let run = |line: &str| {
        report.count_case();
        let line = line.replace("{}", &folder.to_string_lossy());
        let ended = Engram::line(&line).run()?;
        report.check_result(&ended, &line);
        anyhow::Ok(ended)
    };
    for name in ["one", "two"] {
        scratch::copy(&shared.folder.join("start/memory"), &folder.join(name))?;
    }
    let pushed = run("memory push {}/one {}/store --move")?;
    if pushed.stderr.contains("without object stores") {
        report.skip("two memories at one address: the command has no object stores");
        return Ok(());
    }
    scratch::copy(&folder.join("one"), &folder.join("copy"))?;
    for (name, id) in [("one", 10), ("one", 20), ("two", 30), ("two", 40)] {
        run(&format!("memory delete {{}}/{name} --ids {id}"))?;
        run(&format!("memory compact {{}}/{name} --quiet"))?;
        // May be refused.
        run(&format!("memory push {{}}/{name} {{}}/store --move"))?;
    }
    run("memory sweep {}/store")?;
    for name in ["one", "two", "copy"] {
        let ended = run(&format!("memory compact {{}}/{name} --quiet"))?;
        if ended.code != Some(0) {
            report.loss("values in an object store are lost", format!("{name}: {ended}"));
        }
    }
    Ok(())
}

/// Runs a command, which may be refused. The user's files must be unchanged.
fn check_user_files(report: &Report, shared: &Shared, case: &Case, workdir: &Path) -> Result<()> {
    for name in &case.names {
        let path = workdir.join(name);
        fs::create_dir_all(path.parent().unwrap_or(workdir))?;
        // The content of each file is its name.
        fs::write(path, name)?;
    }
    let line = shared.fill(case.line).replace("{}", &workdir.to_string_lossy());
    let ended = Engram::line(&line).run()?;
    report.check_result(&ended, &line);
    for name in &case.names {
        match fs::read(workdir.join(name)) {
            Ok(bytes) if bytes == name.as_bytes() => {}
            Ok(_) => {
                report.loss("a user's file is replaced", format!("{name}: {}: {ended}", case.line))
            }
            Err(_) => {
                report.loss("a user's file is deleted", format!("{name}: {}: {ended}", case.line))
            }
        }
    }
    Ok(())
}
