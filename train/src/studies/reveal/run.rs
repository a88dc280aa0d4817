//! A run of the study.
//!
//! Its folder ends with what every run has, and beside the weights `tokenizer.json`, `model.json`
//! (the sizes), `memory/` (encoded with the final weights), `test.jsonl` (each test question with its
//! answer and what was read for it) and `summary.json`, written last.

use std::path::Path;

use engram_data::world::attributes::Source;
use engram_eval::result::Measure;
use serde::{Deserialize, Serialize};

use super::answers::Answers;
use super::corpus::{Example, Pictures};
use super::figures::{Figures, is_right};
use super::retriever::Retriever;
use super::settings::{RevealData, RevealFeed, RevealMemory, RevealModel};
use super::study::RevealStudy;
use super::swap::{SwapReport, swap};
use crate::checkpoint::write_file;
use crate::error::{Result, TrainError};
use crate::recipe::Recipe;
use crate::study::{StudyError, StudyResult};
use crate::trainer::{RunOptions, RunSummary, train};

/// What a finished run came to.
pub const SUMMARY: &str = "summary.json";
/// The model's sizes.
pub const MODEL: &str = "model.json";
/// Its tokenizer.
pub const TOKENIZER: &str = "tokenizer.json";
/// Facts that are changed in the memory.
const SWAPPED: usize = 100;

/// What a run of the study came to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RevealSummary {
    /// The recipe's hash.
    pub recipe_hash: String,
    /// The seed.
    pub seed: u64,
    /// Steps trained.
    pub steps: u64,
    /// Figures of the test questions, by part and source.
    pub figures: Vec<Figures>,
    /// What changing facts in the memory came to; `None` without a memory.
    pub swap: Option<SwapReport>,
    /// What the recipe's `[check]` found wrong.
    pub check_failures: Vec<String>,
}

/// One line of `test.jsonl`.
#[derive(Serialize)]
struct Answered<'a> {
    id: i64,
    question: &'a str,
    part: &'static str,
    answer: &'a str,
    right: &'a [String],
    correct: bool,
    /// The id of the entry that has the answer.
    entry: Option<i64>,
    /// The ids of what was read, the best first.
    read: &'a [i64],
}

/// Trains by a recipe; `None` if the run was stopped before its end.
///
/// # Errors
/// Those of reading the data, and of [`train`].
pub fn train_reveal(recipe: &mut Recipe, options: &RunOptions) -> Result<Option<RevealSummary>> {
    if recipe.study() != "reveal" {
        return Err(recipe.error("study", "is not `reveal`, which is to be trained"));
    }
    let data: RevealData = recipe.data()?;
    let model: RevealModel = recipe.model()?;
    let memory: RevealMemory = recipe.memory()?;
    let feeds: Vec<RevealFeed> = recipe.feed()?;
    if let Some((key, reason)) = memory.conflict() {
        return Err(recipe.error(&format!("memory.{key}"), reason));
    }
    for (phase, feed) in feeds.iter().enumerate() {
        if let Some((key, reason)) = feed.conflict() {
            return Err(recipe.error(&format!("phase.{phase}.feed.{key}"), reason));
        }
    }
    let sources = Source::ALL.map(Source::name);
    if let Some(unknown) =
        data.without_sources.iter().find(|name| !sources.contains(&name.as_str()))
    {
        let reason = format!("names `{unknown}`; the sources are {}", sources.join(", "));
        return Err(recipe.error("data.without_sources", reason));
    }
    if memory.k > 0 && sources.iter().all(|name| data.without_sources.iter().any(|out| out == name))
    {
        let reason = "leaves no source for the memory; set `memory.k` to 0 for a model without one";
        return Err(recipe.error("data.without_sources", reason));
    }
    let study = RevealStudy::new(
        (data, model, memory),
        feeds,
        recipe.batch().clone(),
        recipe.seed(),
        options.run.clone(),
    );
    let mut study = study.map_err(in_study("reading the data"))?;
    let trained = train(&mut study, recipe, options)?;
    if !trained.finished {
        return Ok(None);
    }
    let summary =
        finish(&mut study, recipe, &trained).map_err(in_study("measuring the finished run"))?;
    let json =
        serde_json::to_vec_pretty(&summary).map_err(|e| in_study("the summary")(e.into()))?;
    // Last: a folder with a summary is a finished run.
    write_file(&options.run.join(SUMMARY), &json)?;
    Ok(Some(summary))
}

/// Asks the finished model all test questions.
fn finish(
    study: &mut RevealStudy,
    recipe: &Recipe,
    trained: &RunSummary,
) -> StudyResult<RevealSummary> {
    study.settle()?;
    let encoding = study.encoding();
    let (corpus, sequencer) = (&encoding.corpus, &encoding.sequencer);
    let model = encoding.load(&trained.weights)?;
    write_file(&trained.run.join(TOKENIZER), sequencer.tokens().json()?.as_bytes())?;
    write_file(&trained.run.join(MODEL), &serde_json::to_vec_pretty(&encoding.config)?)?;
    let k = study.forward(&model, None).k;
    let retriever = match k {
        0 => None,
        _ => Some(Retriever::build(&trained.run.join("memory"), &model, corpus, sequencer)?.0),
    };
    let asked: Vec<&Example> = corpus.test.iter().collect();
    let answers = Answers::of(&study.forward(&model, retriever.as_ref()), &asked)?;
    write_file(&trained.run.join("test.jsonl"), &lines(study, &asked, &answers)?)?;
    let figures = Figures::of_parts(corpus, &asked, &answers);
    let swapped = match (&corpus.pictures, k) {
        (_, 0) | (Pictures::Files { .. }, _) => None,
        (Pictures::World { world, .. }, _) => {
            // In a memory of its own: the run's stays what it is.
            let folder = trained.run.join("memory-swapped");
            let mut retriever = Retriever::build(&folder, &model, corpus, sequencer)?.0;
            let forward = study.forward(&model, None);
            let report = swap(&forward, &mut retriever, world, SWAPPED, recipe.seed())?;
            drop(retriever);
            std::fs::remove_dir_all(&folder)?;
            Some(report)
        }
    };
    Ok(RevealSummary {
        recipe_hash: trained.recipe_hash.clone(),
        seed: recipe.seed(),
        steps: trained.steps,
        figures,
        swap: swapped,
        check_failures: trained.check.failures.clone(),
    })
}

/// The lines of `test.jsonl`.
fn lines(study: &RevealStudy, asked: &[&Example], answers: &Answers) -> StudyResult<Vec<u8>> {
    let corpus = study.corpus();
    let mut lines = Vec::new();
    for (i, example) in asked.iter().enumerate() {
        let line = Answered {
            id: example.id,
            question: &example.text,
            part: example.part.name(),
            answer: &answers.texts[i],
            right: &example.answers,
            correct: is_right(&answers.texts[i], &example.answers),
            entry: example.own.map(|own| corpus.items[own].entry.id),
            read: &answers.read[i],
        };
        serde_json::to_writer(&mut lines, &line)?;
        lines.push(b'\n');
    }
    Ok(lines)
}

impl RevealSummary {
    /// The summary of a finished run.
    ///
    /// # Errors
    /// [`TrainError::Io`]
    pub fn read(run: &Path) -> Result<Self> {
        let path = run.join(SUMMARY);
        let bytes = std::fs::read(&path).map_err(TrainError::io(&path))?;
        serde_json::from_slice(&bytes).map_err(|e| in_study("reading the summary")(e.into()))
    }

    /// The exact match of a part of the questions.
    pub fn exact_match(&self, questions: &str) -> Option<&Measure> {
        let figures = self.figures.iter().find(|figures| figures.questions == questions)?;
        Some(&figures.exact_match)
    }
}

/// Whether a folder has a finished run of this study.
pub fn is_run(folder: &Path) -> bool {
    folder.join(MODEL).is_file() && folder.join(SUMMARY).is_file()
}

fn in_study(part: &'static str) -> impl Fn(StudyError) -> TrainError {
    move |source| TrainError::Study { study: "reveal".into(), part, source }
}
