//! Several writers, builders and readers of one memory at the same time, and two trainers of one
//! run.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use crate::inputs;
use crate::program::{CommandResult, Engram};
use crate::report::Report;
use crate::scratch::{self, Scratch, Snapshot};
use crate::subjects::Shared;

/// Number of concurrent writers.
const WRITERS: usize = 4;

pub fn attack(report: &Report) -> Result<()> {
    let scratch = Scratch::new("writers")?;
    let shared = Shared::make(&scratch)?;
    read_while_writing(report, &shared, &scratch.join("read"))?;
    compete_to_write(report, &shared, &scratch.join("written"))?;
    compete_to_build(report, &shared, &scratch.join("built"))?;
    compete_to_train(report, &shared, &scratch)
}

/// Number of entries of a memory, from `memory info`.
fn entries(memory: &Path) -> Result<u64> {
    let ended = Engram::line(&format!("memory info {} --json", memory.display())).must_run()?;
    let info: Value = serde_json::from_str(&ended.stdout)?;
    Ok(info["entries"].as_u64().unwrap_or(0))
}

fn add(shared: &Shared, memory: &Path, entries: &Path) -> Result<CommandResult> {
    let line = "memory add {} --keys {s}/keys2.npy --values {s}/values2.npy --entries {e} \
        --quiet";
    let line =
        line.replace("{}", &memory.to_string_lossy()).replace("{e}", &entries.to_string_lossy());
    Engram::line(&shared.fill(&line)).run()
}

/// Readers search while a writer replaces generations; no reader may fail.
fn read_while_writing(report: &Report, shared: &Shared, memory: &Path) -> Result<()> {
    scratch::copy(&shared.folder.join("start/memory"), memory)?;
    let generations = report.size(50, 1000);
    let before = entries(memory)?;
    let is_finished = AtomicBool::new(false);
    let folder = memory.display();
    let lines = [
        shared.fill(&format!("memory search {folder} --queries {{s}}/queries.npy -k 5")),
        shared.fill(&format!(
            "memory search {folder} --queries {{s}}/queries.npy -k 5 --index graph"
        )),
        format!("memory verify {folder}"),
    ];
    thread::scope(|scope| -> Result<()> {
        for line in &lines {
            let is_finished = &is_finished;
            scope.spawn(move || {
                while !is_finished.load(Ordering::Relaxed) {
                    let Ok(ended) = Engram::line(line).run() else { return };
                    report.count_case();
                    if report.check_result(&ended, line) && ended.code != Some(0) {
                        report.loss(
                            "a reader failed while another process wrote",
                            format!("{line}: {ended}"),
                        );
                    }
                }
            });
        }
        let result = (0..generations).try_for_each(|generation| {
            let first = 2000 + generation / 2 * 40;
            let ids: Vec<String> = (first..first + 40).map(|id| id.to_string()).collect();
            let ended = if generation % 2 == 0 {
                let file = memory.with_extension("jsonl");
                inputs::entries(&file, first, 40, "a")?;
                add(shared, memory, &file)?
            } else {
                Engram::line(&format!("memory delete {folder} --ids {}", ids.join(","))).run()?
            };
            report.count_case();
            if ended.code != Some(0) {
                report.loss("a writer failed while readers searched", ended);
            }
            Ok(())
        });
        is_finished.store(true, Ordering::Relaxed);
        result
    })?;
    if entries(memory)? != before {
        report.loss(
            "wrong number of entries after all generations",
            format!("{} instead of {before}", entries(memory)?),
        );
    }
    Ok(())
}

/// Writers that retry when they are refused. At the end, all acknowledged entries must be present.
fn compete_to_write(report: &Report, shared: &Shared, memory: &Path) -> Result<()> {
    scratch::copy(&shared.folder.join("start/memory"), memory)?;
    let before = entries(memory)?;
    let additions = report.size(4, 40);
    let added = AtomicUsize::new(0);
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let added = &added;
            scope.spawn(move || -> Result<()> {
                for addition in 0..additions {
                    let file = memory.with_extension(format!("{writer}.jsonl"));
                    inputs::entries(
                        &file,
                        100_000 + (writer * additions + addition) * 40,
                        40,
                        "a",
                    )?;
                    for _ in 0..2000 {
                        let ended = add(shared, memory, &file)?;
                        report.count_case();
                        report.check_result(&ended, "several writers");
                        if ended.code == Some(0) {
                            added.fetch_add(40, Ordering::Relaxed);
                            break;
                        }
                        thread::sleep(Duration::from_millis(3));
                    }
                }
                Ok(())
            });
        }
    });
    let (expected, found) = (before + added.into_inner() as u64, entries(memory)?);
    if found != expected {
        report.loss("acknowledged entries are missing", format!("{found} instead of {expected}"));
    }
    let verify = Engram::line(&format!("memory verify {}", memory.display())).run()?;
    if verify.code != Some(0) {
        report.loss("the memory of several writers does not verify", verify);
    }
    Ok(())
}

/// Two builds into one folder at the same time: exactly one succeeds, and the memory is its memory.
fn compete_to_build(report: &Report, shared: &Shared, memory: &Path) -> Result<()> {
    for race in 0..report.size(40, 500) {
        scratch::remove(memory)?;
        report.count_case();
        let build = |keys: &str| {
            let line =
                format!("memory build --keys {{s}}/{keys} --out {} --quiet", memory.display());
            Engram::line(&shared.fill(&line)).run()
        };
        let (small, large) = thread::scope(|scope| {
            let small = scope.spawn(|| build("keys2.npy"));
            let large = build("keys.npy");
            (small.join(), large)
        });
        let (Ok(small), large) = (small, large?) else { continue };
        let small = small?;
        for ended in [&small, &large] {
            report.check_result(ended, "two builders");
        }
        let acknowledged: BTreeSet<u64> = [(&small, 40), (&large, 300)]
            .iter()
            .filter(|(ended, _)| ended.code == Some(0))
            .map(|(_, entries)| *entries)
            .collect();
        match acknowledged.len() {
            1 if acknowledged.contains(&entries(memory)?) => {}
            1 => report.loss("an acknowledged build is missing", format!("race {race}")),
            0 => report
                .loss("neither builder made a memory", format!("race {race}: {small} / {large}")),
            _ => report.loss("both builders were acknowledged", format!("race {race}")),
        }
    }
    Ok(())
}

/// A second trainer of the same run is refused and does not change the run.
fn compete_to_train(report: &Report, shared: &Shared, scratch: &Scratch) -> Result<()> {
    let line = shared.line("train patent")?;
    let line = |workdir: &Path| line.replace("{}", &workdir.to_string_lossy());
    let (single, contested) = (scratch.join("alone"), scratch.join("both"));
    Engram::line(&line(&single)).must_run()?;
    let first = Engram::line(&line(&contested)).start()?;
    thread::sleep(Duration::from_millis(200));
    let second = Engram::line(&format!("{} --resume", line(&contested))).run()?;
    let first = first.wait(Duration::from_secs(60));
    report.count_case();
    report.check_result(&first, "two trainers");
    report.check_result(&second, "two trainers");
    let (single, contested) = (Snapshot::of(&single)?, Snapshot::of(&contested)?);
    if single != contested {
        report.loss("two trainers leave other bytes", contested.difference(&single));
    }
    Ok(())
}
