//! Entries, pictures and examples of the study.
//!
//! | part | module |
//! |---|---|
//! | the embedded world | `world` |
//! | captions, questions and entries in files | `read`, `files` |
//! | documents and pictures that belong together | `components` |
//! | which pictures are for training, validation and test | `split` |
//! | decoded pictures and their views | [`pictures`] |

mod components;
mod files;
pub mod pictures;
mod read;
mod split;
mod world;

use std::collections::BTreeSet;
use std::path::PathBuf;

use engram_data::image::Preprocessing;
use engram_data::world::questions::Part;
use engram_memory::Entry;

pub use self::pictures::{PictureFiles, Pictures};
use super::settings::RevealData;
use crate::study::StudyResult;

/// A piece of knowledge of the memory.
#[derive(Debug, Clone)]
pub struct Item {
    /// What the memory keeps.
    pub entry: Entry,
    /// What an encoder reads.
    pub text: String,
    /// The place of its picture in [`Corpus::pictures`].
    pub picture: Option<usize>,
    /// Whether training may see it outside the memory.
    pub training: bool,
}

/// What is asked of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// The answer to a question.
    Answer,
    /// The caption of a picture.
    Describe,
}

/// Where the figures of examples come from.
#[derive(Debug, Clone, PartialEq)]
pub enum Judge {
    /// Exact match and recall, as of the embedded world.
    Entries,
    /// The captions of people, in COCO's form.
    Captions,
    /// The annotations of VQA or OK-VQA in this file.
    Vqa(PathBuf),
    /// The questions of A-OKVQA in this file.
    Aokvqa(PathBuf),
}

/// A question, a picture to describe, or a text to be continued.
#[derive(Debug, Clone)]
pub struct Example {
    /// Its id in results.
    pub id: i64,
    /// What is asked.
    pub task: Task,
    /// The id that its data set has for it: of a question, or of a picture to describe.
    pub name: String,
    /// The document that it may retrieve nothing of: its own, with all that belongs to it.
    pub document: Option<String>,
    /// The place of the file that it is judged by among [`Corpus::judges`].
    pub judge: usize,
    /// The question.
    pub text: String,
    /// The place of its picture.
    pub picture: Option<usize>,
    /// The view of the picture.
    pub view: u32,
    /// All right answers.
    pub answers: Vec<String>,
    /// The place of the entry that has the answer, if it is known.
    pub own: Option<usize>,
    /// What training has seen of it.
    pub part: Part,
    /// Whether the answer is nowhere but in the memory.
    pub made_up: bool,
}

/// All that the study reads.
pub struct Corpus {
    /// The names of the sources in the order in which entries bring them, which is the memory's, and
    /// that of the gate's columns.
    pub sources: Vec<String>,
    /// All pieces of knowledge.
    pub items: Vec<Item>,
    /// The pictures.
    pub pictures: Pictures,
    /// The pictures that training may see outside the memory.
    pub training_pictures: Vec<usize>,
    /// Questions to train on.
    pub train: Vec<Example>,
    /// Questions to choose a model by.
    pub validation: Vec<Example>,
    /// Questions to judge a model by.
    pub test: Vec<Example>,
    /// What examples are judged by.
    pub judges: Vec<Judge>,
    /// What a reader of the figures has to know of the data: what was left out, and why.
    pub notes: Vec<String>,
    /// The SHA-256 of what was read beside entries and examples: pictures.
    pub digests: Vec<(String, String)>,
}

impl Corpus {
    /// What `[data]` names: files, or the embedded world. Pictures are brought to the size of an image
    /// encoder by `preprocessing`.
    ///
    /// # Errors
    /// Those of reading the data; the first fault is named with its file.
    pub fn load(
        data: &RevealData,
        image_size: usize,
        preprocessing: Preprocessing,
    ) -> StudyResult<Self> {
        match data.is_world() {
            true => world::load(data, image_size),
            false => files::load(data, image_size, preprocessing),
        }
    }

    /// Pictures alone, for questions to a memory that is there.
    pub fn of_pictures(paths: Vec<PathBuf>, size: usize, preprocessing: Preprocessing) -> Self {
        // Each is looked at once.
        let files = PictureFiles::new(paths, size, preprocessing, (0, 0));
        Self {
            sources: Vec::new(),
            items: Vec::new(),
            pictures: Pictures::Files(files),
            training_pictures: Vec::new(),
            train: Vec::new(),
            validation: Vec::new(),
            test: Vec::new(),
            judges: Vec::new(),
            notes: Vec::new(),
            digests: Vec::new(),
        }
    }

    /// The pictures of questions to choose a model by that no training example shows.
    pub fn held_out_pictures(&self) -> Vec<usize> {
        let held_out = self.validation.iter().filter(|example| example.part == Part::HeldOut);
        let pictures: BTreeSet<usize> = held_out.filter_map(|example| example.picture).collect();
        pictures.into_iter().collect()
    }

    /// What the tokenizer of a model that starts from nothing is made from: nothing that is held out.
    pub fn training_texts(&self) -> Vec<String> {
        let items = self.items.iter().filter(|item| item.training).map(|item| item.text.clone());
        let questions = self.train.iter().map(|example| example.text.clone());
        let described = self.train.iter().filter(|_| self.judges != [Judge::Entries]);
        let answers = described.flat_map(|example| example.answers.iter().cloned());
        items.chain(questions).chain(answers).collect()
    }

    /// The place of an entry among the items, by its id.
    pub fn place_of(&self, id: i64) -> Option<usize> {
        self.items.binary_search_by_key(&id, |item| item.entry.id).ok()
    }

    /// The place of an item's source.
    pub fn source_of(&self, place: usize) -> u32 {
        let source = &self.items[place].entry.source;
        self.sources.iter().position(|name| name == source).unwrap_or(0) as u32
    }

    /// Examples out of the entries that training may see: the text of each is to be continued.
    pub fn continuations(&self) -> Vec<Example> {
        let items = self.items.iter().enumerate();
        // In a file, what is known of a text's picture would give its end away.
        let in_files = self.judges != [Judge::Entries];
        items
            .filter(|(_, item)| item.training && !item.text.is_empty())
            .map(|(place, item)| Example {
                id: item.entry.id,
                task: Task::Answer,
                name: item.entry.id.to_string(),
                document: item.entry.document.clone().filter(|_| in_files),
                judge: 0,
                text: item.text.clone(),
                picture: item.picture,
                view: 0,
                answers: Vec::new(),
                own: Some(place),
                part: Part::Seen,
                made_up: true,
            })
            .collect()
    }
}

/// The sources of entries, in the order in which entries bring them.
fn sources_of(items: &[Item]) -> Vec<String> {
    let mut sources: Vec<String> = Vec::new();
    for item in items {
        if !sources.contains(&item.entry.source) {
            sources.push(item.entry.source.clone());
        }
    }
    sources
}
