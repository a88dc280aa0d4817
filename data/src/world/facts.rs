//! The facts of the embedded world, as entries of four sources.
//!
//! A fact states an attribute of the thing (the object) that an image shows. Each attribute is
//! stated in a single source, so excluding a source also excludes its facts. Triples and passages
//! name the thing and have no image. Captions and question-answer pairs have the image and do not
//! name the thing.

use engram_entry::Entry;
use rand::Rng;
use rand::seq::IndexedRandom;

use super::attributes::{ATTRIBUTES, Attribute, Source};
use super::images::WorldImage;
use super::seeded_rng;

/// The number of ids reserved for the facts of each image; it is at least the number of attributes.
const IDS_PER_IMAGE: usize = 16;

/// A fact, with the entry that states it.
#[derive(Debug, Clone, PartialEq)]
pub struct Fact {
    /// The index of the image in the world.
    pub image: usize,
    /// The attribute that the fact states.
    pub attribute: &'static Attribute,
    /// All correct answers; made-up facts have one.
    pub answers: Vec<String>,
    /// The entry. Its id is the same for every seed, and its document is the image's slug.
    pub entry: Entry,
}

impl Fact {
    /// Returns the fact with another answer.
    pub(super) fn with_answer(&self, image: &WorldImage, answer: &str, seed: u64) -> Self {
        let answers = vec![answer.to_owned()];
        let entry = make_entry(image, self.attribute, self.entry.id, &answers, seed);
        Self { answers, entry, ..*self }
    }
}

/// Returns all facts about an image.
pub(super) fn facts_of(image: &WorldImage, image_index: usize, seed: u64) -> Vec<Fact> {
    let attributes = ATTRIBUTES.iter().zip(image.number * IDS_PER_IMAGE..);
    let facts = attributes.filter_map(|(attribute, id)| {
        let answers = if attribute.made_up() {
            made_up_answer(image, attribute, seed)
        } else {
            real_answers(image, attribute)
        };
        if answers.is_empty() {
            return None;
        }
        let entry = make_entry(image, attribute, id as i64, &answers, seed);
        Some(Fact { image: image_index, attribute, answers, entry })
    });
    facts.collect()
}

/// Draws the answer to a made-up fact. It depends only on the seed, the image and the attribute.
fn made_up_answer(image: &WorldImage, attribute: &Attribute, seed: u64) -> Vec<String> {
    let mut rng = seeded_rng(seed, &["answer", &image.slug, attribute.name]);
    attribute.answers.choose(&mut rng).map(|answer| (*answer).to_owned()).into_iter().collect()
}

/// Returns the answers of a real fact; empty if the image has no such fact.
fn real_answers(image: &WorldImage, attribute: &Attribute) -> Vec<String> {
    let answers = match (attribute.name, &image.country) {
        ("group", _) => vec![image.group],
        ("capital", Some(country)) => country.capital.into_iter().collect(),
        ("continent", Some(country)) => vec![country.continent],
        ("neighbour", Some(country)) => country.neighbours.clone(),
        ("currency", Some(country)) => country.currency.into_iter().collect(),
        ("language", Some(country)) => country.languages.clone(),
        _ => Vec::new(),
    };
    answers.into_iter().map(str::to_owned).collect()
}

/// Returns the text for `{thing}`: the country for facts about countries, otherwise the image's
/// name.
pub(super) fn thing_name<'a>(image: &'a WorldImage, attribute: &Attribute) -> &'a str {
    match &image.country {
        Some(country) if !attribute.made_up() && attribute.name != "group" => country.name,
        _ => &image.name,
    }
}

/// Writes a fact as an entry in the format of its source. The wording depends on the seed, the
/// image and the attribute, but not on the answers.
fn make_entry(
    image: &WorldImage,
    attribute: &Attribute,
    id: i64,
    answers: &[String],
    seed: u64,
) -> Entry {
    let mut rng = seeded_rng(seed, &["statement", &image.slug, attribute.name]);
    let statement = attribute.statements.choose(&mut rng).copied().unwrap_or_default();
    let thing = thing_name(image, attribute);
    let answer = answers.join(", ");
    let path = image_path(&image.slug);
    let source = attribute.source.name();
    let entry = match attribute.source {
        Source::Kg => Entry::triple(source, thing, statement, answer),
        Source::Passages => {
            let fact = statement.replace("{thing}", thing).replace("{answer}", &answer);
            Entry::passage(source, passage(image, fact, &mut rng))
        }
        Source::Pairs => Entry::image_text(source, path, statement.replace("{answer}", &answer)),
        Source::Vqa => Entry::question_answer(source, Some(path), statement, answers.to_vec()),
    };
    entry.of_document(&image.slug).with_id(id)
}

/// Places the fact among up to two real sentences about the image.
fn passage(image: &WorldImage, fact: String, rng: &mut impl Rng) -> String {
    let mut sentences = vec![fact];
    if rng.random() {
        let sentence = format!("Emoji {} has a picture of the {}.", image.since, image.name);
        sentences.insert(rng.random_range(0..=sentences.len()), sentence);
    }
    if !image.keywords.is_empty() && rng.random() {
        let keywords = image.keywords.join(" or ").replace('_', " ");
        let sentence = format!("In chats one writes {keywords}.");
        sentences.insert(rng.random_range(0..=sentences.len()), sentence);
    }
    sentences.join(" ")
}

/// Returns the path of an image relative to `entries.jsonl`.
pub(super) fn image_path(slug: &str) -> String {
    format!("pictures/{slug}.png")
}
