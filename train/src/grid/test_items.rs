//! Grids of studies whose runs write files of items.

use std::path::{Path, PathBuf};

use engram_eval::items::{Item, Items, json_lines};
use engram_eval::metric::MetricInfo;

use super::study::{AblationStudy, Column, Measures, MetricQuery};
use crate::checkpoint::{create_folder_in, write_file};
use crate::error::{Result, TrainError};

/// The folder of the test results in a run.
const TEST: &str = "test";

/// Grids of a study whose runs write one file of items for each metric.
#[derive(Debug)]
pub struct TestItems {
    /// The heading of a report.
    pub title: &'static str,
    /// One or two sentences about the test and its metrics.
    pub description: &'static str,
    /// The metrics, each with its heading in tables.
    pub metrics: &'static [(MetricInfo, &'static str)],
    /// The kind of group of the items, such as `image`.
    pub unit: &'static str,
}

impl TestItems {
    /// The file of a metric's items in a run.
    pub fn file(run: &Path, metric: &MetricInfo) -> PathBuf {
        run.join(TEST).join(format!("{}.items.jsonl", metric.name))
    }

    /// Writes the items of a metric into a run.
    ///
    /// # Errors
    /// [`TrainError::Io`]
    pub fn write(run: &Path, metric: &MetricInfo, items: &[Item]) -> Result<()> {
        create_folder_in(run, TEST)?;
        write_file(&Self::file(run, metric), json_lines(items).as_bytes())
    }
}

impl AblationStudy for TestItems {
    fn measures(&self) -> Measures {
        let column = |(metric, heading): &(MetricInfo, &'static str)| Column {
            key: heading,
            heading,
            query: MetricQuery::new(metric.clone()),
        };
        Measures {
            title: self.title,
            description: self.description,
            metrics: self.metrics.iter().map(|(metric, _)| metric.clone()).collect(),
            filters: Vec::new(),
            systems: &[],
            evaluation_keys: &[],
            columns: self.metrics.iter().map(column).collect(),
            resampling_unit: self.unit,
        }
    }

    fn items(&self, folder: &Path, query: &MetricQuery) -> Result<Result<Vec<Item>, String>> {
        let file = Self::file(folder, &query.metric);
        if !file.is_file() {
            return Ok(Err(format!("undefined: {} was not measured", query.metric.name)));
        }
        let items =
            Items::read(&file).map_err(TrainError::in_study("grid", "reading test items"))?;
        Ok(Ok(items.items))
    }
}
