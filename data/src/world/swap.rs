//! Facts with changed answers. After their entries are replaced in the memory, a model that reads
//! the memory gives the new answers; a model that uses its parameters gives the old answers.

use std::collections::HashMap;

use rand::seq::{IndexedRandom, SliceRandom};

use super::facts::Fact;
use super::questions::{Question, Split};
use super::{World, seeded_rng};
use crate::DataError;

/// The changed facts, and the questions about them.
#[derive(Debug, Clone, PartialEq)]
pub struct Swap {
    /// The changed facts, sorted by id; they keep the ids of the original entries.
    pub facts: Vec<Fact>,
    /// All questions about the changed facts, with the new answers.
    pub questions: Vec<Question>,
}

impl Swap {
    /// Returns the ids of the changed entries, for example to delete these entries.
    pub fn ids(&self) -> Vec<i64> {
        self.facts.iter().map(|fact| fact.entry.id).collect()
    }
}

impl World {
    /// Changes the answers of `count` made-up facts that test questions ask for.
    ///
    /// # Errors
    /// [`DataError::OutOfRange`] if there are fewer such facts
    pub fn swap(&self, count: usize, seed: u64) -> Result<Swap, DataError> {
        let test_questions = self
            .questions
            .iter()
            .filter(|question| question.made_up && question.split == Split::Test);
        let mut ids: Vec<i64> = test_questions.map(|question| question.entry).collect();
        if count > ids.len() {
            let wanted = "the test questions ask for fewer made-up facts; swap fewer facts";
            return Err(DataError::out_of_range("the number of facts to swap", count, wanted));
        }
        ids.shuffle(&mut seeded_rng(seed, &["swap"]));
        ids.truncate(count);
        ids.sort_unstable();
        let facts: Vec<Fact> = ids
            .iter()
            .filter_map(|id| self.fact(*id))
            .filter_map(|fact| {
                let image = &self.images[fact.image];
                let mut rng =
                    seeded_rng(seed, &["swapped answer", &image.slug, fact.attribute.name]);
                let other_answers: Vec<&str> = fact
                    .attribute
                    .answers
                    .iter()
                    .copied()
                    .filter(|answer| fact.answers[0] != *answer)
                    .collect();
                let answer = other_answers.choose(&mut rng)?;
                Some(fact.with_answer(image, answer, self.options.seed))
            })
            .collect();
        let changed_facts: HashMap<i64, &Fact> =
            facts.iter().map(|fact| (fact.entry.id, fact)).collect();
        let questions = self.questions.iter().filter_map(|question| {
            let answers = changed_facts.get(&question.entry)?.answers.clone();
            Some(Question { answers, ..question.clone() })
        });
        let questions = questions.collect();
        Ok(Swap { facts, questions })
    }
}
