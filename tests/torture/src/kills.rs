//! SIGKILL at random times in every writing command, also several times in a row.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::invariants::{Case, Uninterrupted};
use crate::program::Engram;
use crate::random::Random;
use crate::report::Report;
use crate::scratch::{self, Scratch};
use crate::subjects::{Kind, Shared};

/// The largest number of consecutive kills of a run.
const MAX_KILLS: usize = 3;

pub fn attack(report: &Report) -> Result<()> {
    let scratch = Scratch::new("kills")?;
    let shared = Shared::make(&scratch)?;
    for (number, subject) in shared.subjects(report.long)?.iter().enumerate() {
        let workdir = scratch.join("uninterrupted");
        let start = Instant::now();
        let uninterrupted = Uninterrupted::of(subject, &workdir, Engram::must_run)?;
        let seconds = start.elapsed().as_secs_f64().min(subject.seconds * 4.0);
        let count = report.size(
            (2.0 / (subject.seconds + 0.1)).ceil() as usize,
            (90.0 / (subject.seconds + 0.5)).ceil() as usize,
        );
        let trials: Vec<u64> = (0..count as u64).collect();
        scratch::for_each(&trials, &scratch, |trial, folder| {
            let workdir = folder.join("workdir");
            let mut random = Random::new(report.seed + number as u64 * 1_000_003, *trial);
            subject.prepare(&workdir)?;
            let is_run = matches!(subject.kind, Kind::Run | Kind::Runs);
            let planned_kills = if is_run { 1 + random.below(MAX_KILLS) } else { 1 };
            let mut kill_count = 0;
            for kill in 0..planned_kills {
                let command = if kill == 0 {
                    subject.command(&workdir)
                } else {
                    subject.repeat_command(&workdir)
                };
                let running = command.start()?;
                thread::sleep(Duration::from_secs_f64(random.unit() * seconds));
                if running.kill().signal != Some(libc::SIGKILL) {
                    break;
                }
                kill_count += 1;
            }
            for _ in 0..kill_count {
                report.count_case();
            }
            let label = format!("{}, trial {trial}, {kill_count} kills", subject.name);
            Case { report, subject, uninterrupted: &uninterrupted, workdir: &workdir, label }
                .after_stop(kill_count == 0)
        })?;
    }
    Ok(())
}
