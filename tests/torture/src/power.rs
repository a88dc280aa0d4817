//! Power cuts: an ext4 file system in an image, which is copied while the command is stopped.
//!
//! The copy holds what the kernel had written to the disk at that moment; what was not synced is lost.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::invariants::{Case, Unbroken};
use crate::preload::{Act, Preload};
use crate::program::Engram;
use crate::random::Random;
use crate::report::Report;
use crate::scratch::{self, Scratch};
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

    /// An empty file system. Its journal is written every 300 seconds, and renames do not sync by themselves.
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
        // It may not be mounted.
        let _ = tool("umount", &["-q", &self.mounted.to_string_lossy()]);
    }

    /// What another disk holds at this moment, as after a power cut.
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

/// A moment at which the power goes.
#[derive(Clone, Copy)]
enum Cut {
    /// Before an operation.
    Before(usize),
    /// After the command has ended well.
    AtEnd,
}

pub fn attack(report: &Report) -> Result<()> {
    let scratch = Scratch::new("power")?;
    let disk = Disk::new(scratch.path(), "probe")?;
    if let Err(error) = disk.format() {
        report.skip(&format!(
            "no file system can be mounted here (root and loop devices needed): {error:#}"
        ));
        return Ok(());
    }
    drop(disk);
    let preload = Preload::build(scratch.path())?;
    let shared = Shared::make(&scratch)?;
    let subjects = shared.subjects()?;
    let numbers: Vec<usize> = (0..subjects.len()).collect();
    scratch::each(&numbers, &scratch, |number, folder| {
        cuts(report, &preload, &subjects[*number], *number, folder)
    })
}

/// All cuts of one command.
fn cuts(
    report: &Report,
    preload: &Preload,
    subject: &Subject,
    number: usize,
    folder: &Path,
) -> Result<()> {
    let unbroken = Unbroken::of(subject, &folder.join("place"), Engram::must_run)?;
    let (disk, copy) = (Disk::new(folder, "disk")?, Disk::new(folder, "copy")?);
    let (place, copied) = (disk.mounted.join("place"), copy.mounted.join("place"));
    let restart = || -> Result<()> {
        disk.format()?;
        subject.prepare(&place)?;
        tool("sync", &["-f", &disk.mounted.to_string_lossy()])
    };
    restart()?;
    let (calls, _) = preload.calls(subject.command(&place), &place, &folder.join("calls"))?;
    let count = (if report.long { 300.0 } else { 3.0 } / (subject.seconds + 0.3)).ceil() as usize;
    let mut random = Random::new(report.seed, number as u64);
    let mut moments = vec![Cut::AtEnd];
    moments.extend(random.sample(calls.len(), count).into_iter().map(|call| Cut::Before(call + 1)));
    for moment in moments {
        restart()?;
        report.case();
        let (at, stopped) = match moment {
            Cut::AtEnd => {
                subject.command(&place).must_run()?;
                (format!("{}, power cut after success", subject.name), None)
            }
            Cut::Before(call) => {
                let command = preload.armed(subject.command(&place), &place, call, Act::Stop);
                let path = calls[call - 1].path.rsplit("/place/").next().unwrap_or_default();
                let operation = &calls[call - 1].operation;
                let at = format!(
                    "{}, power cut before operation {call} ({operation} {path})",
                    subject.name
                );
                (at, command.start()?.until_stopped(LIMIT).ok())
            }
        };
        copy.cut(&disk)?;
        let acknowledged = stopped.is_none();
        if let Some(running) = stopped {
            running.kill();
        }
        Case { report, subject, unbroken: &unbroken, place: &copied, at }
            .after_stop(acknowledged)?;
        copy.unmount();
    }
    Ok(())
}
