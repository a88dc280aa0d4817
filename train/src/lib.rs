//! The trainer of the Engram toolkit: recipes and one training loop for every study.
//!
//! A [`Study`] provides data, model, loss and evaluation. A [`Recipe`] holds the training settings.
//! [`train`] runs the training and writes a run folder. A resumed run writes the same weights,
//! metrics and results as an uninterrupted run, byte for byte.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod awp;
mod card;
pub mod checkpoint;
mod checksums;
pub mod distributed;
mod ema;
mod error;
mod exact;
pub mod grid;
mod layer_rate;
mod log;
pub mod optimiser;
mod program;
pub mod recipe;
pub mod registry;
mod run_folder;
mod schedule;
mod step_features;
mod storages;
pub mod studies;
mod study;
mod trainer;

pub use checksums::{finish_run, write_checksums};
pub use engram_infer::{Stop, Stopped};
pub use error::{Result, StudyError, TrainError};
pub use log::METRICS;
pub use program::Program;
pub use recipe::{Phase, Recipe, RecipeOptions};
pub use run_folder::check_failures;
pub use step_features::{Features, StepFeatures};
pub use storages::{MemoryServers, Storages, ValueStorages};
pub use study::{
    BatchLoss, Evaluation, EvaluationContext, Inputs, MetricSpec, StepContext, Study,
    StudyExtension, StudyResult, TableIds,
};
pub use trainer::{CheckOutcome, RunOptions, RunSummary, train};
