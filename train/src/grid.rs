//! A grid of a study's ablations: rows of settings, and claims about them with a verdict each.
//!
//! | file | what it is responsible for |
//! |---|---|
//! | [`settings`] | what a grid's file says |
//! | `check` | what is wrong with it |
//! | [`ablated`] | what a study brings: which figures there are, how a row is trained |
//! | `folder` | whose the folder is, and who makes which run |
//! | [`rows`] | training and asking the rows, where it was not done before |
//! | `measure` | figures, paired differences |
//! | [`report`] | verdicts, tables, the page |
//!
//! Rows share what they agree in: the phases that the file names as `shared` are trained once for all rows that differ in
//! nothing before the others, and each row starts from those weights (`[start]`). A row of REVEAL may also ask the
//! finished run of another row again, with another `k` or without a source, and train nothing.

pub mod ablated;
mod check;
mod folder;
mod measure;
pub mod report;
pub mod rows;
pub mod settings;

pub use ablated::{Ablated, Asked, Figure};
pub use report::{ClaimReport, GridReport, RowReport, RowRun, Rule, Verdict};
pub use rows::{GridOptions, GridProgress, run_grid};
pub use settings::{ClaimSettings, Grid, RowSettings, quoted};
