//! Entries, pictures and examples of the study.

use std::collections::HashSet;

use engram_data::DataError;
use engram_data::world::questions::{Part, Question, Split};
use engram_data::world::{World, WorldOptions};
use engram_memory::Entry;
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
    World(Box<World>),
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
        let mut sources: Vec<String> = Vec::new();
        for item in &items {
            if !sources.contains(&item.entry.source) {
                sources.push(item.entry.source.clone());
            }
        }
        Ok(Self {
            sources,
            items,
            pictures: Pictures::World(world.into()),
            train,
            validation,
            test,
        })
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
    /// Pixels `[3, S, S]` of pictures, in `[-1, 1]`, one after the other; each with its view.
    ///
    /// # Errors   [`DataError::OutOfRange`]
    pub fn pixels(&self, wanted: &[(usize, u32)]) -> Result<Vec<f32>, DataError> {
        let Self::World(world) = self;
        let views: Vec<Vec<f32>> = wanted
            .par_iter()
            .map(|(place, view)| Ok(planes(world.view(*place, *view)?.as_raw())))
            .collect::<Result<_, DataError>>()?;
        Ok(views.concat())
    }
}

/// `[H, W, 3]` bytes as `[3, H, W]` numbers in `[-1, 1]`.
fn planes(pixels: &[u8]) -> Vec<f32> {
    let channel = |c: usize| pixels.iter().skip(c).step_by(3);
    (0..3).flat_map(|c| channel(c).map(|byte| f32::from(*byte) / 127.5 - 1.0)).collect()
}
