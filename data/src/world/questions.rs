//! Questions about the images of the embedded world, in three parts.
//!
//! | part | image | fact | source of a correct answer |
//! |---|---|---|---|
//! | seen | in training | asked in training, with another view and wording | memory or parameters |
//! | unasked | in training | never asked | memory |
//! | held out | not in training | never asked | memory, found by a new image or name |

use std::collections::BTreeSet;

use rand::Rng;
use rand::seq::SliceRandom;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::attributes::Source;
use super::facts::{Fact, thing_name};
use super::images::WorldImage;
use super::seeded_rng;

/// The fraction of images in training. Of the other images, one in three is for validation and two
/// in three are for test.
const TRAINING_FRACTION: f64 = 0.7;

/// The fraction of facts about training images that training never asks. Also the fraction of the
/// asked facts that the evaluation asks again.
const EVALUATED_FRACTION: f64 = 0.1;

/// The view in a training question; trainers draw other views with [`super::World::view`].
const TRAINING_VIEW: u32 = 1;

/// The view in an evaluation question.
pub const EVALUATION_VIEW: u32 = 2;

/// The split of a question.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// For training.
    Train,
    /// For model selection.
    Validation,
    /// For the final evaluation.
    Test,
}

impl Split {
    /// Returns the name in `questions.jsonl`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Validation => "validation",
            Self::Test => "test",
        }
    }
}

/// The part of a question: whether training has seen its image and its fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The fact is asked in training.
    Seen,
    /// The image is in training, but the fact is not asked.
    Unasked,
    /// Training asks nothing about the image.
    HeldOut,
}

impl Part {
    /// All parts.
    pub const ALL: [Self; 3] = [Self::Seen, Self::Unasked, Self::HeldOut];

    /// Returns the name in `questions.jsonl`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Seen => "seen",
            Self::Unasked => "unasked",
            Self::HeldOut => "held_out",
        }
    }
}

/// A question about an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// The id; it does not depend on the seed.
    pub id: i64,
    /// The question. It names the thing if the entry names it, and otherwise says `this`.
    pub text: String,
    /// The slug of the image.
    pub image_slug: String,
    /// The number of the view that is shown.
    pub view: u32,
    /// All correct answers.
    pub answers: Vec<String>,
    /// The attribute in question.
    pub attribute: String,
    /// The source that has the answer.
    pub source: Source,
    /// The id of the entry with the answer.
    pub entry: i64,
    /// Whether the fact is made up, so that only the memory has the answer.
    pub made_up: bool,
    /// The split of the question.
    pub split: Split,
    /// Whether training has seen the image and the fact.
    pub part: Part,
}

/// Draws the split of each image. The fractions are the same in each group, up to rounding.
pub(super) fn image_splits(images: &[WorldImage], seed: u64) -> Vec<Split> {
    let groups: BTreeSet<&str> = images.iter().map(|image| image.group).collect();
    let mut splits = vec![Split::Train; images.len()];
    for group in groups {
        let images_of_group = images.iter().enumerate().filter(|(_, image)| image.group == group);
        let mut indices: Vec<usize> = images_of_group.map(|(index, _)| index).collect();
        indices.shuffle(&mut seeded_rng(seed, &["split", group]));
        let num_training = (indices.len() as f64 * TRAINING_FRACTION).round() as usize;
        for (position, index) in indices.into_iter().skip(num_training).enumerate() {
            splits[index] = if position % 3 == 0 { Split::Validation } else { Split::Test };
        }
    }
    splits
}

/// Returns the questions about a fact.
pub(super) fn questions_of(
    fact: &Fact,
    image: &WorldImage,
    split: Split,
    seed: u64,
) -> Vec<Question> {
    let attribute = fact.attribute;
    let mut rng = seeded_rng(seed, &["question", &image.slug, attribute.name]);
    // The order differs between facts, so that training and evaluation use different wordings.
    let mut wordings = attribute.questions.to_vec();
    wordings.shuffle(&mut rng);
    let is_evaluated = rng.random_bool(EVALUATED_FRACTION);
    let is_unasked = rng.random_bool(EVALUATED_FRACTION);
    let is_for_validation = rng.random_ratio(1, 3);
    let evaluation_split = if is_for_validation { Split::Validation } else { Split::Test };
    let question = |split, part| {
        let is_training = split == Split::Train;
        let wording = wordings[usize::from(!is_training)];
        Question {
            id: fact.entry.id * 2 + i64::from(!is_training),
            text: wording.replace("{thing}", thing_name(image, attribute)),
            image_slug: image.slug.clone(),
            view: if is_training { TRAINING_VIEW } else { EVALUATION_VIEW },
            answers: fact.answers.clone(),
            attribute: attribute.name.to_owned(),
            source: attribute.source,
            entry: fact.entry.id,
            made_up: attribute.made_up(),
            split,
            part,
        }
    };
    match split {
        Split::Train if is_unasked => vec![question(evaluation_split, Part::Unasked)],
        Split::Train if is_evaluated => {
            vec![question(Split::Train, Part::Seen), question(evaluation_split, Part::Seen)]
        }
        Split::Train => vec![question(Split::Train, Part::Seen)],
        held_out => vec![question(held_out, Part::HeldOut)],
    }
}
