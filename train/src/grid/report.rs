//! The results of a grid: the metrics of its configurations, and its claims with their verdicts.

use std::path::Path;

use engram_eval::result::Measure;
use serde::{Serialize, Serializer};

use super::claim::ClaimSettings;
use super::measure::Runs;
use super::run::GridOptions;
use super::settings::{Configuration, Grid};
use super::study::Column;
use super::verdict::{Corrected, Test, Verdict};
use crate::error::Result;
use crate::program::Program;
use crate::run_folder::recipe_hash;

/// A claim and its result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClaimReport {
    /// The id, such as `reveal.knowledge_swap`.
    pub id: String,
    /// The claim in words.
    pub claim: String,
    /// The paper's value or statement; empty if there is none.
    pub paper: String,
    /// The compared systems, the metric and the subset of items, such as
    /// `main compared with cold-start: exact_match of seen`.
    pub comparison: String,
    /// The value that decides the claim, the rule, the verdict and its p-value.
    #[serde(flatten, serialize_with = "serialize_test")]
    pub test: Test,
    /// The verdict after Holm's correction for all claims of the report; `None` without a p-value.
    pub holm: Option<Corrected>,
    /// The number of seeds.
    pub seeds: u64,
    /// Whether the claim is expected to hold.
    pub expected: bool,
    /// The command that measures this claim only; empty if there is none.
    pub command: String,
    /// The values of the compared systems.
    pub compared: Vec<SystemMeasure>,
}

/// The value of one system.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SystemMeasure {
    /// The name of the system.
    pub system: String,
    /// The value.
    #[serde(flatten)]
    pub measure: Measure,
}

/// Serialises the verdict as `holds`, `fails` or `untested`, with the reason for `untested`. An
/// undecided claim counts as untested: its interval supports neither verdict.
fn serialize_test<S: Serializer>(test: &Test, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Fields<'a> {
        #[serde(flatten)]
        measure: &'a Measure,
        rule: Option<String>,
        verdict: &'static str,
        untested_because: Option<&'static str>,
        p_value: Option<f64>,
    }
    let (verdict, untested_because) = match test.verdict {
        Verdict::Holds | Verdict::Fails => (test.verdict.name(), None),
        Verdict::NotDecided => (Verdict::Untested.name(), Some("not decided")),
        Verdict::Untested => (Verdict::Untested.name(), Some("not trained")),
    };
    let rule = (test.verdict != Verdict::Untested).then(|| test.rule_text());
    Fields { measure: &test.measure, rule, verdict, untested_because, p_value: test.p_value }
        .serialize(serializer)
}

/// A configuration and its metrics.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConfigurationReport {
    /// The settings of the configuration.
    #[serde(flatten)]
    pub settings: Configuration,
    /// The runs, one for each seed.
    pub runs: Vec<ConfigurationRun>,
    /// The metrics, one for each column of the table.
    pub metrics: Vec<ConfigurationMetric>,
    /// The first metric minus the first metric of the main configuration, on the same items.
    pub difference_from_main: Measure,
}

/// A metric of a configuration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConfigurationMetric {
    /// The key in JSON, such as `recall_at_10`.
    pub key: String,
    /// The table heading, such as `recall@10`.
    pub heading: String,
    /// The value.
    #[serde(flatten)]
    pub measure: Measure,
}

impl ConfigurationReport {
    /// The metric with this key; `None` if there is none.
    pub fn metric(&self, key: &str) -> Option<&Measure> {
        self.metrics.iter().find(|metric| metric.key == key).map(|metric| &metric.measure)
    }
}

/// The run of a configuration with one seed. For a configuration with `run_of`, it is the run of
/// that other configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigurationRun {
    /// The seed.
    pub seed: u64,
    /// The SHA-256 of the resolved recipe.
    pub recipe_hash: String,
    /// The programs that trained the run, oldest first.
    pub programs: Vec<Program>,
}

impl ConfigurationRun {
    /// Reads the hash and the programs of a configuration's run in the grid's folder `out`.
    fn of(configuration: &Configuration, seed: u64, out: &Path) -> Result<Self> {
        let run = out.join(format!("seed-{seed}")).join(configuration.trained());
        let recipe_hash = recipe_hash(&run)?;
        Ok(Self { seed, recipe_hash, programs: Program::of_run(&run)? })
    }
}

/// The results of a grid.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GridReport {
    /// The heading of a report.
    pub title: String,
    /// One or two sentences about the test and its metrics, from the study.
    pub description: String,
    /// The resampling unit of intervals, besides seeds.
    pub resampling_unit: String,
    /// Runs that another build of the program trained. `reuse` accepted them.
    pub reused: Vec<String>,
    /// Remarks of the study on the main runs.
    pub remarks: Vec<String>,
    /// The configurations without finished runs for all seeds; empty unless the grid was stopped.
    pub unfinished: Vec<String>,
    /// The name of the configuration that the others are compared with.
    pub main: String,
    /// The configurations.
    pub configurations: Vec<ConfigurationReport>,
    /// The claims, with Holm's correction for all of them.
    pub claims: Vec<ClaimReport>,
}

impl GridReport {
    /// Measures the runs of all configurations.
    pub(super) fn new(grid: &Grid, options: &GridOptions, reused: Vec<String>) -> Result<Self> {
        let study = grid.study.ablations;
        let runs = Runs { study, out: &options.out, seeds: options.seeds };
        let measures = study.measures();
        let columns = &measures.columns;
        let configuration = |configuration: &Configuration| -> Result<ConfigurationReport> {
            let run = |seed| ConfigurationRun::of(configuration, seed, &options.out);
            let metric = |column: &Column| {
                let measure = runs.measure(&configuration.name, &column.query)?;
                let (key, heading) = (column.key.to_owned(), column.heading.to_owned());
                Ok(ConfigurationMetric { key, heading, measure })
            };
            Ok(ConfigurationReport {
                runs: (1..=options.seeds).map(run).collect::<Result<_>>()?,
                metrics: columns.iter().map(metric).collect::<Result<_>>()?,
                difference_from_main: runs
                    .difference([&configuration.name, &grid.main], &columns[0].query)?,
                settings: configuration.clone(),
            })
        };
        let configurations: Vec<ConfigurationReport> =
            grid.configurations.iter().map(configuration).collect::<Result<_>>()?;
        let claims = grid.claims.iter().map(|claim| claim.report(&runs));
        let mut claims = claims.collect::<Result<Vec<_>>>()?;
        Corrected::correct(&mut claims);
        let main_run = options.out.join("seed-1").join(&grid.main);
        Ok(Self {
            title: measures.title.to_owned(),
            description: measures.description.to_owned(),
            resampling_unit: measures.resampling_unit.to_owned(),
            reused,
            remarks: study.remark(&main_run)?.into_iter().collect(),
            unfinished: Vec::new(),
            main: grid.main.clone(),
            configurations,
            claims,
        })
    }

    /// The claim with this id; `None` if there is none.
    pub fn claim(&self, id: &str) -> Option<&ClaimReport> {
        self.claims.iter().find(|claim| claim.id == id)
    }

    /// Remarks for the reader: runs of another program, the study's remarks, and configurations
    /// that are not finished.
    pub fn notes(&self) -> Vec<String> {
        let list = |text: &str, names: &[String]| {
            (!names.is_empty()).then(|| format!("{text}: {}.", names.join("; ")))
        };
        let reused = list("Runs trained by a different program", &self.reused);
        let unfinished = list("Stopped before these configurations finished", &self.unfinished);
        reused.into_iter().chain(unfinished).chain(self.remarks.iter().cloned()).collect()
    }
}

impl ClaimReport {
    /// A claim whose runs were not trained.
    pub fn untested(claim: &ClaimSettings, seeds: u64) -> Self {
        let test = Test::untested(claim.rule());
        claim.with_results(String::new(), test, seeds, Vec::new())
    }

    /// Whether the claim holds, or is not expected to hold. An undecided claim does not hold.
    pub fn is_as_expected(&self) -> bool {
        !self.expected || self.test.verdict == Verdict::Holds
    }

    /// The verdict after Holm's correction. A claim without a p-value keeps its verdict.
    pub fn corrected_verdict(&self) -> Verdict {
        self.holm.map_or(self.test.verdict, |holm| holm.verdict)
    }
}

impl Configuration {
    /// The name of the configuration whose run has the results.
    pub fn trained(&self) -> &str {
        self.run_of.as_ref().unwrap_or(&self.name)
    }

    /// The description, or else the changed settings, for a table.
    pub fn settings_text(&self) -> String {
        if let Some(description) = &self.description {
            return description.clone();
        }
        let mut words: Vec<String> = self.set.iter().map(|set| format!("`{set}`")).collect();
        words.extend(self.run_of.as_ref().map(|name| format!("`{name}`, evaluated again")));
        words.extend(self.evaluation.iter().map(|(key, value)| format!("`{key}={value}`")));
        words.join(", ")
    }
}
