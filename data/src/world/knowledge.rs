//! The facts of the embedded world, as entries of four sources.
//!
//! A fact is an attribute of an image's thing. Each attribute is stated in a single source, so
//! excluding a source also excludes its facts. Triples and passages name the thing and have no
//! image. Captions and question-answer pairs have the image and do not name the thing.

use rand::Rng;
use rand::seq::IndexedRandom;

use super::attributes::{ATTRIBUTES, Attribute, Source};
use super::pictures::WorldImage;
use super::seeded;
use crate::knowledge::{Content, Knowledge};

/// The number of ids reserved for the facts of each image; it exceeds the number of attributes.
const IDS_A_PICTURE: usize = 16;
const _: () = assert!(ATTRIBUTES.len() <= IDS_A_PICTURE);

/// A fact, with the entry that states it.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The id in the memory, which is the same for every seed.
    pub id: i64,
    /// The index of the image in the world.
    pub picture: usize,
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
    pub fn shows_picture(&self) -> bool {
        matches!(self.attribute.source, Source::Pairs | Source::Vqa)
    }

    /// Returns the entry with another answer.
    pub(super) fn with_answer(&self, picture: &WorldImage, answer: &str, seed: u64) -> Self {
        let answers = vec![answer.to_owned()];
        let knowledge = state(picture, self.attribute, self.id, &answers, seed);
        Self { answers, knowledge, ..*self }
    }
}

/// Returns all facts about an image.
pub(super) fn entries_of(picture: &WorldImage, place: usize, seed: u64) -> Vec<Entry> {
    let facts = ATTRIBUTES.iter().zip(picture.number * IDS_A_PICTURE..);
    let entries = facts.filter_map(|(attribute, id)| {
        let answers = match attribute.made_up() {
            true => made_up_answer(picture, attribute, seed),
            false => true_answers(picture, attribute),
        };
        if answers.is_empty() {
            return None;
        }
        let knowledge = state(picture, attribute, id as i64, &answers, seed);
        Some(Entry { id: id as i64, picture: place, attribute, answers, knowledge })
    });
    entries.collect()
}

/// The answer depends only on seed, image and attribute.
fn made_up_answer(picture: &WorldImage, attribute: &Attribute, seed: u64) -> Vec<String> {
    let mut rng = seeded(seed, &["answer", &picture.slug, attribute.name]);
    attribute.answers.choose(&mut rng).map(|answer| (*answer).to_owned()).into_iter().collect()
}

fn true_answers(picture: &WorldImage, attribute: &Attribute) -> Vec<String> {
    let answers = match (attribute.name, &picture.country) {
        ("group", _) => vec![picture.group],
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
pub(super) fn thing<'a>(picture: &'a WorldImage, attribute: &Attribute) -> &'a str {
    match &picture.country {
        Some(country) if !attribute.made_up() && attribute.name != "group" => country.name,
        _ => &picture.name,
    }
}

/// Writes a fact in the format of its source. The wording depends on the seed, not on the answers.
fn state(
    picture: &WorldImage,
    attribute: &Attribute,
    id: i64,
    answers: &[String],
    seed: u64,
) -> Knowledge {
    let mut rng = seeded(seed, &["statement", &picture.slug, attribute.name]);
    let statement = attribute.statements.choose(&mut rng).copied().unwrap_or_default();
    let thing = thing(picture, attribute);
    let answer = answers.join(", ");
    let image = picture_path(&picture.slug);
    let content = match attribute.source {
        Source::Kg => Content::Triple {
            subject: thing.to_owned(),
            relation: statement.to_owned(),
            object: answer,
        },
        Source::Passages => {
            let fact = statement.replace("{thing}", thing).replace("{answer}", &answer);
            Content::Text { text: passage(picture, fact, &mut rng) }
        }
        Source::Pairs => Content::ImageText { image, text: statement.replace("{answer}", &answer) },
        Source::Vqa => Content::QuestionAnswer {
            image: Some(image),
            question: statement.to_owned(),
            answer: answers.to_vec(),
        },
    };
    let knowledge = Knowledge::new(attribute.source.name(), content).of_document(&picture.slug);
    Knowledge { id: Some(id), ..knowledge }
}

/// Places the fact among up to two true sentences about the image.
fn passage(picture: &WorldImage, fact: String, rng: &mut impl Rng) -> String {
    let mut sentences = vec![fact];
    if rng.random() {
        let sentence = format!("Emoji {} has a picture of the {}.", picture.since, picture.name);
        sentences.insert(rng.random_range(0..=sentences.len()), sentence);
    }
    if !picture.keywords.is_empty() && rng.random() {
        let keywords = picture.keywords.join(" or ").replace('_', " ");
        let sentence = format!("In chats one writes {keywords}.");
        sentences.insert(rng.random_range(0..=sentences.len()), sentence);
    }
    sentences.join(" ")
}

/// Returns the path of an image relative to `entries.jsonl`.
pub(super) fn picture_path(slug: &str) -> String {
    format!("pictures/{slug}.png")
}
