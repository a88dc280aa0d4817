//! The patent study on the embedded phrase set.

use std::path::Path;

use anyhow::Context;
use engram_data::patent::PhrasePair;
use engram_data::world::phrases::phrase_world;
use engram_eval::bootstrap::{BootstrapOptions, Resampling};
use engram_eval::compare::compare_pearson;
use engram_eval::result::Measure;
use engram_train::grid::Verdict;
use engram_train::studies::patent::figure::figure;
use engram_train::studies::patent::predict::predict;
use engram_train::studies::patent::run::train_patent;
use engram_train::studies::patent::zero_shot::word_overlap;
use engram_train::{Recipe, RecipeOptions, RunOptions};

use super::report::{Measured, Row};
use super::values::{Values, beats};

/// The recipe that is run, as it stands in the repository.
const RECIPE: &str = include_str!("../../../train/recipes/patent/world.toml");

/// The seed of the embedded set (also in the recipe, as `data.fold_seed`).
const WORLD_SEED: u64 = 1;

/// From random weights: with the other targets of an anchor in the input, without them, and without the class title.
pub(super) fn rows(out: &Path, quiet: bool) -> anyhow::Result<Vec<Row>> {
    let test = phrase_world(WORLD_SEED).test;
    let surface = System::new("shared words (Jaccard), no training", word_overlap(&test), &test)?;
    let trained = |name: &str, folder: &str, set: &[&str]| {
        System::new(name, trained(&out.join(folder), quiet, set, &test)?, &test)
    };
    let grouped = trained("listwise, all targets of the anchor", "patent", &[])?;
    let pairs = ["model.layout=\"pairs\"", "model.pooling=\"mean\""];
    let alone = trained("one pair at a time", "patent-pairs", &pairs)?;
    let untitled = [pairs[0], pairs[1], "model.context_title=false"];
    let untitled =
        trained("one pair at a time, without the class title", "patent-untitled", &untitled)?;

    let better = |one: &System, other: &System| -> anyhow::Result<(Measure, Verdict)> {
        let difference = one.less(other, &test)?;
        let verdict = beats(&difference, 0.0);
        Ok((difference, verdict))
    };
    let shown = |systems: &[&System]| systems.iter().map(|system| system.measured()).collect();
    let decoys = decoys(&test, &grouped.scores).measure("synonyms_above_decoys", "anchor");
    let learnt = beats(&decoys, 0.5);
    Ok(vec![
        patent_row(
            "finetuned_over_zero_shot",
            "a trained encoder knows more than the words' spelling",
            "word2vec 0.44, Sentence-BERT 0.60, fine-tuned 0.87 (Pearson, real data)",
            better(&grouped, &surface)?,
            shown(&[&surface, &grouped]),
        ),
        patent_row(
            "other_targets_help",
            "seeing the other targets of an anchor helps",
            "+0.02 to +0.025 for one model (real data)",
            better(&grouped, &alone)?,
            shown(&[&alone, &grouped]),
        ),
        patent_row(
            "context_helps",
            "reading the class title helps, one pair at a time",
            "the same phrases are rated by class",
            better(&alone, &untitled)?,
            shown(&[&untitled, &alone]),
        ),
        patent_row(
            "decoys_learnt",
            "a synonym without a shared word is scored above another thing that shares one, of the same anchor",
            "",
            (decoys, learnt),
            Vec::new(),
        ),
    ])
}

/// A claim that is expected to hold.
pub(super) fn patent_row(
    id: &str,
    claim: &str,
    paper: &str,
    (figure, verdict): (Measure, Verdict),
    compared: Vec<Measured>,
) -> Row {
    Row {
        study: "patent",
        id: format!("patent.{id}"),
        claim: claim.to_owned(),
        paper: paper.to_owned(),
        figure,
        seeds: 1,
        verdict,
        expected: true,
        command: "engram reproduce --study patent".to_owned(),
        compared,
    }
}

/// Scores of pairs.
pub(super) struct System {
    name: String,
    scores: Vec<f64>,
    figure: Measure,
}

impl System {
    pub(super) fn new(name: &str, scores: Vec<f64>, test: &[PhrasePair]) -> anyhow::Result<Self> {
        let figure = figure(test, &scores)?;
        Ok(Self { name: name.to_owned(), scores, figure })
    }

    pub(super) fn measured(&self) -> Measured {
        Measured { system: self.name.clone(), figure: self.figure.clone() }
    }

    /// The difference of the correlations, paired, with an interval over anchors.
    pub(super) fn less(&self, other: &Self, test: &[PhrasePair]) -> anyhow::Result<Measure> {
        let gold: Vec<f64> = test.iter().map(|row| row.score.map_or(f64::NAN, f64::from)).collect();
        let anchors: Vec<&str> = test.iter().map(|row| row.anchor.as_str()).collect();
        let resampling = Resampling::by_group("anchor", &anchors);
        let options = BootstrapOptions::default();
        let compared = compare_pearson(&gold, &self.scores, &other.scores, &resampling, &options)?;
        Ok(compared.difference)
    }
}

/// Of each anchor's pairs of a synonym that shares no word with it and another thing that shares one, whether the synonym
/// has the higher score. Counting shared words gets none of them right.
fn decoys(test: &[PhrasePair], scores: &[f64]) -> Values {
    let shares = |row: &PhrasePair| {
        row.target.split(' ').any(|word| row.anchor.split(' ').any(|other| other == word))
    };
    let of = |wanted: fn(f32) -> bool, shared: bool| {
        let rows = test.iter().enumerate();
        rows.filter(|(_, row)| row.score.is_some_and(wanted) && shares(row) == shared)
            .collect::<Vec<_>>()
    };
    let (synonyms, decoys) = (of(|score| score >= 0.75, false), of(|score| score <= 0.0, true));
    let mut values = Values::default();
    for (synonym, row) in &synonyms {
        let same = |other: &&(usize, &PhrasePair)| {
            (&other.1.anchor, &other.1.context) == (&row.anchor, &row.context)
        };
        for (decoy, _) in decoys.iter().filter(same) {
            values.push(1, &row.anchor, scores[*synonym] > scores[*decoy]);
        }
    }
    values
}

/// The scores of the recipe with changes, trained.
fn trained(run: &Path, quiet: bool, set: &[&str], test: &[PhrasePair]) -> anyhow::Result<Vec<f64>> {
    let set = set.iter().map(|s| s.to_string()).collect();
    let options = RecipeOptions { tiny: false, set };
    let mut recipe = Recipe::parse(RECIPE, "world.toml".as_ref(), &options)?;
    if run.exists() {
        std::fs::remove_dir_all(run)
            .with_context(|| format!("{}: could not be cleared", run.display()))?;
    }
    let options = RunOptions { run: run.to_path_buf(), quiet, ..RunOptions::default() };
    train_patent(&mut recipe, &options)?.context("the run was stopped")?;
    Ok(predict(run, test, &|_| {})?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelling_gets_no_decoy_right() {
        let test = phrase_world(WORLD_SEED).test;
        let by_words = decoys(&test, &word_overlap(&test));
        assert!(by_words.values().len() > 40, "{}", by_words.values().len());
        assert!(by_words.values().iter().all(|right| *right == 0.0));
        let gold: Vec<f64> = test.iter().map(|row| row.score.map_or(0.0, f64::from)).collect();
        assert!(decoys(&test, &gold).values().iter().all(|right| *right == 1.0));
    }
}
