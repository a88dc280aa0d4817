//! Claims about trained systems. A grid file has configurations of a recipe (`[[configuration]]`)
//! and claims about their results (`[[claim]]`): a configuration is better than another, or its
//! metric is above or below a limit. The runs are trained and tested, and each claim gets a
//! verdict.
//!
//! | file | contents |
//! |---|---|
//! | `settings` | the grid file |
//! | `claim` | the claims of a grid file, and their measurement |
//! | `check` | validation of the grid file |
//! | `study` | the interface of a study to its grids: metrics, systems, filters, columns and checks |
//! | `test_items` | this interface for studies whose runs write files of items |
//! | `folder` | the grid's folder, and locks on its runs |
//! | `run` | training and evaluating the configurations that are not finished yet |
//! | `measure` | metrics and paired differences, with intervals and p-values |
//! | `verdict` | rules, verdicts, and the correction for several claims |
//! | `report` | the results of configurations and claims |
//!
//! Configurations share training. The phases in `shared` are trained once for all configurations
//! with equal settings in them. Each configuration then starts from the weights of its shared
//! phases (`[start]`). A configuration with `run_of` needs no training: it evaluates the finished
//! run of another configuration again with other settings, for example with fewer retrieved
//! entries.

mod check;
mod claim;
mod folder;
mod measure;
mod report;
mod run;
mod settings;
mod study;
mod test_items;
mod verdict;

pub use claim::ClaimSettings;
pub use measure::{SeedItems, measure, test_difference, test_value};
pub use report::{ClaimReport, ConfigurationReport, ConfigurationRun, GridReport, SystemMeasure};
pub use run::{GridOptions, GridProgress, measure_finished, run_grid};
pub(crate) use settings::Phases;
pub use settings::{Configuration, Grid};
pub use study::{AblationStudy, Column, Filter, Hashes, Measures, MetricQuery};
pub use test_items::TestItems;
pub use verdict::{Corrected, Rule, Test, Verdict, multiple_testing_note};
