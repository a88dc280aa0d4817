//! A command that is refused deletes nothing, and no command touches files that it did not write.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::program::Engram;
use crate::report::Report;
use crate::scratch::{self, Scratch};
use crate::subjects::{PATENT, Shared};

/// Names of a user that look like ours.
const PRECIOUS: [&str; 21] = [
    ".env.sample", ".env.backup", ".bashrc.backup", ".git.bundle", "notes.txt", ".lock", "LOCK", ".CURRENT.backup",
    ".metrics.jsonl.AbCdEf", ".config.json.a1b2c3", ".model.safetensors.engram-notes", ".notes.engram-backup",
    "gen-000001/notes.txt", "gen-000002.partial/notes.txt", "gen-backup/keys.safetensors", "gen-000009/notes.txt",
    "checkpoints/notes.txt", "checkpoints/.step-00000032.backup/notes.txt", ".engram-unfinished-a1b2c3/notes.txt",
    "memory/notes.txt", "out.partial/notes.txt",
];

/// Commands on a folder of a user, which is no memory and no run.
const FOREIGN: [&str; 13] = [
    "train patent --recipe {r}/train/recipes/patent/world.toml --tiny --quiet --run {}",
    "train patent --recipe {r}/train/recipes/patent/world.toml --tiny --quiet --run {} --resume",
    "train reveal --recipe {r}/train/recipes/reveal/laptop.toml --tiny --quiet --run {}",
    "memory build --keys {s}/keys.npy --out {} --quiet",
    "memory add {} --keys {s}/keys2.npy --quiet",
    "memory delete {} --ids 1",
    "memory compact {} --quiet",
    "memory index {} --quiet",
    "data phrases {}",
    "data world {} --pictures 40 --split test",
    "data speech {} --count 2",
    "data convert ctranslate2 {s}/ctranslate2 --out {}",
    "man {}",
];

/// Commands that write into a memory or a run, beside files of a user.
const BESIDE: [(&str, &str, &str); 5] = [
    ("start/memory", "memory add {} --keys {s}/keys2.npy --values {s}/values2.npy --entries {s}/more.jsonl --quiet", ""),
    ("start/memory", "memory delete {} --ids 100,200", ""),
    ("start/memory", "memory compact {} --quiet", ""),
    ("run", PATENT, " --run {} --resume"),
    ("run", "predict {} --input {s}/phrases/test.csv --output {}/scores.csv --quiet", ""),
];

/// Commands whose output is one of their inputs, or a file of a memory or a run; `{}` is a copy of the shared folder.
const OVER: [(&str, &str); 14] = [
    ("phrases/test.csv", "predict {}/run --input {}/phrases/test.csv --output {}/phrases/test.csv --quiet"),
    ("run/model.safetensors", "predict {}/run --input {}/phrases/test.csv --output {}/run/model.safetensors --quiet"),
    ("run/config.json", "predict {}/run --input {}/phrases/test.csv --output {}/run/config.json --quiet"),
    ("ref.tsv", "eval wer --ref {}/ref.tsv --hyp {}/hyp.tsv --items {}/ref.tsv"),
    ("hyp.tsv", "eval wer --ref {}/ref.tsv --hyp {}/hyp.tsv --html {}/hyp.tsv"),
    ("scores.csv", "eval phrase --gold {}/phrases/test.csv --predictions {}/scores.csv --items {}/scores.csv"),
    ("queries.npy", "memory search {}/start/memory --queries {}/queries.npy --output {}/queries.npy"),
    ("queries.npy", "memory search {}/start/memory --queries {}/queries.npy --scores {}/queries.npy"),
    ("start/memory/CURRENT", "memory search {}/start/memory --queries {}/queries.npy --output {}/start/memory/CURRENT"),
    ("start/memory/gen-000001/keys.safetensors",
        "memory search {}/start/memory --queries {}/queries.npy --output {}/start/memory/gen-000001/keys.safetensors"),
    ("web.tsv", "data entries web {}/web.tsv --out {}/web.tsv --quiet"),
    ("web.tsv", "data entries web {}/web.tsv --out {}/phrases/../web.tsv --quiet"),
    ("seen/clips.jsonl",
        "predict --recogniser {r}/train/kept/conformer --input {}/seen/clips.jsonl --output {}/seen/clips.jsonl --quiet"),
    ("ctranslate2/model.bin", "data convert ctranslate2 {}/ctranslate2 --out {}/ctranslate2"),
];

pub fn attack(report: &Report) -> Result<()> {
    let scratch = Scratch::new("sweep")?;
    let shared = Shared::make(&scratch)?;
    let place = scratch.join("place");
    for line in FOREIGN {
        for name in PRECIOUS {
            scratch::empty(&place)?;
            lay(&place, name)?;
            try_line(report, &shared, line, &place, &[name])?;
        }
        scratch::empty(&place)?;
        PRECIOUS.iter().try_for_each(|name| lay(&place, name))?;
        try_line(report, &shared, line, &place, &PRECIOUS)?;
    }
    for (start, line, rest) in BESIDE {
        let from = shared.folder.join(start);
        // Names that the memory or the run has itself are not a user's.
        let names: Vec<&str> = PRECIOUS.into_iter().filter(|name| !from.join(name).exists() && !name.ends_with("lock")).collect();
        scratch::empty(&place)?;
        scratch::copy(&from, &place)?;
        names.iter().try_for_each(|name| lay(&place, name))?;
        try_line(report, &shared, &format!("{line}{rest}"), &place, &names)?;
    }
    for (file, line) in OVER {
        scratch::empty(&place)?;
        scratch::copy(&shared.folder, &place)?;
        let before = fs::read(place.join(file))?;
        let ended = Engram::line(&shared.fill(line).replace("{}", &place.to_string_lossy())).run()?;
        report.case();
        report.sound(&ended, line);
        if fs::read(place.join(file)).ok() != Some(before) {
            report.loss("an output replaced an input", format!("{line}: {ended}"));
        } else if ended.code != Some(2) {
            report.loss("an output over an input is not refused", format!("{line}: {ended}"));
        }
    }
    Ok(())
}

/// Writes a user's file, whose content is its name.
fn lay(place: &Path, name: &str) -> Result<()> {
    let path = place.join(name);
    fs::create_dir_all(path.parent().unwrap_or(place))?;
    Ok(fs::write(path, name)?)
}

/// Runs a command, which may be refused or not, and looks for the user's files.
fn try_line(report: &Report, shared: &Shared, line: &str, place: &Path, names: &[&str]) -> Result<()> {
    let ended = Engram::line(&shared.fill(line).replace("{}", &place.to_string_lossy())).run()?;
    report.case();
    report.sound(&ended, line);
    for name in names {
        match fs::read(place.join(name)) {
            Ok(bytes) if bytes == name.as_bytes() => {}
            Ok(_) => report.loss("a user's file is replaced", format!("{name}: {line}: {ended}")),
            Err(_) => report.loss("a user's file is deleted", format!("{name}: {line}: {ended}")),
        }
    }
    Ok(())
}
