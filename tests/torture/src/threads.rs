//! Every writing command gives equal bytes with 1, 2 and 3 threads.

use anyhow::Result;

use crate::report::Report;
use crate::scratch::{self, Scratch, Snapshot};
use crate::subjects::{Shared, Subject};

pub fn attack(report: &Report) -> Result<()> {
    let scratch = Scratch::new("threads")?;
    let shared = Shared::make(&scratch)?;
    let subjects = shared.subjects(report.long)?;
    let max = if report.long { 3 } else { 2 };
    scratch::for_each(&subjects, &scratch, |subject, folder| {
        let workdir = folder.join("workdir");
        let expected = output_files(subject, &workdir, 1)?;
        // The short form tests either 2 or 3 threads, depending on the subject.
        for threads in
            if max == 3 || subject.name.len().is_multiple_of(2) { 2..=max } else { 3..=3 }
        {
            report.count_case();
            let current = output_files(subject, &workdir, threads)?;
            if current != expected {
                let files = current.difference(&expected);
                report.loss(
                    "other bytes with more threads",
                    format!("{}, {threads} threads: {files}", subject.name),
                );
            }
        }
        Ok(())
    })
}

/// Runs the command and returns a snapshot of its workdir.
fn output_files(subject: &Subject, workdir: &std::path::Path, threads: usize) -> Result<Snapshot> {
    subject.prepare(workdir)?;
    subject.command(workdir).env("RAYON_NUM_THREADS", threads.to_string()).must_run()?;
    Snapshot::of(workdir)
}
