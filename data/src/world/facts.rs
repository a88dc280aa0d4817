//! The facts of the embedded world, as entries of four sources.
//!
//! A fact is an attribute of an image's thing. Each attribute is stated in a single source, so
//! excluding a source also excludes its facts. Triples and passages name the thing and have no
//! image. Captions and question-answer pairs have the image and do not name the thing.

use rand::Rng;
use rand::seq::IndexedRandom;

use super::attributes::{ATTRIBUTES, Attribute, Source};
use super::images::WorldImage;
use super::seeded;
use crate::knowledge::{Content, Knowledge};

/// The number of ids reserved for the facts of each image; it exceeds the number of attributes.
const IDS_PER_IMAGE: usize = 16;
const _: () = assert!(ATTRIBUTES.len() <= IDS_PER_IMAGE);

/// A fact, with the entry that states it.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The id in the memory, which is the same for every seed.
    pub id: i64,
    /// The index of the image in the world.
    pub image: usize,
    /// The attribute that the fact states.
    pub attribute: &'static Attribute,
    /// All correct answers; made-up facts have one.
    pub answers: Vec<String>,
    /// The line of `entries.jsonl`; its document is the image's slug.
    pub knowledge: Knowledge,
}

impl Entry {
    /// Returns the text for an encoder, as the memory writes it. It contains the answers.
    pub fn text(&self) -> String {
        match &self.knowledge.content {
            Content::Triple { subject, relation, object } => {
                format!("{subject} {relation} {object}")
            }
            Content::QuestionAnswer { question, answer, .. } => {
                format!("Question: {question} Answer: {}", answer.join(", "))
            }
            Content::ImageText { text, .. } | Content::Text { text } => text.clone(),
            Content::Image { .. } => String::new(),
        }
    }

    /// Whether the entry shows the image.
    pub fn has_image(&self) -> bool {
        matches!(self.attribute.source, Source::Pairs | Source::Vqa)
    }

    /// Returns the entry with another answer.
    pub(super) fn with_answer(&self, image: &WorldImage, answer: &str, seed: u64) -> Self {
        let answers = vec![answer.to_owned()];
        let knowledge = state(image, self.attribute, self.id, &answers, seed);
        Self { answers, knowledge, ..*self }
    }
}

/// Returns all facts about an image.
pub(super) fn entries_of(image: &WorldImage, image_index: usize, seed: u64) -> Vec<Entry> {
    let facts = ATTRIBUTES.iter().zip(image.number * IDS_PER_IMAGE..);
    let entries = facts.filter_map(|(attribute, id)| {
        let answers = if attribute.made_up() {
            made_up_answer(image, attribute, seed)
        } else {
            true_answers(image, attribute)
        };
        if answers.is_empty() {
            return None;
        }
        let knowledge = state(image, attribute, id as i64, &answers, seed);
        Some(Entry { id: id as i64, image: image_index, attribute, answers, knowledge })
    });
    entries.collect()
}

/// The answer depends only on seed, image and attribute.
fn made_up_answer(image: &WorldImage, attribute: &Attribute, seed: u64) -> Vec<String> {
    let mut rng = seeded(seed, &["answer", &image.slug, attribute.name]);
    attribute.answers.choose(&mut rng).map(|answer| (*answer).to_owned()).into_iter().collect()
}

fn true_answers(image: &WorldImage, attribute: &Attribute) -> Vec<String> {
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
pub(super) fn thing<'a>(image: &'a WorldImage, attribute: &Attribute) -> &'a str {
    match &image.country {
        Some(country) if !attribute.made_up() && attribute.name != "group" => country.name,
        _ => &image.name,
    }
}

/// Writes a fact in the format of its source. The wording depends on the seed, not on the answers.
fn state(
    image: &WorldImage,
    attribute: &Attribute,
    id: i64,
    answers: &[String],
    seed: u64,
) -> Knowledge {
    let mut rng = seeded(seed, &["statement", &image.slug, attribute.name]);
    let statement = attribute.statements.choose(&mut rng).copied().unwrap_or_default();
    let thing = thing(image, attribute);
    let answer = answers.join(", ");
    let path = image_path(&image.slug);
    let content = match attribute.source {
        Source::Kg => Content::Triple {
            subject: thing.to_owned(),
            relation: statement.to_owned(),
            object: answer,
        },
        Source::Passages => {
            let fact = statement.replace("{thing}", thing).replace("{answer}", &answer);
            Content::Text { text: passage(image, fact, &mut rng) }
        }
        Source::Pairs => {
            Content::ImageText { image: path, text: statement.replace("{answer}", &answer) }
        }
        Source::Vqa => Content::QuestionAnswer {
            image: Some(path),
            question: statement.to_owned(),
            answer: answers.to_vec(),
        },
    };
    let knowledge = Knowledge::new(attribute.source.name(), content).of_document(&image.slug);
    Knowledge { id: Some(id), ..knowledge }
}

/// Places the fact among up to two true sentences about the image.
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
