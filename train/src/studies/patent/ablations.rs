//! The grids of the patent study.

use std::path::Path;

use engram_data::patent::PhrasePair;
use engram_data::world::phrases::phrase_world;
use engram_eval::items::{Item, Items, Statistic};
use engram_eval::metric::{MetricInfo, Unit, pearson};
use engram_infer::similarity::run::SimilarityRun;
use engram_infer::similarity::zero_shot::word_overlap;
use engram_models::compute::Compute;

use super::NAME;
use super::run::settings;
use crate::error::{Result, TrainError};
use crate::grid::{AblationStudy, Column, Measures, MetricQuery, TestItems};
use crate::recipe::{Recipe, RecipeOptions};
use engram_infer::finished_run::RECIPE;

/// The share of synonyms that score above a decoy of the same anchor. Synonyms share no word with
/// the anchor, decoys share one but are unrelated, so word overlap has a share of 0.
const SYNONYMS_ABOVE_DECOYS: MetricInfo =
    MetricInfo::higher("synonyms_above_decoys", Unit::Fraction);
/// Word overlap of the phrases as their score, without training.
const WORD_OVERLAP: &str = "word_overlap";

/// The patent study's metrics. Runs on the embedded phrases are compared on the world's test pairs,
/// on which no checkpoint is selected; runs on files on their held-out rows.
#[derive(Debug)]
pub struct PatentAblations;

impl AblationStudy for PatentAblations {
    fn measures(&self) -> Measures {
        Measures {
            title: "Phrase similarity",
            description: "Pearson's r on test pairs of the embedded phrases, or on the held-out rows of \
                          a file.",
            metrics: vec![pearson::INFO, SYNONYMS_ABOVE_DECOYS],
            filters: Vec::new(),
            systems: &[WORD_OVERLAP],
            evaluation_keys: &[],
            columns: vec![Column {
                key: "pearson",
                heading: "Pearson's r",
                query: MetricQuery::new(pearson::INFO),
            }],
            resampling_unit: "anchor",
        }
    }

    /// Scores the test pairs of the embedded phrases.
    fn test(&self, run: &Path) -> Result<()> {
        if self.is_tested(run)? {
            return Ok(());
        }
        let Some(rows) = test_rows(run)? else { return Ok(()) };
        let scores = SimilarityRun::open(run, &Compute::cpu())?.predict(&rows, &|_| {})?;
        TestItems::write(run, &pearson::INFO, &correlation_items(&rows, &scores))?;
        TestItems::write(run, &SYNONYMS_ABOVE_DECOYS, &decoy_items(&rows, &scores))
    }

    /// The items about decoys are written last.
    fn is_tested(&self, run: &Path) -> Result<bool> {
        Ok(TestItems::file(run, &SYNONYMS_ABOVE_DECOYS).is_file() || test_rows(run)?.is_none())
    }

    fn items(&self, folder: &Path, query: &MetricQuery) -> Result<Result<Vec<Item>, String>> {
        let undefined = || Ok(Err("undefined: only measured on the embedded phrases".to_owned()));
        let is_about_decoys = query.metric == SYNONYMS_ABOVE_DECOYS;
        if query.system.is_some() {
            let Some(rows) = test_rows(folder)? else { return undefined() };
            let scores = word_overlap(&rows);
            let items = if is_about_decoys { decoy_items } else { correlation_items };
            return Ok(Ok(items(&rows, &scores)));
        }
        let file = TestItems::file(folder, &query.metric);
        if is_about_decoys && !file.is_file() {
            return undefined();
        }
        let in_study = TrainError::in_study(NAME, "reading the test items");
        Ok(Ok(Items::read(&file).map_err(in_study)?.items))
    }
}

/// The test pairs of the embedded phrases; `None` for a run on other data.
fn test_rows(run: &Path) -> Result<Option<Vec<PhrasePair>>> {
    let mut recipe = Recipe::load(&run.join(RECIPE), &RecipeOptions::default())?;
    let (data, _) = settings(&mut recipe)?;
    let is_embedded = data.dir.is_empty() && data.pairs.is_unused();
    Ok(is_embedded.then(|| phrase_world(data.fold_seed).test))
}

/// Gold scores and predictions, grouped by anchor.
pub(super) fn correlation_items(rows: &[PhrasePair], scores: &[f64]) -> Vec<Item> {
    let item = |(row, score): (&PhrasePair, &f64)| {
        let gold = row.score.map_or(f64::NAN, f64::from);
        let statistic = Statistic::Correlation { gold, prediction: *score };
        Item::new(&pearson::INFO, "", &row.id, Some(&row.anchor), statistic)
    };
    rows.iter().zip(scores).map(item).collect()
}

/// For each synonym and decoy of the same anchor: 1 if the synonym scores higher, otherwise 0.
fn decoy_items(rows: &[PhrasePair], scores: &[f64]) -> Vec<Item> {
    let shares_word = |pair: &PhrasePair| {
        pair.target.split(' ').any(|word| pair.anchor.split(' ').any(|other| other == word))
    };
    let select = |is_in_class: fn(f32) -> bool, with_shared_word: bool| {
        rows.iter().zip(scores).filter(move |(pair, _)| {
            pair.score.is_some_and(is_in_class) && shares_word(pair) == with_shared_word
        })
    };
    let mut items = Vec::new();
    for (synonym, score) in select(|score| score >= 0.75, false) {
        for (decoy, decoy_score) in select(|score| score <= 0.0, true) {
            if (&decoy.anchor, &decoy.context) != (&synonym.anchor, &synonym.context) {
                continue;
            }
            let id = format!("{} {}", synonym.id, decoy.id);
            let statistic = Statistic::Mean { value: f64::from(u8::from(score > decoy_score)) };
            let group = Some(synonym.anchor.as_str());
            items.push(Item::new(&SYNONYMS_ABOVE_DECOYS, "", &id, group, statistic));
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synonyms_rank_above_decoys_by_gold_scores_and_never_by_word_overlap() {
        let test = phrase_world(1).test;
        let outcomes = |scores: &[f64]| -> Vec<f64> {
            decoy_items(&test, scores).iter().map(Item::value).collect()
        };
        let by_word_overlap = outcomes(&word_overlap(&test));
        assert!(by_word_overlap.len() > 40, "{}", by_word_overlap.len());
        assert!(by_word_overlap.iter().all(|outcome| *outcome == 0.0));
        let gold: Vec<f64> = test.iter().map(|pair| pair.score.map_or(0.0, f64::from)).collect();
        assert!(outcomes(&gold).iter().all(|outcome| *outcome == 1.0));
    }
}
