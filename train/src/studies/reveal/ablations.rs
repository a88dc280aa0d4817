//! The ablation grid of REVEAL.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use engram_data::messages::counted;
use engram_data::world::attributes::Source;
use engram_data::world::haystack::WorldId;
use engram_data::world::questions::Part;
use engram_durable as durable;
use engram_eval::items::{Item, Statistic};
use engram_eval::metric::{MetricInfo, Unit};
use engram_infer::reveal::memory_folder::remove_memory;
use serde::{Deserialize, Serialize};

use super::NAME;
use super::evaluation::FinishedRun;
use super::run::{RevealSummary, TEST_ANSWERS, TestAnswer, settings};
use super::settings::RevealSettings;
use crate::checkpoint::{self, write_file};
use crate::error::{Result, TrainError};
use crate::grid::{AblationStudy, Column, Configuration, Filter, Grid, MetricQuery, Phases};
use crate::program::Program;

/// The file with the [`Origin`] of a folder's answers. It is written last.
const ORIGIN: &str = "evaluation.json";
/// The filter by the [`Part`] of the test questions.
const PART: &str = "part";
/// The filter by the source of the entry with the answer.
const SOURCE: &str = "source";
/// The fraction of correct answers.
const EXACT_MATCH: MetricInfo = MetricInfo::higher("exact_match", Unit::Fraction);
/// The fraction of questions whose own entry (the entry with the answer) is ranked first.
const RECALL_AT_1: MetricInfo = MetricInfo::higher("recall_at_1", Unit::Fraction);
/// The fraction of questions whose own entry is among the first ten results. It is undefined for
/// configurations that retrieve fewer than ten entries.
const RECALL_AT_10: MetricInfo = MetricInfo::higher("recall_at_10", Unit::Fraction);
/// The part of the test questions that the tables report.
const REPORTED_PART: Part = Part::HeldOut;

/// The ablations of REVEAL, compared by exact match and recall on facts that only the memory
/// contains.
#[derive(Debug)]
pub struct RevealAblations;

impl AblationStudy for RevealAblations {
    fn title(&self) -> &'static str {
        "REVEAL, ablations"
    }

    fn description(&self) -> &'static str {
        "Held-out questions about facts that only the memory contains."
    }

    fn metrics(&self) -> Vec<MetricInfo> {
        vec![EXACT_MATCH, RECALL_AT_1, RECALL_AT_10]
    }

    fn filters(&self) -> Vec<Filter> {
        vec![
            Filter {
                key: PART,
                values: Part::ALL.map(Part::name).to_vec(),
                default: Some(REPORTED_PART.name()),
            },
            Filter { key: SOURCE, values: Source::ALL.map(Source::name).to_vec(), default: None },
        ]
    }

    fn evaluation_keys(&self) -> &'static [&'static str] {
        &["k", "without_sources"]
    }

    fn columns(&self) -> Vec<Column> {
        let headings = ["exact match", "recall@1", "recall@10"];
        let keys = ["exact_match", "recall_at_1", "recall_at_10"];
        let columns = keys.into_iter().zip(headings).zip(self.metrics());
        let column = |((key, heading), metric)| {
            let query = MetricQuery::new(metric).with(PART, REPORTED_PART.name());
            Column { key, heading, query }
        };
        columns.map(column).collect()
    }

    fn resampling_unit(&self) -> &'static str {
        "image"
    }

    /// Removes the filter by source. In a configuration without the entries of a source, no
    /// question belongs to that source.
    fn query_of_worse(&self, query: &MetricQuery) -> MetricQuery {
        let mut query = query.clone();
        query.filters.remove(SOURCE);
        query
    }

    fn check(&self, grid: &Grid) -> Result<()> {
        check(grid)
    }

    /// Removes the memory settings, because the shared phases do not read the memory.
    fn shared_settings(&self, mut set: Vec<String>) -> Vec<String> {
        set.retain(|setting| !setting.starts_with("memory."));
        set
    }

    fn evaluate_again(
        &self,
        configuration: &Configuration,
        run: &Path,
        folder: &Path,
    ) -> Result<()> {
        evaluate_again(configuration, run, folder)
    }

    /// Removes the checkpoints. Also removes the memory, unless the run is evaluated again. A later
    /// call can encode the memory again.
    fn remove_unneeded_files(&self, run: &Path, is_evaluated_again: bool) -> Result<()> {
        checkpoint::remove_all(run)?;
        if !is_evaluated_again {
            let in_study = TrainError::in_study(NAME, "tidying a finished run");
            remove_memory(&run.join("memory")).map_err(in_study)?;
        }
        Ok(())
    }

    fn items(&self, folder: &Path, query: &MetricQuery) -> Result<Result<Vec<Item>, String>> {
        Ok(items(&TestAnswer::read(&folder.join(TEST_ANSWERS))?, query))
    }
}

/// How a configuration with `run_of` evaluates the other run.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Evaluation {
    /// The number of entries to retrieve; by default as in the other run.
    k: Option<usize>,
    /// Sources whose entries are removed from the memory.
    without_sources: Vec<String>,
}

impl Evaluation {
    fn of(configuration: &Configuration) -> Result<Self, String> {
        let parsed = Self::deserialize(configuration.evaluation.clone());
        parsed.map_err(|error| error.message().to_owned())
    }
}

/// The number of retrieved entries that a metric needs.
fn entries_needed(metric: &MetricInfo) -> usize {
    match metric {
        _ if *metric == RECALL_AT_1 => 1,
        _ if *metric == RECALL_AT_10 => 10,
        _ => 0,
    }
}

/// A metric of each test answer that the query selects. The error is the reason why the metric is
/// undefined.
fn items(test_answers: &[TestAnswer], query: &MetricQuery) -> Result<Vec<Item>, String> {
    let questions: Vec<&TestAnswer> = test_answers
        .iter()
        .filter(|question| question.made_up && query.filter(PART) == Some(&question.part))
        .filter(|question| match query.filter(SOURCE) {
            None => true,
            source => question.source.as_deref() == source,
        })
        .collect();
    let min_retrieved = entries_needed(&query.metric);
    if questions.iter().any(|question| question.retrieved.len() < min_retrieved) {
        return Err(format!("undefined: fewer than {} retrieved", counted(min_retrieved, "entry")));
    }
    if questions.is_empty() {
        return Err("undefined: no such questions".to_owned());
    }
    let item = |question: &&TestAnswer| {
        let counts_as_success = match min_retrieved {
            0 => question.correct,
            k => question.found(k),
        };
        let group = question.image.map(|image| image.to_string());
        let statistic = Statistic::Ratio {
            numerator: f64::from(u8::from(counts_as_success)),
            denominator: 1.0,
        };
        Item::new(&query.metric, "", &question.id.to_string(), group.as_deref(), statistic)
    };
    Ok(questions.iter().map(item).collect())
}

/// The retrieval of a configuration.
struct Retrieval {
    /// The number of retrieved entries.
    k: usize,
    /// The sources of the memory's entries.
    sources: Vec<&'static str>,
    world: Option<WorldId>,
}

/// Checks all configurations, including those that evaluate another run, and the claims.
fn check(grid: &Grid) -> Result<()> {
    let mut retrievals: HashMap<&str, Retrieval> = HashMap::new();
    for configuration in grid.configurations() {
        let retrieval =
            match configuration.run_of.as_ref().and_then(|name| retrievals.get(name.as_str())) {
                Some(evaluated_run) => evaluated_run
                    .evaluated_again(configuration)
                    .map_err(|reason| grid.configuration_error(configuration, &reason))?,
                None => trained_retrieval(grid, configuration)?,
            };
        retrievals.insert(&configuration.name, retrieval);
    }
    // All configurations must answer the same questions, those of the main configuration.
    let world = |name: &str| retrievals.get(name).and_then(|retrieval| retrieval.world);
    for configuration in grid.configurations() {
        if let (Some(world_of_configuration), Some(world_of_main)) =
            (world(&configuration.name), world(grid.main()))
            && world_of_configuration != world_of_main
        {
            let reason = format!(
                "is about the world of {world_of_configuration}, but the main configuration is \
                 about the world of {world_of_main}; all configurations need the same world"
            );
            return Err(grid.configuration_error(configuration, &reason));
        }
    }
    for claim in grid.claims() {
        let queries = claim.queries(&RevealAblations);
        let [query, _] = queries.map_err(|reason| grid.claim_error(claim, &reason))?;
        let min_retrieved = entries_needed(&query.metric);
        for name in claim.configurations() {
            let k = retrievals.get(name).map_or(0, |retrieval| retrieval.k);
            if k < min_retrieved {
                let reason = format!(
                    "configuration `{name}` retrieves {k} entries, too few for recall at \
                     {min_retrieved}; choose another metric or another configuration"
                );
                return Err(grid.claim_error(claim, &reason));
            }
        }
    }
    Ok(())
}

/// The retrieval of a trained configuration.
fn trained_retrieval(grid: &Grid, configuration: &Configuration) -> Result<Retrieval> {
    let mut recipe = grid.recipe(configuration, 1, Phases::Whole)?;
    let RevealSettings { data, memory, .. } =
        settings(&mut recipe).map_err(|error| grid.configuration_error(configuration, &error))?;
    if !data.is_world() {
        let reason = "names files; a grid compares answers about the embedded world: remove the \
                      file keys";
        return Err(grid.configuration_error(configuration, &recipe.error("data", reason)));
    }
    let mut sources = Source::ALL.map(Source::name).to_vec();
    sources.retain(|name| data.without_sources.iter().all(|excluded| excluded != name));
    Ok(Retrieval { k: memory.k, sources, world: data.world() })
}

impl Retrieval {
    /// The retrieval of a configuration that evaluates this run again.
    fn evaluated_again(&self, configuration: &Configuration) -> Result<Self, String> {
        let Evaluation { k, without_sources: excluded } = Evaluation::of(configuration)?;
        if let Some(name) = excluded.iter().find(|name| !self.sources.contains(&name.as_str())) {
            let known = self.sources.join(", ");
            return Err(format!("`without_sources` names `{name}`; the run's memory has {known}"));
        }
        let mut sources = self.sources.clone();
        sources.retain(|name| excluded.iter().all(|excluded| excluded != name));
        if sources.is_empty() {
            return Err("`without_sources` leaves no source; set `k = 0` instead".to_owned());
        }
        Ok(Self { k: k.unwrap_or(self.k), sources, world: self.world })
    }
}

/// The origin of test answers: the configuration, the run and the program.
#[derive(PartialEq, Serialize, Deserialize)]
struct Origin {
    configuration: Configuration,
    recipe_hash: String,
    program: Program,
}

/// Evaluates a finished run again, unless the folder already has the answers of the same
/// [`Origin`].
fn evaluate_again(configuration: &Configuration, run: &Path, folder: &Path) -> Result<()> {
    let recipe_hash = RevealSummary::read(run)?.recipe_hash;
    let origin =
        Origin { configuration: configuration.clone(), recipe_hash, program: Program::running()? };
    let (test_answers, origin_file) = (folder.join(TEST_ANSWERS), folder.join(ORIGIN));
    let recorded =
        fs::read(&origin_file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    if recorded.is_some_and(|recorded: Origin| recorded == origin) {
        return Ok(());
    }
    let json_error = |error: serde_json::Error| TrainError::io(folder)(error.into());
    refuse_other_files(folder)?;
    durable::create_folder(folder).map_err(TrainError::io(folder))?;
    // The origin is removed first, so that it never describes other answers.
    durable::remove_file(&origin_file).map_err(TrainError::io(&origin_file))?;
    let Evaluation { k, without_sources } = Evaluation::of(configuration).map_err(|reason| {
        let location = format!("configuration `{}`", configuration.name);
        TrainError::Recipe { location, reason }
    })?;
    let answers = FinishedRun::open(run)?.evaluate(k, &without_sources)?;
    write_file(&test_answers, &TestAnswer::to_lines(&answers).map_err(json_error)?)?;
    write_file(&origin_file, &serde_json::to_vec_pretty(&origin).map_err(json_error)?)
}

/// Returns an error if a folder has files that this evaluation does not write.
fn refuse_other_files(folder: &Path) -> Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(TrainError::io(folder))?,
    };
    for entry in entries {
        let entry = entry.map_err(TrainError::io(folder))?;
        let name = entry.file_name();
        let is_written_here = [TEST_ANSWERS, ORIGIN]
            .iter()
            .any(|file| name == **file || durable::is_leftover(&name, file));
        if !is_written_here {
            return Err(TrainError::ForeignFile { path: entry.path() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twelve questions whose own entry is ranked second. Every third question is about an entry of
    /// the source `kg`.
    fn test_answers() -> Vec<TestAnswer> {
        let question = |id: usize| TestAnswer {
            id: id as i64,
            name: None,
            question: String::new(),
            part: REPORTED_PART.name().to_owned(),
            image: Some(id / 3),
            image_file: None,
            made_up: true,
            answer: String::new(),
            references: Vec::new(),
            correct: id.is_multiple_of(2),
            source: Some(["kg", "pairs", "pairs"][id % 3].to_owned()),
            entry: Some(id as i64),
            retrieved: [vec![-1, id as i64], vec![-2; 8]].concat(),
        };
        (0..12).map(question).collect()
    }

    fn values(
        test_answers: &[TestAnswer],
        metric: MetricInfo,
        source: Option<&str>,
    ) -> Result<Vec<f64>, String> {
        let mut query = MetricQuery::new(metric).with(PART, REPORTED_PART.name());
        if let Some(source) = source {
            query = query.with(SOURCE, source);
        }
        let value = |item: Item| match item.statistic {
            Statistic::Ratio { numerator, denominator: 1.0 } => numerator,
            other => panic!("{other:?}"),
        };
        Ok(items(test_answers, &query)?.into_iter().map(value).collect())
    }

    #[test]
    fn metrics_use_only_the_selected_questions() {
        let mut answers = test_answers();
        let exact_matches = values(&answers, EXACT_MATCH, None).unwrap();
        assert_eq!((exact_matches.len(), exact_matches.iter().sum::<f64>()), (12, 6.0));
        assert_eq!(values(&answers, EXACT_MATCH, Some("kg")).unwrap().len(), 4);
        assert!(values(&answers, RECALL_AT_1, None).unwrap().iter().all(|value| *value == 0.0));
        assert!(values(&answers, RECALL_AT_10, None).unwrap().iter().all(|value| *value == 1.0));
        // With fewer than ten entries, recall@10 is undefined.
        answers[5].retrieved.pop();
        let reason = values(&answers, RECALL_AT_10, None).unwrap_err();
        assert_eq!(reason, "undefined: fewer than 10 entries retrieved");
        assert!(values(&answers, RECALL_AT_1, None).is_ok());
        // Questions of other parts, and about facts known outside the memory, are excluded.
        answers[0].made_up = false;
        answers[1].part = Part::Seen.name().to_owned();
        assert_eq!(values(&answers, EXACT_MATCH, None).unwrap().len(), 10);
        let reason = values(&[], EXACT_MATCH, None).unwrap_err();
        assert_eq!(reason, "undefined: no such questions");
    }
}
