//! Controls: changes to the questions or to the memory with which answers from the memory must
//! fail. If they do not, the answers have another source. One control is the reverse.

use std::path::Path;

use engram_data::augmentation::Normal;
use engram_infer::reveal::corpus::{Corpus, Example};
use engram_infer::reveal::encoding::Encoding;
use engram_infer::reveal::memory_folder::remove_memory;
use engram_infer::reveal::retriever::{ItemEncoder, Retriever, memory_format};
use engram_memory::{Batch, ValueDtype, Writer};
use engram_models::reveal::Reveal;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::study::StudyResult;

/// A control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Control {
    /// Each question is asked without its image.
    NoImage,
    /// Each question is asked with the image of another test question.
    WrongImage,
    /// Each entry has the value of another entry.
    ShuffledValues,
    /// Each question reads its own entry, which contains the answer, instead of retrieved entries.
    /// Answers must not fail with this one: it shows how well the model reads.
    OwnEntry,
    /// Keys and values are random vectors, of the same size as the real ones.
    RandomVectors,
}

impl Control {
    /// The questions of the control.
    pub(super) fn examples(self, corpus: &Corpus) -> Vec<Example> {
        let test = &corpus.test;
        let image = |index: usize| match self {
            Self::NoImage => None,
            // Questions about an image follow one another, so half the list away is another image.
            Self::WrongImage => test[(index + test.len() / 2) % test.len()].image,
            Self::OwnEntry | Self::ShuffledValues | Self::RandomVectors => test[index].image,
        };
        let examples = test.iter().enumerate();
        examples
            .map(|(index, example)| Example { image: image(index), ..example.clone() })
            .collect()
    }

    /// Builds the memory of the control in `folder`; `None` if it is the run's own memory.
    pub(super) fn memory(
        self,
        folder: &Path,
        model: &Reveal,
        encoding: &Encoding,
        dtype: ValueDtype,
        seed: u64,
    ) -> StudyResult<Option<Retriever>> {
        if matches!(self, Self::NoImage | Self::WrongImage | Self::OwnEntry) {
            return Ok(None);
        }
        // A run that was killed may have left one.
        remove_memory(folder)?;
        let Encoding { corpus, sequencer, .. } = encoding;
        let indices: Vec<usize> = (0..corpus.stored).collect();
        let (mut keys, mut values) = ItemEncoder::new(model, corpus, sequencer).encode(&indices)?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        if self == Self::ShuffledValues {
            let width = values.len() / indices.len().max(1);
            let mut rows: Vec<Vec<f32>> =
                values.chunks(width.max(1)).map(<[f32]>::to_vec).collect();
            rows.shuffle(&mut rng);
            values = rows.concat();
        } else {
            randomise(&mut keys, model.config.key_dim, &mut rng);
            randomise(&mut values, model.config.t5.d_model, &mut rng);
        }
        let entries = indices.iter().map(|index| corpus.items[*index].entry.clone()).collect();
        let batch = std::iter::once(Ok(Batch { entries, keys, values }));
        Writer::create(folder, memory_format(&model.config, dtype), indices.len(), batch)?;
        Ok(Some(Retriever::open(folder)?))
    }
}

/// Replaces each vector by a random one of the same length.
fn randomise(vectors: &mut [f32], width: usize, rng: &mut ChaCha8Rng) {
    let norm = |vector: &[f32]| vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    let mut normal = Normal::new(rng);
    for vector in vectors.chunks_mut(width.max(1)) {
        let length = norm(vector);
        vector.iter_mut().for_each(|value| *value = normal.draw());
        let factor = length / norm(vector).max(f32::MIN_POSITIVE);
        vector.iter_mut().for_each(|value| *value *= factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_vectors_have_the_lengths_of_the_real_ones() {
        let mut vectors = vec![3.0, 4.0, 0.0, 0.0, 1.0, 0.0];
        let before = vectors.clone();
        randomise(&mut vectors, 2, &mut ChaCha8Rng::seed_from_u64(1));
        let lengths: Vec<f32> = vectors.chunks(2).map(|v| v[0].hypot(v[1])).collect();
        assert!(lengths.iter().zip([5.0, 0.0, 1.0]).all(|(a, b)| (a - b).abs() < 1e-6));
        assert!(vectors[0] != before[0] && vectors[5] != before[5]);
    }
}
