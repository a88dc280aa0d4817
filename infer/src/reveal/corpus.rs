//! Entries, images and examples of the study.
//!
//! | part | module |
//! |---|---|
//! | the embedded world | `world` |
//! | captions, questions and entries in files | `read`, `files` |
//! | connected documents and images | `components` |
//! | the split into training, validation and test images | `split` |
//! | decoded images and their views | [`images`] |

mod components;
mod files;
pub mod images;
mod read;
mod split;
mod world;

use std::collections::BTreeSet;
use std::path::PathBuf;

use engram_data::image::Preprocessing;
use engram_data::world::questions::Part;
use engram_memory::Entry;

pub use self::images::{ImageFiles, Images};
use super::settings::RevealData;
use crate::study::StudyResult;

/// An entry of the memory with its encoder input.
#[derive(Debug, Clone)]
pub struct CorpusEntry {
    /// The entry, as the memory stores it.
    pub entry: Entry,
    /// The text for the encoder.
    pub text: String,
    /// The index of its image in [`Corpus::images`].
    pub image: Option<usize>,
    /// Whether training may use it outside the memory.
    pub training: bool,
}

/// The task of an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Answer a question.
    Answer,
    /// Describe an image.
    Describe,
}

/// The metrics that apply to an example.
#[derive(Debug, Clone, PartialEq)]
pub enum MetricKind {
    /// Exact match and recall, as for the embedded world.
    Entries,
    /// Caption metrics, with human captions in COCO's format.
    Captions,
    /// VQA accuracy, with the VQA or OK-VQA annotations in this file.
    Vqa(PathBuf),
    /// A-OKVQA metrics, with the questions in this file.
    Aokvqa(PathBuf),
}

/// A question, an image to describe, or a text to continue.
#[derive(Debug, Clone)]
pub struct Example {
    /// Its id in results.
    pub id: i64,
    /// The task.
    pub task: Task,
    /// Its id in the data set: of a question, or of an image to describe.
    pub name: String,
    /// Its own document: retrieval excludes all entries of this document.
    pub document: Option<String>,
    /// The index of its metrics in [`Corpus::metric_kinds`].
    pub metric_kind: usize,
    /// The question.
    pub text: String,
    /// The index of its image.
    pub image: Option<usize>,
    /// The view of the image.
    pub view: u32,
    /// All reference answers.
    pub answers: Vec<String>,
    /// The index of the entry with the answer, if known.
    pub own: Option<usize>,
    /// Whether training has its image and its fact.
    pub part: Part,
    /// Whether only the memory contains the answer.
    pub made_up: bool,
}

/// The data of the study.
pub struct Corpus {
    /// The names of the sources, in the order of their first entries. The memory and the gate's
    /// columns use this order.
    pub sources: Vec<String>,
    /// All memory entries.
    pub items: Vec<CorpusEntry>,
    /// The images.
    pub images: Images,
    /// The images that training may use outside the memory.
    pub training_images: Vec<usize>,
    /// Training examples.
    pub train: Vec<Example>,
    /// Validation examples.
    pub validation: Vec<Example>,
    /// Test examples.
    pub test: Vec<Example>,
    /// The kinds of metrics.
    pub metric_kinds: Vec<MetricKind>,
    /// Notes about the data for the report, such as skipped files and the reasons.
    pub notes: Vec<String>,
    /// SHA-256 digests of other inputs, such as images.
    pub digests: Vec<(String, String)>,
}

impl Corpus {
    /// Loads the data named in `[data]`: files, or the embedded world. `preprocessing` resizes
    /// images for the image encoder.
    ///
    /// # Errors
    /// Errors of reading the data; the first fault is named with its file.
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

    /// A corpus of images only, for questions to an existing memory.
    pub fn of_images(paths: Vec<PathBuf>, size: usize, preprocessing: Preprocessing) -> Self {
        // Each image is read once, so there is no cache.
        let files = ImageFiles::new(paths, size, preprocessing, (0, 0));
        Self {
            sources: Vec::new(),
            items: Vec::new(),
            images: Images::Files(files),
            training_images: Vec::new(),
            train: Vec::new(),
            validation: Vec::new(),
            test: Vec::new(),
            metric_kinds: Vec::new(),
            notes: Vec::new(),
            digests: Vec::new(),
        }
    }

    /// The images of validation questions that no training example shows.
    pub fn held_out_images(&self) -> Vec<usize> {
        let held_out = self.validation.iter().filter(|example| example.part == Part::HeldOut);
        let images: BTreeSet<usize> = held_out.filter_map(|example| example.image).collect();
        images.into_iter().collect()
    }

    /// The texts from which a fresh tokenizer is built, without held-out texts.
    pub fn training_texts(&self) -> Vec<String> {
        let items = self.items.iter().filter(|item| item.training).map(|item| item.text.clone());
        let questions = self.train.iter().map(|example| example.text.clone());
        let described = self.train.iter().filter(|_| self.metric_kinds != [MetricKind::Entries]);
        let answers = described.flat_map(|example| example.answers.iter().cloned());
        items.chain(questions).chain(answers).collect()
    }

    /// The index of an entry among the items, by its id.
    pub fn place_of(&self, id: i64) -> Option<usize> {
        self.items.binary_search_by_key(&id, |item| item.entry.id).ok()
    }

    /// The index of an item's source.
    pub fn source_of(&self, index: usize) -> u32 {
        let source = &self.items[index].entry.source;
        self.sources.iter().position(|name| name == source).unwrap_or(0) as u32
    }

    /// Creates one example per training entry: the model continues its text.
    pub fn continuations(&self) -> Vec<Example> {
        let items = self.items.iter().enumerate();
        // In files, entries of the text's own image would reveal its continuation.
        let in_files = self.metric_kinds != [MetricKind::Entries];
        items
            .filter(|(_, item)| item.training && !item.text.is_empty())
            .map(|(index, item)| Example {
                id: item.entry.id,
                task: Task::Answer,
                name: item.entry.id.to_string(),
                document: item.entry.document.clone().filter(|_| in_files),
                metric_kind: 0,
                text: item.text.clone(),
                image: item.image,
                view: 0,
                answers: Vec::new(),
                own: Some(index),
                part: Part::Seen,
                made_up: true,
            })
            .collect()
    }
}

/// The sources of entries, in the order of their first entries.
fn sources_of(items: &[CorpusEntry]) -> Vec<String> {
    let mut sources: Vec<String> = Vec::new();
    for item in items {
        if !sources.contains(&item.entry.source) {
            sources.push(item.entry.source.clone());
        }
    }
    sources
}
