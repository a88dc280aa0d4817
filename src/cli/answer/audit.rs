//! `engram answer --audit` and `--edits`: prompts about facts with the whole memory, after the deletion
//! of a fact, and without the memory.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use engram_data::messages::counted;
use engram_data::triplets::Triplet;
use engram_data::triplets::audit::{Database, Prompt, PromptFile, read};
use engram_data::triplets::edits::{Change, Edit, Edits};
use engram_data::triplets::generate::PromptedFact;
use engram_eval::benchmark::forget::{FactNames, STATES};
use engram_infer::Stop;
use engram_infer::reveal::answerer::Answerer;
use engram_infer::reveal::answerer::facts::{DeletionAnswers, DeletionPrompt, FactMemory};
use engram_infer::reveal::corpus::UNKNOWN;
use indicatif::ProgressBar;
use rand::SeedableRng;
use rand::seq::IteratorRandom;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use crate::cli::output;

/// A line of the output, in the layout that `engram eval forget` reads.
#[derive(Serialize)]
struct Line<'a> {
    database: &'a str,
    topology: &'a str,
    style: &'a str,
    fact_id: usize,
    state: &'static str,
    subject: &'a str,
    subject_aliases: &'a [String],
    relation: &'a str,
    relation_aliases: &'a [String],
    ground_truth: &'a str,
    object_aliases: &'a [String],
    prompt: &'a str,
    model_output: &'a str,
    retrieval_trace: Trace<'a>,
}

#[derive(Serialize)]
struct Trace<'a> {
    retained_candidates: Vec<Candidate<'a>>,
}

#[derive(Serialize)]
struct Candidate<'a> {
    subject: &'a str,
    relation: &'a str,
    object: &'a str,
}

/// The name of the direct prompts' file, and of the prompts that `--rephrase` makes of them.
const DIRECT: &str = "prompts_direct_questions";
const REPHRASED: &str = "prompts_rephrased";
/// Facts that are changed while the memory is used: the number at the start, the seed, the number of
/// changes in a transaction, and the number of prompts for each kind of change.
const FACTS: usize = 2000;
const SEED: u64 = 56;
const TRANSACTION: usize = 100;
const PROMPTS: usize = 100;

/// Lines of the output.
#[derive(Default)]
pub(super) struct Lines {
    /// The lines.
    pub(super) bytes: Vec<u8>,
    /// Their number.
    pub(super) count: usize,
}

/// Answers all prompts of the databases in `folder`. With `rephrase`, answers only the direct prompts
/// (the questions), each in the place of `{}` in this text.
pub(super) fn lines(
    answerer: &Answerer,
    folder: &Path,
    rephrase: Option<&str>,
) -> anyhow::Result<Lines> {
    let mut databases = read(folder)?;
    if let Some(text) = rephrase {
        for database in &mut databases {
            database.files.retain(|file| file.name == DIRECT);
            anyhow::ensure!(
                !database.files.is_empty(),
                "{}: the database {}/{} has no {DIRECT}.jsonl, which --rephrase needs",
                folder.display(),
                database.name,
                database.topology
            );
            for file in &mut database.files {
                file.name = REPHRASED.to_owned();
                for prompt in &mut file.prompts {
                    prompt.prompt_text = text.replace("{}", &prompt.prompt_text);
                }
            }
        }
    }
    let count =
        |database: &Database| database.files.iter().map(|file| file.prompts.len()).sum::<usize>();
    let bar = output::progress_bar(databases.iter().map(count).sum(), "prompts");
    let mut lines = Lines::default();
    for database in &databases {
        let texts: Vec<String> = database.facts.iter().map(Triplet::text).collect();
        let (stored, folder) = (texts.len(), tempfile::tempdir()?);
        let folder = folder.path().join("memory");
        let mut memory = answerer.fact_memory(&folder, texts, stored, &Stop::default())?;
        lines.add(database, &mut memory, &bar)?;
    }
    bar.finish_and_clear();
    Ok(lines)
}

/// Changes made-up facts `count` times, and answers prompts about them after 0, 10, 100, … changes:
/// about facts that were added, updated, renamed or deleted, and about others.
pub(super) fn lines_of_edits(answerer: &Answerer, count: usize) -> anyhow::Result<Lines> {
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    let Edits { versions, initial, edits } = Edits::draw(FACTS, count, &mut rng);
    let texts: Vec<String> = versions.iter().map(|version| version.triplet.text()).collect();
    let folder = tempfile::tempdir()?;
    let stop = Stop::default();
    let mut memory = answerer.fact_memory(&folder.path().join("memory"), texts, initial, &stop)?;
    let mut current: Current = (0..initial).map(|fact| (fact, (fact, None))).collect();
    let bar = output::progress_bar(count, "changes");
    let (mut lines, mut done) = (Lines::default(), 0);
    let powers = std::iter::successors(Some(10), |power| Some(power * 10));
    for target in [0].into_iter().chain(powers).map(|target| count.min(target)) {
        while done < target {
            let mut changes = Vec::new();
            let mut changed = HashSet::new();
            while done < target && changes.len() < TRANSACTION && changed.insert(edits[done].fact) {
                let Edit { change, fact, version } = edits[done];
                current.insert(fact, (version, Some(change)));
                changes.push((fact, (change != Change::Deleted).then_some(version)));
                done += 1;
            }
            memory.change(&changes)?;
            bar.inc(changes.len() as u64);
        }
        let facts = current.values().map(|(version, _)| versions[*version].triplet.clone());
        let database = Database {
            name: "made up".to_owned(),
            topology: format!("after {}", counted(done, "change")),
            facts: facts.collect(),
            files: prompts_after_changes(&versions, &current, &mut rng),
        };
        lines.add(&database, &mut memory, &ProgressBar::hidden())?;
        if done == count {
            break;
        }
    }
    bar.finish_and_clear();
    Ok(lines)
}

/// The current version of each fact, and its last change, by the fact's id.
type Current = BTreeMap<usize, (usize, Option<Change>)>;

/// Prompts about some facts of each kind of last change.
fn prompts_after_changes(
    versions: &[PromptedFact],
    current: &Current,
    rng: &mut ChaCha8Rng,
) -> Vec<PromptFile> {
    let kinds = [
        (None, "unchanged"),
        (Some(Change::Added), "added"),
        (Some(Change::Updated), "updated"),
        (Some(Change::Renamed), "renamed"),
        (Some(Change::Deleted), "deleted"),
    ];
    let mut files = Vec::new();
    for (kind, name) in kinds {
        let facts = current.iter().filter(|(_, (_, change))| *change == kind);
        let chosen = facts.choose_multiple(rng, PROMPTS);
        let prompts = chosen.into_iter().map(|(fact_id, (version, _))| {
            let PromptedFact { triplet, prompt } = versions[*version].clone();
            let is_deleted = kind == Some(Change::Deleted);
            Prompt {
                fact_id: *fact_id,
                subject: triplet.subject,
                subject_aliases: Vec::new(),
                relation: triplet.relation,
                relation_aliases: Vec::new(),
                gold_object: if is_deleted { UNKNOWN.to_owned() } else { triplet.object },
                object_aliases: Vec::new(),
                prompt_text: prompt,
            }
        });
        files.push(PromptFile { name: name.to_owned(), prompts: prompts.collect() });
    }
    files
}

impl Lines {
    /// Answers the prompts of a database from a memory of its facts, and adds their lines.
    fn add(
        &mut self,
        database: &Database,
        memory: &mut FactMemory<'_>,
        bar: &ProgressBar,
    ) -> anyhow::Result<()> {
        let prompts = database.files.iter().flat_map(|file| {
            let style = file.name.strip_prefix("prompts_").unwrap_or(&file.name);
            file.prompts.iter().map(move |prompt| (style, prompt))
        });
        let prompts: Vec<(&str, &Prompt)> = prompts.collect();
        let asked = prompts.iter().map(|(_, prompt)| DeletionPrompt {
            text: prompt.prompt_text.clone(),
            deleted: facts_of(prompt, &database.facts),
        });
        let asked: Vec<DeletionPrompt> = asked.collect();
        let done = |prompts: usize| bar.inc(prompts as u64);
        let answers = memory.answer(&asked, &Stop::default(), &done)?;
        for ((style, prompt), answers) in prompts.into_iter().zip(&answers) {
            for state in 0..STATES.len() {
                let line = line(database, style, prompt, answers, state);
                serde_json::to_writer(&mut self.bytes, &line)?;
                self.bytes.push(b'\n');
                self.count += 1;
            }
        }
        Ok(())
    }
}

/// The indices of the facts that say what a prompt asks for.
fn facts_of(prompt: &Prompt, facts: &[Triplet]) -> Vec<usize> {
    let names = FactNames::new(
        [&prompt.subject, &prompt.relation, &prompt.gold_object],
        [&prompt.subject_aliases, &prompt.relation_aliases, &prompt.object_aliases],
    );
    let is_named = |fact: &Triplet| names.are_of([&fact.subject, &fact.relation, &fact.object]);
    (0..facts.len()).filter(|index| is_named(&facts[*index])).collect()
}

fn line<'a>(
    database: &'a Database,
    style: &'a str,
    prompt: &'a Prompt,
    answers: &'a DeletionAnswers,
    state: usize,
) -> Line<'a> {
    let candidate = |index: &usize| {
        let Triplet { subject, relation, object } = &database.facts[*index];
        Candidate { subject, relation, object }
    };
    let retained_candidates = answers.retrieved[state].iter().map(candidate).collect();
    Line {
        database: &database.name,
        topology: &database.topology,
        style,
        fact_id: prompt.fact_id,
        state: STATES[state],
        subject: &prompt.subject,
        subject_aliases: &prompt.subject_aliases,
        relation: &prompt.relation,
        relation_aliases: &prompt.relation_aliases,
        ground_truth: &prompt.gold_object,
        object_aliases: &prompt.object_aliases,
        prompt: &prompt.prompt_text,
        model_output: &answers.texts[state],
        retrieval_trace: Trace { retained_candidates },
    }
}
