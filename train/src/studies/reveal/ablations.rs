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
use engram_eval::haystack::PLAIN;
use engram_eval::items::{Item, Items, Statistic, json_lines};
use engram_eval::metric::{MetricInfo, Unit};
use engram_infer::InferError;
use engram_infer::reveal::control::Control;
use engram_infer::reveal::is_correct;
use engram_infer::reveal::memory_folder::remove_memory;
use serde::{Deserialize, Serialize};

use super::NAME;
use super::corpus::THINGS;
use super::evaluation::{DeletionAreas, FinishedRun};
use super::image_recall;
use super::needle::{NeedleMetrics, NeedleOutcome};
use super::run::{RevealSummary, TEST_ANSWERS, TestAnswer, settings};
use super::settings::RevealSettings;
use super::swap::SwappedQuestion;
use crate::checkpoint::{self, write_file};
use crate::error::{Result, TrainError};
use crate::grid::{
    AblationStudy, ClaimSettings, Column, Configuration, Filter, Grid, Measures, MetricQuery,
    Phases,
};
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
/// The fraction of answers that equal a fact after it changed in the memory. The systems are
/// [`SWAPPED`].
const SWAPPED_ANSWER: MetricInfo = MetricInfo::higher("swapped_answer", Unit::Fraction);
/// The mean log-probability of an answer while its retrieved entries are deleted one by one, in one
/// of the orders in [`ORDERS`]. A lower area means that the order deletes important entries
/// earlier.
const DELETION_AREA: MetricInfo = MetricInfo::lower("area_under_deletion_curve", Unit::Points);
/// The systems of [`SWAPPED_ANSWER`]: the old answer before facts change in the memory, the old and
/// the new answer after the change, and either answer after the facts are deleted.
const SWAPPED: [&str; 4] = ["old_before", "old_after", "new_after", "any_deleted"];
/// The sizes of needle-in-a-haystack tasks, for the metric [`PLAIN`]: needles and other images.
const HAYSTACKS: [&str; 4] = ["1_in_10", "1_in_100", "1_in_1000", "3_in_1000"];
/// The orders in which a configuration with `deletions` deletes retrieved entries: at random, by
/// the attribution that is estimated from the gradient, and by leaving one out. The last one orders
/// entries by the quantity that deletion measures, so it is a bound.
const ORDERS: [&str; 3] = ["random_order", "gradient_order", "leave_one_out_order"];
/// All systems.
const SYSTEMS: [&str; 14] = [
    SWAPPED[0],
    SWAPPED[1],
    SWAPPED[2],
    SWAPPED[3],
    HAYSTACKS[0],
    HAYSTACKS[1],
    HAYSTACKS[2],
    HAYSTACKS[3],
    ORDERS[0],
    ORDERS[1],
    ORDERS[2],
    image_recall::SYSTEMS[0],
    image_recall::SYSTEMS[1],
    image_recall::SYSTEMS[2],
];
/// The part of the test questions that the tables report, and claims without a `part`.
const REPORTED_PART: Part = Part::HeldOut;

/// The ablations of REVEAL, compared by exact match and recall on facts that only the memory
/// contains.
#[derive(Debug)]
pub struct RevealAblations;

impl AblationStudy for RevealAblations {
    fn measures(&self) -> Measures {
        let column =
            |key, heading, metric| Column { key, heading, query: MetricQuery::new(metric) };
        Measures {
            title: "REVEAL, ablations",
            description: "Held-out questions about facts that only the memory contains.",
            metrics: [EXACT_MATCH, RECALL_AT_1, RECALL_AT_10, SWAPPED_ANSWER, DELETION_AREA, PLAIN]
                .into_iter()
                .chain(image_recall::METRICS.map(|(metric, ..)| metric))
                .collect(),
            filters: vec![
                Filter { key: PART, values: Part::ALL.map(Part::name).to_vec() },
                Filter { key: SOURCE, values: Source::ALL.map(Source::name).to_vec() },
            ],
            systems: &SYSTEMS,
            evaluation_keys: &["k", "without_sources", "control", "deletions"],
            columns: vec![
                column("exact_match", "exact match", EXACT_MATCH),
                column("recall_at_1", "recall@1", RECALL_AT_1),
                column("recall_at_10", "recall@10", RECALL_AT_10),
            ],
            resampling_unit: "image",
        }
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

    fn is_evaluated(
        &self,
        configuration: &Configuration,
        run: &Path,
        folder: &Path,
    ) -> Result<bool> {
        let (origin, _) = Origin::of(configuration, run)?;
        Ok(origin.is_recorded_in(folder))
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
        let system = query.system.as_deref().unwrap_or_default();
        if query.metric == SWAPPED_ANSWER {
            return Ok(Ok(swapped_items(&RevealSummary::read(folder)?, system)));
        }
        if let Some(index) = image_recall::index_of(&query.metric) {
            let found = RevealSummary::read(folder)?.found_images;
            let items = image_recall::items(&found, index, system);
            let name = &query.metric.name;
            let undefined = || format!("undefined: {name} was not measured");
            return Ok(if items.is_empty() { Err(undefined()) } else { Ok(items) });
        }
        if query.metric == PLAIN {
            return Ok(Ok(haystack_items(&RevealSummary::read(folder)?, system)));
        }
        let is_area = query.metric == DELETION_AREA;
        let name = if is_area { order_file(system) } else { TEST_ANSWERS.to_owned() };
        let file = folder.join(name);
        if !file.is_file() {
            return Ok(Err(format!("undefined: {} was not measured", query.metric.name)));
        }
        if is_area {
            let in_study = TrainError::in_study(NAME, "reading the test items");
            return Ok(Ok(Items::read(&file).map_err(in_study)?.items));
        }
        Ok(items(&TestAnswer::read(&file)?, query))
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
    /// The change to the questions or to the memory.
    control: Option<Control>,
    /// Instead of answering all questions: the number of answers whose retrieved entries are
    /// deleted one by one, for attribution.
    deletions: Option<usize>,
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
    let part = query.filter(PART).unwrap_or(REPORTED_PART.name());
    let questions: Vec<&TestAnswer> = test_answers
        .iter()
        .filter(|question| question.made_up && question.part == part)
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
        let group = question.group.or(question.image).map(|group| group.to_string());
        let statistic = Statistic::Ratio {
            numerator: f64::from(u8::from(counts_as_success)),
            denominator: 1.0,
        };
        Item::new(&query.metric, "", &question.id.to_string(), group.as_deref(), statistic)
    };
    Ok(questions.iter().map(item).collect())
}

/// Whether each answer about a changed fact is the old or the new fact, for one of [`SWAPPED`].
fn swapped_items(summary: &RevealSummary, system: &str) -> Vec<Item> {
    let questions = summary.swap.iter().flat_map(|swap| &swap.questions);
    let item = |(index, question): (usize, &SwappedQuestion)| {
        let (answers, references) = (&question.answers, &question.references);
        let is_success = match system {
            "old_before" => is_correct(&answers[0], &references[..1]),
            "old_after" => is_correct(&answers[1], &references[..1]),
            "new_after" => is_correct(&answers[1], &references[1..]),
            _ => is_correct(&answers[2], references),
        };
        mean_item(
            &SWAPPED_ANSWER,
            &index.to_string(),
            question.image,
            f64::from(u8::from(is_success)),
        )
    };
    questions.enumerate().map(item).collect()
}

/// Whether each reply to a task of one of the sizes in [`HAYSTACKS`] is correct.
fn haystack_items(summary: &RevealSummary, size: &str) -> Vec<Item> {
    let of_size =
        |metrics: &&NeedleMetrics| format!("{}_in_{}", metrics.needles, metrics.others) == size;
    let tasks = summary.needles.iter().filter(of_size).flat_map(|metrics| &metrics.tasks);
    let item = |task: &NeedleOutcome| {
        let statistic = Statistic::Mean { value: f64::from(u8::from(task.correct)) };
        // Each task is a resampling unit.
        Item::new(&PLAIN, "", &task.id, Some(&task.id), statistic)
    };
    tasks.map(item).collect()
}

fn mean_item(metric: &MetricInfo, id: &str, image: Option<usize>, value: f64) -> Item {
    let group = image.map(|image| image.to_string());
    Item::new(metric, "", id, group.as_deref(), Statistic::Mean { value })
}

/// The file with the areas for one of [`ORDERS`].
fn order_file(order: &str) -> String {
    format!("{order}.items.jsonl")
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
    for configuration in &grid.configurations {
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
    for configuration in &grid.configurations {
        if let (Some(world_of_configuration), Some(world_of_main)) =
            (world(&configuration.name), world(&grid.main))
            && world_of_configuration != world_of_main
        {
            let reason = format!(
                "is about the world of {world_of_configuration}, but the main configuration is \
                 about the world of {world_of_main}; all configurations need the same world"
            );
            return Err(grid.configuration_error(configuration, &reason));
        }
    }
    for claim in &grid.claims {
        for system in claim.systems() {
            check_system(grid, claim, system)?;
        }
        let query = claim.query(&claim.better, &RevealAblations);
        let query = query.map_err(|reason| grid.claim_error(claim, &reason))?;
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

/// Returns an error unless the claim's metric is measured for one of its systems.
fn check_system(grid: &Grid, claim: &ClaimSettings, system: &str) -> Result<()> {
    let error = |reason: String| grid.claim_error(claim, &reason);
    let query = claim.query(system, &RevealAblations).map_err(error)?;
    query.check_system(systems_of(&query.metric)).map_err(error)?;
    let name = ClaimSettings::configuration_of(system);
    let mut configurations = grid.configurations.iter();
    let Some(configuration) = configurations.find(|other| other.name == name) else {
        return Ok(());
    };
    let has_deletions = configuration.evaluation.contains_key("deletions");
    let metric = &query.metric;
    let reason =
        if [SWAPPED_ANSWER, PLAIN].contains(metric) || image_recall::index_of(metric).is_some() {
            configuration.run_of.is_some().then_some("is not trained: it has `run_of`")
        } else if *metric == DELETION_AREA {
            (!has_deletions).then_some("has no `deletions`")
        } else {
            has_deletions.then_some("has `deletions`, so it answers no questions")
        };
    match reason {
        Some(reason) => {
            let metric = &metric.name;
            Err(error(format!("`{metric}` is not measured: configuration `{name}` {reason}")))
        }
        None => Ok(()),
    }
}

/// The systems of a metric; empty if it is a metric of the run itself.
fn systems_of(metric: &MetricInfo) -> &'static [&'static str] {
    match metric {
        _ if *metric == SWAPPED_ANSWER => &SWAPPED,
        _ if *metric == PLAIN => &HAYSTACKS,
        _ if image_recall::index_of(metric).is_some() => &image_recall::SYSTEMS,
        _ if *metric == DELETION_AREA => &ORDERS,
        _ => &[],
    }
}

/// The retrieval of a trained configuration.
fn trained_retrieval(grid: &Grid, configuration: &Configuration) -> Result<Retrieval> {
    let mut recipe = grid.recipe(configuration, 1, Phases::Whole)?;
    let RevealSettings { data, memory, .. } =
        settings(&mut recipe).map_err(|error| grid.configuration_error(configuration, &error))?;
    if !data.is_world() && data.things.is_none() {
        let reason = "names files; a grid compares answers about the embedded world or about \
                      pictures of things: remove the file keys";
        return Err(grid.configuration_error(configuration, &recipe.error("data", reason)));
    }
    let mut sources = match data.things {
        Some(_) => vec![THINGS],
        None => Source::ALL.map(Source::name).to_vec(),
    };
    sources.retain(|name| data.without_sources.iter().all(|excluded| excluded != name));
    Ok(Retrieval { k: memory.k, sources, world: data.world() })
}

impl Retrieval {
    /// The retrieval of a configuration that evaluates this run again.
    fn evaluated_again(&self, configuration: &Configuration) -> Result<Self, String> {
        let Evaluation { k, without_sources: excluded, .. } = Evaluation::of(configuration)?;
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

impl Origin {
    /// The origin of answers that this program gives for a configuration with a finished run, and
    /// the run's seed.
    fn of(configuration: &Configuration, run: &Path) -> Result<(Self, u64)> {
        let RevealSummary { recipe_hash, seed, .. } = RevealSummary::read(run)?;
        let (configuration, program) = (configuration.clone(), Program::running()?);
        Ok((Self { configuration, recipe_hash, program }, seed))
    }

    /// Whether a folder has answers of this origin.
    fn is_recorded_in(&self, folder: &Path) -> bool {
        let recorded = engram_durable::read_file(folder.join(ORIGIN)).ok();
        let recorded = recorded.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        recorded.is_some_and(|recorded: Self| recorded == *self)
    }
}

/// Evaluates a finished run again, unless the folder already has the answers of the same
/// [`Origin`].
fn evaluate_again(configuration: &Configuration, run: &Path, folder: &Path) -> Result<()> {
    let (origin, seed) = Origin::of(configuration, run)?;
    if origin.is_recorded_in(folder) {
        return Ok(());
    }
    let (test_answers, origin_file) = (folder.join(TEST_ANSWERS), folder.join(ORIGIN));
    let json_error = |error: serde_json::Error| TrainError::io(folder)(error.into());
    refuse_other_files(folder)?;
    durable::create_folder(folder).map_err(TrainError::io(folder))?;
    // The origin is removed first, so that it never describes other answers.
    durable::remove_file(&origin_file).map_err(TrainError::io(&origin_file))?;
    let Evaluation { k, without_sources, control, deletions } = Evaluation::of(configuration)
        .map_err(|reason| {
            let location = format!("configuration `{}`", configuration.name);
            TrainError::Recipe { location, reason }
        })?;
    let run = FinishedRun::open(run)?;
    match deletions {
        Some(answers) => write_areas(folder, &run.deletion_areas(answers, seed)?)?,
        None => {
            let answers = run.evaluate(k, &without_sources, control)?;
            write_file(&test_answers, &TestAnswer::to_lines(&answers).map_err(json_error)?)?;
        }
    }
    write_file(&origin_file, &serde_json::to_vec_pretty(&origin).map_err(json_error)?)
}

/// Writes the areas for each of [`ORDERS`].
fn write_areas(folder: &Path, areas: &[DeletionAreas]) -> Result<()> {
    let area_of: [fn(&DeletionAreas) -> f64; 3] =
        [|areas| areas.random, |areas| areas.gradient, |areas| areas.exact];
    for (order, area) in ORDERS.iter().zip(area_of) {
        let item = |(index, areas): (usize, &DeletionAreas)| {
            mean_item(&DELETION_AREA, &index.to_string(), areas.image, area(areas))
        };
        let items: Vec<Item> = areas.iter().enumerate().map(item).collect();
        write_file(&folder.join(order_file(order)), json_lines(&items).as_bytes())?;
    }
    Ok(())
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
        let files =
            [TEST_ANSWERS, ORIGIN].map(str::to_owned).into_iter().chain(ORDERS.map(order_file));
        let is_written_here =
            files.into_iter().any(|file| name == *file || durable::is_leftover(&name, &file));
        if !is_written_here {
            return Err(InferError::ForeignFile { path: entry.path() }.into());
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
            group: None,
            image_file: None,
            view_file: None,
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
        let mut query = MetricQuery::new(metric);
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
