//! Power cuts, before file operations of each command and after its success.
//!
//! The preload library kills the command before an operation. Data that the command had not synced
//! by then are removed, as a file system may lose them.

use anyhow::Result;

use crate::invariants::{Case, Uninterrupted};
use crate::preload::{self, Action, Call, Preload};
use crate::random::Random;
use crate::report::Report;
use crate::scratch::{self, Scratch};
use crate::simulate;
use crate::subjects::Shared;

pub fn attack(report: &Report) -> Result<()> {
    let scratch = Scratch::new("power")?;
    let preload = Preload::build(scratch.path())?;
    let shared = Shared::make(&scratch)?;
    let subjects = shared.subjects(report.long)?;
    let numbers: Vec<usize> = (0..subjects.len()).collect();
    scratch::for_each(&numbers, &scratch, |number, folder| {
        let subject = &subjects[*number];
        let [workdir, start, log] = ["workdir", "start", "calls"].map(|name| folder.join(name));
        let (uninterrupted, calls) = Uninterrupted::of(subject, &preload, &workdir, &log)?;
        let seconds = if report.long { 15.0 } else { 3.0 };
        let count = (seconds / (subject.seconds + 0.3)).ceil() as usize;
        let chosen = Random::new(report.seed, *number as u64).sample(calls.len(), count);
        // The operations before which the power is cut; `None` is after the end.
        let moments = [None].into_iter().chain(chosen.into_iter().map(|index| Some(&calls[index])));
        subject.prepare(&start)?;
        for moment in moments {
            subject.prepare(&workdir)?;
            scratch::remove(&log)?;
            let number = moment.map_or(0, |call: &Call| call.number);
            let command = subject.command(&workdir).env("FAULT_LOG", &log);
            let ended = preload.with_fault(command, &workdir, number, Action::Kill).run()?;
            let mut calls = preload::read_log(&log)?;
            let killed = ended.signal.is_some();
            if killed {
                // The process was killed before its last operation.
                calls.pop();
            }
            simulate::lose_unsynced(&workdir, &start, &calls)?;
            report.count_case();
            let label = format!("{}, {}", subject.name, moment_name(moment));
            let uninterrupted = &uninterrupted;
            Case { report, subject, uninterrupted, workdir: &workdir, label }
                .after_stop(!killed)?;
        }
        Ok(())
    })
}

fn moment_name(moment: Option<&Call>) -> String {
    match moment {
        None => "power cut after success".to_owned(),
        Some(Call { number, operation, path, .. }) => {
            let path = path.rsplit("/workdir/").next().unwrap_or(path);
            format!("power cut before operation {number} ({operation} {path})")
        }
    }
}
