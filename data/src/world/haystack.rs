//! Needle-in-a-haystack tasks: yes-or-no questions about a few images among many. To answer, a
//! model must first retrieve the entries of these images.
//!
//! A task shows views of a few images, and asks about an attribute. The haystack is a list of
//! entries (captions or question-answer pairs) that state this attribute of many images. The
//! needles are the entries of the shown images; only they have the answer. Half of the answers are
//! yes. `engram eval haystack` scores the lines of `haystack.jsonl` after a `response` is added.

use std::fmt;

use rand::Rng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::attributes::{ATTRIBUTES, Attribute};
use super::facts::Fact;
use super::questions::{EVALUATION_VIEW, Split};
use super::{World, seeded_rng};
use crate::DataError;

/// The numbers of needles and of other images in the standard tasks; a small world
/// skips the sizes that it has too few images for.
pub const HAYSTACKS: [(usize, usize); 4] = [(1, 10), (1, 100), (1, 1000), (3, 1000)];

/// The number of tasks of each size.
const TASKS: usize = 100;

/// The number and size of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HaystackOptions {
    /// The number of tasks.
    pub tasks: usize,
    /// The number of shown images per task.
    pub needles: usize,
    /// The number of other images per task.
    pub distractors: usize,
    /// The seed for drawing the tasks.
    pub seed: u64,
}

/// A yes-or-no question about some images, and the entries to search for its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HaystackTask {
    /// The task id, which includes the numbers of needles and other images.
    pub id: String,
    /// The world of the task; in another world, the entries state other facts.
    pub world: WorldId,
    /// The question.
    pub question: String,
    /// `yes` or `no`.
    pub answer: String,
    /// The slugs of the images in question; all are in the test split.
    pub images: Vec<String>,
    /// The number of the shown view; it is the same for all images.
    pub view: u32,
    /// The ids of the entries with the answer, in the order of the images.
    pub needles: Vec<i64>,
    /// The ids of all entries to search, including the needles.
    pub haystack: Vec<i64>,
}

/// Identifies an embedded world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorldId {
    /// The seed of the facts.
    pub seed: u64,
    /// The number of images.
    pub images: usize,
}

impl fmt::Display for WorldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, {} images", self.seed, self.images)
    }
}

/// A yes-or-no question, split into the question and the answer for each image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct YesNoQuestion {
    /// The question as in training, such as "Which spice does this smell of?".
    pub question: &'static str,
    /// The answer that every image must have for a yes.
    pub answer: &'static str,
}

impl YesNoQuestion {
    /// Splits a question of [`World::haystack`]; returns `None` for other questions.
    pub fn of(yes_or_no: &str) -> Option<Self> {
        ATTRIBUTES.iter().find_map(|attribute| {
            let wordings = attribute.yes_or_no?;
            let contains_answer = |answer: &str| {
                wordings.iter().any(|wording| wording.replace("{answer}", answer) == yes_or_no)
            };
            let answer =
                attribute.answers.iter().copied().find(|answer| contains_answer(answer))?;
            Some(Self { question: attribute.questions.first()?, answer })
        })
    }
}

impl World {
    /// Returns the identity of this world.
    pub fn name(&self) -> WorldId {
        WorldId { seed: self.options.seed, images: self.images.len() }
    }

    /// Returns the tasks of all sizes in [`HAYSTACKS`] for which the world has enough images.
    ///
    /// # Errors
    /// as [`World::haystack`]
    pub fn haystacks(&self, seed: u64) -> Result<Vec<HaystackTask>, DataError> {
        let mut tasks = Vec::new();
        for (needles, distractors) in HAYSTACKS {
            if needles + distractors <= self.images.len() {
                let options = HaystackOptions { tasks: TASKS, needles, distractors, seed };
                tasks.extend(self.haystack(&options)?);
            }
        }
        Ok(tasks)
    }

    /// Returns tasks about images in the test split.
    ///
    /// # Errors
    /// [`DataError::OutOfRange`] for no needle, more needles than test images with a common
    /// answer, or more images than the world has
    pub fn haystack(&self, options: &HaystackOptions) -> Result<Vec<HaystackTask>, DataError> {
        let HaystackOptions { needles, distractors, .. } = *options;
        let refuse = |what, value: usize, wanted| Err(DataError::out_of_range(what, value, wanted));
        if needles == 0 {
            return refuse("the number of needles", needles, "use at least 1");
        }
        if self.images.len().checked_sub(needles).is_none_or(|remaining| remaining < distractors) {
            return refuse(
                "the number of other images",
                distractors,
                "use fewer; the world has too few images",
            );
        }
        let attributes: Vec<_> = ATTRIBUTES
            .iter()
            .filter_map(|attribute| Some((attribute, attribute.yes_or_no?)))
            .collect();
        let mut tasks = Vec::new();
        for number in 0..options.tasks {
            let (attribute, wordings) = attributes[number / 2 % attributes.len()];
            let names = [needles, distractors, number].map(|part| part.to_string());
            let mut rng = seeded_rng(options.seed, &["haystack", &names[0], &names[1], &names[2]]);
            let is_yes = number % 2 == 0;
            let Some((asked_answer, needle_facts)) =
                self.draw_needles(attribute, needles, is_yes, &mut rng)
            else {
                let wanted = "too few test images share an answer; use fewer needles";
                return refuse("the number of needles", needles, wanted);
            };
            let facts_of_attribute = self.facts.iter().filter(|fact| fact.attribute == attribute);
            let other_entries: Vec<i64> = facts_of_attribute
                .map(|fact| fact.entry.id)
                .filter(|id| needle_facts.iter().all(|needle| needle.entry.id != *id))
                .collect();
            let mut haystack: Vec<i64> =
                other_entries.choose_multiple(&mut rng, distractors).copied().collect();
            haystack.extend(needle_facts.iter().map(|fact| fact.entry.id));
            haystack.shuffle(&mut rng);
            let slug = |fact: &&Fact| self.images[fact.image].slug.clone();
            tasks.push(HaystackTask {
                id: format!("{needles}-in-{distractors}-{number}"),
                world: self.name(),
                question: wordings[usize::from(needles > 1)].replace("{answer}", asked_answer),
                answer: if is_yes { "yes" } else { "no" }.to_owned(),
                images: needle_facts.iter().map(slug).collect(),
                view: EVALUATION_VIEW,
                needles: needle_facts.iter().map(|fact| fact.entry.id).collect(),
                haystack,
            });
        }
        Ok(tasks)
    }

    /// Draws an answer and `needles` facts of the test split. For yes, all have the answer; for no,
    /// all but one have it.
    fn draw_needles(
        &self,
        attribute: &'static Attribute,
        needles: usize,
        is_yes: bool,
        rng: &mut ChaCha8Rng,
    ) -> Option<(&'static str, Vec<&Fact>)> {
        let is_test_fact =
            |fact: &&Fact| fact.attribute == attribute && self.splits[fact.image] == Split::Test;
        let facts: Vec<&Fact> = self.facts.iter().filter(is_test_fact).collect();
        let num_matching = needles - usize::from(!is_yes);
        let has_answer = |answer: &str, fact: &Fact| fact.answers[0] == answer;
        let frequent_answers: Vec<&'static str> = attribute
            .answers
            .iter()
            .copied()
            .filter(|answer| {
                facts.iter().filter(|fact| has_answer(answer, fact)).count() >= num_matching
            })
            .collect();
        let asked_answer = *frequent_answers.choose(rng)?;
        let (matching, others): (Vec<&Fact>, Vec<&Fact>) =
            facts.into_iter().partition(|fact| has_answer(asked_answer, fact));
        let mut needle_facts: Vec<&Fact> =
            matching.choose_multiple(rng, num_matching).copied().collect();
        if !is_yes {
            let position = rng.random_range(0..=needle_facts.len());
            needle_facts.insert(position, others.choose(rng)?);
        }
        Some((asked_answer, needle_facts))
    }
}
