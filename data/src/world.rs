//! The embedded world: data that is built in code, so that a fresh machine without network
//! runs every study for real.
//!
//! | file | what it is responsible for |
//! |---|---|
//! | [`phrases`], `words` | phrase pairs of the patent study |
//! | [`pictures`] | pictures with names and groups |
//! | [`countries`] | real facts behind the flags |
//! | [`attributes`] | what is asked about pictures, and how it is said |
//! | [`knowledge`] | facts as entries of four sources |
//! | [`questions`] | questions, splits, what each part can show |
//! | [`swap`] | facts changed in the memory and nowhere else |
//! | [`haystack`] | yes-or-no questions about a few pictures among many |
//! | [`features`] | keys and values without a model |
//! | [`speech`] | names of pictures, spoken by ten voices |
//!
//! `docs/world.md` has its counts, chance, and what it is and is not for.
//!
//! ```
//! use engram_data::world::{World, WorldOptions};
//!
//! let world = World::new(&WorldOptions { pictures: Some(100), ..WorldOptions::default() })?;
//! let question = &world.questions[0];
//! let entry = world.entry(question.entry).ok_or("no entry")?;
//! assert!(entry.text().contains(&question.answers[0]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod attributes;
pub mod audiovisual;
pub mod countries;
pub mod features;
pub mod haystack;
pub mod knowledge;
pub mod phrases;
pub mod pictures;
pub mod questions;
pub mod speech;
pub mod swap;
mod words;

use std::collections::HashMap;

use image::RgbImage;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use crate::DataError;
use crate::augmentation::{Augmentation, Background};
use knowledge::Entry;
use pictures::Picture;
use questions::{Question, Split};

/// The fewest pictures of a world: every split has some then.
const FEWEST_PICTURES: usize = 40;

/// What a world is made from.
#[derive(Debug, Clone, PartialEq)]
pub struct WorldOptions {
    /// Draws facts, wordings, splits and views.
    pub seed: u64,
    /// How many pictures, evenly from all groups; all without it.
    pub pictures: Option<usize>,
    /// How the views in questions differ from the pictures in the memory.
    pub view: Augmentation,
}

impl Default for WorldOptions {
    fn default() -> Self {
        Self { seed: 1, pictures: None, view: view_augmentation(48) }
    }
}

/// Views that leave flags, letters and arrows what they are: none is mirrored.
pub fn view_augmentation(size: u32) -> Augmentation {
    Augmentation {
        background: Background::Random,
        area: [0.7, 1.0],
        aspect: [0.85, 1.18],
        rotation: 10.0,
        brightness: 0.2,
        contrast: 0.2,
        saturation: 0.2,
        noise: 0.02,
        occlusion: 0.3,
        ..Augmentation::none(size)
    }
}

/// How many pictures the whole world has.
pub const PICTURES: usize = 1881;

/// Pictures, what is known of them, and questions.
#[derive(Debug, Clone, PartialEq)]
pub struct World {
    /// The pictures, in Unicode's order.
    pub pictures: Vec<Picture>,
    /// The split of each picture: nothing is asked in training about those held out.
    pub splits: Vec<Split>,
    /// All facts, by their ids.
    pub entries: Vec<Entry>,
    /// All questions, by their ids.
    pub questions: Vec<Question>,
    options: WorldOptions,
    place_of_slug: HashMap<String, usize>,
}

impl World {
    /// Builds the world; the same options give the same world.
    ///
    /// # Errors   [`DataError::OutOfRange`]
    pub fn new(options: &WorldOptions) -> Result<Self, DataError> {
        options.view.validate()?;
        let mut pictures = pictures::pictures()?;
        if let Some(wanted) = options.pictures {
            let all = pictures.len();
            if !(FEWEST_PICTURES..=all).contains(&wanted) {
                let (what, value) = ("the number of pictures", wanted.to_string());
                return Err(DataError::OutOfRange { what, value, wanted: "give 40 to 1881" });
            }
            pictures.retain(|picture| {
                // One in each of as many equal stretches.
                let stretch = |number: usize| number * wanted / all;
                picture.number == 0 || stretch(picture.number) != stretch(picture.number - 1)
            });
        }
        let seed = options.seed;
        let splits = questions::picture_splits(&pictures, seed);
        let facts = pictures.par_iter().enumerate();
        let entries: Vec<Entry> = facts
            .flat_map_iter(|(place, picture)| knowledge::entries_of(picture, place, seed))
            .collect();
        let questions = entries.par_iter().flat_map_iter(|entry| {
            let place = entry.picture;
            questions::questions_of(entry, &pictures[place], splits[place], seed)
        });
        let questions = questions.collect();
        let places = pictures.iter().enumerate();
        let place_of_slug = places.map(|(place, picture)| (picture.slug.clone(), place)).collect();
        Ok(Self { pictures, splits, entries, questions, options: options.clone(), place_of_slug })
    }

    /// The entry with an id.
    pub fn entry(&self, id: i64) -> Option<&Entry> {
        let place = self.entries.binary_search_by_key(&id, |entry| entry.id).ok()?;
        self.entries.get(place)
    }

    /// The place of a picture in [`Self::pictures`].
    pub fn place(&self, slug: &str) -> Option<usize> {
        self.place_of_slug.get(slug).copied()
    }

    /// The questions whose answers stand in one of some entries: what fails when these are deleted.
    pub fn questions_about<'a>(&'a self, ids: &'a [i64]) -> impl Iterator<Item = &'a Question> {
        self.questions.iter().filter(|question| ids.contains(&question.entry))
    }

    /// A view of the picture at a place: 0 is the clean one on grey, as the memory has it, and
    /// every other number another one.
    ///
    /// # Errors   [`DataError::OutOfRange`]
    pub fn view(&self, place: usize, number: u32) -> Result<RgbImage, DataError> {
        let Some(picture) = self.pictures.get(place) else {
            let wanted = "give a place below the number of pictures";
            let value = place.to_string();
            return Err(DataError::OutOfRange { what: "the picture's place", value, wanted });
        };
        let mut rng = seeded(self.options.seed, &["view", &picture.slug, &number.to_string()]);
        let clean = Augmentation::none(self.options.view.size);
        let augmentation = if number == 0 { &clean } else { &self.options.view };
        augmentation.apply(&picture.image, &mut rng)
    }
}

/// Random numbers of one purpose: they depend on the seed and the names, not on what was drawn before.
fn seeded(seed: u64, names: &[&str]) -> ChaCha8Rng {
    let mut digest = Sha256::new_with_prefix(seed.to_le_bytes());
    for name in names {
        digest.update(name.as_bytes());
        digest.update([0]);
    }
    ChaCha8Rng::from_seed(digest.finalize().into())
}

/// Random numbers of something that belongs to a split: those of the splits differ.
fn of_split((seed, split): (u64, Split), what: &str, number: usize) -> ChaCha8Rng {
    seeded(seed, &["audiovisual", what, split.name(), &number.to_string()])
}
