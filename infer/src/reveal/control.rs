//! Controls: changes to the questions or to what they read from the memory, with which answers from
//! the memory must fail. If they do not, the answers have another source.

use std::collections::HashMap;

use candle_core::Tensor;
use engram_data::augmentation::Normal;
use engram_memory::search::Hit;
use engram_memory::{Row, Snapshot};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::corpus::{Corpus, Example};
use crate::error::Result;

/// A control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Control {
    /// Each question is asked without its image.
    NoImage,
    /// Each question is asked with the image of another test question.
    WrongImage,
    /// Each key leads to the value of another entry.
    PermutedKeys,
    /// Each question reads the entries that were retrieved for another question.
    DonorEntries,
    /// Each value is a random vector from a normal distribution, as long as the real one.
    RandomValues,
    /// All sources have the same weight. Answers need not fail: it shows what the gate does.
    FixedGate,
    /// Each question reads its own entry, which contains the answer, instead of retrieved entries.
    /// Answers must not fail with this one: it shows how well the model reads.
    OwnEntry,
}

impl Control {
    /// The test questions of the control.
    pub fn examples(self, corpus: &Corpus) -> Vec<Example> {
        let test = &corpus.test;
        let image = |index: usize| match self {
            Self::NoImage => None,
            // Questions about an image follow one another, so half the list away is another image.
            Self::WrongImage => test[(index + test.len() / 2) % test.len()].image,
            _ => test[index].image,
        };
        let examples = test.iter().enumerate();
        examples
            .map(|(index, example)| Example { image: image(index), ..example.clone() })
            .collect()
    }

    /// The weights of the sources, given those of the gate, `[B, sources]`.
    pub(super) fn gates(self, gates: Tensor) -> Result<Tensor> {
        let sources = gates.dim(1)? as f64;
        Ok(if self == Self::FixedGate { (gates.ones_like()? / sources)? } else { gates })
    }

    /// Gives each question the hits of another question of its batch; a question that is alone in its
    /// batch gets none.
    pub(super) fn exchange(self, hits: &mut [Vec<Hit>]) {
        match (self, hits) {
            (Self::DonorEntries, [alone]) => alone.clear(),
            (Self::DonorEntries, hits) => hits.rotate_left(hits.len() / 2),
            _ => {}
        }
    }

    /// The rows whose values are read in place of those of `rows`: half the memory away.
    pub(super) fn value_rows(self, rows: &[Row], memory: &dyn Snapshot) -> Result<Vec<Row>> {
        if self != Self::PermutedKeys {
            return Ok(rows.to_vec());
        }
        let all = memory.rows()?;
        let places: HashMap<Row, usize> = all.iter().copied().zip(0..).collect();
        Ok(rows.iter().map(|row| all[(places[row] + all.len() / 2) % all.len()]).collect())
    }

    /// Changes the values of `rows`, each of which has vectors of a width. An entry always gets the
    /// same values.
    pub(super) fn change_values(self, rows: &[Row], values: &mut [f32], width: usize) {
        if self != Self::RandomValues || rows.is_empty() {
            return;
        }
        let norm = |vector: &[f32]| vector.iter().map(|value| value * value).sum::<f32>().sqrt();
        for (row, values) in rows.iter().zip(values.chunks_mut(values.len() / rows.len())) {
            let mut rng = ChaCha8Rng::seed_from_u64(row.number().into());
            let mut normal = Normal::new(&mut rng);
            for vector in values.chunks_mut(width) {
                let length = norm(vector);
                vector.iter_mut().for_each(|value| *value = normal.draw());
                let factor = length / norm(vector).max(f32::MIN_POSITIVE);
                vector.iter_mut().for_each(|value| *value *= factor);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_values_have_the_lengths_of_the_real_ones() {
        let rows = [3, 5].map(Row::new);
        let before = [3.0, 4.0, 0.0, 0.0, 1.0, 0.0, 0.0, 2.0];
        let changed = |control: Control| {
            let mut values = before;
            control.change_values(&rows, &mut values, 2);
            values
        };
        let values = changed(Control::RandomValues);
        let lengths: Vec<f32> = values.chunks(2).map(|v| v[0].hypot(v[1])).collect();
        assert!(lengths.iter().zip([5.0, 0.0, 1.0, 2.0]).all(|(a, b)| (a - b).abs() < 1e-6));
        assert!(values[0] != before[0] && values[5] != before[5]);
        assert_eq!(changed(Control::RandomValues), values);
        assert_eq!(changed(Control::DonorEntries), before);
    }

    #[test]
    fn no_question_reads_what_was_found_for_itself() {
        for count in 1..5_i64 {
            let hit = |id| Hit { id, score: 1.0, source: 0, row: Row::new(0) };
            let mut hits: Vec<Vec<Hit>> = (0..count).map(|id| vec![hit(id)]).collect();
            Control::DonorEntries.exchange(&mut hits);
            for (id, hits) in (0..count).zip(&hits) {
                assert!(hits.iter().all(|hit| hit.id != id), "{count}");
                assert_eq!(hits.is_empty(), count == 1);
            }
        }
    }
}
