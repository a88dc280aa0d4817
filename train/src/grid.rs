//! A grid of a study's ablations: configurations (`[[configuration]]`), and claims that compare two
//! of them (`[[claim]]`). The report has a verdict for each claim.
//!
//! | file | contents |
//! |---|---|
//! | `settings` | the grid file |
//! | `check` | validation of the grid file |
//! | `study` | the interface of a study to its grid: metrics, filters, columns and checks |
//! | `folder` | the grid's folder, and locks on its runs |
//! | `run` | training and evaluating the configurations that are not finished yet |
//! | `length` | the length of runs, and the expected time of the remaining runs |
//! | `measure` | metrics and paired differences |
//! | `verdict` | verdicts on claims, p-values, the correction for several claims |
//! | `report` | tables, the HTML page |
//!
//! Configurations share training. The phases in `shared` are trained once for all configurations
//! with equal settings in them. Each configuration then starts from the weights of its shared
//! phases (`[start]`). A configuration with `run_of` needs no training: it evaluates the finished
//! run of another configuration again with other settings, for example with fewer retrieved
//! entries.

mod check;
mod folder;
mod length;
mod measure;
mod report;
mod run;
mod settings;
mod study;
mod verdict;

pub use report::{ClaimReport, ConfigurationReport, ConfigurationRun, GridReport};
pub use run::{GridOptions, GridProgress, run_grid};
pub(crate) use settings::Phases;
pub use settings::{ClaimSettings, Configuration, Grid, shell_quote};
pub use study::{AblationStudy, Column, Filter, Hashes, MetricQuery};
pub use verdict::{Corrected, Rule, Test, Verdict, multiple_testing_note};
