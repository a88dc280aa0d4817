//! Runs of REVEAL: their questions, answers with evidence, and what a question finds.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use engram_data::world::World;
use engram_data::world::questions::{Part, Split};
use engram_memory::Memory;
use engram_memory::format::manifest::CURRENT;
use engram_memory::search::Filter;
use engram_train::studies::reveal::predict::{Answer, Answerer, Evidence};
use serde::{Deserialize, Serialize};

use super::lazily::{FromRun, png};
use super::uploads::{self, Upload};

/// The most questions of a test that are listed at a time.
const LISTED: usize = 50;

/// A run that can be asked.
pub(super) struct Asking {
    run: PathBuf,
    opened: Mutex<Opened>,
    /// What it was trained on, if that is the embedded world.
    world: Option<World>,
}

/// A run with one generation of its memory.
struct Opened {
    /// The memory's pointer as it was.
    current: Vec<u8>,
    generation: u64,
    answerer: Arc<Answerer>,
}

/// A question of the run's test.
#[derive(Serialize)]
pub(super) struct Listed<'a> {
    text: &'a str,
    /// Its picture by name and view.
    picture: &'a str,
    view: u32,
    answers: &'a [String],
    part: Part,
    /// The source that has the answer, and the entry.
    source: &'a str,
    entry: i64,
}

/// What can be asked of a run.
#[derive(Serialize)]
pub(super) struct Questions<'a> {
    /// Entries that are read for an answer.
    k: usize,
    /// Whether it was trained on the embedded world: its test has questions then.
    world: bool,
    /// How many questions have the words that are looked for.
    found: usize,
    questions: Vec<Listed<'a>>,
}

/// What is asked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    /// Empty to have the picture described.
    question: String,
    /// A picture's file in base64.
    picture: String,
    /// Entries that the memory is taken not to hold.
    #[serde(default)]
    without: Vec<i64>,
}

impl Opened {
    fn of(run: &Path) -> anyhow::Result<Self> {
        let memory = run.join("memory");
        let pointer = memory.join(CURRENT);
        let current = std::fs::read(&pointer).with_context(|| {
            format!("{}: has no memory; `engram predict` makes it anew", run.display())
        })?;
        let generation = Memory::open(&memory)?.generation().manifest().generation;
        let answerer = Arc::new(Answerer::open(run, None, None, Vec::new())?);
        Ok(Self { current, generation, answerer })
    }
}

impl FromRun for Asking {
    const STUDY: &'static str = "reveal";

    fn open(run: &Path) -> anyhow::Result<Self> {
        let opened = Opened::of(run)?;
        let world = opened.answerer.world()?;
        Ok(Self { run: run.to_path_buf(), opened: Mutex::new(opened), world })
    }
}

impl Asking {
    /// The run with its memory as it is now, and the memory's generation.
    fn now(&self) -> anyhow::Result<(Arc<Answerer>, u64)> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let pointer = std::fs::read(self.run.join("memory").join(CURRENT));
        if !pointer.is_ok_and(|current| current == opened.current) {
            *opened = Opened::of(&self.run)?;
        }
        Ok((Arc::clone(&opened.answerer), opened.generation))
    }

    /// Questions of the test that have all these words, in the question, its answers or the picture's name.
    pub(super) fn questions(&self, words: &str) -> anyhow::Result<Questions<'_>> {
        let words = uploads::words(words)?.unwrap_or_default();
        let has_all = uploads::has_all(words);
        let mut questions = Vec::new();
        for question in self.world.iter().flat_map(|world| &world.questions) {
            let all = format!(
                "{} {} {} {}",
                question.text,
                question.answers.join(" "),
                question.picture,
                question.part.name()
            );
            if question.split == Split::Test && has_all(&all) {
                questions.push(Listed {
                    text: &question.text,
                    picture: &question.picture,
                    view: question.view,
                    answers: &question.answers,
                    part: question.part,
                    source: question.source.name(),
                    entry: question.entry,
                });
            }
        }
        let found = questions.len();
        // Some of all kinds: neighbours ask about the same picture.
        let distance = found.div_ceil(LISTED).max(1);
        let questions = questions.into_iter().step_by(distance).collect();
        let k = self.now()?.0.k();
        Ok(Questions { k, world: self.world.is_some(), found, questions })
    }

    /// A view of a picture of the embedded world as PNG; view 0 is the picture itself.
    pub(super) fn view(&self, picture: &str, view: u32) -> anyhow::Result<Vec<u8>> {
        let world = self.world.as_ref().context("the run is about pictures from files")?;
        let place = world.place(picture);
        let place = place.with_context(|| format!("there is no picture {picture:?}"))?;
        if view == 0 {
            return Ok(world.pictures[place].png.to_vec());
        }
        png(&world.view(place, view)?)
    }

    pub(super) fn answer(&self, asked: &Asked) -> anyhow::Result<Answer> {
        let picture = Upload::of(&asked.picture)?.context("a question needs a picture")?;
        let question = uploads::words(&asked.question)?;
        let answer = self.now()?.0.answer_one(question, picture.path(), &asked.without);
        answer.map_err(|error| picture.told(anyhow::Error::from_boxed(error)))
    }

    /// The entries that words, a picture or both find, with gated scores, and the memory's generation.
    pub(super) fn find(
        &self,
        (text, picture): (Option<&str>, Option<&Upload>),
        k: usize,
        filter: Filter,
    ) -> anyhow::Result<(u64, Vec<Evidence>)> {
        let (answerer, generation) = self.now()?;
        let found = answerer.find((text, picture.map(Upload::path)), k, filter);
        let told = |error| match picture {
            Some(picture) => picture.told(error),
            None => error,
        };
        let found = found.map_err(|error| told(anyhow::Error::from_boxed(error)))?;
        Ok((generation, found))
    }
}
