//! The interface between studies and commands. `train`, `recipe`, `grid` and `explore` know a study
//! only by this interface.
//!
//! To add a study, write a [`StudyDefinition`] in a folder of `studies/` and add a line to
//! [`studies::ALL`](crate::studies::ALL).

use std::path::PathBuf;

use engram_eval::result::Measure;
use serde::Serialize;
use serde_json::Value;

use crate::error::{Result, TrainError};
use crate::grid::AblationStudy;
use crate::recipe::Recipe;
use crate::recipe::reference::RecipeSchema;
use crate::trainer::RunOptions;

/// A study, as commands see it.
#[derive(Debug)]
pub struct StudyDefinition {
    /// The value of `study` in the study's recipes.
    pub name: &'static str,
    /// The trained task or model, in one phrase for help texts.
    pub description: &'static str,
    /// Command lines that train the study, for help texts.
    pub examples: &'static [&'static str],
    /// The keys of the study's recipes, with types, defaults and descriptions.
    pub recipe_schema: fn() -> RecipeSchema,
    /// Reads and checks the study's own sections of a recipe, and fills in their defaults. Fails with
    /// [`TrainError::Recipe`], which has file and line.
    pub complete: fn(&mut Recipe) -> Result<()>,
    /// Trains and tests a model as the recipe describes. Fails with the errors of the study and of
    /// [`train`](crate::train), such as [`TrainError::Stopped`].
    pub train: fn(&mut Recipe, &RunOptions) -> Result<RunReport>,
    /// The metrics and systems of the study, for grids.
    pub ablations: &'static dyn AblationStudy,
    /// The tabs of the explorer that can show the study's finished runs.
    pub explorer_tabs: &'static [ExplorerTab],
}

/// A table of studies.
pub type Studies = &'static [&'static StudyDefinition];

/// The study with this name; `None` if the table has none.
pub fn find(studies: Studies, name: &str) -> Option<&'static StudyDefinition> {
    studies.iter().copied().find(|study| study.name == name)
}

/// A tab of the explorer that shows finished runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExplorerTab {
    /// Answers to questions about images, with evidence.
    Answers,
    /// Transcripts of clips with image frames, and without.
    Avformer,
}

impl ExplorerTab {
    /// The tab's name in the explorer's page and requests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Answers => "answers",
            Self::Avformer => "speech",
        }
    }
}

/// The results of a finished run, as commands print them.
#[derive(Debug, Clone)]
pub struct RunReport {
    /// The results as JSON, as in `summary.json`.
    pub json: Value,
    /// The results as a text table.
    pub text: String,
    /// Failures of the recipe's `[check]`.
    pub check_failures: Vec<String>,
    /// The plots for the run folder.
    pub plots: Vec<LinePlot>,
}

impl RunReport {
    /// A report without plots.
    ///
    /// # Errors
    /// [`TrainError::Study`] for a summary that JSON cannot express.
    pub fn new(
        study: &'static str,
        summary: &impl Serialize,
        text: String,
        check_failures: &[String],
    ) -> Result<Self> {
        let json = serde_json::to_value(summary);
        let json = json.map_err(TrainError::in_study(study, "writing the summary"))?;
        Ok(Self { json, text, check_failures: check_failures.to_vec(), plots: Vec::new() })
    }
}

/// A line plot of measures, with their intervals.
#[derive(Debug, Clone)]
pub struct LinePlot {
    /// The file of the plot, relative to the run folder.
    pub file: PathBuf,
    /// The titles of the horizontal and the vertical axis.
    pub axes: [&'static str; 2],
    /// The lines: names, and points in ascending order of the horizontal value. Each point is the
    /// horizontal value and the measure.
    pub lines: Vec<(&'static str, Vec<(f64, Measure)>)>,
}

/// The last lines of a summary's text: the size of the run (such as a number of steps), the seed,
/// the start of the recipe's hash, and the failures of `[check]`.
pub(crate) fn footer(size: &str, seed: u64, recipe_hash: &str, failures: &[String]) -> Vec<String> {
    let hash = recipe_hash.get(..12).unwrap_or(recipe_hash);
    let mut lines = vec![format!("{size}; seed {seed}; recipe {hash}")];
    lines.extend(failures.iter().map(|failure| format!("check failed: {failure}")));
    lines
}

/// Formats a measure with its 95 % interval, if it has one: `0.7656 [0.7291, 0.7980]`.
pub fn format_measure(measure: &Measure) -> String {
    match (measure.ci95, &measure.interval) {
        (Some([Some(low), Some(high)]), Some(interval)) => {
            let decimals = interval.decimals(4);
            format!("{:.4} [{low:.decimals$}, {high:.decimals$}]", measure.value)
        }
        _ => format!("{:.4}", measure.value),
    }
}
