//! A few pictures among many: yes-or-no questions whose answer stands beside a picture that must
//! be found first.
//!
//! A task shows views of its needles and asks about the attribute that the captions (or answered
//! questions) of the haystack state: only the entries that show the same pictures have the answer.
//! Half of the tasks have the answer yes. A line with its `response` added is what
//! `engram eval haystack` scores.

use std::fmt;

use rand::Rng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::attributes::{ATTRIBUTES, Attribute};
use super::knowledge::Entry;
use super::questions::{EVALUATION_VIEW, Split};
use super::{World, seeded};
use crate::DataError;

/// Needles and other pictures of a published set of tasks, where the world has so many.
pub const HAYSTACKS: [(usize, usize); 4] = [(1, 10), (1, 100), (1, 1000), (3, 1000)];

/// Tasks of each size.
pub const TASKS: usize = 100;

/// How many tasks, and how large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HaystackOptions {
    /// Number of tasks.
    pub tasks: usize,
    /// Relevant pictures of each task.
    pub needles: usize,
    /// Other pictures of each task.
    pub others: usize,
    /// Draws the tasks.
    pub seed: u64,
}

/// A yes-or-no question about some pictures, and the entries among which its answer is found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HaystackTask {
    /// Its name, with the numbers of needles and of others.
    pub id: String,
    /// The world that it is about: in another one its entries say something else.
    pub world: WorldName,
    /// The question.
    pub question: String,
    /// `yes` or `no`.
    pub answer: String,
    /// The slugs of the pictures that are asked about, all held out for testing.
    pub pictures: Vec<String>,
    /// Which view of them is shown.
    pub view: u32,
    /// The ids of the entries that have the answer, in the order of the pictures.
    pub needles: Vec<i64>,
    /// The ids of all entries that may be looked through, needles among others.
    pub haystack: Vec<i64>,
}

/// What tells one embedded world from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorldName {
    /// The seed of its facts.
    pub seed: u64,
    /// How many pictures it has.
    pub pictures: usize,
}

impl fmt::Display for WorldName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, {} pictures", self.seed, self.pictures)
    }
}

/// What a yes-or-no question asks of each picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AskedOfEach {
    /// The question that training knows, such as "Which spice does this smell of?".
    pub question: &'static str,
    /// The answer that each picture has to have for a yes.
    pub answer: &'static str,
}

impl AskedOfEach {
    /// Takes a question of [`World::haystack`] apart; `None` for any other.
    pub fn of(yes_or_no: &str) -> Option<Self> {
        ATTRIBUTES.iter().find_map(|attribute| {
            let wordings = attribute.yes_or_no?;
            let says = |answer: &str| {
                wordings.iter().any(|wording| wording.replace("{answer}", answer) == yes_or_no)
            };
            let answer = attribute.answers.iter().copied().find(|answer| says(answer))?;
            Some(Self { question: attribute.questions.first()?, answer })
        })
    }
}

impl World {
    /// What tells this world from others.
    pub fn name(&self) -> WorldName {
        WorldName { seed: self.options.seed, pictures: self.pictures.len() }
    }

    /// Tasks of all [`HAYSTACKS`] for which the world has pictures.
    ///
    /// # Errors   Those of [`World::haystack`]
    pub fn haystacks(&self, seed: u64) -> Result<Vec<HaystackTask>, DataError> {
        let mut tasks = Vec::new();
        for (needles, others) in HAYSTACKS {
            if needles + others <= self.pictures.len() {
                let options = HaystackOptions { tasks: TASKS, needles, others, seed };
                tasks.extend(self.haystack(&options)?);
            }
        }
        Ok(tasks)
    }

    /// Tasks about pictures that are held out for testing.
    ///
    /// # Errors   [`DataError::OutOfRange`] for no needle, or more pictures than the world has
    pub fn haystack(&self, options: &HaystackOptions) -> Result<Vec<HaystackTask>, DataError> {
        let HaystackOptions { needles, others, .. } = *options;
        let refuse = |what, value: usize, wanted| {
            Err(DataError::OutOfRange { what, value: value.to_string(), wanted })
        };
        if needles == 0 {
            return refuse("the number of needles", needles, "give at least one");
        }
        if self.pictures.len().checked_sub(needles).is_none_or(|most| most < others) {
            return refuse("the number of other pictures", others, "the world has fewer pictures");
        }
        let attributes: Vec<_> =
            ATTRIBUTES.iter().filter_map(|one| Some((one, one.yes_or_no?))).collect();
        let mut tasks = Vec::new();
        for turn in 0..options.tasks {
            let (attribute, wordings) = attributes[turn / 2 % attributes.len()];
            let names = [needles, others, turn].map(|number| number.to_string());
            let mut rng = seeded(options.seed, &["haystack", &names[0], &names[1], &names[2]]);
            let yes = turn % 2 == 0;
            let Some((asked, found)) = self.draw_needles(attribute, needles, yes, &mut rng) else {
                let wanted = "too few test pictures have an answer in common; give fewer";
                return refuse("the number of needles", needles, wanted);
            };
            let of_attribute = self.entries.iter().filter(|entry| entry.attribute == attribute);
            let beside: Vec<i64> = of_attribute
                .map(|entry| entry.id)
                .filter(|id| found.iter().all(|needle| needle.id != *id))
                .collect();
            let mut haystack: Vec<i64> =
                beside.choose_multiple(&mut rng, others).copied().collect();
            haystack.extend(found.iter().map(|entry| entry.id));
            haystack.shuffle(&mut rng);
            let slug = |entry: &&Entry| self.pictures[entry.picture].slug.clone();
            tasks.push(HaystackTask {
                id: format!("{needles}-in-{others}-{turn}"),
                world: self.name(),
                question: wordings[usize::from(needles > 1)].replace("{answer}", asked),
                answer: if yes { "yes" } else { "no" }.to_owned(),
                pictures: found.iter().map(slug).collect(),
                view: EVALUATION_VIEW,
                needles: found.iter().map(|entry| entry.id).collect(),
                haystack,
            });
        }
        Ok(tasks)
    }

    /// An answer, and as many test entries: all have it, or, where the answer is no, all but one.
    fn draw_needles(
        &self,
        attribute: &'static Attribute,
        needles: usize,
        yes: bool,
        rng: &mut ChaCha8Rng,
    ) -> Option<(&'static str, Vec<&Entry>)> {
        let in_test = |entry: &&Entry| {
            entry.attribute == attribute && self.splits[entry.picture] == Split::Test
        };
        let entries: Vec<&Entry> = self.entries.iter().filter(in_test).collect();
        let with_answer = needles - usize::from(!yes);
        let has = |answer: &str, entry: &Entry| entry.answers[0] == answer;
        let common: Vec<&'static str> = attribute
            .answers
            .iter()
            .copied()
            .filter(|answer| {
                entries.iter().filter(|entry| has(answer, entry)).count() >= with_answer
            })
            .collect();
        let asked = *common.choose(rng)?;
        let (having, lacking): (Vec<&Entry>, Vec<&Entry>) =
            entries.into_iter().partition(|entry| has(asked, entry));
        let mut found: Vec<&Entry> = having.choose_multiple(rng, with_answer).copied().collect();
        if !yes {
            let place = rng.random_range(0..=found.len());
            found.insert(place, lacking.choose(rng)?);
        }
        Some((asked, found))
    }
}
