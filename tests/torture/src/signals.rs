//! SIGINT and SIGTERM during training.
//!
//! After the first signal, the command finishes the step, writes a checkpoint, prints the command
//! to continue (before the first step, to start again), and exits with 130 or 143. A second signal
//! ends the process at once. In both cases, the printed command gives the bytes of an
//! uninterrupted run.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::random::Random;
use crate::report::Report;
use crate::scratch::{self, Scratch, Snapshot};
use crate::subjects::{Shared, Subject};

/// Time limit for the end of a step and its checkpoint.
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// Time limit for the end of the process after a second signal.
const SECOND_SIGNAL_LIMIT: Duration = Duration::from_secs(5);

/// Training commands, and settings that make them run longer.
const COMMANDS: [(&str, &str); 4] = [
    ("train patent", " --set phase.train.epochs=10"),
    ("train clip", " --set phase.clip.epochs=20"),
    ("grid", ""),
    ("reproduce", ""),
];

pub fn attack(report: &Report) -> Result<()> {
    let scratch = Scratch::new("signals")?;
    let shared = Shared::make(&scratch)?;
    let mut subjects = shared.subjects(report.long)?;
    for (number, (name, settings)) in COMMANDS.into_iter().enumerate() {
        if let Some(subject) = subjects.iter_mut().find(|subject| subject.name == name) {
            subject.line += settings;
            interrupt(report, &scratch, subject, report.seed + number as u64)?;
        }
    }
    Ok(())
}

fn interrupt(report: &Report, scratch: &Scratch, subject: &Subject, seed: u64) -> Result<()> {
    let uninterrupted = scratch.join("uninterrupted");
    subject.prepare(&uninterrupted)?;
    let ended = subject.command(&uninterrupted).must_run()?;
    let (code, seconds) = (ended.code, ended.seconds);
    let uninterrupted = Snapshot::of(&uninterrupted)?;
    let count = report.size(6, 60).min((200.0 / subject.seconds) as usize);
    let trials: Vec<u64> = (0..count as u64).collect();
    scratch::for_each(&trials, scratch, |trial, folder| {
        let mut random = Random::new(seed, *trial);
        let (signal, expected) = [(libc::SIGINT, 130), (libc::SIGTERM, 143)][random.below(2)];
        let twice = random.below(3) == 0;
        let workdir = folder.join("workdir");
        subject.prepare(&workdir)?;
        let running = subject.command(&workdir).start()?;
        // The command handles signals from the time when it has created a folder.
        while std::fs::read_dir(&workdir)?.next().is_none() && running.is_running() {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_secs_f64(0.05 + random.unit() * seconds * 0.7));
        running.signal(signal);
        let signal_time = Instant::now();
        if twice {
            // Two signals at the same time count as one.
            thread::sleep(Duration::from_millis(100));
            running.signal(signal);
        }
        let ended = running.wait(STOP_LIMIT);
        report.count_case();
        let times = if twice { " twice" } else { "" };
        let label = format!("{}, trial {trial}, {expected}{times}", subject.name);
        report.check_result(&ended, &label);
        if twice && signal_time.elapsed() > SECOND_SIGNAL_LIMIT {
            report.hang("a second signal does not end the process", &label);
        }
        let finished = ended.code == code;
        if !finished && ended.code != Some(expected) && !(twice && ended.signal == Some(signal)) {
            report.loss("a wrong exit code", format!("{label}: {ended}"));
        } else if !finished && !twice && !ended.stderr.contains(next_command(subject, &workdir)?) {
            report.loss("the next command is not printed", format!("{label}: {ended}"));
        }
        let resumed = subject.repeat_command(&workdir).run()?;
        report.check_result(&resumed, &label);
        let current = Snapshot::of(&workdir)?;
        if resumed.code != code || current != uninterrupted {
            let files = current.difference(&uninterrupted);
            report.loss("a resumed run has other bytes", format!("{label}: {files} {resumed}"));
        }
        Ok(())
    })
}

/// The words before the command that a stopped subject prints. A training that is stopped before
/// its first step has no checkpoint.
fn next_command(subject: &Subject, workdir: &Path) -> Result<&'static str> {
    let files = Snapshot::of(workdir)?.0;
    let has_checkpoint = files.keys().any(|path| path.ends_with("checkpoints/LATEST"));
    let is_training = subject.name.starts_with("train ");
    Ok(if is_training && !has_checkpoint { "Start again with:" } else { "Continue with:" })
}
