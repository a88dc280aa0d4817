//! Runs of REVEAL: their questions, answers with evidence, and what a question finds.

use std::io::Cursor;
use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::Context;
use engram_data::world::World;
use engram_data::world::questions::{Part, Split};
use engram_train::studies::reveal::predict::{Answer, Answerer, Evidence};
use image::ImageFormat;
use serde::{Deserialize, Serialize};

use super::found::Run;
use super::uploads::Upload;

/// The most questions of a test that are listed at a time.
const LISTED: usize = 50;

/// The runs, each opened when it is first asked; the reason where it cannot be.
pub(super) struct Answerers(Vec<(PathBuf, OnceLock<Result<Opened, String>>)>);

/// A run that can be asked.
pub(super) struct Opened {
    answerer: Answerer,
    /// What it was trained on, if that is the embedded world.
    world: Option<World>,
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

impl Answerers {
    pub(super) fn of(runs: &[Run]) -> Self {
        Self(runs.iter().map(|run| (run.folder.clone(), OnceLock::new())).collect())
    }

    /// Opens a run, unless it is open.
    pub(super) fn opened(&self, run: usize) -> anyhow::Result<&Opened> {
        let (folder, opened) = self.0.get(run).with_context(|| format!("there is no run {run}"))?;
        let open = || -> anyhow::Result<Opened> {
            let answerer = Answerer::open(folder, None, None, Vec::new())?;
            let world = answerer.world()?;
            Ok(Opened { answerer, world })
        };
        let opened = opened.get_or_init(|| open().map_err(|error| format!("{error:#}")));
        opened.as_ref().map_err(|reason| anyhow::anyhow!("{reason}"))
    }
}

impl Opened {
    /// Questions of the test that have all these words, in the question, its answers or the picture's name.
    pub(super) fn questions(&self, words: &str) -> Questions<'_> {
        let words: Vec<String> = words.split_whitespace().map(str::to_lowercase).collect();
        let mut questions = Vec::new();
        for question in self.world.iter().flat_map(|world| &world.questions) {
            let all = format!(
                "{} {} {} {}",
                question.text,
                question.answers.join(" "),
                question.picture,
                question.part.name()
            );
            let all = all.to_lowercase();
            if question.split == Split::Test && words.iter().all(|word| all.contains(word)) {
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
        Questions { k: self.answerer.k(), world: self.world.is_some(), found, questions }
    }

    /// A view of a picture of the embedded world as PNG; view 0 is the picture itself.
    pub(super) fn view(&self, picture: &str, view: u32) -> anyhow::Result<Vec<u8>> {
        let world = self.world.as_ref().context("the run is about pictures from files")?;
        let place = world.place(picture);
        let place = place.with_context(|| format!("there is no picture {picture:?}"))?;
        if view == 0 {
            return Ok(world.pictures[place].png.to_vec());
        }
        let mut png = Cursor::new(Vec::new());
        world.view(place, view)?.write_to(&mut png, ImageFormat::Png)?;
        Ok(png.into_inner())
    }

    pub(super) fn answer(&self, asked: &Asked) -> anyhow::Result<Answer> {
        let picture = Upload::of(&asked.picture)?.context("a question needs a picture")?;
        let question = Some(asked.question.trim()).filter(|question| !question.is_empty());
        let answer = self.answerer.answer_one(question, picture.path(), &asked.without);
        answer.map_err(|error| picture.told(anyhow::Error::from_boxed(error)))
    }

    /// The entries that words, a picture or both find, with gated scores.
    pub(super) fn find(
        &self,
        (text, picture): (Option<&str>, Option<&Upload>),
        k: usize,
        sources: &[String],
    ) -> anyhow::Result<Vec<Evidence>> {
        let found = self.answerer.find((text, picture.map(Upload::path)), k, sources);
        let told = |error| match picture {
            Some(picture) => picture.told(error),
            None => error,
        };
        found.map_err(|error| told(anyhow::Error::from_boxed(error)))
    }
}
