//! A run of the study.
//!
//! Its folder ends with what every run has, and beside the weights `tokenizer.json`, `model.json`
//! (the sizes), `memory/` (encoded with the final weights), `test.jsonl` (each test question with its
//! answer and what was read for it), for questions from files `test/` (what `engram eval` takes; see
//! [`super::judge`]) and `summary.json`, written last.

use std::path::Path;

use engram_data::DataError;
use engram_data::world::attributes::Source;
use engram_durable as durable;
use engram_eval::result::Measure;
use serde::{Deserialize, Serialize};

use super::answers::Answers;
use super::corpus::{Corpus, Example, Pictures};
use super::figures::{Figures, is_right};
use super::identity::Identity;
use super::judge::{self, Judged};
use super::needle::{NeedleFigures, needle_figures};
use super::own_memory::{remove_memory, remove_snapshots};
use super::published::PROCESSOR;
use super::retriever::Retriever;
use super::run_memory::SNAPSHOTS;
use super::settings::{RevealData, RevealFeed, RevealMemory, RevealModel};
use super::study::{EVALUATED, RevealStudy};
use super::swap::{SwapReport, swap};
use crate::checkpoint::write_file;
use crate::checksums::finish_run;
use crate::error::{Result, TrainError};
use crate::log;
use crate::recipe::{Recipe, RecipeOptions};
use crate::run_folder::{SUMMARY, read_summary};
use crate::stop::Stop;
use crate::study::{StudyError, StudyResult};
use crate::trainer::{RunOptions, RunSummary, train};

/// The model's sizes.
pub const MODEL: &str = "model.json";
/// Its tokenizer.
pub const TOKENIZER: &str = "tokenizer.json";
/// Its test questions with their answers.
pub const TESTED: &str = "test.jsonl";
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
    /// Figures of the test examples of files, by the rules of their data sets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub judged: Vec<Judged>,
    /// What was left out of the files, and what started afresh.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What changing facts in the memory came to; `None` without a memory.
    pub swap: Option<SwapReport>,
    /// The accuracy of needles in a haystack, by size; empty without a memory.
    #[serde(default)]
    pub needles: Vec<NeedleFigures>,
    /// What the recipe's `[check]` found wrong.
    pub check_failures: Vec<String>,
}

/// A test question with what a model answered: a line of `test.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tested {
    /// The question's id.
    pub id: i64,
    /// The id that its data set has for it, where the example is from a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The question.
    pub question: String,
    /// What training has seen of it: `seen`, `unasked` or `held_out`.
    pub part: String,
    /// The place of its picture.
    pub picture: Option<usize>,
    /// Whether the answer is nowhere but in the memory.
    pub made_up: bool,
    /// The answer.
    pub answer: String,
    /// All right answers.
    pub right: Vec<String>,
    /// Whether it is one of them.
    pub correct: bool,
    /// The source that has the answer; `None` where it is left out of the run's data.
    pub source: Option<String>,
    /// The id of the entry that has the answer.
    pub entry: Option<i64>,
    /// The ids of what was read, the best first.
    pub read: Vec<i64>,
}

/// What a recipe says of the study: `[data]`, `[model]`, `[memory]` and the feed of each phase.
type Settings = (RevealData, RevealModel, RevealMemory, Vec<RevealFeed>);

/// Trains by a recipe; `None` if the run was stopped before its end.
///
/// # Errors
/// Those of reading the data, and of [`train`].
pub fn train_reveal(recipe: &mut Recipe, options: &RunOptions) -> Result<Option<RevealSummary>> {
    if recipe.study() != "reveal" {
        return Err(recipe.error("study", "is not `reveal`, which is to be trained"));
    }
    recipe.pin_start()?;
    let (data, model, memory, feeds) = settings(recipe)?;
    let memory_k = memory.k;
    let study = RevealStudy::new(
        (data, model, memory),
        feeds,
        recipe.batch().clone(),
        recipe.seed(),
        options.run.clone(),
    );
    let mut study = study.map_err(in_study("reading the data"))?;
    check_start(&study, recipe)?;
    if memory_k > 0 && study.corpus().items.is_empty() {
        let reason = "is above 0, but the data have no entries for a memory; give a file a `source`, \
                      or set `memory.k` to 0 for a model without one";
        return Err(recipe.error("memory.k", reason));
    }
    for note in study.notes() {
        log::print(&format!("note: {note}"));
    }
    let trained = train(&mut study, recipe, options)?;
    if !trained.finished {
        return Ok(None);
    }
    let summary =
        finish(&mut study, recipe, &trained).map_err(in_study("measuring the finished run"))?;
    finish_run(&options.run, &summary)?;
    Ok(Some(summary))
}

/// Reads what the recipe says of the study, which fills in the defaults, and checks it.
pub(super) fn settings(recipe: &mut Recipe) -> Result<Settings> {
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
    if let Some((key, reason)) = model.conflict() {
        return Err(recipe.error(&format!("model.{key}"), reason));
    }
    if let Some((key, reason)) = data.conflict() {
        return Err(recipe.error(&format!("data.{key}"), reason));
    }
    if data.is_world() {
        check_sources(recipe, &data, &memory)?;
    }
    Ok((data, model, memory, feeds))
}

/// Fails unless the run that this one starts from has the same tokens: their numbers mean something else otherwise.
fn check_start(study: &RevealStudy, recipe: &Recipe) -> Result<()> {
    let Some(start) = recipe.start() else { return Ok(()) };
    let path = start.run.join(TOKENIZER);
    let theirs = std::fs::read_to_string(&path).map_err(TrainError::io(&path))?;
    if theirs == study.encoding().sequencer.tokens().json()? {
        return Ok(());
    }
    let run = start.run.display();
    let reason = format!("names {run}, whose tokens are others; start from a run with this [data]");
    Err(recipe.error("start.run", reason))
}

/// Fails for sources that the embedded world does not have, or where none is left that is read.
fn check_sources(recipe: &Recipe, data: &RevealData, memory: &RevealMemory) -> Result<()> {
    let sources = Source::ALL.map(Source::name);
    let is_left_out = |name: &&str| data.without_sources.iter().any(|out| out == name);
    let reason = match data.without_sources.iter().find(|name| !sources.contains(&name.as_str())) {
        Some(name) => format!("names `{name}`; the sources are {}", sources.join(", ")),
        None if memory.k > 0 && sources.iter().all(is_left_out) => {
            "leaves no source for the memory; set `memory.k` to 0 for a model without one".into()
        }
        None => return Ok(()),
    };
    Err(recipe.error("data.without_sources", reason))
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
    for (file, content) in encoding.files()? {
        write_file(&trained.run.join(file), content.as_bytes())?;
    }
    let k = study.forward(&model, None).k;
    if let Some(processor) = study.processor() {
        let bytes = std::fs::read(processor).map_err(TrainError::io(processor))?;
        write_file(&trained.run.join(PROCESSOR), &bytes)?;
    }
    let retriever = match k {
        0 => None,
        _ => {
            let folder = trained.run.join("memory");
            let retriever =
                Retriever::build(&folder, &model, (corpus, sequencer), &Stop::default())?.0;
            Identity::of(&trained.weights, &trained.run.join(TOKENIZER))?.write(&folder)?;
            Some(retriever)
        }
    };
    let asked: Vec<&Example> = corpus.test.iter().collect();
    let answers =
        Answers::of(&study.forward(&model, retriever.as_ref()), &asked, &Stop::default())?;
    let questions = Tested::to_lines(&tested(corpus, &asked, &answers))?;
    write_file(&trained.run.join(TESTED), &questions)?;
    let figures = Figures::of_parts(corpus, &asked, &answers);
    let needles = match &corpus.pictures {
        Pictures::World { world, .. } if k > 0 => {
            let forward = study.forward(&model, retriever.as_ref());
            // The same tasks for every run on this world, so that runs can be compared.
            needle_figures(&forward, world, study.world_seed())?
        }
        _ => Vec::new(),
    };
    let judged = judge_test(&trained.run, corpus, &asked, &answers)?;
    let swapped = match (&corpus.pictures, k) {
        (_, 0) | (Pictures::Files { .. }, _) => None,
        (Pictures::World { world, .. }, _) => {
            // In a memory of its own: the run's stays what it is.
            let folder = trained.run.join("memory-swapped");
            let mut retriever =
                Retriever::build(&folder, &model, (corpus, sequencer), &Stop::default())?.0;
            let forward = study.forward(&model, None);
            let report = swap(&forward, &mut retriever, world, SWAPPED, recipe.seed())?;
            drop(retriever);
            remove_memory(&folder)?;
            Some(report)
        }
    };
    // What only training needs: checkpoints have the snapshots that a resumed run starts from.
    remove_memory(&trained.run.join(EVALUATED))?;
    remove_snapshots(&trained.run.join(SNAPSHOTS), &[])?;
    Ok(RevealSummary {
        recipe_hash: trained.recipe_hash.clone(),
        seed: recipe.seed(),
        steps: trained.steps,
        figures,
        judged,
        notes: study.notes(),
        swap: swapped,
        needles,
        check_failures: trained.check.failures.clone(),
    })
}

/// Judges the answers by the rules of their data sets, and writes both sides of it into `test/`.
fn judge_test(
    run: &Path,
    corpus: &Corpus,
    asked: &[&Example],
    answers: &Answers,
) -> StudyResult<Vec<Judged>> {
    let folder = run.join("test");
    let mut judged = Vec::new();
    for sides in judge::sides(corpus, asked, &answers.texts)? {
        durable::create_folder(&folder).map_err(TrainError::io(&folder))?;
        for (name, content) in [&sides.people, &sides.model] {
            write_file(&folder.join(name), content.as_bytes())?;
        }
        judged.push(sides.measure()?);
    }
    // Questions that lack their picture are others: those with one are told apart.
    let shown = asked.iter().zip(&answers.texts).filter(|(example, _)| example.picture.is_some());
    let (shown, texts): (Vec<&Example>, Vec<String>) =
        shown.map(|(example, text)| (*example, text.clone())).unzip();
    if shown.len() < asked.len() {
        for sides in judge::sides(corpus, &shown, &texts)? {
            let Judged { name, measures } = sides.measure()?;
            judged.push(Judged { name: format!("{name}, with their picture"), measures });
        }
    }
    Ok(judged)
}

/// Questions with their answers.
pub(super) fn tested(corpus: &Corpus, asked: &[&Example], answers: &Answers) -> Vec<Tested> {
    let of_question = |(i, example): (usize, &&Example)| {
        let own = example.own.map(|own| &corpus.items[own].entry);
        Tested {
            id: example.id,
            name: example.document.as_ref().map(|_| example.name.clone()),
            question: example.text.clone(),
            part: example.part.name().to_owned(),
            picture: example.picture,
            made_up: example.made_up,
            answer: answers.texts[i].clone(),
            right: example.answers.clone(),
            correct: is_right(&answers.texts[i], &example.answers),
            source: own.map(|entry| entry.source.clone()),
            entry: own.map(|entry| entry.id),
            read: answers.read[i].clone(),
        }
    };
    asked.iter().enumerate().map(of_question).collect()
}

impl Tested {
    /// Questions as JSON lines.
    pub fn to_lines(questions: &[Self]) -> serde_json::Result<Vec<u8>> {
        let mut lines = Vec::new();
        for question in questions {
            serde_json::to_writer(&mut lines, question)?;
            lines.push(b'\n');
        }
        Ok(lines)
    }

    /// Reads a run's `test.jsonl`.
    ///
    /// # Errors
    /// [`TrainError::Io`]; [`DataError::Malformed`] with the line.
    pub fn read(path: &Path) -> Result<Vec<Self>> {
        let text = std::fs::read_to_string(path).map_err(TrainError::io(path))?;
        let line = |(number, line): (usize, &str)| {
            serde_json::from_str(line).map_err(|error| {
                TrainError::from(DataError::Malformed {
                    path: path.into(),
                    place: Some(format!("line {}", number + 1)),
                    reason: error.to_string(),
                    remedy: "give the test.jsonl of a run of this version",
                })
            })
        };
        text.lines().enumerate().map(line).collect()
    }

    /// Whether the entry with the answer is among the first `k` that were read.
    pub fn found(&self, k: usize) -> bool {
        self.read.iter().take(k).any(|id| Some(*id) == self.entry)
    }
}

impl RevealSummary {
    /// The summary of a finished run.
    ///
    /// # Errors
    /// [`TrainError::Io`]; [`DataError::Malformed`] for one that is broken or of another version.
    pub fn read(run: &Path) -> Result<Self> {
        read_summary(&run.join(SUMMARY))
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

/// Whether a folder has a run of this study that was begun and not finished.
pub fn is_unfinished(folder: &Path) -> bool {
    let recipe = Recipe::load(&folder.join("recipe.toml"), &RecipeOptions::default());
    !is_run(folder) && recipe.is_ok_and(|recipe| recipe.study() == "reveal")
}

pub(super) fn in_study(part: &'static str) -> impl Fn(StudyError) -> TrainError {
    move |source| TrainError::Study { study: "reveal".into(), part, source }
}
