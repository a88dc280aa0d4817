//! The report of a grid: metrics, paired differences, and a verdict for each claim.

use engram_data::messages::counted;
use std::path::Path;

use engram_eval::html::{MetricTable, metrics_page};
use engram_eval::result::Measure;
use serde::{Deserialize, Serialize};

use super::measure::Runs;
use super::run::GridOptions;
use super::settings::{ClaimSettings, Configuration, Grid};
use super::study::{Column, MetricQuery};
use super::verdict::{Corrected, Rule, Test, Verdict, multiple_testing_note};
use crate::error::Result;
use crate::program::Program;
use crate::run_folder::recipe_hash;

/// A configuration and its metrics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConfigurationReport {
    /// The settings of the configuration.
    #[serde(flatten)]
    pub settings: Configuration,
    /// The command that trains only this configuration and the main one; `None` if the settings
    /// that the grid file gives all configurations were removed (`Grid::at_recipe_scale`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The runs, one for each seed.
    pub runs: Vec<ConfigurationRun>,
    /// The metrics, one for each column of the table.
    pub metrics: Vec<ConfigurationMetric>,
    /// The first metric minus the first metric of the main configuration, on the same items.
    pub difference_from_main: Measure,
}

/// A metric of a configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
        let run = out
            .join(format!("seed-{seed}"))
            .join(configuration.run_of.as_ref().unwrap_or(&configuration.name));
        let recipe_hash = recipe_hash(&run)?;
        Ok(Self { seed, recipe_hash, programs: Program::of_run(&run)? })
    }
}

/// A claim and its verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClaimReport {
    /// The claim.
    #[serde(flatten)]
    pub claim: ClaimSettings,
    /// The configurations, the metric and the subset of items, such as
    /// `main compared with cold-start: exact_match of held_out`.
    pub compared: String,
    /// The metric of the configuration that should be better, and of the configuration that should
    /// be worse.
    pub values: [Measure; 2],
    /// The paired difference: the first value minus the second.
    pub difference: Measure,
    /// The verdict.
    pub verdict: Verdict,
    /// The p-value of the verdict; `None` if the difference is undefined.
    pub p_value: Option<f64>,
    /// The verdict after Holm's correction for all claims of the report; `None` without a p-value.
    pub holm: Option<Corrected>,
}

/// The report of a grid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GridReport {
    /// The heading of the page.
    pub title: String,
    /// One or two sentences about the test and its metrics, from the study.
    pub description: String,
    /// The resampling unit of intervals, besides seeds.
    pub resampling_unit: String,
    /// The number of seeds.
    pub seeds: u64,
    /// The program that evaluated the runs.
    pub program: Program,
    /// Runs that another build of the program trained. `reuse` accepted them.
    pub reused: Vec<String>,
    /// The name of the configuration that the others are compared with.
    pub main: String,
    /// The configurations.
    pub configurations: Vec<ConfigurationReport>,
    /// The claims.
    pub claims: Vec<ClaimReport>,
}

impl GridReport {
    /// Measures the runs of all configurations.
    pub(super) fn new(grid: &Grid, options: &GridOptions, reused: Vec<String>) -> Result<Self> {
        let study = grid.ablations();
        let runs = Runs { study, out: &options.out, seeds: options.seeds };
        let columns = study.columns();
        let configuration = |configuration: &Configuration| -> Result<ConfigurationReport> {
            let run = |seed| ConfigurationRun::of(configuration, seed, &options.out);
            let metric = |column: &Column| {
                let measure = runs.measure(&configuration.name, &column.query)?;
                let (key, heading) = (column.key.to_owned(), column.heading.to_owned());
                Ok(ConfigurationMetric { key, heading, measure })
            };
            let main_query = &columns[0].query;
            Ok(ConfigurationReport {
                runs: (1..=options.seeds).map(run).collect::<Result<_>>()?,
                command: grid.command(configuration, options.seeds, &options.out),
                metrics: columns.iter().map(metric).collect::<Result<_>>()?,
                difference_from_main: runs
                    .difference([&configuration.name, grid.main()], main_query)?,
                settings: configuration.clone(),
            })
        };
        let claim = |claim: &ClaimSettings| -> Result<ClaimReport> {
            let queries = claim.queries(study).map_err(|reason| grid.claim_error(claim, &reason));
            let ([better, worse], configurations) = (queries?, claim.configurations());
            let test = runs.test(configurations, [&better, &worse], claim.rule())?;
            Ok(ClaimReport {
                compared: claim.compared(&better),
                values: [
                    runs.measure(configurations[0], &better)?,
                    runs.measure(configurations[1], &worse)?,
                ],
                difference: test.measure,
                verdict: test.verdict,
                p_value: test.p_value,
                holm: None,
                claim: claim.clone(),
            })
        };
        let mut claims = grid.claims().iter().map(claim).collect::<Result<Vec<_>>>()?;
        let tests: Vec<_> = claims.iter().map(|claim| (claim.p_value, claim.verdict)).collect();
        for (claim, corrected) in claims.iter_mut().zip(Corrected::of_claims(&tests)) {
            claim.holm = corrected;
        }
        Ok(Self {
            title: study.title().to_owned(),
            description: study.description().to_owned(),
            resampling_unit: study.resampling_unit().to_owned(),
            seeds: options.seeds,
            program: Program::running()?,
            reused,
            main: grid.main().to_owned(),
            configurations: grid
                .configurations()
                .iter()
                .map(configuration)
                .collect::<Result<_>>()?,
            claims,
        })
    }

    /// The table headings of the metrics.
    fn headings(&self) -> Vec<&str> {
        let metrics =
            self.configurations.first().map_or(&[][..], |configuration| &configuration.metrics);
        metrics.iter().map(|metric| metric.heading.as_str()).collect()
    }

    /// The number of claims with a p-value.
    fn tests(&self) -> usize {
        self.claims.iter().filter(|claim| claim.p_value.is_some()).count()
    }

    /// The claim with this id; `None` if there is none.
    pub fn claim(&self, id: &str) -> Option<&ClaimReport> {
        self.claims.iter().find(|claim| claim.claim.id == id)
    }

    /// A note on runs that another build of the program trained; `None` if there are none.
    pub fn reused_note(&self) -> Option<String> {
        let runs = self.reused.join("; ");
        (!runs.is_empty()).then(|| format!("Runs trained by a different program: {runs}."))
    }

    /// Two Markdown tables: the configurations, and the claims with their verdicts.
    pub fn to_markdown(&self) -> String {
        let headings = self.headings();
        let (first, others) =
            headings.split_first().map_or(("", &[][..]), |(first, others)| (*first, others));
        let mut columns = vec!["configuration", "description", first];
        let minus_main = format!("minus {}", self.main);
        columns.push(&minus_main);
        columns.extend(others);
        let mut lines =
            vec![format!("| {} |", columns.join(" | ")), "|---".repeat(columns.len()) + "|"];
        for configuration in &self.configurations {
            let mut cells = vec![
                configuration.settings.name.clone(),
                configuration.settings.settings_text().replace('|', "\\|"),
            ];
            cells.extend(configuration.metrics.iter().map(|metric| measure_text(&metric.measure)));
            cells.insert(3.min(cells.len()), measure_text(&configuration.difference_from_main));
            lines.push(format!("| {} |", cells.join(" | ")));
        }
        lines.push(String::new());
        lines.push(
            "| claim | compared | difference | verdict | after Holm's correction |".to_owned(),
        );
        lines.push("|---|---|---|---|---|".to_owned());
        for claim in &self.claims {
            let (mut difference, verdict) = (measure_text(&claim.difference), claim.verdict.name());
            if let Some(reason) = &claim.difference.reason {
                difference += &format!(" ({})", reason.replace('|', "\\|"));
            }
            let (text, compared) = (&claim.claim.claim, &claim.compared);
            let holm = claim.holm.map_or_else(String::new, |holm| holm.to_string());
            lines.push(format!("| {text} | {compared} | {difference} | **{verdict}** | {holm} |"));
        }
        lines.extend([String::new(), multiple_testing_note(self.tests())]);
        if let Some(note) = self.reused_note() {
            lines.extend([String::new(), note]);
        }
        lines.join("\n") + "\n"
    }

    /// The same report as an HTML page with plots of the intervals.
    pub fn to_html(&self) -> String {
        let values =
            |metric: &dyn Fn(&ConfigurationReport) -> Option<&Measure>| -> Vec<(String, Measure)> {
                let with_name = |configuration: &ConfigurationReport| {
                    Some((configuration.settings.name.clone(), metric(configuration)?.clone()))
                };
                self.configurations.iter().filter_map(with_name).collect()
            };
        let differences = values(&|configuration| Some(&configuration.difference_from_main));
        let columns =
            self.configurations.first().map_or(&[][..], |configuration| &configuration.metrics);
        let by_column: Vec<(&str, Vec<(String, Measure)>)> = columns
            .iter()
            .map(|column| {
                (
                    column.heading.as_str(),
                    values(&|configuration| configuration.metric(&column.key)),
                )
            })
            .collect();
        let claims: Vec<(String, Measure)> = self
            .claims
            .iter()
            .map(|claim| {
                let (verdict, text) = (claim.verdict.name(), &claim.claim.claim);
                let holm = claim
                    .holm
                    .map_or_else(String::new, |holm| format!("; after Holm's correction {holm}"));
                let name = format!("{verdict}: {text} ({}{holm})", claim.compared);
                (name, claim.difference.clone())
            })
            .collect();
        let value_of_main = |values: &[(String, Measure)]| {
            values.iter().find(|(name, _)| *name == self.main).map(|(_, measure)| measure.value)
        };
        let note = format!(
            "{} Intervals resample {}s and seeds. {}",
            self.description,
            self.resampling_unit,
            multiple_testing_note(self.tests())
        );
        let table = |heading, rows, note, reference| MetricTable {
            heading,
            row_heading: "configuration",
            note,
            rows,
            reference,
        };
        let claims =
            MetricTable { row_heading: "claim", ..table("Claims", &claims, &note, Some(0.0)) };
        let mut tables = vec![
            claims,
            table("Difference from the main configuration", &differences, "", Some(0.0)),
        ];
        tables.extend(
            by_column
                .iter()
                .map(|(heading, values)| table(heading, values, "", value_of_main(values))),
        );
        let (configurations, seeds) = (self.configurations.len(), self.seeds);
        let reused = self.reused_note().map_or(String::new(), |note| format!(". {note}"));
        let introduction = format!(
            "{}, {}{reused}",
            counted(configurations, "configuration"),
            counted(seeds, "seed")
        );
        metrics_page(&self.title, &introduction, &tables)
    }
}

impl Grid {
    /// Tests a rule on the metric of a configuration in the column with the key `key`. The runs in
    /// the grid's folder `out` are finished. Returns `None` if there is no such column.
    ///
    /// # Errors
    /// Results that cannot be read.
    pub fn test_column(
        &self,
        configuration: &str,
        key: &str,
        rule: Rule,
        out: &Path,
        seeds: u64,
    ) -> Result<Option<Test>> {
        let runs = Runs { study: self.ablations(), out, seeds };
        let columns = runs.study.columns();
        let column = columns.iter().find(|column| column.key == key);
        column.map(|column| runs.test_value(configuration, &column.query, rule)).transpose()
    }
}

impl ClaimSettings {
    /// The configurations, the metric with its subset, and the rule, in words.
    fn compared(&self, query: &MetricQuery) -> String {
        let rule = match self.rule() {
            Rule::NoWorseBy(margin) => format!(", no worse by {margin}"),
            Rule::Within(margin) => format!(", within {margin}"),
            _ => String::new(),
        };
        format!("{} compared with {}: {query}{rule}", self.better, self.worse)
    }
}

impl Configuration {
    /// The description, or else the changed settings, for a table.
    fn settings_text(&self) -> String {
        if let Some(description) = &self.description {
            return description.clone();
        }
        let mut words: Vec<String> = self.set.iter().map(|set| format!("`{set}`")).collect();
        words.extend(self.run_of.as_ref().map(|name| format!("`{name}`, evaluated again")));
        words.extend(self.evaluation.iter().map(|(key, value)| format!("`{key}={value}`")));
        words.join(", ")
    }
}

/// Formats a measure as `0.705 [0.679, 0.732]`: the value and its 95 % interval, if it has one. A
/// dash stands for an undefined measure.
pub(super) fn measure_text(measure: &Measure) -> String {
    match &measure.interval {
        Some(interval) => {
            let decimals = interval.decimals(3);
            let (low, high) = (interval.low, interval.high);
            format!("{:.3} [{low:.decimals$}, {high:.decimals$}]", measure.value)
        }
        None if measure.value.is_nan() => "–".to_owned(),
        None => format!("{:.3}", measure.value),
    }
}
