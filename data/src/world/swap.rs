//! Facts changed in the memory and nowhere else: does the model read, or does it remember?

use std::collections::HashMap;

use rand::seq::{IndexedRandom, SliceRandom};

use super::knowledge::Entry;
use super::questions::{Question, Split};
use super::{World, seeded};
use crate::DataError;

/// Entries with other answers, and the questions that have other answers then.
#[derive(Debug, Clone, PartialEq)]
pub struct Swap {
    /// The changed entries, with the ids of those that they replace, by id.
    pub entries: Vec<Entry>,
    /// All questions about them, with the new answers.
    pub questions: Vec<Question>,
}

impl Swap {
    /// The ids of the changed entries, also for deleting them.
    pub fn ids(&self) -> Vec<i64> {
        self.entries.iter().map(|entry| entry.id).collect()
    }
}

impl World {
    /// Gives made-up facts that a test question asks for another answer.
    ///
    /// # Errors   [`DataError::OutOfRange`] for more facts than there are such
    pub fn swap(&self, count: usize, seed: u64) -> Result<Swap, DataError> {
        let asked = self
            .questions
            .iter()
            .filter(|question| question.made_up && question.split == Split::Test);
        let mut ids: Vec<i64> = asked.map(|question| question.entry).collect();
        if count > ids.len() {
            let wanted = "the test questions ask for fewer made-up facts; swap less";
            let (what, value) = ("the number of facts to swap", count.to_string());
            return Err(DataError::OutOfRange { what, value, wanted });
        }
        ids.shuffle(&mut seeded(seed, &["swap"]));
        ids.truncate(count);
        ids.sort_unstable();
        let entries: Vec<Entry> = ids
            .iter()
            .filter_map(|id| self.entry(*id))
            .filter_map(|entry| {
                let picture = &self.pictures[entry.picture];
                let mut rng =
                    seeded(seed, &["swapped answer", &picture.slug, entry.attribute.name]);
                let others: Vec<&str> = entry
                    .attribute
                    .answers
                    .iter()
                    .copied()
                    .filter(|answer| entry.answers[0] != *answer)
                    .collect();
                let answer = others.choose(&mut rng)?;
                Some(entry.with_answer(picture, answer, self.options.seed))
            })
            .collect();
        let changed: HashMap<i64, &Entry> = entries.iter().map(|entry| (entry.id, entry)).collect();
        let questions = self.questions.iter().filter_map(|question| {
            let answers = changed.get(&question.entry)?.answers.clone();
            Some(Question { answers, ..question.clone() })
        });
        let questions = questions.collect();
        Ok(Swap { entries, questions })
    }
}
