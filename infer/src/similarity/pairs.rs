//! Text pairs of one CSV without classes: the columns and the score range of the training file.

use std::path::Path;

use engram_data::DataError;
use engram_data::patent::{Labels, PhraseColumns, PhrasePair, read_named_pairs};
use serde::{Deserialize, Serialize};

use super::run::read_json;
use crate::error::Result;

/// The file of [`TrainedPairs`] in a run's folder.
pub const PAIRS: &str = "pairs.json";

/// The range of the training scores.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ScoreRange {
    /// The score that becomes 0.
    pub minimum: f64,
    /// The score that becomes 1.
    pub maximum: f64,
}

impl ScoreRange {
    /// The range of the scores of `pairs`; from 0 to 1 if all are equal.
    pub fn of(pairs: &[PhrasePair]) -> Self {
        let scores = || pairs.iter().filter_map(|pair| pair.score).map(f64::from);
        let (minimum, maximum) =
            (scores().fold(f64::INFINITY, f64::min), scores().fold(f64::NEG_INFINITY, f64::max));
        if minimum < maximum {
            Self { minimum, maximum }
        } else {
            Self { minimum: 0.0, maximum: 1.0 }
        }
    }

    /// Converts a score of the file to a similarity from 0 to 1.
    pub fn to_similarity(self, score: f32) -> f32 {
        ((f64::from(score) - self.minimum) / (self.maximum - self.minimum)) as f32
    }

    /// Converts a similarity to a score of the file.
    pub fn to_score(self, similarity: f64) -> f64 {
        self.minimum + similarity * (self.maximum - self.minimum)
    }
}

/// The columns and the score range of the training CSV. A run reads other CSVs by these columns and
/// returns scores in this range.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainedPairs {
    /// The column of the first text.
    pub anchor: String,
    /// The column of the second text.
    pub target: String,
    /// The column of scores.
    pub score: String,
    /// The range of the training scores.
    pub range: ScoreRange,
}

impl TrainedPairs {
    /// Reads [`PAIRS`] of a run; `None` for a run on phrase pairs with classes.
    pub(super) fn of_run(run: &Path) -> Result<Option<Self>> {
        let path = run.join(PAIRS);
        if path.is_file() { read_json(&path).map(Some) } else { Ok(None) }
    }

    /// Reads pairs by the columns of the training CSV. Scores are optional.
    pub(super) fn read(&self, path: &Path) -> std::result::Result<Vec<PhrasePair>, DataError> {
        let Self { anchor, target, score, .. } = self;
        read_named_pairs(
            path,
            Labels::Optional,
            PhraseColumns { anchor, target, context: None, score },
        )
    }
}
