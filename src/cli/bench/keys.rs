//! Random keys for benchmarks.

use engram_memory::{Batch, Entry, MemoryError};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Number of cluster centres of keys and queries.
const CENTRES: usize = 1000;
/// The largest distance from the centre in each dimension.
const SPREAD: f32 = 1.0;
/// Number of rows in a batch.
const BATCH: usize = 1000;

/// A generator of unit vectors around 1,000 cluster centres.
pub(crate) struct ClusteredKeys {
    random: ChaCha8Rng,
    centres: Vec<f32>,
    width: usize,
}

impl ClusteredKeys {
    pub(crate) fn new(width: usize) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let centres = uniform(&mut random, CENTRES * width);
        Self { random, centres, width }
    }

    /// The next `count` vectors, `[count, width]`.
    pub(crate) fn rows(&mut self, count: usize) -> Vec<f32> {
        let mut vectors = Vec::with_capacity(count * self.width);
        for _ in 0..count {
            let centre = self.random.random_range(0..CENTRES) * self.width;
            let centre = &self.centres[centre..centre + self.width];
            let near = |number: &f32| number + self.random.random_range(-SPREAD..SPREAD);
            let mut vector: Vec<f32> = centre.iter().map(near).collect();
            let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
            vector.iter_mut().for_each(|number| *number /= length);
            vectors.extend(vector);
        }
        vectors
    }

    /// The next `rows` vectors as batches of entries without values. Calls `on_keys` with the keys
    /// of each batch.
    pub(crate) fn batches<'a>(
        &'a mut self,
        rows: usize,
        mut on_keys: impl FnMut(&[f32]) -> Result<(), MemoryError> + 'a,
    ) -> impl Iterator<Item = Result<Batch, MemoryError>> + 'a {
        (0..rows).step_by(BATCH).map(move |first| {
            let count = BATCH.min(rows - first);
            let keys = self.rows(count);
            on_keys(&keys)?;
            let entries = (first as i64..(first + count) as i64).map(Entry::bare).collect();
            Ok(Batch { entries, keys, values: Vec::new() })
        })
    }
}

/// Uniform random numbers from -1 to 1.
pub(crate) fn uniform(random: &mut ChaCha8Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| random.random_range(-1.0..1.0)).collect()
}
