//! Finds rows with equal keys. As ordinary nodes of a graph, such rows would be neighbours only of
//! each other and split the graph. So only the first row of each key is an ordinary node.

use std::hash::{DefaultHasher, Hasher};

use rayon::prelude::*;

/// Returns, for each row of keys `[rows, width]`, the first row with an equal key: for most rows,
/// the row itself.
pub(super) fn first_rows(keys: &[f32], width: usize) -> Vec<u32> {
    let hashes = keys.par_chunks(width).map(hash).enumerate();
    let mut by_hash: Vec<(u64, u32)> = hashes.map(|(row, hash)| (hash, row as u32)).collect();
    by_hash.par_sort_unstable();
    let key = |row: u32| &keys[row as usize * width..][..width];
    let mut first_rows: Vec<u32> = (0..by_hash.len() as u32).collect();
    for same_hash in by_hash.chunk_by(|a, b| a.0 == b.0) {
        // The first rows of the different keys with this hash.
        let mut distinct: Vec<u32> = Vec::new();
        for (_, row) in same_hash {
            match distinct.iter().find(|first| key(**first) == key(*row)) {
                Some(first) => first_rows[*row as usize] = *first,
                None => distinct.push(*row),
            }
        }
    }
    first_rows
}

fn hash(key: &[f32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for pair in key.chunks(2) {
        // Adding 0 turns -0 into 0, which is the same number.
        let bits = pair.iter().map(|number| u64::from((number + 0.0).to_bits()));
        hasher.write_u64(bits.fold(0, |joined, bits| joined << 32 | bits));
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_keys_have_the_same_first_row() {
        let keys = [1.0, 2.0, 0.0, 3.0, 1.0, 2.0, -0.0, 3.0, 2.0, 1.0, 1.0, 2.0];
        assert_eq!(first_rows(&keys, 2), [0, 1, 0, 1, 4, 0]);
        assert_eq!(first_rows(&[0.5, 0.5, -0.5], 1), [0, 0, 2]);
        assert!(first_rows(&[], 3).is_empty());
    }
}
