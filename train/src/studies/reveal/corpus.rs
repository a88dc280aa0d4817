//! Loading the data of the study: entries, images and examples.
//!
//! | part | module |
//! |---|---|
//! | the embedded world | `world` |
//! | captions, questions and entries in files | `read`, `files` |
//! | pictures of named things | `things` |
//! | made-up facts | `triplets` |
//! | connected documents and images | `components` |
//! | the split into training, validation and test images | `split` |

mod components;
mod files;
mod read;
mod split;
mod things;
mod triplets;
mod world;

use std::collections::{BTreeSet, HashMap};

use engram_data::image::Preprocessing;
use engram_data::messages::counted;
use engram_data::world::questions::Part;
use engram_infer::reveal::corpus::{Corpus, CorpusEntry, Example, MetricKind, Task};

pub(super) use things::SOURCE as THINGS;

use super::settings::RevealData;
use crate::study::StudyResult;

/// Loads the data named in `[data]`: files, or the embedded world. `preprocessing` resizes
/// images for the image encoder.
///
/// # Errors
/// Errors of reading the data; the error names the first invalid file.
pub fn load(
    data: &RevealData,
    image_size: usize,
    preprocessing: Preprocessing,
) -> StudyResult<Corpus> {
    let corpus = match &data.things {
        None if data.is_world() => return world::load(data, image_size),
        None if data.triplets > 0 => triplets::load(data, image_size, preprocessing),
        None => files::load(data, image_size, preprocessing)?,
        Some(things) => things::load(data, things, image_size)?,
    };
    for (split, examples) in [
        ("train on", &corpus.train),
        ("validate with", &corpus.validation),
        ("test with", &corpus.test),
    ] {
        if examples.is_empty() {
            let reason = "provide a file with that `split`, or change `data.validation_share`, \
                          `data.test_share` or `data.max_images`";
            return Err(format!("the files have no example to {split}; {reason}").into());
        }
    }
    Ok(corpus)
}

/// The images of validation questions that no training example shows.
pub(crate) fn held_out_images(corpus: &Corpus) -> Vec<usize> {
    let held_out = corpus.validation.iter().filter(|example| example.part == Part::HeldOut);
    let images: BTreeSet<usize> = held_out.filter_map(|example| example.image).collect();
    images.into_iter().collect()
}

/// The texts from which a new tokenizer is built. They include no held-out texts.
pub fn training_texts(corpus: &Corpus) -> Vec<String> {
    let items = corpus.items.iter().filter(|item| item.in_training).map(|item| item.text.clone());
    let questions = corpus.train.iter().map(|example| example.text.clone());
    let with_answer_texts =
        corpus.train.iter().filter(|_| corpus.metric_kinds != [MetricKind::Entries]);
    let answers = with_answer_texts.flat_map(|example| example.answers.iter().cloned());
    items.chain(questions).chain(answers).collect()
}

/// One example per training entry: from the beginning of the entry's text, the model generates the
/// remaining text.
pub fn continuations(corpus: &Corpus) -> Vec<Example> {
    let items = corpus.items.iter().enumerate();
    // With files, other entries of the same document could contain the remaining text, so the
    // document is excluded from retrieval.
    let is_from_files = corpus.metric_kinds != [MetricKind::Entries];
    items
        .filter(|(_, item)| item.in_training && !item.text.is_empty())
        .map(|(index, item)| Example {
            id: item.entry.id,
            task: Task::Answer,
            name: item.entry.id.to_string(),
            document: item.entry.document.clone().filter(|_| is_from_files),
            metric_kind: 0,
            text: item.text.clone(),
            image: item.image,
            group: None,
            view: 0,
            answers: Vec::new(),
            own_entry: Some(index),
            part: Part::Seen,
            made_up: true,
        })
        .collect()
}

/// The number of training images below which sentences about new images cannot be expected to fit.
/// With 155 photographs of COCO, the captions of test images fitted other test images as well as
/// their own; the smallest published sets have 6,000. If captions repeat, fewer are enough: 52
/// images of 8 kinds of things sufficed to name 16 of 20 test images.
const MIN_IMAGES: usize = 1000;

/// A note if a model that starts anew has too few images to learn to describe new ones.
pub(super) fn too_few_images(corpus: &Corpus) -> Option<String> {
    let images = corpus.train.iter().filter(|example| example.task == Task::Describe);
    let mut count_of: HashMap<&str, usize> = HashMap::new();
    for caption in images.clone().flat_map(|image| &image.answers) {
        *count_of.entry(caption).or_default() += 1;
    }
    let repeats = |image: &&Example| image.answers.iter().any(|caption| count_of[&**caption] > 1);
    let (count, repeating) = (images.clone().count(), images.filter(repeats).count());
    (count < MIN_IMAGES && 2 * repeating < count).then(|| {
        format!(
            "{} to train on: with fewer than {MIN_IMAGES}, expect captions that do not fit new \
             images, unless most captions repeat (such as the names of a few kinds of things)",
            counted(count, "image")
        )
    })
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
