//! Entries, pictures and examples of the study.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::OnceLock;

use engram_data::DataError;
use engram_data::augmentation::Augmentation;
use engram_data::image::Picture;
use engram_data::world::questions::{Part, Question, Split};
use engram_data::world::{World, WorldOptions};
use engram_memory::Entry;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

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

/// A question, or a text to be continued.
#[derive(Debug, Clone)]
pub struct Example {
    /// Its id in results.
    pub id: i64,
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
}

/// Where pictures come from.
pub enum Pictures {
    /// The embedded world's, with other views of each.
    World {
        /// The world.
        world: Box<World>,
        /// The bytes of each picture's clean view, once it was asked for.
        clean: Vec<OnceLock<Vec<u8>>>,
    },
    /// Files, brought to a square of this edge.
    Files {
        /// The files.
        paths: Vec<PathBuf>,
        /// Pixels of the edge.
        size: u32,
    },
}

impl Corpus {
    /// The embedded world.
    pub fn load(data: &RevealData, image_size: usize) -> StudyResult<Self> {
        let mut options = WorldOptions { seed: data.world_seed, ..WorldOptions::default() };
        options.view.size = image_size as u32;
        options.pictures = (data.pictures > 0).then_some(data.pictures);
        let world = World::new(&options)?;
        let left_out: HashSet<&str> = data.without_sources.iter().map(String::as_str).collect();
        let mut items = Vec::new();
        for entry in &world.entries {
            if left_out.contains(entry.attribute.source.name()) {
                continue;
            }
            let stored: Entry = serde_json::from_value(serde_json::to_value(&entry.knowledge)?)?;
            items.push(Item {
                entry: stored,
                text: entry.text(),
                picture: entry.shows_picture().then_some(entry.picture),
                training: world.splits[entry.picture] == Split::Train,
            });
        }
        let of_split = |split: Split| -> Vec<Example> {
            let questions = world.questions.iter().filter(|question| question.split == split);
            questions.map(|question| example(question, &world, &items)).collect()
        };
        let (train, validation, test) =
            (of_split(Split::Train), of_split(Split::Validation), of_split(Split::Test));
        let splits = world.splits.iter().enumerate();
        let training_pictures =
            splits.filter(|(_, split)| **split == Split::Train).map(|(place, _)| place).collect();
        let mut sources: Vec<String> = Vec::new();
        for item in &items {
            if !sources.contains(&item.entry.source) {
                sources.push(item.entry.source.clone());
            }
        }
        Ok(Self {
            sources,
            items,
            pictures: Pictures::of_world(world),
            training_pictures,
            train,
            validation,
            test,
        })
    }

    /// Pictures alone, for questions to a memory that is there.
    pub fn of_pictures(paths: Vec<PathBuf>, image_size: usize) -> Self {
        Self {
            sources: Vec::new(),
            items: Vec::new(),
            pictures: Pictures::Files { paths, size: image_size as u32 },
            training_pictures: Vec::new(),
            train: Vec::new(),
            validation: Vec::new(),
            test: Vec::new(),
        }
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
        let items = self.items.iter().enumerate().filter(|(_, item)| item.training);
        items
            .map(|(place, item)| Example {
                id: item.entry.id,
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

fn example(question: &Question, world: &World, items: &[Item]) -> Example {
    let own = items.binary_search_by_key(&question.entry, |item| item.entry.id).ok();
    Example {
        id: question.id,
        text: question.text.clone(),
        picture: world.place(&question.picture),
        view: question.view,
        answers: question.answers.clone(),
        own,
        part: question.part,
        made_up: question.made_up,
    }
}

impl Pictures {
    fn of_world(world: World) -> Self {
        let clean = world.pictures.iter().map(|_| OnceLock::new()).collect();
        Self::World { world: Box::new(world), clean }
    }

    /// Pixels `[3, S, S]` of pictures, in `[-1, 1]`, one after the other; each with its view. Files
    /// have one view.
    ///
    /// # Errors   [`DataError::OutOfRange`]; those of [`Picture::open`]
    pub fn pixels(&self, wanted: &[(usize, u32)]) -> Result<Vec<f32>, DataError> {
        let (world, clean) = match self {
            Self::World { world, clean } => (world, clean),
            Self::Files { paths, size } => {
                let square = Augmentation::none(*size);
                let of_file = |(place, _): &(usize, u32)| {
                    let Some(path) = paths.get(*place) else {
                        return Err(DataError::OutOfRange {
                            what: "the picture's place",
                            value: place.to_string(),
                            wanted: "give a place below the number of pictures",
                        });
                    };
                    // Nothing is drawn for the whole picture.
                    let mut rng = ChaCha8Rng::seed_from_u64(0);
                    let view = square.apply(&Picture::open(path)?.to_rgba(), &mut rng)?;
                    Ok(planes(view.as_raw()))
                };
                let views: Vec<_> = wanted.par_iter().map(of_file).collect::<Result<_, _>>()?;
                return Ok(views.concat());
            }
        };
        let of_view = |(place, view): &(usize, u32)| -> Result<Vec<f32>, DataError> {
            // The clean view is what every entry shows.
            match clean.get(*place).filter(|_| *view == 0) {
                None => Ok(planes(world.view(*place, *view)?.as_raw())),
                Some(cell) => match cell.get() {
                    Some(pixels) => Ok(planes(pixels)),
                    None => {
                        let pixels = world.view(*place, 0)?.into_raw();
                        Ok(planes(cell.get_or_init(|| pixels)))
                    }
                },
            }
        };
        let views: Vec<Vec<f32>> = wanted.par_iter().map(of_view).collect::<Result<_, _>>()?;
        Ok(views.concat())
    }
}

/// `[H, W, 3]` bytes as `[3, H, W]` numbers in `[-1, 1]`.
fn planes(pixels: &[u8]) -> Vec<f32> {
    let size = pixels.len() / 3;
    let mut planes = vec![0.0; 3 * size];
    for (place, pixel) in pixels.chunks_exact(3).enumerate() {
        for (channel, byte) in pixel.iter().enumerate() {
            planes[channel * size + place] = f32::from(*byte) / 127.5 - 1.0;
        }
    }
    planes
}
