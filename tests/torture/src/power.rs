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
use crate::preload::{self, Act, Call, Preload};
use crate::random::Random;
use crate::report::Report;
use crate::scratch::{self, Scratch};
use crate::simulate;
use crate::subjects::{Shared, Subject};

const LIMIT: Duration = Duration::from_secs(120);

/// A file system in an image file.
struct Disk {
    image: PathBuf,
    mounted: PathBuf,
}

impl Disk {
    fn new(folder: &Path, name: &str) -> Result<Self> {
        let disk = Self { image: folder.join(format!("{name}.img")), mounted: folder.join(name) };
        std::fs::create_dir_all(&disk.mounted)?;
        Ok(disk)
    }

    /// Creates an empty file system. It commits its journal every 300 seconds, and a rename does
    /// not sync the file.
    fn format(&self) -> Result<()> {
        self.unmount();
        tool("truncate", &["-s", "64M", &self.image.to_string_lossy()])?;
        tool(
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
        tool(
            "mount",
            &["-o", options, &self.image.to_string_lossy(), &self.mounted.to_string_lossy()],
        )
    }

    fn unmount(&self) {
        // This fails if it is not mounted.
        let _ = tool("umount", &["-q", &self.mounted.to_string_lossy()]);
    }

    /// Copies the current state of another disk, as after a power cut.
    fn cut(&self, from: &Self) -> Result<()> {
        self.unmount();
        tool(
            "cp",
            &["--sparse=always", &from.image.to_string_lossy(), &self.image.to_string_lossy()],
        )?;
        self.mount("loop")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.unmount();
    }
}

fn tool(name: &str, arguments: &[&str]) -> Result<()> {
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
        let why = "no file system can be mounted (root and loop devices are needed)";
        report.skip(&format!("{why}; power cuts are simulated instead: {error:#}"));
    }
    let preload = Preload::build(scratch.path())?;
    let shared = Shared::make(&scratch)?;
    let subjects: Vec<(usize, Subject)> =
        shared.subjects(report.long)?.into_iter().enumerate().collect();
    scratch::each(&subjects, &scratch, |(number, subject), folder| {
        let cuts = Cuts::new(report, &preload, subject, *number as u64, folder)?;
        if probe.is_ok() {
            cuts.real()?;
        }
        if probe.is_err() || report.long {
            cuts.simulated()?;
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
            let (found, ended) = preload.calls(command, &workdir, &folder.join("calls"))?;
            calls = found;
            Ok(ended)
        })?;
        let seconds = if report.long { 15.0 } else { 3.0 };
        let count = (seconds / (subject.seconds + 0.3)).ceil() as usize;
        let chosen = Random::new(report.seed, number).sample(calls.len(), count);
        let mut moments = vec![None];
        moments.extend(chosen.into_iter().map(|call| Some(calls[call].clone())));
        Ok(Self { report, preload, subject, folder, uninterrupted, moments })
    }

    fn check(&self, how: &str, moment: Option<&Call>, workdir: &Path, ended: bool) -> Result<()> {
        let name = self.subject.name;
        let at = match moment {
            None => format!("{name}, {how} power cut after success"),
            Some(Call { number, operation, path, .. }) => {
                let path = path.rsplit("/workdir/").next().unwrap_or(path);
                format!("{name}, {how} power cut before operation {number} ({operation} {path})")
            }
        };
        let (report, subject, uninterrupted) = (self.report, self.subject, &self.uninterrupted);
        report.case();
        Case { report, subject, uninterrupted, workdir, at }.after_stop(ended)
    }

    /// Power cuts on a real file system.
    fn real(&self) -> Result<()> {
        let (disk, copy) = (Disk::new(self.folder, "disk")?, Disk::new(self.folder, "copy")?);
        let (workdir, copied) = (disk.mounted.join("workdir"), copy.mounted.join("workdir"));
        for moment in &self.moments {
            disk.format()?;
            self.subject.prepare(&workdir)?;
            tool("sync", &["-f", &disk.mounted.to_string_lossy()])?;
            let command = self.subject.command(&workdir);
            let stopped = match moment {
                None => {
                    command.must_run()?;
                    None
                }
                Some(call) => {
                    let command = self.preload.armed(command, &workdir, call.number, Act::Stop);
                    command.start()?.until_stopped(LIMIT).ok()
                }
            };
            copy.cut(&disk)?;
            let ended = stopped.is_none();
            if let Some(running) = stopped {
                running.kill();
            }
            self.check("", moment.as_ref(), &copied, ended)?;
            copy.unmount();
        }
        Ok(())
    }

    /// Power cuts simulated from the order of writes and syncs.
    fn simulated(&self) -> Result<()> {
        let (workdir, start) = (self.folder.join("workdir"), self.folder.join("start"));
        let log = self.folder.join("calls");
        self.subject.prepare(&start)?;
        for moment in &self.moments {
            self.subject.prepare(&workdir)?;
            scratch::remove(&log)?;
            let number = moment.as_ref().map_or(0, |call| call.number);
            let command = self.subject.command(&workdir).env("FAULT_LOG", &log);
            let ended = self.preload.armed(command, &workdir, number, Act::Kill).run()?;
            let mut calls = preload::read(&log)?;
            let killed = ended.signal.is_some();
            if killed {
                // The process was killed before its last operation.
                calls.pop();
            }
            simulate::lose(&workdir, &start, &calls)?;
            self.check("simulated", moment.as_ref(), &workdir, !killed)?;
        }
        Ok(())
    }
}
