//! The requirements after a writing command has failed, was killed, or lost power.

use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use crate::preload::{Action, Call, Preload};
use crate::program::{CommandResult, Engram};
use crate::report::Report;
use crate::scratch::Snapshot;
use crate::subjects::{Kind, Subject};

/// The words with which an error after the commit point reports that the change is made.
const MADE: &str = "is made";

/// A generation and its number of entries; `None` without a memory.
type MemoryState = Option<(u64, u64)>;

/// The folder of a subject before and after an uninterrupted command.
pub struct Uninterrupted {
    before: Snapshot,
    pub after: Snapshot,
    code: Option<i32>,
    /// The states of the memory before and after the command.
    memory: [MemoryState; 2],
}

impl Uninterrupted {
    /// Runs the command without faults. Also returns its file operations, which `log` lists.
    pub fn of(
        subject: &Subject,
        preload: &Preload,
        workdir: &Path,
        log: &Path,
    ) -> Result<(Self, Vec<Call>)> {
        subject.prepare(workdir)?;
        let (before, old_memory) = (Snapshot::of(workdir)?, memory_state(workdir)?.0);
        let (calls, ended) = preload.list_calls(subject.command(workdir), workdir, log)?;
        let memory = [old_memory, memory_state(workdir)?.0];
        Ok((Self { before, after: Snapshot::of(workdir)?, code: ended.code, memory }, calls))
    }
}

/// The generation and entries from `memory info`, and its error.
fn memory_state(workdir: &Path) -> Result<(MemoryState, String)> {
    let memory = workdir.join("memory");
    if !memory.is_dir() {
        return Ok((None, String::new()));
    }
    let ended = Engram::line(&format!("memory info {} --json", memory.display())).run()?;
    let info: Value = serde_json::from_str(&ended.stdout).unwrap_or_default();
    let numbers = info["generation"].as_u64().zip(info["entries"].as_u64());
    Ok((numbers, ended.error()))
}

/// A subject in a folder, with its allowed states.
pub struct Case<'a> {
    pub report: &'a Report,
    pub subject: &'a Subject,
    pub uninterrupted: &'a Uninterrupted,
    pub workdir: &'a Path,
    /// The description of the case.
    pub label: String,
}

impl Case<'_> {
    fn loss(&self, kind: &str, detail: impl std::fmt::Display) {
        self.report.loss(kind, format!("{}: {detail}", self.label));
    }

    /// Checks the state after a command that ended by itself: its exit code must match the state.
    /// With `must_fail`, the command must not succeed if the operation fails.
    pub fn after_end(&self, ended: &CommandResult, action: Action, must_fail: bool) -> Result<()> {
        self.report.check_result(ended, &self.label);
        let current = Snapshot::of(self.workdir)?;
        if ended.code == self.uninterrupted.code {
            let files = self.user_files(&current);
            if files != self.user_files(&self.uninterrupted.after) {
                self.loss("success, but other files", files.difference(&self.uninterrupted.after));
            } else if action.fails() && must_fail {
                self.loss("a failure is ignored", ended.error());
            }
            return Ok(());
        }
        if ended.code != Some(2) {
            self.loss("a wrong exit code", ended);
        } else if !self.subject.path_is_named(self.workdir, &ended.stderr) {
            self.loss("the error names no path", ended.error());
        }
        self.check_state(&current, Some(ended))?;
        let leftovers = self.leftovers(&current, is_temporary);
        // A process that cannot open files cannot remove folders.
        if !leftovers.is_empty() && action != Action::FailOn(libc::EMFILE) {
            self.loss("leftover files after a failure", leftovers);
        }
        self.recover()
    }

    /// Checks the state after a kill or a power cut. With `acknowledged`, the command had
    /// succeeded before.
    pub fn after_stop(&self, acknowledged: bool) -> Result<()> {
        let current = Snapshot::of(self.workdir)?;
        if acknowledged
            && !matches!(self.subject.kind, Kind::Run | Kind::Runs)
            && self.user_files(&current) != self.user_files(&self.uninterrupted.after)
        {
            self.loss("acknowledged, then lost", current.difference(&self.uninterrupted.after));
        }
        self.check_state(&current, None)?;
        self.recover()
    }

    /// Checks that the state is the old state or the new state, complete.
    fn check_state(&self, current: &Snapshot, ended: Option<&CommandResult>) -> Result<()> {
        let Uninterrupted { before, after, memory: [old, new], .. } = self.uninterrupted;
        match self.subject.kind {
            Kind::Memory => {
                let (state, error) = memory_state(self.workdir)?;
                if state != *old && state != *new {
                    self.loss(
                        "neither the old memory nor the new memory",
                        format!("{state:?} {error}"),
                    );
                    return Ok(());
                }
                if let Some(ended) = ended
                    && state == *new
                    && old != new
                    && !ended.stderr.contains(MADE)
                {
                    self.loss("an error, but the change is made", ended.error());
                }
                if state.is_some() {
                    let workdir = self.workdir.display();
                    let verify = Engram::line(&format!("memory verify {workdir}/memory")).run()?;
                    if verify.code != Some(0) {
                        self.loss("the memory does not verify", verify);
                    }
                }
            }
            Kind::Files => {
                for (path, hash) in &self.user_files(current).0 {
                    if before.0.get(path) != Some(hash) && after.0.get(path) != Some(hash) {
                        self.loss("a torn file", path);
                    }
                }
                if let Some(path) = before.0.keys().find(|path| !current.0.contains_key(*path)) {
                    self.loss("an old file is gone", path);
                }
            }
            Kind::Folder => {
                let files = self.user_files(current);
                if files != *before && files != *after {
                    self.loss("a part of a folder", files.difference(after));
                }
            }
            Kind::Run | Kind::Runs => {}
        }
        Ok(())
    }

    /// Runs the command again. It must give the bytes of an uninterrupted command and leave no
    /// other files.
    fn recover(&self) -> Result<()> {
        let Self { subject, workdir, uninterrupted, .. } = self;
        let current = Snapshot::of(workdir)?;
        let is_complete = match subject.kind {
            Kind::Memory => memory_state(workdir)?.0 == uninterrupted.memory[1],
            Kind::Folder => self.user_files(&current) == uninterrupted.after,
            Kind::Files | Kind::Run | Kind::Runs => false,
        };
        if !is_complete {
            let result = subject.repeat_command(workdir).run()?;
            self.report.check_result(&result, &self.label);
            if result.code != uninterrupted.code {
                self.loss("refused when given again", result);
                return Ok(());
            }
        }
        let current = Snapshot::of(workdir)?;
        if !is_complete && self.user_files(&current) != self.user_files(&uninterrupted.after) {
            self.loss(
                "other bytes than an uninterrupted command",
                current.difference(&uninterrupted.after),
            );
        }
        if is_complete && subject.kind == Kind::Memory {
            // The next change removes the leftovers of a kill after the commit point.
            let compact = format!("memory compact {}/memory --quiet", workdir.display());
            let result = Engram::line(&compact).run()?;
            if result.code != Some(0) {
                self.loss("the next change is refused", result);
            }
        }
        let leftovers = self.leftovers(&Snapshot::of(workdir)?, |path| {
            is_temporary(path) || is_unfinished_marker(path)
        });
        // In other folders, only the command that created a temporary file removes it.
        if !leftovers.is_empty() && matches!(subject.kind, Kind::Memory | Kind::Run | Kind::Runs) {
            self.loss("leftover files after the next command", leftovers);
        }
        Ok(())
    }

    /// The files that a user sees, without hidden and temporary names.
    fn user_files(&self, current: &Snapshot) -> Snapshot {
        let files = current.0.iter().filter(|(path, _)| {
            !is_temporary(path) && !is_unfinished_marker(path) && !path.ends_with('/')
        });
        Snapshot(files.map(|(path, hash)| (path.clone(), *hash)).collect())
    }

    /// Files that match `is_leftover` and exist neither before nor after an uninterrupted command.
    fn leftovers(&self, current: &Snapshot, is_leftover: fn(&str) -> bool) -> String {
        let is_known = |path: &str| {
            self.uninterrupted.before.0.contains_key(path)
                || self.uninterrupted.after.0.contains_key(path)
        };
        let mut leftovers: Vec<&str> = current
            .0
            .keys()
            .map(String::as_str)
            .filter(|path| is_leftover(path) && !is_known(path))
            .collect();
        leftovers.truncate(3);
        leftovers.join(", ")
    }
}

/// Whether a part of the path is a name of an unfinished command.
fn is_temporary(path: &str) -> bool {
    path.split('/').any(|part| part.starts_with('.') || part.ends_with(".partial"))
}

/// Whether the path is the marker of an unfinished generation. It may remain after an error after
/// the commit point or a power cut; the next writer removes it.
fn is_unfinished_marker(path: &str) -> bool {
    path.ends_with("/UNFINISHED") || path.ends_with(".UNFINISHED")
}
