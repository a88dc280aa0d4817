//! Entries, images and examples.

use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use engram_data::image::Preprocessing;
use engram_data::world::questions::Part;
use engram_memory::{Entry, EntryLine};

use super::feature_maps::FeatureMaps;
use super::images::{FIRST_TRAINING_VIEW, ImageFiles, Images};
use crate::error::Result;

/// An entry of the memory with its encoder input.
#[derive(Debug, Clone)]
pub struct CorpusEntry {
    /// The entry, as the memory stores it.
    pub entry: Entry,
    /// The text for the encoder.
    pub text: String,
    /// The index of the entry's image in [`Corpus::images`]; `None` without an image.
    pub image: Option<usize>,
    /// Whether training examples may use the entry's text and image. If not, training sees the
    /// entry only when it is retrieved.
    pub in_training: bool,
}

impl CorpusEntry {
    /// An entry whose text is the encoder input.
    pub fn new(entry: Entry, image: Option<usize>, in_training: bool) -> Self {
        Self { text: entry.text(), entry, image, in_training }
    }

    /// A fact without an image; its index in [`Corpus::items`] is its id.
    pub fn of_fact(index: usize, text: String, in_training: bool) -> Self {
        Self::new(EntryLine::passage(FACTS, text).with_id(index as i64), None, in_training)
    }
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
    /// Exact match, and recall of the entry with the answer; for the embedded world.
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
    /// The id of the example in results.
    pub id: i64,
    /// The task.
    pub task: Task,
    /// The id of the question, or of the image to describe, in the data set.
    pub name: String,
    /// The document that the example comes from. Retrieval excludes all entries of this document;
    /// `None` excludes nothing.
    pub document: Option<String>,
    /// The index of the example's metrics in [`Corpus::metric_kinds`].
    pub metric_kind: usize,
    /// The question, or the text to continue; empty to describe the image.
    pub text: String,
    /// The index of the example's image in [`Corpus::images`]; `None` without an image.
    pub image: Option<usize>,
    /// The image whose examples are resampled together with this one; `None` for its own image.
    pub group: Option<usize>,
    /// The view of the image: 0 is the clean image, other numbers are augmented views.
    pub view: u32,
    /// All reference answers; empty for a text to continue.
    pub answers: Vec<String>,
    /// The index in [`Corpus::items`] of the entry with the answer; `None` if it is unknown.
    pub own_entry: Option<usize>,
    /// The part of the question: whether training shows its image and asks for its fact.
    pub part: Part,
    /// Whether the answer is an invented fact, which only the memory contains.
    pub made_up: bool,
}

impl Example {
    /// A question that has neither an image nor answers nor an own entry yet.
    pub fn of_text(id: usize, text: String) -> Self {
        Self {
            id: id as i64,
            task: Task::Answer,
            name: id.to_string(),
            document: None,
            metric_kind: 0,
            text,
            image: None,
            group: None,
            view: 0,
            answers: Vec::new(),
            own_entry: None,
            part: Part::Seen,
            made_up: true,
        }
    }
}

/// A picture with a name, to find by other pictures of the same name.
#[derive(Debug, Clone)]
pub struct NamedPicture {
    /// The index in [`Corpus::images`].
    pub image: usize,
    /// The name.
    pub name: String,
    /// Whether training shows the picture.
    pub in_training: bool,
}

/// The source of the entries of facts.
pub const FACTS: &str = "facts";
/// The answer of a model that finds no entry with the answer.
pub const UNKNOWN: &str = "unknown";

/// The data of the study.
pub struct Corpus {
    /// The names of the sources, in the order of their first entries. The memory and the gate's
    /// columns use this order.
    pub sources: Vec<String>,
    /// All entries, by ascending id.
    pub items: Vec<CorpusEntry>,
    /// The number of entries in the memory: the first ones. Only training reads the others.
    pub stored: usize,
    /// The images.
    pub images: Images,
    /// Width and height `S` of an image, in pixels.
    pub image_size: usize,
    /// The network whose feature maps the model takes; `None` for a model that takes pixels.
    pub maps: Option<FeatureMaps>,
    /// The number of training views of an image with a file.
    pub training_views: u32,
    /// The indices of the images that training may use in examples.
    pub training_images: Vec<usize>,
    /// Photographs and drawings with names; empty unless the test searches with other photographs.
    pub named_pictures: Vec<NamedPicture>,
    /// Training examples.
    pub train: Vec<Example>,
    /// Exercises in reading without pictures: questions about entries that are not in the memory.
    pub reading: Vec<Example>,
    /// Exercises in reading with training pictures.
    pub naming: Vec<Example>,
    /// Validation examples.
    pub validation: Vec<Example>,
    /// Test examples.
    pub test: Vec<Example>,
    /// The metrics of the examples; [`Example::metric_kind`] is an index of this list.
    pub metric_kinds: Vec<MetricKind>,
    /// Notes about the data for the report, such as skipped files and the reasons.
    pub notes: Vec<String>,
    /// Names and SHA-256 digests of the images and of the files with reference answers; empty for
    /// the embedded world.
    pub digests: Vec<(String, String)>,
}

impl Corpus {
    /// Creates a corpus of images only, for questions about them with an existing memory.
    pub fn of_images(paths: Vec<PathBuf>, size: usize, preprocessing: Preprocessing) -> Self {
        // Each image is read once, so there is no cache.
        let files = ImageFiles::new(Path::new(""), paths, size, preprocessing, 0, 0);
        Self::new(Images::Files(files), size)
    }

    /// Creates a corpus without entries and examples. Images have `image_size` × `image_size`
    /// pixels.
    pub fn new(images: Images, image_size: usize) -> Self {
        Self {
            sources: Vec::new(),
            items: Vec::new(),
            stored: 0,
            images,
            image_size,
            maps: None,
            training_views: u32::MAX - FIRST_TRAINING_VIEW,
            training_images: Vec::new(),
            named_pictures: Vec::new(),
            train: Vec::new(),
            reading: Vec::new(),
            naming: Vec::new(),
            validation: Vec::new(),
            test: Vec::new(),
            metric_kinds: Vec::new(),
            notes: Vec::new(),
            digests: Vec::new(),
        }
    }

    /// The index in [`Corpus::items`] of the entry with this id; `None` if there is none.
    pub fn index_of(&self, id: i64) -> Option<usize> {
        self.items.binary_search_by_key(&id, |item| item.entry.id).ok()
    }

    /// The number of training views of an image. Graphics beside the things have a quarter.
    pub fn training_views_of(&self, image: usize) -> u32 {
        if self.is_graphic(image) { self.training_views.div_ceil(4) } else { self.training_views }
    }

    /// Whether an image is a graphic beside pictures of things.
    pub fn is_graphic(&self, image: usize) -> bool {
        matches!(&self.images, Images::CutOuts(things) if things.name(image).is_none())
    }

    /// The image encoder's input: the pixels `[N, 3, S, S]` of images, in the range of
    /// [`Images::pixels`], or their feature maps. `views` holds the index and view of each image.
    ///
    /// # Errors
    /// The errors of [`Images::pixels`]
    pub fn image_input(&self, views: &[(usize, u32)]) -> Result<Tensor> {
        if let Some(maps) = &self.maps {
            return maps.of(&self.images, views);
        }
        let shape = (views.len(), 3, self.image_size, self.image_size);
        Ok(Tensor::from_vec(self.images.pixels(views)?, shape, &Device::Cpu)?)
    }

    /// The index in [`Corpus::sources`] of the source of the item `index`.
    pub fn source_of(&self, index: usize) -> u32 {
        let source = &self.items[index].entry.source;
        self.sources.iter().position(|name| name == source).unwrap_or(0) as u32
    }
}
