//! Rows (phrase pairs), class titles and folds of the patent study.

use std::path::{Path, PathBuf};

use engram_data::DataError;
use engram_data::folds::{score_class, split_of_fold, stratified_group_folds};
use engram_data::groups::{anchor_groups, shared_anchors};
use engram_data::patent::{Labels, PhrasePair, read_pairs_with_titles};
use engram_data::titles::ClassTitles;
use engram_data::world::phrases::phrase_world;
use engram_infer::digest;
use engram_infer::similarity::pairs::ScoreRange;
use sha2::{Digest, Sha256};

use super::pairs::{self, SplitPairs};
use super::settings::PatentData;
use crate::study::{Inputs, StudyResult};

/// The data of a recipe. A row is a phrase pair with its class.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// Training rows, all with scores.
    pub train: Vec<PhrasePair>,
    /// Validation rows, measured at the end.
    pub validation: Vec<PhrasePair>,
    /// Titles of the classes.
    pub titles: ClassTitles,
    /// The fold of each training row; empty without folds.
    pub fold_of_row: Vec<usize>,
    /// The range of the training scores in the file of `[data.pairs]`; `None` without such a file.
    pub range: Option<ScoreRange>,
}

impl Corpus {
    /// Reads the files named in `[data]`, or builds the embedded set.
    ///
    /// # Errors
    /// The errors of [`read_pairs_with_titles`] and of the folds.
    pub fn load(data: &PatentData) -> Result<Self, DataError> {
        if !data.pairs.is_unused() {
            let SplitPairs { train, validation, range } = pairs::read(&data.pairs, data.fold_seed)?;
            let (titles, fold_of_row) = (ClassTitles::default(), Vec::new());
            return Ok(Self { train, validation, titles, fold_of_row, range: Some(range) });
        }
        let (train, validation, titles) = if data.dir.is_empty() {
            let world = phrase_world(data.fold_seed);
            (world.train, world.validation, world.titles)
        } else {
            let path = |name: &str| -> PathBuf { Path::new(&data.dir).join(name) };
            let titles = ClassTitles::read(path(&data.titles))?;
            let read =
                |name: &str| read_pairs_with_titles(path(name), Labels::Required, Some(&titles));
            (read(&data.train)?, read(&data.validation)?, titles)
        };
        let fold_of_row = if data.folds == 0 {
            Vec::new()
        } else {
            let classes: Vec<usize> =
                train.iter().map(|row| score_class(row.score.unwrap_or(0.0))).collect();
            stratified_group_folds(
                &classes,
                &anchor_groups(&train),
                data.folds,
                Some(data.fold_seed),
            )?
        };
        Ok(Self { train, validation, titles, fold_of_row, range: None })
    }

    /// Caveats about the validation metrics; `validation_selects` is true if the validation
    /// rows may select the checkpoint.
    pub fn warnings(&self, validation_selects: bool) -> Vec<String> {
        let mut warnings = Vec::new();
        let shared = shared_anchors(&self.train, &self.validation);
        if let Some(first) = shared.first() {
            warnings.push(format!(
                "{} anchors of the validation rows are in the training rows too, such as \
                 {first:?}: metrics of these rows say nothing about new anchors",
                shared.len()
            ));
        }
        if validation_selects {
            warnings.push(
                "without folds the validation rows select the checkpoint, if one is selected"
                    .into(),
            );
        }
        warnings
    }

    /// Returns an error for a split that is too small for training or evaluation.
    ///
    /// # Errors
    /// If training, held-out or validation rows have fewer than two different scores, or if the
    /// held-out rows of a fold have fewer than two anchors.
    pub fn check_split(&self, fold: Option<usize>) -> StudyResult<()> {
        let (train, held_out) = self.split(fold);
        let parts =
            [("training", &train), ("held-out", &held_out), ("validation", &self.validation)];
        for (part, rows) in parts {
            if rows.windows(2).all(|pair| pair[0].score == pair[1].score) {
                let count = rows.len();
                return Err(format!(
                    "the {count} {part} rows do not have two different scores; add rows, or \
                     change the folds"
                )
                .into());
            }
        }
        if fold.is_some() && held_out.windows(2).all(|pair| pair[0].anchor == pair[1].anchor) {
            let anchor = &held_out[0].anchor;
            return Err(format!(
                "all held-out rows of a fold have the anchor {anchor:?}; add anchors, or use \
                 fewer folds"
            )
            .into());
        }
        Ok(())
    }

    /// Names and SHA-256 digests of the data.
    pub fn inputs(&self) -> Inputs {
        let mut inputs = Inputs::from([
            ("training rows".into(), hash_of_rows(&self.train)),
            ("validation rows".into(), hash_of_rows(&self.validation)),
        ]);
        // Pairs of one CSV have no classes.
        if self.range.is_none() {
            inputs.insert("class titles".into(), digest::of_bytes(self.titles.to_tsv()));
        }
        inputs
    }

    /// The training rows and the held-out rows of a fold's member. The member is measured on its
    /// held-out rows, which may also select its checkpoint. `None` stands for the only model of a
    /// recipe without folds, whose held-out rows are the validation rows.
    pub fn split(&self, fold: Option<usize>) -> (Vec<PhrasePair>, Vec<PhrasePair>) {
        let Some(fold) = fold else {
            return (self.train.clone(), self.validation.clone());
        };
        let split = split_of_fold(&self.fold_of_row, fold);
        let rows_of = |rows: &[usize]| rows.iter().map(|&row| self.train[row].clone()).collect();
        (rows_of(&split.train), rows_of(&split.held_out))
    }
}

/// The SHA-256 of rows in their order.
pub(super) fn hash_of_rows(rows: &[PhrasePair]) -> String {
    let mut hash = Sha256::new();
    for row in rows {
        for text in [&row.id, &row.anchor, &row.target, &row.context] {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        hash.update(row.score.unwrap_or(f32::NAN).to_le_bytes());
    }
    format!("{:x}", hash.finalize())
}
