//! Baselines that train nothing: word vectors, and the cosine of a sentence encoder.

use std::collections::HashSet;
use std::path::Path;

use engram_data::DataError;
use engram_data::patent::PhrasePair;
use engram_data::titles::ClassTitles;
use engram_data::vectors::WordVectors;
use engram_models::params::ParameterGroup;
use engram_models::similarity::{PairLoss, Pooling};

use super::scorer::find_files;
use super::settings::{Layout, PatentModel};
use super::study::PatentStudy;
use crate::recipe::BatchSettings;
use crate::study::{Study, StudyResult};

/// Cosines of mean-pooled sentence embeddings, as `sentence-transformers` computes them;
/// `progress` is told of each score.
///
/// # Errors
/// If the weights cannot be found or do not fit.
pub fn encoder_cosines(
    weights: &str,
    rows: &[PhrasePair],
    progress: &dyn Fn(usize),
) -> StudyResult<Vec<f64>> {
    let model = PatentModel {
        weights: weights.to_string(),
        layout: Layout::BiEncoder,
        loss: PairLoss::Cosent,
        pooling: Pooling::Mean,
        max_tokens: 128,
        passes: 1,
        ..PatentModel::default()
    };
    let files = find_files(&model)?;
    let nothing = (Vec::new(), Vec::new());
    let titles = ClassTitles::default();
    let mut study =
        PatentStudy::new(model, BatchSettings::default(), titles, nothing, files.into(), 0);
    study.build(vec![ParameterGroup::all_frozen()], 0)?;
    study.predict(rows, progress)
}

/// The share of words that two phrases have in common (Jaccard): what spelling alone tells.
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
pub fn word_vector_cosines(file: &Path, rows: &[PhrasePair]) -> Result<Vec<f64>, DataError> {
    let words: HashSet<String> = rows
        .iter()
        .flat_map(|row| [&row.anchor, &row.target])
        .flat_map(|phrase| phrase.split_whitespace().map(str::to_string))
        .collect();
    let vectors = WordVectors::read(file, Some(&words))?;
    let cosine = |row: &PhrasePair| f64::from(vectors.similarity(&row.anchor, &row.target));
    Ok(rows.iter().map(cosine).collect())
}
