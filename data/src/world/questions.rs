//! Questions about the pictures of the embedded world, and what each of them can show.
//!
//! | part | the picture | the fact | what a right answer shows |
//! |---|---|---|---|
//! | seen | in training | asked in training, with another view and in other words | memory or parameters |
//! | unasked | in training | never asked | reading from the memory |
//! | held out | not in training | never asked | reading from the memory by a picture or a name that is new |

use std::collections::BTreeSet;

use rand::Rng;
use rand::seq::SliceRandom;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::attributes::Source;
use super::knowledge::{Entry, thing};
use super::pictures::Picture;
use super::seeded;

/// The share of pictures that is in training; of the others, one in three is for validation.
const TRAINING_SHARE: f64 = 0.7;

/// The share of the facts about training pictures that is never asked in training, and the share
/// of the asked ones that is asked again in the evaluation.
const EVALUATED_SHARE: f64 = 0.1;

/// The view that a training question shows; trainers draw others with [`super::World::view`].
pub const TRAINING_VIEW: u32 = 1;

/// The view that a question of the evaluation shows.
pub const EVALUATION_VIEW: u32 = 2;

/// What a question is for.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// To train on.
    Train,
    /// To choose a model by.
    Validation,
    /// To judge a model by.
    Test,
}

impl Split {
    /// The name in `questions.jsonl`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Validation => "validation",
            Self::Test => "test",
        }
    }
}

/// What training has seen of a question's picture and fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The fact is asked in training.
    Seen,
    /// The picture is in training, the fact is not asked.
    Unasked,
    /// Nothing is asked about the picture.
    HeldOut,
}

impl Part {
    /// The name in `questions.jsonl`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Seen => "seen",
            Self::Unasked => "unasked",
            Self::HeldOut => "held_out",
        }
    }
}

/// A question about a picture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// Its number: the same for every seed.
    pub id: i64,
    /// The question; it names the thing where the fact is found by name, and says `this` otherwise.
    pub text: String,
    /// The slug of the picture.
    pub picture: String,
    /// Which view of the picture is shown.
    pub view: u32,
    /// All right answers.
    pub answers: Vec<String>,
    /// What is asked for.
    pub attribute: String,
    /// The source that has the answer.
    pub source: Source,
    /// The id of the entry that has the answer.
    pub entry: i64,
    /// Whether the answer is nowhere but in the memory.
    pub made_up: bool,
    /// What the question is for.
    pub split: Split,
    /// What training has seen of it.
    pub part: Part,
}

/// The split of each picture: shares of each group are the same, as far as they can be.
pub(super) fn picture_splits(pictures: &[Picture], seed: u64) -> Vec<Split> {
    let groups: BTreeSet<&str> = pictures.iter().map(|picture| picture.group).collect();
    let mut splits = vec![Split::Train; pictures.len()];
    for group in groups {
        let of_group = pictures.iter().enumerate().filter(|(_, picture)| picture.group == group);
        let mut places: Vec<usize> = of_group.map(|(place, _)| place).collect();
        places.shuffle(&mut seeded(seed, &["split", group]));
        let training = (places.len() as f64 * TRAINING_SHARE).round() as usize;
        for (turn, place) in places.into_iter().skip(training).enumerate() {
            splits[place] = if turn % 3 == 0 { Split::Validation } else { Split::Test };
        }
    }
    splits
}

/// The questions about a fact.
pub(super) fn questions_of(
    entry: &Entry,
    picture: &Picture,
    split: Split,
    seed: u64,
) -> Vec<Question> {
    let attribute = entry.attribute;
    let mut rng = seeded(seed, &["question", &picture.slug, attribute.name]);
    // In another order for each fact, so that training and evaluation put it in different words.
    let mut wordings = attribute.questions.to_vec();
    wordings.shuffle(&mut rng);
    let evaluated = rng.random_bool(EVALUATED_SHARE);
    let unasked = rng.random_bool(EVALUATED_SHARE);
    let validation = rng.random_ratio(1, 3);
    let evaluation_split = if validation { Split::Validation } else { Split::Test };
    let ask = |split, part| {
        let in_training = split == Split::Train;
        let wording = wordings[usize::from(!in_training)];
        Question {
            id: entry.id * 2 + i64::from(!in_training),
            text: wording.replace("{thing}", thing(picture, attribute)),
            picture: picture.slug.clone(),
            view: if in_training { TRAINING_VIEW } else { EVALUATION_VIEW },
            answers: entry.answers.clone(),
            attribute: attribute.name.to_owned(),
            source: attribute.source,
            entry: entry.id,
            made_up: attribute.made_up(),
            split,
            part,
        }
    };
    match split {
        Split::Train if unasked => vec![ask(evaluation_split, Part::Unasked)],
        Split::Train if evaluated => {
            vec![ask(Split::Train, Part::Seen), ask(evaluation_split, Part::Seen)]
        }
        Split::Train => vec![ask(Split::Train, Part::Seen)],
        held_out => vec![ask(held_out, Part::HeldOut)],
    }
}
