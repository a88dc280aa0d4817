//! The interface between a study and its grids.
//!
//! An item is one test example, such as a question or a clip. A study can test each run as several
//! systems, which differ in their input. AVFormer, for example, tests clips with their own frames
//! (`right_frames`) and with frames of other clips (`wrong_frames`).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;

use engram_eval::items::Item;
use engram_eval::metric::MetricInfo;

use super::check;
use super::settings::{Configuration, Grid};
use crate::checkpoint;
use crate::error::Result;
use crate::recipe::Recipe;

/// A metric of a configuration's runs, with the subset of items to measure.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricQuery {
    /// The metric.
    pub metric: MetricInfo,
    /// The values of the study's [`Filter`]s, by key.
    pub filters: BTreeMap<String, String>,
    /// One of the study's systems; `None` for the study's default.
    pub system: Option<String>,
}

impl MetricQuery {
    /// The metric on all items.
    pub fn new(metric: MetricInfo) -> Self {
        Self { metric, filters: BTreeMap::new(), system: None }
    }

    /// The same metric on the items that a filter selects.
    #[must_use]
    pub fn with(mut self, key: &str, value: &str) -> Self {
        self.filters.insert(key.to_owned(), value.to_owned());
        self
    }

    /// The same metric of one system.
    #[must_use]
    pub fn of_system(mut self, system: &str) -> Self {
        self.system = Some(system.to_owned());
        self
    }

    /// Returns an error unless the metric has the query's system. If the metric has no systems, the
    /// query must not name one.
    ///
    /// # Errors
    /// A message with the allowed systems.
    pub(crate) fn check_system(&self, known: &[&str]) -> Result<(), String> {
        let name = &self.metric.name;
        match &self.system {
            None if known.is_empty() => Ok(()),
            None => Err(format!(
                "`{name}` needs `CONFIGURATION:SYSTEM`; choose the system from {}",
                known.join(", ")
            )),
            Some(system) if known.is_empty() => {
                Err(format!("`{name}` has no systems; remove `:{system}`"))
            }
            Some(system) => check::one_of(&format!("system of `{name}`"), system, known),
        }
    }

    /// The value of a filter; `None` if the query does not have it.
    pub fn filter(&self, key: &str) -> Option<&str> {
        self.filters.get(key).map(String::as_str)
    }
}

impl fmt::Display for MetricQuery {
    /// Formats the metric and the values of the filters, as `exact_match of seen, kg`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.metric.name)?;
        for (i, value) in self.filters.values().enumerate() {
            write!(f, "{}{value}", if i == 0 { " of " } else { ", " })?;
        }
        Ok(())
    }
}

/// A key of claims that selects the items to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// The key.
    pub key: &'static str,
    /// The allowed values. Without the key, a claim is about the items that the study tests by
    /// default.
    pub values: Vec<&'static str>,
}

/// A column in the table of configurations.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// The key in JSON.
    pub key: &'static str,
    /// The heading.
    pub heading: &'static str,
    /// The metric of the column.
    pub query: MetricQuery,
}

/// The SHA-256 of weights, by their names in recipes.
pub type Hashes = HashMap<String, String>;

/// The metrics, systems and columns of a study's grids.
#[derive(Debug, Clone)]
pub struct Measures {
    /// The heading of a report.
    pub title: &'static str,
    /// One or two sentences about the test and its metrics, for reports.
    pub description: &'static str,
    /// The metrics that a claim may compare. The first one is the default.
    pub metrics: Vec<MetricInfo>,
    /// The keys of claims that select items.
    pub filters: Vec<Filter>,
    /// The systems that each run is tested as: `SYSTEM` in `CONFIGURATION:SYSTEM` of a claim.
    pub systems: &'static [&'static str],
    /// The keys of a configuration with `run_of`, which describe the evaluation. If there are none,
    /// the study cannot evaluate a finished run again.
    pub evaluation_keys: &'static [&'static str],
    /// The columns of the table. The first one is used to compare configurations with the main one.
    pub columns: Vec<Column>,
    /// The resampling unit of intervals, besides seeds, such as `image`.
    pub resampling_unit: &'static str,
}

/// The interface of a study for its grids. [`TestItems`](super::TestItems) implements it for a
/// study whose runs write a file of items for each metric. Functions fail with the errors of the
/// study, and for files that cannot be read.
pub trait AblationStudy: fmt::Debug + Sync {
    /// The metrics, systems and columns.
    fn measures(&self) -> Measures;

    /// The query for the worse configuration of a claim. It may select more items than `query`.
    /// Only the items of the better configuration are compared.
    fn query_of_worse(&self, query: &MetricQuery) -> MetricQuery {
        query.clone()
    }

    /// Checks a grid's configurations for consistency, and its claims against the configurations.
    ///
    /// # Errors
    /// [`crate::TrainError::Recipe`] with the line of a configuration or a claim.
    fn check(&self, _grid: &Grid) -> Result<()> {
        Ok(())
    }

    /// A configuration's settings for its shared phases, without settings that have no effect
    /// there. Configurations that differ only in such settings share the run of these phases.
    fn shared_settings(&self, set: Vec<String>) -> Vec<String> {
        set
    }

    /// Path patterns of the parameters that a configuration loads from its shared phases; empty
    /// for all parameters.
    fn inherited_parameters(&self) -> &'static [&'static str] {
        &[]
    }

    /// The reason why a finished run was trained with other frozen weights than the recipe names;
    /// `None` if they are equal. `hashes` caches the hashes of weights.
    fn weights_mismatch(
        &self,
        _recipe: &mut Recipe,
        _run: &Path,
        _hashes: &mut Hashes,
    ) -> Result<Option<String>> {
        Ok(None)
    }

    /// Evaluates a finished run again, as a configuration with `run_of` describes, and writes the
    /// results to `folder`. Only called if the study has [`evaluation_keys`](Measures). Such a
    /// study also implements [`is_evaluated`](Self::is_evaluated).
    fn evaluate_again(
        &self,
        _configuration: &Configuration,
        _run: &Path,
        _folder: &Path,
    ) -> Result<()> {
        Ok(())
    }

    /// Whether `folder` has the results of [`evaluate_again`](Self::evaluate_again) for this
    /// configuration and this run.
    fn is_evaluated(
        &self,
        _configuration: &Configuration,
        _run: &Path,
        _folder: &Path,
    ) -> Result<bool> {
        Ok(false)
    }

    /// Tests a finished run in a way that its training does not, for claims about these results.
    /// Does nothing if the results exist already. A study with such a test also implements
    /// [`is_tested`](Self::is_tested).
    fn test(&self, _run: &Path) -> Result<()> {
        Ok(())
    }

    /// Whether [`test`](Self::test) has nothing left to do for a finished run.
    fn is_tested(&self, _run: &Path) -> Result<bool> {
        Ok(true)
    }

    /// A remark on a finished run, for the report; `None` if there is none.
    fn remark(&self, _run: &Path) -> Result<Option<String>> {
        Ok(None)
    }

    /// Removes the files that a finished run no longer needs: its checkpoints and, unless
    /// `is_evaluated_again`, the files for another evaluation.
    ///
    /// # Errors
    /// [`TrainError::Io`](crate::TrainError::Io); an error for files that no run wrote.
    fn remove_unneeded_files(&self, run: &Path, _is_evaluated_again: bool) -> Result<()> {
        checkpoint::remove_all(run)
    }

    /// The items of a configuration's folder, with their values of the metric. The inner error is
    /// the reason why the metric is undefined.
    fn items(&self, folder: &Path, query: &MetricQuery) -> Result<Result<Vec<Item>, String>>;
}
