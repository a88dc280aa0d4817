//! Every file operation of every writing command fails, writes too few bytes, is interrupted, or is
//! the last operation.

use std::collections::BTreeMap;
use std::sync::Mutex;

use anyhow::Result;

use crate::invariants::{Case, Uninterrupted};
use crate::preload::{Action, Call, Preload};
use crate::random::Random;
use crate::report::Report;
use crate::scratch::{self, Scratch};
use crate::subjects::{Shared, Subject};

/// Small changes of a memory, and their maximum number of syncs of files and folders.
const SMALL_CHANGES: [&str; 3] = ["memory add", "memory update", "memory delete"];
const MAX_SYNCS: usize = 3;

/// The faults that an operation can have.
fn possible_faults(operation: &str) -> &'static [Action] {
    use Action::{Fail, FailOn, Full, Interrupt, Kill, KillAfter, Short};
    use libc::{EACCES, EDQUOT, EIO, EMFILE, ENOSPC};
    match operation {
        "read" => &[Fail(EMFILE), Fail(EIO), Fail(EACCES), FailOn(EMFILE)],
        "open" => &[Fail(EMFILE), Fail(ENOSPC), Fail(EACCES), FailOn(ENOSPC), Kill],
        "write" => {
            &[Fail(EIO), Fail(EDQUOT), FailOn(ENOSPC), Full, Short, Interrupt, Kill, KillAfter]
        }
        "unlink" => &[Fail(EIO), Fail(EACCES), Kill, KillAfter],
        _ => &[Fail(EIO), Fail(EDQUOT), FailOn(ENOSPC), Kill, KillAfter],
    }
}

/// Whether a command may succeed despite the failure: reads of optional files, removals of
/// leftovers, and links, which a copy replaces.
fn may_be_ignored(call: &Call) -> bool {
    ["read", "unlink", "link"].contains(&call.operation.as_str())
}

/// A fault of a subject.
#[derive(Clone)]
struct Fault {
    /// Index of the subject.
    subject: usize,
    call: Call,
    action: Action,
}

/// The faults to try, limited by the time of the subject. The long form tries all faults of most
/// subjects.
fn choose_faults(report: &Report, number: usize, subject: &Subject, calls: &[Call]) -> Vec<Fault> {
    let mut faults: Vec<Fault> = Vec::new();
    for call in calls {
        for action in possible_faults(&call.operation) {
            faults.push(Fault { subject: number, call: call.clone(), action: *action });
        }
    }
    let max_faults = if report.long { 320.0 } else { 6.0 } / (subject.seconds + 0.1);
    let mut random = Random::new(report.seed, number as u64);
    let chosen = random.sample(faults.len(), max_faults.ceil() as usize);
    chosen.into_iter().map(|index| faults[index].clone()).collect()
}

pub fn attack(report: &Report) -> Result<()> {
    let scratch = Scratch::new("faults")?;
    let preload = Preload::build(scratch.path())?;
    let shared = Shared::make(&scratch)?;
    let subjects = shared.subjects(report.long)?;
    let references = Mutex::new(BTreeMap::new());
    let numbers: Vec<usize> = (0..subjects.len()).collect();
    let faults = Mutex::new(Vec::new());
    scratch::for_each(&numbers, &scratch, |number, folder| {
        let (subject, workdir) = (&subjects[*number], folder.join("workdir"));
        let (uninterrupted, calls) =
            Uninterrupted::of(subject, &preload, &workdir, &folder.join("calls"))?;
        let syncs = calls.iter().filter(|call| call.operation == "fsync").count();
        if SMALL_CHANGES.contains(&subject.name) && syncs > MAX_SYNCS {
            report.loss("too many syncs", format!("{}: {syncs}", subject.name));
        }
        let chosen = choose_faults(report, *number, subject, &calls);
        eprintln!("{}: {} operations, {} faults", subject.name, calls.len(), chosen.len());
        references.lock().expect("no thread panics").insert(*number, uninterrupted);
        faults.lock().expect("no thread panics").extend(chosen);
        Ok(())
    })?;
    let references = references.into_inner()?;
    let mut faults = faults.into_inner()?;
    faults.sort_by_key(|fault| fault.subject);
    scratch::for_each(&faults, &scratch, |fault, folder| {
        let Fault { subject, call, action } = fault;
        let (subject, uninterrupted, workdir) =
            (&subjects[*subject], &references[subject], folder.join("workdir"));
        subject.prepare(&workdir)?;
        report.count_case();
        let ended =
            preload.with_fault(subject.command(&workdir), &workdir, call.number, *action).run()?;
        let name = call.path.rsplit("/workdir/").next().unwrap_or(&call.path);
        let label = format!(
            "{}, {action} at operation {} ({} {name})",
            subject.name, call.number, call.operation
        );
        let case = Case { report, subject, uninterrupted, workdir: &workdir, label };
        if action.kills() && ended.signal == Some(libc::SIGKILL) {
            case.after_stop(false)
        } else {
            case.after_end(&ended, *action, !may_be_ignored(call))
        }
    })
}
