//! The test questions of a REVEAL run: from the embedded world, or from the run's `test.jsonl`.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::Context;
use engram_data::world::World;
use engram_data::world::questions::{Part, Split};
use engram_train::studies::reveal::run::{RevealSummary, TEST_ANSWERS, TestAnswer};
use serde::Serialize;

use super::discover::Run;
use super::images::{ShownImage, file_in};
use super::lazy::png;
use super::uploads::contains_all;

/// A test question of the run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct TestQuestion {
    id: i64,
    /// The question; empty to describe the image.
    pub(super) text: String,
    /// The name of the image in the embedded world, or its path in the folder of the run's data.
    image: String,
    /// The number of the view of the image in the embedded world.
    #[serde(skip)]
    view: u32,
    /// The file of the view that the run's test shows, in the run's folder; `None` for the image
    /// itself.
    #[serde(skip)]
    view_file: Option<PathBuf>,
    pub(super) answers: Vec<String>,
    part: String,
    /// The source and the id of the entry that contains the answer; `None` if it is unknown.
    source: Option<String>,
    pub(super) entry: Option<i64>,
    /// The result of the run's own test.
    #[serde(skip)]
    stored: Stored,
}

/// The stored result of the run's own test, better results last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stored {
    Wrong,
    Unknown,
    Correct,
    /// The answer was correct, changed with its entry, and was wrong after the entry's deletion.
    FollowsEntry,
}

/// The test questions of a run, with the source of their images.
pub(super) struct TestQuestions {
    questions: Vec<TestQuestion>,
    images: QuestionImages,
    run: PathBuf,
}

enum QuestionImages {
    World(Box<World>),
    /// The folder of the run's data.
    Folder(PathBuf),
}

impl TestQuestions {
    /// The test questions of a run. `world` is the embedded world that the run was trained on;
    /// `None` for a run on files.
    pub(super) fn of(run: &Run, world: Option<World>) -> Self {
        let stored = TestAnswer::read(&run.folder.join(TEST_ANSWERS)).unwrap_or_default();
        let Some(world) = world else {
            let questions = stored.into_iter().filter_map(TestQuestion::of_file).collect();
            let folder = run.data_folder.clone().unwrap_or_default();
            let images = QuestionImages::Folder(folder);
            return Self { questions, images, run: run.folder.clone() };
        };
        let mut results: HashMap<i64, Stored> = HashMap::new();
        results.extend(stored.iter().map(|answer| (answer.id, Stored::of(answer))));
        // The summary has the questions about facts that the run's test changed in the memory.
        let swap = RevealSummary::read(&run.folder).ok().and_then(|summary| summary.swap);
        for question in swap.into_iter().flat_map(|swap| swap.questions) {
            let [old, _] = &question.references;
            let is_correct = question.answers[0].eq_ignore_ascii_case(old);
            if is_correct && question.fell_back {
                results.insert(question.question, Stored::FollowsEntry);
            } else if is_correct {
                results.entry(question.question).or_insert(Stored::Correct);
            }
        }
        let test = world.questions.iter().filter(|question| question.split == Split::Test);
        let questions = test.map(|question| TestQuestion {
            id: question.id,
            text: question.text.clone(),
            image: question.image_slug.clone(),
            view: question.view,
            view_file: None,
            answers: question.answers.clone(),
            part: question.part.name().to_owned(),
            source: Some(question.source.name().to_owned()),
            entry: Some(question.entry),
            stored: results.get(&question.id).copied().unwrap_or(Stored::Unknown),
        });
        let questions = questions.collect();
        let images = QuestionImages::World(Box::new(world));
        Self { questions, images, run: run.folder.clone() }
    }

    /// The test question with this id.
    pub(super) fn get(&self, id: i64) -> anyhow::Result<&TestQuestion> {
        let question = self.questions.iter().find(|question| question.id == id);
        question.with_context(|| format!("there is no test question {id}"))
    }

    /// The questions that contain all the words, in the question, its answers, the image name or
    /// the part.
    pub(super) fn containing(&self, words: &str) -> Vec<&TestQuestion> {
        let contains_all = contains_all(words);
        let contains = |question: &&TestQuestion| {
            let TestQuestion { text, answers, image, part, .. } = question;
            contains_all(&format!("{text} {} {image} {part}", answers.join(" ")))
        };
        self.questions.iter().filter(contains).collect()
    }

    /// The questions that the run may answer correctly, the most promising first: by the stored
    /// results of the run's own test, then questions about images that are not in training.
    pub(super) fn promising(&self) -> Vec<&TestQuestion> {
        let possible = self.questions.iter().filter(|question| question.stored != Stored::Wrong);
        let mut questions: Vec<&TestQuestion> = possible.collect();
        questions.sort_by_key(|question| {
            (Reverse(question.stored), question.part != Part::HeldOut.name())
        });
        questions
    }

    /// The image of a question, as the run's test shows it.
    pub(super) fn image(&self, question: &TestQuestion) -> anyhow::Result<ShownImage> {
        let file = match (&self.images, &question.view_file) {
            (QuestionImages::World(_), _) => return self.view(&question.image, question.view),
            (_, Some(view)) => file_in(&self.run, view),
            (QuestionImages::Folder(folder), None) => file_in(folder, question.image.as_ref()),
        };
        file.map(ShownImage::File)
    }

    /// A view of an image of the embedded world; view 0 is the original image.
    pub(super) fn view(&self, image: &str, view: u32) -> anyhow::Result<ShownImage> {
        let QuestionImages::World(world) = &self.images else {
            anyhow::bail!("the run was trained on images from files");
        };
        let index = world.image_index(image);
        let index = index.with_context(|| format!("there is no image {image:?}"))?;
        Ok(ShownImage::Rendered(match view {
            0 => world.images[index].png.to_vec(),
            view => png(&world.view(index, view)?)?,
        }))
    }
}

impl TestQuestion {
    /// A question of a run on files; `None` for a question without an image.
    fn of_file(answer: TestAnswer) -> Option<Self> {
        let image = answer.image_file.as_ref()?.display().to_string();
        let stored = Stored::of(&answer);
        let TestAnswer { id, question: text, references: answers, part, source, entry, .. } =
            answer;
        let view_file = answer.view_file;
        Some(Self { id, text, image, view: 0, view_file, answers, part, source, entry, stored })
    }
}

impl Stored {
    fn of(answer: &TestAnswer) -> Self {
        if answer.correct { Self::Correct } else { Self::Wrong }
    }
}
