//! The embedded world as a corpus.

use std::collections::HashSet;

use engram_data::world::questions::{Question, Split};
use engram_data::world::{World, WorldOptions};

use super::sources_of;
use crate::studies::reveal::settings::RevealData;
use crate::study::StudyResult;
use engram_infer::reveal::corpus::{Corpus, CorpusEntry, Example, MetricKind, Task};
use engram_infer::reveal::images::Images;

/// Builds the world described in `[data]`.
pub(super) fn load(data: &RevealData, image_size: usize) -> StudyResult<Corpus> {
    let mut options = WorldOptions { seed: data.world_seed, ..WorldOptions::default() };
    options.view.size = image_size as u32;
    options.images = (data.max_images > 0).then_some(data.max_images);
    let world = World::new(&options)?;
    let excluded: HashSet<&str> = data.without_sources.iter().map(String::as_str).collect();
    let mut items = Vec::new();
    for fact in &world.facts {
        let entry = fact.entry.clone();
        if excluded.contains(&*entry.source) {
            continue;
        }
        let image = entry.image().map(|_| fact.image);
        let in_training = world.splits[fact.image] == Split::Train;
        items.push(CorpusEntry::new(entry, image, in_training));
    }
    let examples_of = |split: Split| -> Vec<Example> {
        let questions = world.questions.iter().filter(|question| question.split == split);
        questions.map(|question| example(question, &world, &items)).collect()
    };
    let (train, validation, test) =
        (examples_of(Split::Train), examples_of(Split::Validation), examples_of(Split::Test));
    let splits = world.splits.iter().enumerate();
    let training_images =
        splits.filter(|(_, split)| **split == Split::Train).map(|(index, _)| index).collect();
    Ok(Corpus {
        sources: sources_of(&items),
        stored: items.len(),
        items,
        training_images,
        train,
        validation,
        test,
        metric_kinds: vec![MetricKind::Entries],
        ..Corpus::new(Images::of_world(world), image_size)
    })
}

fn example(question: &Question, world: &World, items: &[CorpusEntry]) -> Example {
    let own_entry = items.binary_search_by_key(&question.entry, |item| item.entry.id).ok();
    Example {
        id: question.id,
        task: Task::Answer,
        name: question.id.to_string(),
        document: None,
        metric_kind: 0,
        text: question.text.clone(),
        image: world.image_index(&question.image_slug),
        group: None,
        view: question.view,
        answers: question.answers.clone(),
        own_entry,
        part: question.part,
        made_up: question.made_up,
    }
}
