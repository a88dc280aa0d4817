//! REVEAL runs: test questions, answers with evidence, and search with the run's model.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use engram_data::world::World;
use engram_data::world::questions::{Part, Split};
use engram_infer::reveal::answerer::{Answer, Answerer, Evidence};
use engram_memory::Memory;
use engram_memory::format::manifest::CURRENT;
use engram_memory::search::Filter;
use engram_train::registry::ExplorerTab;
use serde::{Deserialize, Serialize};

use super::lazy::{FromRun, png};
use super::uploads::{self, Upload};

/// Maximum number of test questions listed at a time.
const MAX_LISTED: usize = 50;

/// A REVEAL run that answers questions.
pub(super) struct RevealRun {
    run: PathBuf,
    opened: Mutex<OpenedRun>,
    /// The embedded world; `None` for a run that was trained on files.
    world: Option<World>,
}

/// A run with one generation of its memory.
struct OpenedRun {
    /// Contents of the memory's `CURRENT` file when it was opened.
    pointer: Vec<u8>,
    generation: u64,
    answerer: Arc<Answerer>,
}

/// A test question of the run.
#[derive(Serialize)]
pub(super) struct TestQuestion<'a> {
    text: &'a str,
    /// The name of the image, and the number of its view.
    image: &'a str,
    view: u32,
    answers: &'a [String],
    part: Part,
    /// The source and the id of the entry that contains the answer.
    source: &'a str,
    entry: i64,
}

/// The test questions of a run.
#[derive(Serialize)]
pub(super) struct Questions<'a> {
    /// Number of entries retrieved for an answer.
    k: usize,
    /// Whether the run was trained on the embedded world. Other runs have no test questions.
    world: bool,
    /// Number of questions that match the search words.
    found: usize,
    questions: Vec<TestQuestion<'a>>,
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
}

impl OpenedRun {
    fn of(run: &Path) -> anyhow::Result<Self> {
        let memory = run.join("memory");
        let pointer_file = memory.join(CURRENT);
        let pointer = std::fs::read(&pointer_file).with_context(|| {
            format!("{}: has no memory; `engram answer` builds it again", run.display())
        })?;
        let generation = Memory::open(&memory)?.generation().manifest().generation;
        let answerer = Arc::new(Answerer::open(run, None, None, Vec::new())?);
        Ok(Self { pointer, generation, answerer })
    }
}

impl FromRun for RevealRun {
    const TAB: ExplorerTab = ExplorerTab::Answers;

    fn open(run: &Path) -> anyhow::Result<Self> {
        let opened = OpenedRun::of(run)?;
        let world = opened.answerer.world()?;
        Ok(Self { run: run.to_path_buf(), opened: Mutex::new(opened), world })
    }
}

impl RevealRun {
    /// The run with its current memory, and the number of the memory's generation.
    fn current_run(&self) -> anyhow::Result<(Arc<Answerer>, u64)> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let pointer = std::fs::read(self.run.join("memory").join(CURRENT));
        if !pointer.is_ok_and(|pointer| pointer == opened.pointer) {
            *opened = OpenedRun::of(&self.run)?;
        }
        Ok((Arc::clone(&opened.answerer), opened.generation))
    }

    /// Test questions that contain all the words, in the question, its answers or the image name.
    pub(super) fn questions(&self, words: &str) -> anyhow::Result<Questions<'_>> {
        let words = uploads::trimmed(words)?.unwrap_or_default();
        let contains_all = uploads::contains_all(words);
        let mut questions = Vec::new();
        for question in self.world.iter().flat_map(|world| &world.questions) {
            let searched_text = format!(
                "{} {} {} {}",
                question.text,
                question.answers.join(" "),
                question.image_slug,
                question.part.name()
            );
            if question.split == Split::Test && contains_all(&searched_text) {
                questions.push(TestQuestion {
                    text: &question.text,
                    image: &question.image_slug,
                    view: question.view,
                    answers: &question.answers,
                    part: question.part,
                    source: question.source.name(),
                    entry: question.entry,
                });
            }
        }
        let found = questions.len();
        // Lists every n-th question, for variety: adjacent questions are about the same image.
        let stride = found.div_ceil(MAX_LISTED).max(1);
        let questions = questions.into_iter().step_by(stride).collect();
        let k = self.current_run()?.0.k();
        Ok(Questions { k, world: self.world.is_some(), found, questions })
    }

    /// A view of an image of the embedded world as PNG; view 0 is the original image.
    pub(super) fn view(&self, image: &str, view: u32) -> anyhow::Result<Vec<u8>> {
        let world = self.world.as_ref().context("the run was trained on images from files")?;
        let index = world.image_index(image);
        let index = index.with_context(|| format!("there is no image {image:?}"))?;
        if view == 0 {
            return Ok(world.images[index].png.to_vec());
        }
        png(&world.view(index, view)?)
    }

    pub(super) fn answer(&self, request: &QuestionRequest) -> anyhow::Result<Answer> {
        let image = Upload::of(&request.image)?.context("a question needs an image")?;
        let question = uploads::trimmed(&request.question)?;
        let answer = self.current_run()?.0.answer_one(question, image.path(), &request.without);
        answer.map_err(|error| image.without_path(error.into()))
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
