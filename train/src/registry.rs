//! The interface between studies and commands. `train`, `recipe` and `grid` know a study only by
//! this interface.
//!
//! To add a study, write a [`StudyDefinition`] in a folder of `studies/` and add a line to
//! [`studies::ALL`](crate::studies::ALL).

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
    /// The keys of the study's recipes, with types, defaults and descriptions.
    pub recipe_schema: fn() -> RecipeSchema,
    /// Reads and checks the study's own sections of a recipe, and fills in their defaults. Fails
    /// with [`TrainError::Recipe`], which has file and line.
    pub complete: fn(&mut Recipe) -> Result<()>,
    /// Trains and tests a model as the recipe describes. Fails with the errors of the study and of
    /// [`train`](crate::train), such as [`TrainError::Stopped`].
    pub train: fn(&mut Recipe, &RunOptions) -> Result<RunReport>,
    /// The metrics and systems of the study, for grids.
    pub ablations: &'static dyn AblationStudy,
}

/// A table of studies.
pub type Studies = &'static [&'static StudyDefinition];

/// The study with this name; `None` if the table has none.
pub fn find(studies: Studies, name: &str) -> Option<&'static StudyDefinition> {
    studies.iter().copied().find(|study| study.name == name)
}

/// The results of a finished run.
#[derive(Debug, Clone)]
pub struct RunReport {
    /// The results as JSON, as in `summary.json`.
    pub summary: Value,
    /// Failures of the recipe's `[check]`.
    pub check_failures: Vec<String>,
}

impl RunReport {
    /// A report of these results.
    ///
    /// # Errors
    /// [`TrainError::Study`] for a summary that JSON cannot express.
    pub fn new(
        study: &'static str,
        summary: &impl Serialize,
        check_failures: &[String],
    ) -> Result<Self> {
        let summary = serde_json::to_value(summary);
        let summary = summary.map_err(TrainError::in_study(study, "writing the summary"))?;
        Ok(Self { summary, check_failures: check_failures.to_vec() })
    }
}

/// Formats a measure with its 95 % interval, if it has one: `0.7656 [0.7291, 0.7980]`. An undefined
/// value is the reason why it is undefined.
pub fn format_measure(measure: &Measure) -> String {
    match (measure.ci95, &measure.interval) {
        (Some([Some(low), Some(high)]), Some(interval)) => {
            let decimals = interval.decimals(4);
            format!("{:.decimals$} [{low:.decimals$}, {high:.decimals$}]", measure.value)
        }
        _ if measure.value.is_nan() => measure.reason.clone().unwrap_or_default(),
        _ => format!("{:.4}", measure.value),
    }
}
