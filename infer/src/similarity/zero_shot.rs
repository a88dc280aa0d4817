//! Baselines without training: word overlap, word vectors, and sentence embeddings.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

use engram_data::DataError;
use engram_data::patent::PhrasePair;
use engram_data::vectors::WordVectors;

use crate::encode::{Encoder, Item};
use crate::error::{InferError, Result};

/// The number of phrases per batch.
const BATCH: usize = 256;

/// Cosines of sentence embeddings, as in `sentence-transformers`. `progress` receives the number of
/// new scores.
///
/// # Errors
/// The errors of [`Encoder::encode`]; [`InferError::Encoder`] for a model without a text encoder.
pub fn encoder_cosines(
    encoder: &Encoder,
    rows: &[PhrasePair],
    progress: &dyn Fn(usize),
) -> Result<Vec<f64>> {
    if !encoder.modalities().text {
        let reason = "does not encode text; use a text encoder or CLIP".to_owned();
        return Err(InferError::Encoder { name: encoder.name().to_owned(), reason });
    }
    let phrases: BTreeSet<&str> =
        rows.iter().flat_map(|row| [row.anchor.as_str(), row.target.as_str()]).collect();
    let phrases: Vec<&str> = phrases.into_iter().collect();
    let mut vectors: HashMap<&str, Vec<f32>> = HashMap::with_capacity(phrases.len());
    for batch in phrases.chunks(BATCH) {
        let prepare = |phrase: &&str| encoder.prepare(Item { text: Some(*phrase), image: None });
        let prepared = batch.iter().map(prepare).collect::<Result<Vec<_>, _>>()?;
        let embeddings = encoder.encode(&prepared.iter().collect::<Vec<_>>())?;
        let embeddings = embeddings.chunks(encoder.width()).map(<[f32]>::to_vec);
        vectors.extend(batch.iter().copied().zip(embeddings));
        progress(rows.len() * batch.len() / phrases.len());
    }
    let cosine = |row: &PhrasePair| {
        let (anchor, target) = (&vectors[row.anchor.as_str()], &vectors[row.target.as_str()]);
        anchor.iter().zip(target).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    Ok(rows.iter().map(cosine).collect())
}

/// The fraction of words that two phrases share (Jaccard similarity).
pub fn word_overlap(rows: &[PhrasePair]) -> Vec<f64> {
    let words = |phrase: &str| -> HashSet<String> {
        phrase.split_whitespace().map(str::to_lowercase).collect()
    };
    let overlap = |row: &PhrasePair| {
        let (anchor, target) = (words(&row.anchor), words(&row.target));
        let union = anchor.union(&target).count().max(1);
        anchor.intersection(&target).count() as f64 / union as f64
    };
    rows.iter().map(overlap).collect()
}

/// Cosines of mean word vectors from a GloVe or word2vec text file.
///
/// # Errors
/// [`DataError`] with the line of the file.
pub fn word_vector_cosines(
    file: &Path,
    rows: &[PhrasePair],
) -> std::result::Result<Vec<f64>, DataError> {
    let words: HashSet<String> = rows
        .iter()
        .flat_map(|row| [&row.anchor, &row.target])
        .flat_map(|phrase| phrase.split_whitespace().map(str::to_string))
        .collect();
    let vectors = WordVectors::read(file, Some(&words))?;
    let cosine = |row: &PhrasePair| f64::from(vectors.similarity(&row.anchor, &row.target));
    Ok(rows.iter().map(cosine).collect())
}
