//! The interface between a study and the grid of its ablations.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use engram_data::world::questions::Part;
use engram_eval::items::Item;
use engram_eval::metric::{MetricInfo, Unit};
use engram_eval::wer::report::WER;
use serde::{Deserialize, Serialize};

use super::settings::{Configuration, Grid};
use crate::error::Result;
use crate::recipe::Recipe;
use crate::studies::avformer::ablations::AvformerAblations;
use crate::studies::reveal::ablations::RevealAblations;
use crate::trainer::RunOptions;

/// A metric of a configuration's runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The fraction of correct answers.
    ExactMatch,
    /// The fraction of questions whose entry is ranked first.
    #[serde(rename = "recall_at_1")]
    RecallAt1,
    /// The fraction of questions whose entry is among the first ten results. It needs
    /// configurations that retrieve ten or more entries.
    #[serde(rename = "recall_at_10")]
    RecallAt10,
    /// The word error rate.
    Wer,
}

impl Metric {
    /// The name and direction of the metric, or of a difference of two values.
    pub(crate) fn info(self, difference: bool) -> MetricInfo {
        let info = match self {
            Self::ExactMatch => MetricInfo::higher("exact_match", Unit::Fraction),
            Self::RecallAt1 => MetricInfo::higher("recall_at_1", Unit::Fraction),
            Self::RecallAt10 => MetricInfo::higher("recall_at_10", Unit::Fraction),
            Self::Wer => WER,
        };
        match difference {
            true => info.renamed(format!("{}_difference", info.name)),
            false => info,
        }
    }
}

/// A metric of a configuration's runs, with the subset of items to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricQuery {
    /// The metric.
    pub metric: Metric,
    /// REVEAL: the part of the test questions.
    pub part: Option<Part>,
    /// REVEAL: only questions whose answers come from this source.
    pub source: Option<String>,
    /// AVFormer: the utterances, `noisy` or `clean`.
    pub utterances: Option<String>,
    /// AVFormer: `frozen`, or the frames shown to the adapted model (`right_frames`,
    /// `wrong_frames`, `zero_frames`, `no_frames`). The default is `right_frames` for a model
    /// trained with frames, and `no_frames` otherwise.
    pub system: Option<String>,
}

impl fmt::Display for MetricQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = self.part.map(Part::name).or(self.utterances.as_deref());
        write!(f, "{}", self.metric.info(false).name)?;
        of.map_or(Ok(()), |of| write!(f, " of {of}"))?;
        self.source.as_ref().map_or(Ok(()), |source| write!(f, ", {source}"))
    }
}

/// A column in the table of configurations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its key in JSON.
    pub key: &'static str,
    /// Its heading.
    pub heading: &'static str,
    /// The metric that it shows.
    pub query: MetricQuery,
}

/// The SHA-256 of weights, by their names in recipes.
pub type Hashes = HashMap<String, String>;

/// The interface of a study for the grid of its ablations.
pub trait AblationStudy: fmt::Debug + Sync {
    /// The study's name in recipes.
    fn name(&self) -> &'static str;

    /// The heading of a report.
    fn title(&self) -> &'static str;

    /// A sentence about the meaning of its metrics.
    fn description(&self) -> &'static str;

    /// The columns of the table. The first one is used to compare configurations with the main one.
    fn columns(&self) -> Vec<Column>;

    /// The resampling unit of intervals, besides seeds, such as `image`.
    fn resampling_unit(&self) -> &'static str;

    /// Fills in the defaults of a claim.
    fn complete(&self, query: &mut MetricQuery);

    /// Returns an error if this study cannot measure the metric.
    ///
    /// # Errors
    /// The reason.
    fn check_query(&self, query: &MetricQuery) -> Result<(), String>;

    /// Checks a grid's configurations for consistency, and its claims against the configurations.
    ///
    /// # Errors
    /// [`crate::TrainError::Recipe`] with the line of a configuration or a claim.
    fn check(&self, grid: &Grid) -> Result<()>;

    /// Reads and checks the study's own sections of a recipe.
    ///
    /// # Errors
    /// [`crate::TrainError::Recipe`] with file and line.
    fn complete_recipe(&self, recipe: &mut Recipe) -> Result<()>;

    /// A configuration's settings for its shared phases, without settings that have no effect
    /// there.
    fn shared_settings(&self, set: Vec<String>) -> Vec<String>;

    /// Patterns of the parameters that a configuration loads from its shared phases.
    fn inherited_parameters(&self) -> &'static [&'static str];

    /// The reason why a finished run's weights differ from the weights in this recipe; `None` if
    /// they are equal.
    /// `hashes` caches the hashes of weights.
    ///
    /// # Errors
    /// Weights that cannot be read.
    fn weights_mismatch(
        &self,
        recipe: &mut Recipe,
        run: &Path,
        hashes: &mut Hashes,
    ) -> Result<Option<String>>;

    /// Trains a run.
    ///
    /// # Errors
    /// The errors of the study.
    fn train(&self, recipe: &mut Recipe, options: &RunOptions) -> Result<()>;

    /// The hash of a finished run's recipe.
    ///
    /// # Errors
    /// A summary that cannot be read.
    fn recipe_hash(&self, run: &Path) -> Result<String>;

    /// Answers the test questions again with a finished run and writes the results to `folder`.
    ///
    /// # Errors
    /// The errors of the study.
    fn evaluate_again(
        &self,
        configuration: &Configuration,
        run: &Path,
        folder: &Path,
    ) -> Result<()>;

    /// Removes the files that a finished run no longer needs: its checkpoints and, unless
    /// `is_evaluated_again`, the files for another evaluation.
    ///
    /// # Errors
    /// [`TrainError::Io`](crate::TrainError::Io); an error for files that no run wrote.
    fn tidy(&self, run: &Path, is_evaluated_again: bool) -> Result<()>;

    /// The metric in a configuration's folder, item by item. The inner error is the reason why it
    /// is undefined.
    ///
    /// # Errors
    /// Files that cannot be read.
    fn items(&self, folder: &Path, query: &MetricQuery) -> Result<Result<Vec<Item>, String>>;
}

/// The ablations of this study; `None` for a study without ablations.
pub(super) fn of_study(name: &str) -> Option<&'static dyn AblationStudy> {
    let all: [&'static dyn AblationStudy; 2] = [&RevealAblations, &AvformerAblations];
    all.into_iter().find(|study| study.name() == name)
}
