//! What a study brings to a grid of its ablations.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use engram_data::world::questions::Part;
use engram_eval::items::Item;
use engram_eval::metric::MetricInfo;
use serde::{Deserialize, Serialize};

use super::settings::{Grid, RowSettings};
use crate::error::Result;
use crate::recipe::Recipe;
use crate::studies::avformer::ablations::AvformerAblations;
use crate::studies::reveal::ablations::RevealAblations;
use crate::trainer::RunOptions;

/// A figure of what a row's runs leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// The share of answers that are right.
    ExactMatch,
    /// The share of questions whose entry is found first.
    #[serde(rename = "recall_at_1")]
    RecallAt1,
    /// The share of questions whose entry is among the first ten found; of rows that read as many.
    #[serde(rename = "recall_at_10")]
    RecallAt10,
    /// The word error rate.
    Wer,
}

impl Figure {
    /// Its name and direction, or those of a difference of two.
    pub(crate) fn info(self, difference: bool) -> MetricInfo {
        let (name, of_difference, higher) = match self {
            Self::ExactMatch => ("exact_match", "exact_match_difference", true),
            Self::RecallAt1 => ("recall_at_1", "recall_at_1_difference", true),
            Self::RecallAt10 => ("recall_at_10", "recall_at_10_difference", true),
            Self::Wer => ("wer", "wer_difference", false),
        };
        let name = if difference { of_difference } else { name };
        MetricInfo { name, version: 1, higher_is_better: Some(higher) }
    }
}

/// What is asked of a row's runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The figure.
    pub figure: Figure,
    /// REVEAL: the part of the test questions.
    pub part: Option<Part>,
    /// REVEAL: only questions whose answers this source has.
    pub source: Option<String>,
    /// AVFormer: the utterances, `noisy` or `clean`.
    pub utterances: Option<String>,
    /// AVFormer: `frozen`, or what is seen (`right`, `wrong`, `zero`, `nothing`); `right` if the row has learnt to see,
    /// and `nothing` else, where it is not given.
    pub system: Option<String>,
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = self.part.map(Part::name).or(self.utterances.as_deref());
        write!(f, "{}", self.figure.info(false).name)?;
        of.map_or(Ok(()), |of| write!(f, " of {of}"))?;
        self.source.as_ref().map_or(Ok(()), |source| write!(f, ", {source}"))
    }
}

/// A column of the table of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name for programs.
    pub key: &'static str,
    /// Its heading.
    pub heading: &'static str,
    /// What it shows.
    pub asked: Asked,
}

/// The SHA-256 of weights, by what recipes name them.
pub type Hashes = HashMap<String, String>;

/// What a study brings to a grid of its ablations.
pub trait Ablated: fmt::Debug + Sync {
    /// The study, as recipes name it.
    fn name(&self) -> &'static str;

    /// The heading of a report.
    fn title(&self) -> &'static str;

    /// What its figures are about, in a sentence.
    fn about(&self) -> &'static str;

    /// What rows are shown by; by the first they are compared with the main one.
    fn columns(&self) -> Vec<Column>;

    /// What items are drawn by for intervals, beside seeds: `picture`.
    fn unit(&self) -> &'static str;

    /// Fills in what a claim leaves open.
    fn complete(&self, asked: &mut Asked);

    /// What cannot be asked of this study, and why.
    ///
    /// # Errors
    /// The reason.
    fn check_asked(&self, asked: &Asked) -> Result<(), String>;

    /// Checks a grid's rows against each other and its claims against the rows.
    ///
    /// # Errors
    /// [`crate::TrainError::Recipe`] with the line of a row or a claim.
    fn check(&self, grid: &Grid) -> Result<()>;

    /// Reads and checks the study's own sections of a recipe.
    ///
    /// # Errors
    /// [`crate::TrainError::Recipe`] with file and line.
    fn complete_recipe(&self, recipe: &mut Recipe) -> Result<()>;

    /// A row's settings as its shared phases have them: without those that have no effect there.
    fn shared_settings(&self, set: Vec<String>) -> Vec<String>;

    /// Patterns of the parameters that a row takes over from its shared phases.
    fn taken_over(&self) -> &'static [&'static str];

    /// Why a finished run is of other weights than this recipe names now; `hashes` are those of weights that were looked at
    /// before.
    ///
    /// # Errors
    /// Weights that cannot be read.
    fn other_weights(
        &self,
        recipe: &mut Recipe,
        run: &Path,
        hashes: &mut Hashes,
    ) -> Result<Option<String>>;

    /// Trains a run.
    ///
    /// # Errors
    /// Those of the study.
    fn train(&self, recipe: &mut Recipe, options: &RunOptions) -> Result<()>;

    /// The hash of a finished run's recipe.
    ///
    /// # Errors
    /// A summary that cannot be read.
    fn recipe_hash(&self, run: &Path) -> Result<String>;

    /// Answers the test's questions again into `folder`, out of a finished run.
    ///
    /// # Errors
    /// Those of the study.
    fn ask_again(&self, row: &RowSettings, run: &Path, folder: &Path) -> Result<()>;

    /// Removes what a finished run no longer needs: its checkpoints, and what only rows that ask it again need.
    ///
    /// # Errors
    /// [`TrainError::Io`](crate::TrainError::Io); files that no run wrote
    fn tidy(&self, run: &Path, is_asked_again: bool) -> Result<()>;

    /// What a row's folder has on this, item by item; the inner error is the reason why it is undefined.
    ///
    /// # Errors
    /// Files that cannot be read.
    fn items(&self, folder: &Path, asked: &Asked) -> Result<Result<Vec<Item>, String>>;
}

/// What this study brings; `None` for one that has no ablations.
pub(super) fn of_study(name: &str) -> Option<&'static dyn Ablated> {
    let all: [&'static dyn Ablated; 2] = [&RevealAblations, &AvformerAblations];
    all.into_iter().find(|study| study.name() == name)
}
