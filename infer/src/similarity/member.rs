//! A member of a run's ensemble: one trained model.

use std::path::Path;
use std::sync::Arc;

use engram_data::patent::PhrasePair;
use engram_data::titles::ClassTitles;
use engram_models::compute::Compute;

use super::calibration::{CALIBRATION, Calibration};
use super::pairs::PAIRS;
use super::run::{RunRecipe, read_json};
use super::scorer::Scorer;
use super::sequences::Sequencer;
use crate::encode::EncoderFiles;
use crate::error::Result;
use crate::finished_run::{WEIGHTS, check_checksums};
use crate::stop::Stop;

/// The encoder's configuration in a member's folder.
pub const CONFIG: &str = "config.json";
/// The tokenizer in a member's folder.
pub const TOKENIZER: &str = "tokenizer.json";
/// The class titles in a member's folder.
pub const TITLES: &str = "titles.tsv";

/// A trained model with its calibration.
pub struct Member {
    sequencer: Sequencer,
    scorer: Scorer,
    calibration: Calibration,
}

impl Member {
    /// Creates a member from its parts.
    pub fn new(sequencer: Sequencer, scorer: Scorer, calibration: Calibration) -> Self {
        Self { sequencer, scorer, calibration }
    }

    /// Opens the member in this folder, to compute on `compute`.
    ///
    /// # Errors
    /// [`InferError::BadChecksum`](crate::InferError::BadChecksum) for a damaged file;
    /// [`InferError::Io`](crate::InferError::Io) for a missing file; the errors of the encoder and
    /// its tokenizer.
    pub fn open(folder: &Path, compute: &Compute) -> Result<Self> {
        check_checksums(folder)?;
        let settings = RunRecipe::read(folder)?.model;
        let files = EncoderFiles::of_folder(folder)?;
        settings.check_fits(&files)?;
        let sequencer = Sequencer::new(Arc::new(files), titles(folder)?, settings);
        let scorer = Scorer::open(&sequencer, &folder.join(WEIGHTS), compute)?;
        let calibration = read_json(&folder.join(CALIBRATION))?;
        Ok(Self { sequencer, scorer, calibration })
    }

    /// Predicts the similarities of rows. `progress` receives the number of new scores.
    ///
    /// # Errors
    /// The errors of [`Scorer::predict`].
    pub fn predict(&self, rows: &[PhrasePair], progress: &dyn Fn(usize)) -> Result<Vec<f64>> {
        let scores = self.scorer.predict(&self.sequencer, rows, &Stop::default(), progress)?;
        Ok(scores.into_iter().map(|score| self.calibration.apply(score)).collect())
    }
}

/// The class titles that a member was trained with; no titles for pairs without classes.
pub(super) fn titles(folder: &Path) -> Result<ClassTitles> {
    if folder.join(PAIRS).is_file() {
        return Ok(ClassTitles::default());
    }
    Ok(ClassTitles::read(folder.join(TITLES))?)
}
