//! Well-formed `tokenizer.json` files with hostile values (`tokenizers.jsonl`).

use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::program::Engram;
use crate::report::Report;
use crate::scratch::{self, Scratch};
use crate::subjects::Shared;

/// Commands that open the tokenizer in `{}`; the short form uses only the first.
const COMMANDS: [&str; 3] = [
    "memory build --entries {s}/long.jsonl --model {} --out {o} --quiet",
    "score {s}/phrases/test.csv --model {} --cosine --out {o} --quiet",
    "score {s}/phrases/test.csv --model {} --out {o} --quiet",
];

/// Parts of a tokenizer and hostile values for them: from `tokenizers.jsonl`, and some that are too
/// large for that file.
fn hostile_parts() -> Result<Vec<(String, Value)>> {
    let lines = include_str!("../tokenizers.jsonl").lines();
    let mut changes: Vec<(String, Value)> =
        lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
    let deep_regex = json!({"Regex": "(".repeat(5000)});
    let nested = (0..100).fold(
        json!({"type": "Lowercase"}),
        |inner, _| json!({"type": "Sequence", "normalizers": [inner]}),
    );
    // Together, these make each letter a million letters.
    let growing = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"});
    for large in [
        json!({"type": "Sequence", "normalizers": vec![growing; 6]}),
        json!({"type": "Replace", "pattern": deep_regex, "content": "x"}),
        json!({"type": "Prepend", "prepend": "x".repeat(1_000_000)}),
        nested,
    ] {
        changes.push(("normalizer".to_owned(), large));
    }
    Ok(changes)
}

/// Runs each command with each hostile tokenizer.
pub fn attack(report: &Report, scratch: &Scratch, shared: &Shared) -> Result<()> {
    let run = shared.folder.join("run");
    let intact: Value = serde_json::from_slice(&fs::read(run.join("tokenizer.json"))?)?;
    let long = json!({"id": 0, "text": format!("a method of joining {}", "a".repeat(300))});
    fs::write(shared.folder.join("long.jsonl"), format!("{long}\n"))?;
    let mut cases = Vec::new();
    for line in &COMMANDS[..report.size(1, COMMANDS.len())] {
        cases.extend(hostile_parts()?.into_iter().map(|(part, value)| (*line, part, value)));
    }
    scratch::for_each(&cases, scratch, |(line, part, value), folder| {
        let (model, output) = (folder.join("model"), folder.join("output"));
        scratch::empty(&model)?;
        scratch::copy(&run, &model)?;
        scratch::remove(&output)?;
        let mut tokenizer = intact.clone();
        // With its checksums, the changed tokenizer would be refused before it is read.
        for name in ["run.sha256", "summary.json"] {
            scratch::remove(&model.join(name))?;
        }
        let parts = tokenizer.as_object_mut().context("the tokenizer is not a JSON object")?;
        parts.insert(part.clone(), value.clone());
        fs::write(model.join("tokenizer.json"), tokenizer.to_string())?;
        let line = shared.fill(line).replace("{}", &model.to_string_lossy());
        let line = line.replace("{o}", &output.to_string_lossy());
        let ended = Engram::line(&line).seconds(20).run()?;
        report.count_case();
        let shortened: String = value.to_string().chars().take(60).collect();
        let label = format!("tokenizer.json, {part} = {shortened}");
        let names_file = ended.stderr.contains(&*model.to_string_lossy());
        let is_allowed = ended.code == Some(0) || ended.code == Some(2) && names_file;
        if report.check_result(&ended, &label) && !is_allowed {
            report.loss("an error names no file", format!("{label}: {ended}"));
        }
        Ok(())
    })
}
