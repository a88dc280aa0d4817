//! SIGINT and SIGTERM during training.
//!
//! The first finishes the step, writes a checkpoint, prints the command that resumes, and exits with 130 or 143. The
//! second ends the process at once. Either way `--resume` leads to the bytes of an unbroken run.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::program::Engram;
use crate::random::Random;
use crate::report::Report;
use crate::scratch::{self, Scratch, Snapshot};
use crate::subjects::Shared;

/// Seconds in which a step ends and a checkpoint is written.
const PROMPT: Duration = Duration::from_secs(20);
/// Seconds in which a second signal ends the process.
const AT_ONCE: Duration = Duration::from_secs(5);

pub fn attack(report: &Report) -> Result<()> {
    let scratch = Scratch::new("signals")?;
    let shared = Shared::make(&scratch)?;
    let longer =
        [("train patent", "phase.train.epochs=10"), ("train clip", "phase.clip.epochs=20")];
    for (study, (name, epochs)) in longer.into_iter().enumerate() {
        let line = format!("{} --set {epochs}", shared.line(name)?);
        let line_in = |place: &Path| line.replace("{}", &place.to_string_lossy());
        let unbroken = scratch.join("unbroken");
        scratch::empty(&unbroken)?;
        let ended = Engram::line(&line_in(&unbroken)).must_run()?;
        let (code, seconds) = (ended.code, ended.seconds);
        let unbroken = Snapshot::of(&unbroken.join("run"))?;
        let trials: Vec<u64> = (0..report.size(6, 100) as u64).collect();
        scratch::each(&trials, &scratch, |trial, folder| {
            let mut random = Random::new(report.seed + study as u64, *trial);
            let (signal, expected) = [(libc::SIGINT, 130), (libc::SIGTERM, 143)][random.below(2)];
            let twice = random.below(3) == 0;
            let run = folder.join("run");
            scratch::remove(&run)?;
            let line = line_in(folder);
            let running = Engram::line(&line).start()?;
            // Training has begun once its folder is there.
            while !run.join("recipe.toml").exists() && running.is_running() {
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(Duration::from_secs_f64(0.05 + random.unit() * seconds * 0.7));
            running.signal(signal);
            let sent = Instant::now();
            if twice {
                // Two that arrive together count as one.
                thread::sleep(Duration::from_millis(100));
                running.signal(signal);
            }
            let ended = running.wait(PROMPT);
            report.case();
            let at =
                format!("{name}, trial {trial}, {expected}{}", if twice { " twice" } else { "" });
            report.sound(&ended, &at);
            if twice && sent.elapsed() > AT_ONCE {
                report.hang("a second signal does not end the process", &at);
            }
            let finished = ended.code == code;
            if !finished && ended.code != Some(expected) && !(twice && ended.signal == Some(signal))
            {
                report.loss("a wrong exit code", format!("{at}: {ended}"));
            } else if !finished
                && !twice
                && !ended.stderr.contains("--resume")
                && !ended.stdout.contains("--resume")
            {
                report.loss("the command that resumes is not printed", format!("{at}: {ended}"));
            }
            let again = Engram::line(&format!("{line} --resume")).run()?;
            report.sound(&again, &at);
            let now = Snapshot::of(&run)?;
            if again.code != code || now != unbroken {
                report.loss(
                    "resumed to other bytes",
                    format!("{at}: {} {again}", now.difference(&unbroken)),
                );
            }
            Ok(())
        })?;
    }
    Ok(())
}
