//! REVEAL runs: test questions, answers with evidence, and search with the run's model.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use engram_infer::reveal::answerer::{Answer, Answerer, Detail, Evidence};
use engram_infer::reveal::is_correct;
use engram_memory::format::manifest::CURRENT;
use engram_memory::search::Filter;
use engram_memory::{Memory, Store};
use engram_models::compute::Compute;
use serde::{Deserialize, Serialize};

use super::discover::Run;
use super::images::ShownImage;
use super::lazy::{FromRun, Lazy};
use super::questions::{TestQuestion, TestQuestions};
use super::uploads::{self, Upload};
use crate::cli::memory::value_reader;
use crate::cli::studies::ExplorerTab;

/// Maximum number of test questions listed at a time.
const MAX_LISTED: usize = 50;
/// Maximum number of test questions tried for the example, and the maximum time.
const MAX_TRIED: usize = 40;
const MAX_SEARCH: Duration = Duration::from_secs(20);

/// A REVEAL run that answers questions.
pub(super) struct RevealRun {
    run: PathBuf,
    opened: Mutex<OpenedRun>,
    questions: TestQuestions,
    example: Lazy<Example>,
}

/// A run with one generation of its memory.
struct OpenedRun {
    /// Contents of the memory's `CURRENT` file when it was opened.
    pointer: Vec<u8>,
    generation: u64,
    answerer: Arc<Answerer>,
}

/// The listed test questions of a run.
#[derive(Serialize)]
pub(super) struct ListedQuestions<'a> {
    /// Number of entries retrieved for an answer.
    k: usize,
    /// Number of questions that match the search words.
    found: usize,
    questions: Vec<&'a TestQuestion>,
}

/// The test question that the page shows first.
#[derive(Clone, Serialize)]
pub(super) struct Example {
    /// A question with a correct answer whose entry is retrieved; `None` if none was found.
    question: Option<TestQuestion>,
    /// Number of questions tried.
    tried: usize,
}

/// A question to the model.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QuestionRequest {
    /// The question text; if empty, the model describes the image.
    question: String,
    /// The image file in base64.
    image: String,
    /// Ids of entries to exclude from the memory.
    #[serde(default)]
    without: Vec<i64>,
    /// Whether to compute the Shapley values of the entries.
    #[serde(default)]
    shapley: bool,
    /// The id of the test question whose answers are the correct ones; `None` for a user's
    /// question.
    #[serde(default)]
    test_question: Option<i64>,
}

/// An answer to a question.
#[derive(Serialize)]
pub(super) struct MarkedAnswer {
    #[serde(flatten)]
    answer: Answer,
    /// Whether the answer is correct; `None` for a user's question.
    correct: Option<bool>,
}

impl OpenedRun {
    fn of(run: &Path) -> anyhow::Result<Self> {
        let memory = run.join("memory");
        let pointer_file = memory.join(CURRENT);
        let pointer = engram_durable::read_file(&pointer_file).with_context(|| {
            format!("{}: has no memory; `engram answer` builds it again", run.display())
        })?;
        let generation = Memory::open(&memory)?.snapshot().description().generation;
        let answerer =
            Arc::new(Answerer::open(run, None, None, Vec::new(), &Compute::cpu(), value_reader())?);
        Ok(Self { pointer, generation, answerer })
    }
}

impl FromRun for RevealRun {
    const TAB: ExplorerTab = ExplorerTab::Answers;

    fn open(run: &Run) -> anyhow::Result<Self> {
        let opened = OpenedRun::of(&run.folder)?;
        let questions = TestQuestions::of(run, opened.answerer.world()?);
        let (run, opened) = (run.folder.clone(), Mutex::new(opened));
        Ok(Self { run, opened, questions, example: Lazy::default() })
    }
}

impl RevealRun {
    /// The run with its current memory, and the number of the memory's generation.
    fn current_run(&self) -> anyhow::Result<(Arc<Answerer>, u64)> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let pointer = engram_durable::read_file(self.run.join("memory").join(CURRENT));
        if !pointer.is_ok_and(|pointer| pointer == opened.pointer) {
            *opened = OpenedRun::of(&self.run)?;
        }
        Ok((Arc::clone(&opened.answerer), opened.generation))
    }

    /// Test questions that contain all the words, in the question, its answers or the image name.
    pub(super) fn questions(&self, words: &str) -> anyhow::Result<ListedQuestions<'_>> {
        let questions = self.questions.containing(uploads::trimmed(words)?.unwrap_or_default());
        let found = questions.len();
        // Lists every n-th question, for variety: adjacent questions are about the same image.
        let stride = found.div_ceil(MAX_LISTED).max(1);
        let questions = questions.into_iter().step_by(stride).collect();
        Ok(ListedQuestions { k: self.current_run()?.0.k(), found, questions })
    }

    /// The image of a test question.
    pub(super) fn question_image(&self, question: i64) -> anyhow::Result<ShownImage> {
        self.questions.image(self.questions.get(question)?)
    }

    fn upload(&self, question: &TestQuestion) -> anyhow::Result<Upload> {
        match self.questions.image(question)? {
            ShownImage::Rendered(bytes) => Upload::of_bytes(&bytes),
            ShownImage::File(file) => Upload::of_bytes(&engram_durable::read_file(file)?),
        }
    }

    /// An image of the embedded world.
    pub(super) fn world_image(&self, image: &str) -> anyhow::Result<ShownImage> {
        self.questions.view(image, 0)
    }

    pub(super) fn answer(&self, request: &QuestionRequest) -> anyhow::Result<MarkedAnswer> {
        let image = Upload::of(&request.image)?.context("a question needs an image")?;
        let question = uploads::trimmed(&request.question)?;
        let detail = Detail { attribution: true, shapley: request.shapley };
        let answerer = self.current_run()?.0;
        let answer = answerer.answer_one(question, image.path(), &request.without, detail);
        let answer = answer.map_err(|error| image.without_path(error.into()))?;
        let test_question = request.test_question.map(|id| self.questions.get(id)).transpose()?;
        let correct = test_question.map(|test| is_correct(&answer.answer, &test.answers));
        Ok(MarkedAnswer { answer, correct })
    }

    /// Chooses the question that the page shows first: its answer is correct, its entry is
    /// retrieved, and without this entry the answer is wrong. If there is no such question, the
    /// answer may be correct without the entry.
    pub(super) fn example(&self) -> anyhow::Result<&Example> {
        self.example.get(|| {
            let (answerer, start) = (self.current_run()?.0, Instant::now());
            let mut example = Example { question: None, tried: 0 };
            for question in self.questions.promising().into_iter().take(MAX_TRIED) {
                if start.elapsed() > MAX_SEARCH {
                    break;
                }
                example.tried += 1;
                // The image file may be missing.
                let Ok(image) = self.upload(question) else { continue };
                let text = Some(question.text.as_str()).filter(|text| !text.is_empty());
                let answer = |without: &[i64]| {
                    answerer.answer_one(text, image.path(), without, Detail::default())
                };
                let full = answer(&[])?;
                let is_retrieved = |id: i64| full.evidence.iter().any(|entry| entry.id == id);
                if !is_correct(&full.answer, &question.answers)
                    || !question.entry.is_none_or(is_retrieved)
                {
                    continue;
                }
                let needs_entry = question.entry.is_some() && {
                    let without = answer(question.entry.as_slice())?;
                    !is_correct(&without.answer, &question.answers)
                };
                if example.question.is_none() || needs_entry {
                    example.question = Some(question.clone());
                }
                if needs_entry {
                    break;
                }
            }
            Ok(example)
        })
    }

    /// Retrieves entries by text, an image or both. Scores are multiplied by the gates of the
    /// sources. Also returns the number of the memory's generation.
    pub(super) fn find(
        &self,
        text: Option<&str>,
        image: Option<&Upload>,
        k: usize,
        filter: Filter,
    ) -> anyhow::Result<(u64, Vec<Evidence>)> {
        let (answerer, generation) = self.current_run()?;
        let evidence = answerer.find(text, image.map(Upload::path), k, filter);
        let hide_path = |error| match image {
            Some(image) => image.without_path(error),
            None => error,
        };
        let evidence = evidence.map_err(|error| hide_path(error.into()))?;
        Ok((generation, evidence))
    }
}
