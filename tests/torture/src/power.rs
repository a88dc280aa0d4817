//! Power cuts, before file operations of each command and after its success.
//!
//! The command writes to an ext4 file system in an image file, which is copied while the command is
//! stopped. The copy has the data that the kernel had written to the disk by then; unsynced data
//! are lost. If no file system can be mounted, the cuts are simulated from the order of writes and
//! syncs. The long form does both.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::invariants::{Case, Uninterrupted};
use crate::preload::{self, Action, Call, Preload};
use crate::random::Random;
use crate::report::Report;
use crate::scratch::{self, Scratch};
use crate::simulate;
use crate::subjects::{Shared, Subject};

/// Time limit for a command to reach the operation before which it is stopped.
const STOP_LIMIT: Duration = Duration::from_secs(120);

/// A file system in an image file.
struct Disk {
    image: PathBuf,
    mount_point: PathBuf,
}

impl Disk {
    fn new(folder: &Path, name: &str) -> Result<Self> {
        let disk =
            Self { image: folder.join(format!("{name}.img")), mount_point: folder.join(name) };
        std::fs::create_dir_all(&disk.mount_point)?;
        Ok(disk)
    }

    /// Creates an empty file system. It commits its journal every 300 seconds, and a rename does
    /// not sync the file.
    fn format(&self) -> Result<()> {
        self.unmount();
        run_tool("truncate", &["-s", "64M", &self.image.to_string_lossy()])?;
        run_tool(
            "mkfs.ext4",
            &[
                "-q",
                "-F",
                "-E",
                "lazy_itable_init=0,lazy_journal_init=0",
                &self.image.to_string_lossy(),
            ],
        )?;
        self.mount("loop,commit=300,noauto_da_alloc")
    }

    fn mount(&self, options: &str) -> Result<()> {
        run_tool(
            "mount",
            &["-o", options, &self.image.to_string_lossy(), &self.mount_point.to_string_lossy()],
        )
    }

    fn unmount(&self) {
        // This fails if it is not mounted.
        let _ = run_tool("umount", &["-q", &self.mount_point.to_string_lossy()]);
    }

    /// Copies the current state of another disk, as after a power cut.
    fn copy_from(&self, other: &Self) -> Result<()> {
        self.unmount();
        run_tool(
            "cp",
            &["--sparse=always", &other.image.to_string_lossy(), &self.image.to_string_lossy()],
        )?;
        self.mount("loop")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.unmount();
    }
}

fn run_tool(name: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(name).args(arguments).output().with_context(|| name.to_owned())?;
    let error = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{name} {}: {}", arguments.join(" "), error.trim());
    Ok(())
}

/// The power cuts of one command.
struct Cuts<'a> {
    report: &'a Report,
    preload: &'a Preload,
    subject: &'a Subject,
    folder: &'a Path,
    uninterrupted: Uninterrupted,
    /// The operations before which the power is cut; `None` is after the end.
    moments: Vec<Option<Call>>,
}

pub fn attack(report: &Report) -> Result<()> {
    let scratch = Scratch::new("power")?;
    let probe = Disk::new(scratch.path(), "probe")?.format();
    if let Err(error) = &probe {
        let reason = "no file system can be mounted (root and loop devices are needed)";
        report.skip(&format!("{reason}; power cuts are simulated instead: {error:#}"));
    }
    let preload = Preload::build(scratch.path())?;
    let shared = Shared::make(&scratch)?;
    let subjects: Vec<(usize, Subject)> =
        shared.subjects(report.long)?.into_iter().enumerate().collect();
    scratch::for_each(&subjects, &scratch, |(number, subject), folder| {
        let cuts = Cuts::new(report, &preload, subject, *number as u64, folder)?;
        if probe.is_ok() {
            cuts.run_real()?;
        }
        if probe.is_err() || report.long {
            cuts.run_simulated()?;
        }
        Ok(())
    })
}

impl<'a> Cuts<'a> {
    fn new(
        report: &'a Report,
        preload: &'a Preload,
        subject: &'a Subject,
        number: u64,
        folder: &'a Path,
    ) -> Result<Self> {
        let workdir = folder.join("workdir");
        let mut calls = Vec::new();
        let uninterrupted = Uninterrupted::of(subject, &workdir, |command| {
            let (found_calls, ended) =
                preload.list_calls(command, &workdir, &folder.join("calls"))?;
            calls = found_calls;
            Ok(ended)
        })?;
        let seconds = if report.long { 15.0 } else { 3.0 };
        let count = (seconds / (subject.seconds + 0.3)).ceil() as usize;
        let chosen = Random::new(report.seed, number).sample(calls.len(), count);
        let mut moments = vec![None];
        moments.extend(chosen.into_iter().map(|index| Some(calls[index].clone())));
        Ok(Self { report, preload, subject, folder, uninterrupted, moments })
    }

    fn check(
        &self,
        kind: &str,
        moment: Option<&Call>,
        workdir: &Path,
        succeeded: bool,
    ) -> Result<()> {
        let name = self.subject.name;
        let label = match moment {
            None => format!("{name}, {kind} power cut after success"),
            Some(Call { number, operation, path, .. }) => {
                let path = path.rsplit("/workdir/").next().unwrap_or(path);
                format!("{name}, {kind} power cut before operation {number} ({operation} {path})")
            }
        };
        let (report, subject, uninterrupted) = (self.report, self.subject, &self.uninterrupted);
        report.count_case();
        Case { report, subject, uninterrupted, workdir, label }.after_stop(succeeded)
    }

    /// Power cuts on a real file system.
    fn run_real(&self) -> Result<()> {
        let (disk, copy) = (Disk::new(self.folder, "disk")?, Disk::new(self.folder, "copy")?);
        let (workdir, copy_workdir) =
            (disk.mount_point.join("workdir"), copy.mount_point.join("workdir"));
        for moment in &self.moments {
            disk.format()?;
            self.subject.prepare(&workdir)?;
            run_tool("sync", &["-f", &disk.mount_point.to_string_lossy()])?;
            let command = self.subject.command(&workdir);
            let stopped = match moment {
                None => {
                    command.must_run()?;
                    None
                }
                Some(call) => {
                    let command =
                        self.preload.with_fault(command, &workdir, call.number, Action::Stop);
                    command.start()?.until_stopped(STOP_LIMIT).ok()
                }
            };
            copy.copy_from(&disk)?;
            let succeeded = stopped.is_none();
            if let Some(running) = stopped {
                running.kill();
            }
            self.check("", moment.as_ref(), &copy_workdir, succeeded)?;
            copy.unmount();
        }
        Ok(())
    }

    /// Power cuts simulated from the order of writes and syncs.
    fn run_simulated(&self) -> Result<()> {
        let (workdir, start) = (self.folder.join("workdir"), self.folder.join("start"));
        let log = self.folder.join("calls");
        self.subject.prepare(&start)?;
        for moment in &self.moments {
            self.subject.prepare(&workdir)?;
            scratch::remove(&log)?;
            let number = moment.as_ref().map_or(0, |call| call.number);
            let command = self.subject.command(&workdir).env("FAULT_LOG", &log);
            let ended = self.preload.with_fault(command, &workdir, number, Action::Kill).run()?;
            let mut calls = preload::read_log(&log)?;
            let killed = ended.signal.is_some();
            if killed {
                // The process was killed before its last operation.
                calls.pop();
            }
            simulate::lose_unsynced(&workdir, &start, &calls)?;
            self.check("simulated", moment.as_ref(), &workdir, !killed)?;
        }
        Ok(())
    }
}
