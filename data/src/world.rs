//! The embedded world: synthetic data generated in code, so that every study can train on a new
//! machine without network.
//!
//! | file | content |
//! |---|---|
//! | [`phrases`], `words` | phrase pairs of the patent study |
//! | [`images`] | images with names and groups |
//! | [`countries`] | real facts about the countries of the flags |
//! | [`attributes`] | attributes of images, and the templates of their facts and questions |
//! | [`facts`] | facts about images, as entries of four sources |
//! | [`questions`] | questions, their splits and their parts |
//! | [`swap`] | changed answers of some facts, to replace their entries in the memory |
//! | [`haystack`] | yes-or-no questions about a few images among many |
//! | [`features`] | keys and values without a model |
//! | [`speech`] | image names, spoken by ten voices |
//! | [`audiovisual`] | noisy clips of spoken names with images |
//!
//! `docs/explanation/world.md` gives the counts, the chance level, and the intended use.
//!
//! ```
//! use engram_data::world::{World, WorldOptions};
//!
//! let world = World::new(&WorldOptions { images: Some(100), ..WorldOptions::default() })?;
//! let question = &world.questions[0];
//! let fact = world.fact(question.entry).ok_or("no fact")?;
//! assert!(fact.entry.text().contains(&question.answers[0]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod attributes;
pub mod audiovisual;
pub mod countries;
pub mod facts;
pub mod features;
pub mod haystack;
pub mod images;
pub mod phrases;
pub mod questions;
pub mod speech;
pub mod swap;
pub(crate) mod words;

use std::collections::HashMap;

use image::RgbImage;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use crate::DataError;
use crate::augmentation::{Augmentation, Background};
use facts::Fact;
use images::WorldImage;
use questions::{Question, Split};

/// The minimum number of images: with fewer, a split could be empty.
const MIN_IMAGES: usize = 40;

/// Options of the world.
#[derive(Debug, Clone, PartialEq)]
pub struct WorldOptions {
    /// The random seed of facts, wordings, splits and views.
    pub seed: u64,
    /// The number of images, spread evenly over all groups; `None` for all.
    pub images: Option<usize>,
    /// The augmentation of the views in questions.
    pub view: Augmentation,
}

impl Default for WorldOptions {
    fn default() -> Self {
        Self { seed: 1, images: None, view: view_augmentation(48) }
    }
}

/// Returns an augmentation that keeps the meaning of flags, letters and arrows: views are never
/// flipped.
pub fn view_augmentation(size: u32) -> Augmentation {
    Augmentation {
        background: Background::Random,
        scale: [0.7, 1.0],
        ratio: [0.85, 1.18],
        rotation: 10.0,
        brightness: 0.2,
        contrast: 0.2,
        saturation: 0.2,
        noise: 0.02,
        occlusion: 0.3,
        ..Augmentation::none(size)
    }
}

/// The number of images in the full world.
pub const IMAGES: usize = 1881;

/// Images, facts about them, and questions.
#[derive(Debug, Clone, PartialEq)]
pub struct World {
    /// The images, in Unicode order.
    pub images: Vec<WorldImage>,
    /// The split of each image. Training has no questions about held-out images.
    pub splits: Vec<Split>,
    /// All facts, sorted by the ids of their entries.
    pub facts: Vec<Fact>,
    /// All questions, sorted by id.
    pub questions: Vec<Question>,
    options: WorldOptions,
    index_of_slug: HashMap<String, usize>,
}

impl World {
    /// Builds the world. The same options give the same world.
    ///
    /// # Errors
    /// [`DataError::OutOfRange`]
    pub fn new(options: &WorldOptions) -> Result<Self, DataError> {
        options.view.validate()?;
        let mut images = images::images()?;
        if let Some(count) = options.images {
            let total = images.len();
            if !(MIN_IMAGES..=total).contains(&count) {
                let what = "the number of images";
                return Err(DataError::out_of_range(what, count, "use 40 to 1881"));
            }
            images.retain(|image| {
                // Keep one image in each of `count` equal intervals.
                let interval = |number: usize| number * count / total;
                image.number == 0 || interval(image.number) != interval(image.number - 1)
            });
        }
        let seed = options.seed;
        let splits = questions::image_splits(&images, seed);
        let indexed_images = images.par_iter().enumerate();
        let facts: Vec<Fact> = indexed_images
            .flat_map_iter(|(index, image)| facts::facts_of(image, index, seed))
            .collect();
        let questions = facts.par_iter().flat_map_iter(|fact| {
            let index = fact.image;
            questions::questions_of(fact, &images[index], splits[index], seed)
        });
        let questions = questions.collect();
        let indices = images.iter().enumerate();
        let index_of_slug = indices.map(|(index, image)| (image.slug.clone(), index)).collect();
        Ok(Self { images, splits, facts, questions, options: options.clone(), index_of_slug })
    }

    /// Returns the fact whose entry has this id; `None` if there is none.
    pub fn fact(&self, id: i64) -> Option<&Fact> {
        let index = self.facts.binary_search_by_key(&id, |fact| fact.entry.id).ok()?;
        self.facts.get(index)
    }

    /// Returns the index of an image in [`Self::images`]; `None` if the world does not have it.
    pub fn image_index(&self, slug: &str) -> Option<usize> {
        self.index_of_slug.get(slug).copied()
    }

    /// Returns a view of an image, given by its index. View 0 is the unaugmented image on grey, as
    /// in the memory; every other number gives another view.
    ///
    /// # Errors
    /// [`DataError::OutOfRange`]
    pub fn view(&self, index: usize, number: u32) -> Result<RgbImage, DataError> {
        let Some(image) = self.images.get(index) else {
            let wanted = "use an index below the number of images";
            return Err(DataError::out_of_range("the image index", index, wanted));
        };
        let mut rng = seeded_rng(self.options.seed, &["view", &image.slug, &number.to_string()]);
        let unaugmented = Augmentation::none(self.options.view.size);
        let augmentation = if number == 0 { &unaugmented } else { &self.options.view };
        augmentation.apply(&image.image, &mut rng)
    }
}

/// Returns a random generator for one purpose. It depends only on the seed and the names, not on
/// earlier draws.
pub fn seeded_rng(seed: u64, names: &[&str]) -> ChaCha8Rng {
    let mut digest = Sha256::new_with_prefix(seed.to_le_bytes());
    for name in names {
        digest.update(name.as_bytes());
        digest.update([0]);
    }
    ChaCha8Rng::from_seed(digest.finalize().into())
}

/// Returns a random generator for an item of a split; it differs between splits.
fn split_rng(seed: u64, split: Split, purpose: &str, number: usize) -> ChaCha8Rng {
    seeded_rng(seed, &["audiovisual", purpose, split.name(), &number.to_string()])
}
