//! Training and testing one run.
//!
//! Besides the files of every run, the run folder has:
//!
//! | file | contents |
//! |---|---|
//! | `tokenizer.json` | the tokenizer |
//! | `model.json` | the model's sizes |
//! | `memory/` | the memory, encoded with the final weights; with `memory.server`, a copy of it |
//! | `memory-owner.txt` | with `memory.server` or `memory.values`: the owner of the memory there |
//! | `test.jsonl` | each test question with the model's answer and the retrieved entries |
//! | `views/` | for pictures of things: the views in the test questions |
//! | `test/` | for data from files: references and answers, as input of `engram eval` |
//! | `summary.json` | the results; written last |

use std::path::{Path, PathBuf};

use engram_data::world::attributes::Source;
use engram_eval::result::Measure;
use engram_infer::finished_run::SUMMARY;
use engram_infer::reveal::answers::Answers;
use engram_infer::reveal::corpus::{Corpus, Example};
use engram_infer::reveal::identity::Identity;
use engram_infer::reveal::images::Images;
use engram_infer::reveal::images::PROCESSOR;
use engram_infer::reveal::is_correct;
use engram_infer::reveal::memory_folder::remove_memory;
use engram_infer::reveal::retriever::Retriever;
use engram_models::mobilenet;
use engram_textfile::json_lines;
use image::codecs::jpeg::JpegEncoder;
use serde::{Deserialize, Serialize};

use super::super::checks::invalid_if;
use super::NAME;
use super::dataset_metrics::{self, DatasetMetrics};
use super::image_recall::{FoundImage, found_by_name, found_images};
use super::metrics::QuestionMetrics;
use super::needle::{NeedleMetrics, needle_metrics};
use super::placement::Placement;
use super::published::Published;
use super::run_memory::SNAPSHOTS;
use super::settings::{
    Examples, RevealData, RevealFeed, RevealMemory, RevealModel, RevealSettings,
};
use super::snapshots::remove_snapshots;
use super::study::{EVALUATION_MEMORY, RevealStudy};
use super::swap::{SwapReport, swap};
use crate::Stop;
use crate::checkpoint::{create_folder_in, write_file};
use crate::checksums::train_and_finish;
use crate::error::{Result, TrainError};
use crate::log;
use crate::recipe::{Negatives, Recipe};
use crate::run_folder::read_summary;
use crate::study::StudyResult;
use crate::trainer::{RunOptions, RunSummary};

/// The file of the test questions with their answers.
pub const TEST_ANSWERS: &str = "test.jsonl";
/// The number of facts to change in the memory.
const SWAPPED_FACTS: usize = 100;
/// The folder of views, and the quality of its JPEG files.
const VIEWS: &str = "views";
const VIEW_QUALITY: u8 = 90;

/// The results of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RevealSummary {
    /// The SHA-256 of the resolved recipe.
    pub recipe_hash: String,
    /// The seed.
    pub seed: u64,
    /// Steps trained.
    pub steps: u64,
    /// The metrics of the test questions, by part and source.
    pub metrics: Vec<QuestionMetrics>,
    /// The metrics of test examples from files, by the rules of their data sets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dataset_metrics: Vec<DatasetMetrics>,
    /// Notes about skipped data and parts that start from random weights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The results of changing facts in the memory; `None` without a memory, and for data from
    /// files.
    pub swap: Option<SwapReport>,
    /// How pictures were found; empty without `model.mobilenet`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub found_images: Vec<FoundImage>,
    /// The results of the needle-in-a-haystack test by task size; empty without a memory, and for
    /// data from files.
    pub needles: Vec<NeedleMetrics>,
    /// Failures of the recipe's `[check]`.
    pub check_failures: Vec<String>,
}

/// A test question with the model's answer: a line of `test.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TestAnswer {
    /// The question's id.
    pub id: i64,
    /// The question's id in its data set; `None` in the embedded world.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The question.
    pub question: String,
    /// The part of the question, by the facts that training asks for: `seen` (the same fact),
    /// `unasked` (other facts about the image) or `held_out` (nothing about the image).
    pub part: String,
    /// The index of the question's image; `None` if it has none.
    pub image: Option<usize>,
    /// The image whose questions are resampled together with this one; `None` for its own image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<usize>,
    /// The path of the image in `data.path`; `None` without an image, and in the embedded world.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_file: Option<PathBuf>,
    /// The file of the view of the image, in the run's folder; `None` if the test shows the image
    /// itself, and in the embedded world.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view_file: Option<PathBuf>,
    /// Whether the answer is made up, so that only the memory contains it.
    pub made_up: bool,
    /// The model's answer.
    pub answer: String,
    /// All reference answers.
    pub references: Vec<String>,
    /// Whether the answer equals a reference answer.
    pub correct: bool,
    /// The source of the question's own entry; `None` if the memory does not have the entry.
    pub source: Option<String>,
    /// The id of the question's own entry, which contains the answer; `None` as for `source`.
    pub entry: Option<i64>,
    /// The ids of the retrieved entries, best first.
    pub retrieved: Vec<i64>,
}

/// Trains a model by a recipe, and tests it.
///
/// # Errors
/// Errors of reading the data, and of [`train`](crate::train).
pub fn train_reveal(recipe: &mut Recipe, options: &RunOptions) -> Result<RevealSummary> {
    recipe.expect_study(NAME)?;
    recipe.fill_start_hash()?;
    let settings = settings(recipe)?;
    check_effects(recipe, &settings)?;
    let compute = recipe.compute()?;
    let memory_k = settings.memory.k;
    let placement = Placement::open(&settings.memory, options)?;
    let (batch, run) = (recipe.batch.clone(), options.run.clone());
    let start = recipe.start.as_ref().map(|start| start.run.as_path());
    let study = RevealStudy::new(settings, batch, compute, run, start);
    let mut study = study.map_err(TrainError::in_study(NAME, "reading the data"))?;
    if memory_k > 0 && study.encoding().corpus.stored == 0 {
        let reason = "is above 0, but the data have no entries for a memory; give a file a \
                      `source`, or set `memory.k` to 0 for a model without memory";
        return Err(recipe.error("memory.k", reason));
    }
    for note in study.notes() {
        log::print(&format!("note: {note}"));
    }
    study.run_memory.ranks = options.ranks.clone();
    study.run_memory.placement = placement;
    train_and_finish(&mut study, recipe, options, |study, trained| finish(study, recipe, trained))
}

/// Reads and checks the study's part of the recipe, and fills in defaults.
pub(super) fn settings(recipe: &mut Recipe) -> Result<RevealSettings> {
    let data: RevealData = recipe.data()?;
    let model: RevealModel = recipe.model()?;
    let memory: RevealMemory = recipe.memory()?;
    let feeds: Vec<RevealFeed> = recipe.feed()?;
    recipe.check_key("memory", memory.first_invalid_key())?;
    for (phase, feed) in feeds.iter().enumerate() {
        let table = format!("phase.{phase}.feed");
        recipe.check_key(&table, feed.first_invalid_key())?;
        let reason = "is above 0, but `model.mobilenet` gives feature maps, whose channels are not \
                      colours; must be 0";
        let is_invalid = feed.augment > 0.0 && !model.mobilenet.is_empty();
        recipe.check_key(&table, invalid_if(is_invalid, "augment", reason))?;
        let is_invalid = feed.examples.are_made_up() && data.things.is_none();
        let reason = "is about made-up names of things, which need `[data.things]`; add it";
        recipe.check_key(&table, invalid_if(is_invalid, "examples", reason))?;
    }
    recipe.check_key("model", model.first_invalid_key())?;
    recipe.check_key("data", data.first_invalid_key())?;
    if data.is_world() {
        check_sources(recipe, &data, &memory)?;
    }
    recipe.check_batch(&["negatives"])?;
    Ok(RevealSettings { data, model, memory, feeds })
}

/// Returns an error for a key without effect on training.
fn check_effects(recipe: &Recipe, settings: &RevealSettings) -> Result<()> {
    for (key, is_set) in
        [("values", settings.memory.values.is_some()), ("server", settings.memory.server.is_some())]
    {
        if settings.memory.k == 0 && is_set {
            let reason =
                "has no effect without a memory; set `memory.k` above 0, or remove the key";
            return Err(recipe.error(&format!("memory.{key}"), reason));
        }
    }
    let has_images = settings.feeds.iter().any(|feed| feed.examples == Examples::Images);
    if recipe.batch.negatives == Negatives::Step && !has_images {
        let reason =
            "has no effect, because no phase has `feed.examples = \"images\"`; remove the key";
        return Err(recipe.error("batch.negatives", reason));
    }
    Ok(())
}

/// Returns an error if `data.without_sources` names an unknown source, or leaves no source for a
/// model with a memory.
fn check_sources(recipe: &Recipe, data: &RevealData, memory: &RevealMemory) -> Result<()> {
    let sources = Source::ALL.map(Source::name);
    let is_excluded = |name: &&str| data.without_sources.iter().any(|excluded| excluded == name);
    let reason = match data.without_sources.iter().find(|name| !sources.contains(&name.as_str())) {
        Some(name) => format!("names `{name}`; choose from {}", sources.join(", ")),
        None if memory.k > 0 && sources.iter().all(is_excluded) => {
            "leaves no source for the memory; set `memory.k` to 0 for a model without memory".into()
        }
        None => return Ok(()),
    };
    Err(recipe.error("data.without_sources", reason))
}

/// Writes the run's files, and tests the finished model.
fn finish(
    study: &mut RevealStudy,
    recipe: &Recipe,
    trained: &RunSummary,
) -> StudyResult<RevealSummary> {
    study.close_memories();
    let encoding = study.encoding();
    let (corpus, sequencer) = (&encoding.corpus, &encoding.sequencer);
    let model = encoding.load(&trained.weights, &recipe.compute()?)?;
    for (file, content) in encoding.files()? {
        write_file(&trained.run.join(file), content.as_bytes())?;
    }
    let k = study.forward(&model, None).k;
    let Published { processor, mobilenet_weights, .. } = &study.published;
    for (file, name) in [(processor, PROCESSOR), (mobilenet_weights, mobilenet::WEIGHTS_FILE)] {
        let Some(path) = file else { continue };
        let bytes = engram_durable::read_file(path).map_err(TrainError::io(path))?;
        write_file(&trained.run.join(name), &bytes)?;
    }
    let build_memory = |folder: &Path| {
        let (dtype, stop) = (study.memory.value_type, Stop::default());
        Retriever::build(folder, &model, corpus, sequencer, dtype, &stop)
    };
    let retriever = match k {
        0 => None,
        _ => {
            let folder = trained.run.join("memory");
            let (identity, retriever) = (Identity::of_run(&trained.run)?, build_memory(&folder)?);
            let width = model.config.key_dim;
            let encoders = study.run_memory.placement.encoders(|| Ok(identity.clone()), width)?;
            let retriever = study.run_memory.placement.put(retriever, &folder, encoders)?;
            identity.write(&folder)?;
            Some(retriever)
        }
    };
    let examples: Vec<&Example> = corpus.test.iter().collect();
    let answers =
        Answers::of(&study.forward(&model, retriever.as_ref()), &examples, &Stop::default())?;
    let lines = TestAnswer::to_lines(&test_answers(corpus, &examples, &answers))?;
    write_file(&trained.run.join(TEST_ANSWERS), &lines)?;
    write_views(&trained.run, corpus, &examples)?;
    let metrics = QuestionMetrics::of_parts(corpus, &examples, &answers);
    let needles = match &corpus.images {
        Images::World { world, .. } if k > 0 => {
            let forward = study.forward(&model, retriever.as_ref());
            // All runs on the same world get the same tasks, so that they can be compared.
            needle_metrics(&forward, world, study.data.world_seed)?
        }
        _ => Vec::new(),
    };
    let dataset_metrics = test_dataset_metrics(&trained.run, corpus, &examples, &answers)?;
    let swapped = match (&corpus.images, k) {
        (_, 0) | (Images::Files(_), _) => None,
        _ => {
            // Facts are changed in a separate memory; the run's memory stays unchanged.
            let folder = trained.run.join("memory-swapped");
            let mut retriever = build_memory(&folder)?;
            let forward = study.forward(&model, None);
            let report = swap(&forward, &mut retriever, SWAPPED_FACTS, recipe.seed)?;
            drop(retriever);
            remove_memory(&folder)?;
            Some(report)
        }
    };
    let mut found = found_images(corpus, &examples, &answers)?;
    found.extend(found_by_name(&encoding, &model)?);
    // Only training needs these folders; checkpoints contain the snapshots for resuming.
    remove_memory(&trained.run.join(EVALUATION_MEMORY))?;
    remove_snapshots(&trained.run.join(SNAPSHOTS), &[])?;
    Ok(RevealSummary {
        recipe_hash: trained.recipe_hash.clone(),
        seed: recipe.seed,
        steps: trained.steps,
        metrics,
        dataset_metrics,
        notes: study.notes(),
        swap: swapped,
        found_images: found,
        needles,
        check_failures: trained.check.failures.clone(),
    })
}

/// Measures the answers by the rules of their data sets, and writes references and answers into
/// `test/`.
fn test_dataset_metrics(
    run: &Path,
    corpus: &Corpus,
    examples: &[&Example],
    answers: &Answers,
) -> StudyResult<Vec<DatasetMetrics>> {
    let mut dataset_metrics = Vec::new();
    for pair in dataset_metrics::references_and_answers(corpus, examples, &answers.texts)? {
        let folder = create_folder_in(run, "test")?;
        for (name, content) in [&pair.references, &pair.answers] {
            write_file(&folder.join(name), content.as_bytes())?;
        }
        dataset_metrics.push(pair.measure()?);
    }
    // Questions with an image are also measured separately, because many have none.
    let with_images =
        examples.iter().zip(&answers.texts).filter(|(example, _)| example.image.is_some());
    let (with_images, texts): (Vec<&Example>, Vec<String>) =
        with_images.map(|(example, text)| (*example, text.clone())).unzip();
    if with_images.len() < examples.len() {
        for pair in dataset_metrics::references_and_answers(corpus, &with_images, &texts)? {
            let DatasetMetrics { name, measures } = pair.measure()?;
            dataset_metrics
                .push(DatasetMetrics { name: format!("{name}, with their image"), measures });
        }
    }
    Ok(dataset_metrics)
}

/// The questions with their answers.
pub(super) fn test_answers(
    corpus: &Corpus,
    examples: &[&Example],
    answers: &Answers,
) -> Vec<TestAnswer> {
    let test_answer = |(i, example): (usize, &&Example)| {
        let own_entry = example.own_entry.map(|index| &corpus.items[index].entry);
        TestAnswer {
            id: example.id,
            name: example.document.as_ref().map(|_| example.name.clone()),
            question: example.text.clone(),
            part: example.part.name().to_owned(),
            image: example.image,
            group: example.group,
            image_file: example
                .image
                .and_then(|index| corpus.images.name(index))
                .map(Path::to_path_buf),
            view_file: match &corpus.images {
                Images::CutOuts(_) => example.image.map(|image| view_file(image, example.view)),
                _ => None,
            },
            made_up: example.made_up,
            answer: answers.texts[i].clone(),
            references: example.answers.clone(),
            correct: is_correct(&answers.texts[i], &example.answers),
            source: own_entry.map(|entry| entry.source.clone()),
            entry: own_entry.map(|entry| entry.id),
            retrieved: answers.retrieved[i].clone(),
        }
    };
    examples.iter().enumerate().map(test_answer).collect()
}

/// The file of a view in a run's folder.
fn view_file(image: usize, view: u32) -> PathBuf {
    Path::new(VIEWS).join(format!("{image}-{view}.jpg"))
}

/// Writes the views that the test questions show, so that people can look at them.
fn write_views(run: &Path, corpus: &Corpus, examples: &[&Example]) -> StudyResult<()> {
    let Images::CutOuts(things) = &corpus.images else { return Ok(()) };
    create_folder_in(run, VIEWS)?;
    for example in examples {
        let Some(image) = example.image else { continue };
        let mut jpeg = Vec::new();
        let encoder = JpegEncoder::new_with_quality(&mut jpeg, VIEW_QUALITY);
        things.view(image, example.view)?.write_with_encoder(encoder)?;
        write_file(&run.join(view_file(image, example.view)), &jpeg)?;
    }
    Ok(())
}

impl TestAnswer {
    /// Formats the test answers as JSON lines.
    pub(crate) fn to_lines(test_answers: &[Self]) -> serde_json::Result<Vec<u8>> {
        let mut lines = Vec::new();
        for test_answer in test_answers {
            serde_json::to_writer(&mut lines, test_answer)?;
            lines.push(b'\n');
        }
        Ok(lines)
    }

    /// Reads a run's `test.jsonl`.
    ///
    /// # Errors
    /// [`TrainError::Io`]; [`TrainError::Data`] with the line.
    pub fn read(path: &Path) -> Result<Vec<Self>> {
        let text = engram_durable::read_text(path).map_err(TrainError::io(path))?;
        let file = path.display().to_string();
        let remedy = "use the test.jsonl of a run of this version";
        let answers = json_lines(&file, &text, remedy, |_, answer| answer)?;
        Ok(answers.into_iter().flatten().collect())
    }

    /// Whether the question's own entry is among the first `k` retrieved entries.
    pub fn found(&self, k: usize) -> bool {
        self.retrieved.iter().take(k).any(|id| Some(*id) == self.entry)
    }
}

impl RevealSummary {
    /// Reads the summary of a finished run.
    ///
    /// # Errors
    /// [`TrainError::Io`]; [`TrainError::Data`] for a summary that is broken or of another version.
    pub fn read(run: &Path) -> Result<Self> {
        read_summary(&run.join(SUMMARY))
    }

    /// The exact match of a set of questions, such as `held_out`; `None` for an unknown set.
    pub fn exact_match(&self, questions: &str) -> Option<&Measure> {
        let metrics = self.metrics.iter().find(|metrics| metrics.questions == questions)?;
        Some(&metrics.exact_match)
    }
}
