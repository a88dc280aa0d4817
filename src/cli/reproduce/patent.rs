//! The patent study on the embedded phrase set.

use std::path::Path;

use anyhow::Context;
use engram_data::patent::PhrasePair;
use engram_data::world::phrases::phrase_world;
use engram_train::grid::Verdict;
use engram_train::studies::patent::figure::figure;
use engram_train::studies::patent::predict::predict;
use engram_train::studies::patent::run::train_patent;
use engram_train::studies::patent::zero_shot::word_overlap;
use engram_train::{Recipe, RecipeOptions, RunOptions};

use super::report::{Measured, Row};

/// The recipe that is run, as it stands in the repository.
const RECIPE: &str = include_str!("../../../train/recipes/patent/world.toml");

/// The seed of the embedded set (also in the recipe, as `data.fold_seed`).
const WORLD_SEED: u64 = 1;

/// From random weights, with and without the other targets of an anchor in the input.
pub(super) fn rows(out: &Path, quiet: bool) -> anyhow::Result<Vec<Row>> {
    let test = phrase_world(WORLD_SEED).test;
    let surface = measure("shared words (Jaccard)", &test, &word_overlap(&test))?;
    let all = "listwise, all targets of the anchor";
    let grouped = trained(all, &out.join("patent"), quiet, &[], &test)?;
    let set = ["model.layout=\"pairs\"", "model.pooling=\"mean\""];
    let alone = trained("one pair at a time", &out.join("patent-pairs"), quiet, &set, &test)?;
    let holds = |holds: bool| if holds { Verdict::Holds } else { Verdict::Fails };
    let over_surface = |one: &Measured| one.figure.value > surface.figure.value;
    let verdict = holds(over_surface(&grouped) && over_surface(&alone));
    let row = |id: &str, claim: &str, paper: &str, verdict, compared| Row {
        study: "patent",
        id: format!("patent.{id}"),
        claim: claim.to_owned(),
        paper: paper.to_owned(),
        figure: grouped.figure.clone(),
        seeds: 1,
        verdict,
        expected: true,
        command: "engram reproduce --study patent".to_owned(),
        compared,
    };
    let helps = holds(grouped.figure.value > alone.figure.value);
    Ok(vec![
        row(
            "trained_over_spelling",
            "a trained encoder knows more than the words' spelling",
            "word2vec 0.44, Sentence-BERT 0.60, fine-tuned 0.87 (Pearson, real data)",
            verdict,
            vec![surface, alone.clone()],
        ),
        row(
            "other_targets_help",
            "seeing the other targets of an anchor helps",
            "+0.02 to +0.025 for one model (real data)",
            helps,
            vec![alone],
        ),
    ])
}

/// Trains the recipe with changes and measures it on the test pairs.
fn trained(
    system: &str,
    run: &Path,
    quiet: bool,
    set: &[&str],
    test: &[PhrasePair],
) -> anyhow::Result<Measured> {
    let set = set.iter().map(|s| s.to_string()).collect();
    let options = RecipeOptions { tiny: false, set };
    let mut recipe = Recipe::parse(RECIPE, "world.toml".as_ref(), &options)?;
    if run.exists() {
        std::fs::remove_dir_all(run)
            .with_context(|| format!("{}: could not be cleared", run.display()))?;
    }
    let options = RunOptions { run: run.to_path_buf(), quiet, ..RunOptions::default() };
    train_patent(&mut recipe, &options)?.context("the run was stopped")?;
    measure(system, test, &predict(run, test, &|_| {})?)
}

/// Pearson's r of scores with its interval over anchors.
fn measure(system: &str, rows: &[PhrasePair], scores: &[f64]) -> anyhow::Result<Measured> {
    Ok(Measured { system: system.to_owned(), figure: figure(rows, scores)? })
}
