//! `[[claim]]`: the claims of a grid, and their measurement.

use serde::Deserialize;
use toml::Table;

use super::check;
use super::measure::{Runs, test_difference, test_value};
use super::report::{ClaimReport, SystemMeasure};
use super::study::{AblationStudy, MetricQuery};
use super::verdict::{Rule, Test};
use crate::error::{Result, TrainError};

/// `[[claim]]`: a claim that one system is better than another, or that the metric of one system is
/// above or below a limit.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ClaimSettings {
    /// The name in reports, such as `reveal.k_curve`.
    pub id: String,
    /// The claim in words.
    pub claim: String,
    /// The paper's value or statement, for reports; may be empty.
    #[serde(default)]
    pub paper: String,
    /// The configuration that should be better. A study that tests each run as several systems
    /// (for example with other inputs) also accepts `CONFIGURATION:SYSTEM`, such as
    /// `main:wrong_frames`.
    pub better: String,
    /// The configuration that should be worse, in the same form; `None` for a claim about the value
    /// of one system.
    pub worse: Option<String>,
    /// Further systems whose values the report shows.
    #[serde(default)]
    pub also: Vec<String>,
    /// The metric to compare; by default the study's first metric.
    pub metric: Option<String>,
    /// Replaces the rule "is better": the configurations differ by at most this margin in either
    /// direction.
    pub within: Option<f64>,
    /// Replaces the rule "is better": the first configuration is better, or worse by at most this
    /// margin.
    pub no_worse_by: Option<f64>,
    /// Without `worse`: the value is above this limit.
    pub above: Option<f64>,
    /// Without `worse`: the value is at most this limit.
    pub at_most: Option<f64>,
    /// The value is counted and not sampled, so it needs no interval.
    #[serde(default)]
    pub counted: bool,
    /// Whether the claim is expected to hold.
    #[serde(default)]
    pub expected: bool,
    /// Conditions of `engram reproduce` under which the claim is expected to hold: `whisper` for
    /// Whisper as the frozen model, `one seed`.
    #[serde(default)]
    pub expected_with: Vec<String>,
    /// Keys of the study that select the items to compare.
    #[serde(flatten)]
    pub filters: Table,
}

impl ClaimSettings {
    /// The keys of all studies.
    pub(super) const KEYS: [&str; 14] = [
        "id",
        "claim",
        "paper",
        "better",
        "worse",
        "also",
        "metric",
        "within",
        "no_worse_by",
        "above",
        "at_most",
        "counted",
        "expected",
        "expected_with",
    ];

    /// The configuration of a system, which is `CONFIGURATION` or `CONFIGURATION:SYSTEM`.
    pub(crate) fn configuration_of(system: &str) -> &str {
        system.split_once(':').map_or(system, |(configuration, _)| configuration)
    }

    /// The systems whose values the report shows beside the value that decides the claim.
    pub(super) fn shown(&self) -> impl Iterator<Item = &str> {
        let compared = self.worse.as_ref().map(|worse| [worse, &self.better]);
        self.also.iter().chain(compared.into_iter().flatten()).map(String::as_str)
    }

    /// All systems of the claim.
    pub(crate) fn systems(&self) -> impl Iterator<Item = &str> {
        self.shown().chain([self.better.as_str()])
    }

    /// The configurations of all systems.
    pub fn configurations(&self) -> Vec<&str> {
        self.systems().map(Self::configuration_of).collect()
    }

    /// The rule that the claim states.
    pub fn rule(&self) -> Rule {
        let limit = self.above.map(Rule::Above).or(self.at_most.map(Rule::AtMost));
        let margin = self.no_worse_by.map(Rule::NoWorseBy).or(self.within.map(Rule::Within));
        limit.or(margin).unwrap_or(Rule::Better)
    }

    /// The metric of one of the claim's systems.
    ///
    /// # Errors
    /// A message with the key or the value that the study does not have.
    pub(crate) fn query(
        &self,
        system: &str,
        study: &dyn AblationStudy,
    ) -> Result<MetricQuery, String> {
        let query = check::query(self, study)?;
        match system.split_once(':') {
            None => Ok(query),
            Some((_, system)) => {
                check::one_of("`CONFIGURATION:SYSTEM`", system, study.measures().systems)?;
                Ok(query.of_system(system))
            }
        }
    }

    /// Measures the claim on finished runs.
    pub(super) fn report(&self, runs: &Runs<'_>) -> Result<ClaimReport> {
        let query = |system: &str| {
            self.query(system, runs.study).map_err(|reason| TrainError::Recipe {
                location: format!("claim `{}`", self.id),
                reason,
            })
        };
        let (unit, rule) = (runs.study.measures().resampling_unit, self.rule());
        let (configuration, better) = (Self::configuration_of(&self.better), query(&self.better)?);
        let mut test = match &self.worse {
            Some(other) => {
                let configurations = [configuration, Self::configuration_of(other)];
                let (a, b, same_items) = runs.pair(configurations, [&better, &query(other)?])?;
                test_difference(&better.metric, unit, a, b, same_items, rule)
            }
            None => test_value(&better.metric, unit, runs.items(configuration, &better)?, rule),
        };
        if self.counted {
            test = Test::of_count(test.measure, rule);
        }
        let measure = |system: &str| {
            let measure = runs.measure(Self::configuration_of(system), &query(system)?)?;
            Ok(SystemMeasure { system: system.to_owned(), measure })
        };
        let compared = self.shown().map(measure).collect::<Result<_>>()?;
        Ok(self.with_results(self.comparison(&better), test, runs.seeds, compared))
    }

    /// The claim with its results.
    pub fn with_results(
        &self,
        comparison: String,
        test: Test,
        seeds: u64,
        compared: Vec<SystemMeasure>,
    ) -> ClaimReport {
        ClaimReport {
            id: self.id.clone(),
            claim: self.claim.clone(),
            paper: self.paper.clone(),
            comparison,
            test,
            holm: None,
            seeds,
            expected: self.expected,
            command: String::new(),
            compared,
        }
    }

    /// The systems, the metric with its subset, and the margin, in words.
    fn comparison(&self, query: &MetricQuery) -> String {
        let margin = match self.rule() {
            Rule::NoWorseBy(margin) => format!(", no worse by {margin}"),
            Rule::Within(margin) => format!(", within {margin}"),
            _ => String::new(),
        };
        let worse = self.worse.as_ref().map(|worse| format!(" compared with {worse}"));
        format!("{}{}: {query}{margin}", self.better, worse.unwrap_or_default())
    }
}
