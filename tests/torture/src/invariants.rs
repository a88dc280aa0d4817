//! The requirements after a writing command has failed, was killed, or lost power.

use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use crate::preload::Act;
use crate::program::{Ended, Engram};
use crate::report::Report;
use crate::scratch::Snapshot;
use crate::subjects::{Kind, Subject};

/// The words with which an error after the commit point reports that the change is made.
const MADE: &str = "is made";

/// A generation and its number of entries; `None` without a memory.
type Visible = Option<(u64, u64)>;

/// The folder of a subject before and after an uninterrupted command.
pub struct Uninterrupted {
    before: Snapshot,
    pub after: Snapshot,
    code: Option<i32>,
    visible: [Visible; 2],
}

impl Uninterrupted {
    /// Runs the command with `run`, without faults.
    pub fn of(
        subject: &Subject,
        workdir: &Path,
        run: impl FnOnce(Engram) -> Result<Ended>,
    ) -> Result<Self> {
        subject.prepare(workdir)?;
        let (before, visible) = (Snapshot::of(workdir)?, visible(workdir)?.0);
        let ended = run(subject.command(workdir))?;
        let visible = [visible, self::visible(workdir)?.0];
        Ok(Self { before, after: Snapshot::of(workdir)?, code: ended.code, visible })
    }
}

/// The generation and entries from `memory info`, and its error.
fn visible(workdir: &Path) -> Result<(Visible, String)> {
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
    pub at: String,
}

impl Case<'_> {
    fn loss(&self, kind: &str, detail: impl std::fmt::Display) {
        self.report.loss(kind, format!("{}: {detail}", self.at));
    }

    /// Checks the state after a command that ended by itself: its exit code must match the state.
    /// `matters`: the command must not succeed if the operation fails.
    pub fn after_end(&self, ended: &Ended, act: Act, matters: bool) -> Result<()> {
        self.report.check_result(ended, &self.at);
        let now = Snapshot::of(self.workdir)?;
        if ended.code == self.uninterrupted.code {
            let seen = self.visible_part(&now);
            if seen != self.visible_part(&self.uninterrupted.after) {
                self.loss("success, but other files", seen.difference(&self.uninterrupted.after));
            } else if act.fails() && matters {
                self.loss("a failure is ignored", ended.error());
            }
            return Ok(());
        }
        if ended.code != Some(2) {
            self.loss("a wrong exit code", ended);
        } else if !self.subject.is_named(self.workdir, &ended.stderr) {
            self.loss("the error names no path", ended.error());
        }
        self.check_state(&now, Some(ended))?;
        let left = self.leftovers(&now, is_temporary);
        // A process that cannot open files cannot remove folders.
        if !left.is_empty() && act != Act::FailOn(libc::EMFILE) {
            self.loss("leftover files after a failure", left);
        }
        self.recover()
    }

    /// Checks the state after a kill or a power cut. `acknowledged`: the command had succeeded
    /// before.
    pub fn after_stop(&self, acknowledged: bool) -> Result<()> {
        let now = Snapshot::of(self.workdir)?;
        if acknowledged
            && !matches!(self.subject.kind, Kind::Run | Kind::Runs)
            && self.visible_part(&now) != self.visible_part(&self.uninterrupted.after)
        {
            self.loss("acknowledged, then lost", now.difference(&self.uninterrupted.after));
        }
        self.check_state(&now, None)?;
        self.recover()
    }

    /// Checks that the state is the old state or the new state, complete.
    fn check_state(&self, now: &Snapshot, ended: Option<&Ended>) -> Result<()> {
        let Uninterrupted { before, after, visible: [old, new], .. } = self.uninterrupted;
        match self.subject.kind {
            Kind::Memory => {
                let (seen, error) = visible(self.workdir)?;
                if seen != *old && seen != *new {
                    self.loss(
                        "neither the old memory nor the new memory",
                        format!("{seen:?} {error}"),
                    );
                    return Ok(());
                }
                if let Some(ended) = ended
                    && seen == *new
                    && old != new
                    && !ended.stderr.contains(MADE)
                {
                    self.loss("an error, but the change is made", ended.error());
                }
                if seen.is_some() {
                    let workdir = self.workdir.display();
                    let verify = Engram::line(&format!("memory verify {workdir}/memory")).run()?;
                    if verify.code != Some(0) {
                        self.loss("the memory does not verify", verify);
                    }
                }
            }
            Kind::Files => {
                for (path, hash) in &self.visible_part(now).0 {
                    if before.0.get(path) != Some(hash) && after.0.get(path) != Some(hash) {
                        self.loss("a torn file", path);
                    }
                }
                if let Some(path) = before.0.keys().find(|path| !now.0.contains_key(*path)) {
                    self.loss("an old file is gone", path);
                }
            }
            Kind::Folder => {
                let seen = self.visible_part(now);
                if seen != *before && seen != *after {
                    self.loss("a part of a folder", seen.difference(after));
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
        let now = Snapshot::of(workdir)?;
        let done = match subject.kind {
            Kind::Memory => visible(workdir)?.0 == uninterrupted.visible[1],
            Kind::Folder => self.visible_part(&now) == uninterrupted.after,
            Kind::Files | Kind::Run | Kind::Runs => false,
        };
        if !done {
            let again = subject.again(workdir).run()?;
            self.report.check_result(&again, &self.at);
            if again.code != uninterrupted.code {
                self.loss("refused when given again", again);
                return Ok(());
            }
        }
        let now = Snapshot::of(workdir)?;
        if !done && self.visible_part(&now) != self.visible_part(&uninterrupted.after) {
            self.loss(
                "other bytes than an uninterrupted command",
                now.difference(&uninterrupted.after),
            );
        }
        if done && subject.kind == Kind::Memory {
            // After a kill after the commit point, the next change removes the leftovers.
            let next = format!("memory compact {}/memory --quiet", workdir.display());
            let next = Engram::line(&next).run()?;
            if next.code != Some(0) {
                self.loss("the next change is refused", next);
            }
        }
        let left =
            self.leftovers(&Snapshot::of(workdir)?, |path| is_temporary(path) || is_mark(path));
        // In other folders, only the command that created a temporary file removes it.
        if !left.is_empty() && matches!(subject.kind, Kind::Memory | Kind::Run | Kind::Runs) {
            self.loss("leftover files after the next command", left);
        }
        Ok(())
    }

    /// The files that a user sees, without hidden and temporary names.
    fn visible_part(&self, now: &Snapshot) -> Snapshot {
        let seen = now
            .0
            .iter()
            .filter(|(path, _)| !is_temporary(path) && !is_mark(path) && !path.ends_with('/'));
        Snapshot(seen.map(|(path, hash)| (path.clone(), *hash)).collect())
    }

    /// Files that match `is_left` and exist neither before nor after an uninterrupted command.
    fn leftovers(&self, now: &Snapshot, is_left: fn(&str) -> bool) -> String {
        let known = |path: &str| {
            self.uninterrupted.before.0.contains_key(path)
                || self.uninterrupted.after.0.contains_key(path)
        };
        let mut left: Vec<&str> =
            now.0.keys().map(String::as_str).filter(|path| is_left(path) && !known(path)).collect();
        left.truncate(3);
        left.join(", ")
    }
}

/// Whether a part of the path is a name of an unfinished command.
fn is_temporary(path: &str) -> bool {
    path.split('/').any(|part| part.starts_with('.') || part.ends_with(".partial"))
}

/// Whether the path is the mark of an unfinished generation. It may remain after an error behind
/// the commit point or a power cut; the next writer removes it.
fn is_mark(path: &str) -> bool {
    path.ends_with("/UNFINISHED")
}
