//! `engram answer`: answers questions about images with a REVEAL run and its memory.

mod audit;
mod credit;

use engram_data::messages::counted;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use engram_infer::finished_run::study;
use engram_infer::reveal;
use engram_infer::reveal::answerer::{self, Answerer, Detail};
use engram_infer::reveal::control::Control;
use engram_infer::reveal::needle::{Haystacks, Reply, Task, read_haystacks};
use engram_infer::reveal::questions::{Questions, read_questions};
use engram_infer::reveal::shapley::MAX_ENTRIES;
use engram_memory::Store;
use engram_train::studies::reveal::evaluation::restore_missing_memory;
use serde::Serialize;
use serde_json::{Map, Value};

use self::credit::{CreditQuality, quality};
use super::compute::ComputeOptions;
use super::memory::location::{self, ServerOptions};
use super::memory::value_reader;
use super::paths::{self, InputFile, InputFolder, OutputFile};
use super::{Outcome, log, output};

/// Number of questions in a batch.
const BATCH: usize = 32;

/// Answer questions about images with a REVEAL run and its memory.
#[derive(Debug, Args)]
#[command(after_help = "\
Questions: JSON lines {\"id\", \"question\", \"image\"}. Image paths are relative to the file's folder,
or to the current folder for standard input. Every line needs an image. Without a question the run
writes a caption. The output has the retrieved entries of each answer.

With --haystack the run replies yes or no to each task from `engram data world`. It answers the
task's question for each image, with only the task's entries as memory, and replies yes if every
answer matches.

With --audit the run, which was trained on facts (reveal/triplets), completes the prompts of the
audit of limited memory language models. For each database it builds a memory, and answers each
prompt with it, after the deletion of the prompt's fact, and without it. With --edits it does the
same for made-up facts, which are added, updated, renamed and deleted while the memory is used.

Examples:
  engram answer runs/r1 --questions world/questions.jsonl --out answers.jsonl
  engram answer runs/r1 --questions world/questions.jsonl --out answers.jsonl --evidence -k 5
  engram answer runs/r1 --questions world/questions.jsonl --out answers.jsonl --evidence shapley
  engram answer runs/r1 --questions world/questions.jsonl --out answers.jsonl \\
      --memory 'postgres://ann@db.example/wiki?memory=r1'
  engram answer runs/r1 --questions world/questions.jsonl --out answers.jsonl --control random-values
  engram answer runs/r1 --haystack world/haystack.jsonl --out replies.jsonl
  engram eval haystack --hyp replies.jsonl
  engram answer runs/t1 --audit databases --out results.jsonl
  engram answer runs/t1 --audit databases --rephrase 'Quiz: {} Your reply:' --out rephrased.jsonl
  engram answer runs/t1 --edits 10000 --out edits.jsonl
  engram eval forget --hyp results.jsonl")]
pub struct Answer {
    /// The folder of a finished REVEAL run
    run: InputFolder,
    #[command(flatten)]
    input: Tasks,
    /// Output file: JSON lines; - is standard output
    #[arg(long, value_name = "FILE")]
    out: OutputFile,
    /// Add the attribution of each answer token to each retrieved entry: the decrease of the token's
    /// log-probability without the entry; with `shapley`, also the entry's Shapley value
    #[arg(
        long,
        value_name = "METHOD",
        num_args = 0..=1,
        default_missing_value = "leave-one-out",
        conflicts_with = "haystack"
    )]
    evidence: Option<Method>,
    /// With --audit: ask only the questions (the direct prompts), each in the place of {} in this text;
    /// shows how well prompts are answered that training never showed
    #[arg(long, value_name = "TEXT", requires = "audit", value_parser = wording)]
    rephrase: Option<String>,
    /// Replace what the model reads from the memory, so that answers from the memory must fail
    #[arg(long, value_name = "NAME", conflicts_with = "haystack")]
    control: Option<MemoryControl>,
    /// Use this memory instead of the run's own: the folder or address of a copy of it
    #[arg(long, value_name = "MEMORY")]
    memory: Option<InputFolder>,
    #[command(flatten)]
    server: ServerOptions,
    /// Number of entries to retrieve; 0 for no memory; default: as in the run's recipe
    #[arg(short, value_name = "N")]
    k: Option<usize>,
    #[command(flatten)]
    compute: ComputeOptions,
}

/// A method of attribution.
#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
enum Method {
    LeaveOneOut,
    Shapley,
}

/// A control.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum MemoryControl {
    /// Each key leads to the value of another entry
    PermutedKeys,
    /// Each question reads the entries that were retrieved for another question
    DonorEntries,
    /// Each value is a random vector from a normal distribution, as long as the real one
    RandomValues,
    /// All sources have the same weight; answers need not fail
    FixedGate,
}

impl From<MemoryControl> for Control {
    fn from(control: MemoryControl) -> Self {
        match control {
            MemoryControl::PermutedKeys => Self::PermutedKeys,
            MemoryControl::DonorEntries => Self::DonorEntries,
            MemoryControl::RandomValues => Self::RandomValues,
            MemoryControl::FixedGate => Self::FixedGate,
        }
    }
}

/// The input file: questions or yes-or-no tasks.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Tasks {
    /// Questions about images; - is standard input
    #[arg(long, value_name = "FILE")]
    questions: Option<InputFile>,
    /// Yes-or-no tasks of a `haystack.jsonl`; - is standard input
    #[arg(long, value_name = "FILE")]
    haystack: Option<InputFile>,
    /// Databases of facts with their prompts, in the published layout of the audit
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["evidence", "memory"])]
    audit: Option<InputFolder>,
    /// Change made-up facts in a memory this many times, and answer prompts about them after 0, 10,
    /// 100, … changes
    #[arg(long, value_name = "N", conflicts_with_all = ["evidence", "memory"],
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    edits: Option<u32>,
}

/// Parses the text around a rephrased question.
fn wording(text: &str) -> Result<String, String> {
    let has_place = text.contains("{}");
    has_place.then(|| text.to_owned()).ok_or_else(|| "has no {} for the question".to_owned())
}

impl Answer {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        if !reveal::is_finished(&self.run) {
            let reason = if study(&self.run).as_deref() == Some(reveal::STUDY) {
                "is an unfinished REVEAL run; continue it with `engram train reveal … --resume`"
            } else {
                "is not a finished REVEAL run; train one with `engram train reveal`"
            };
            anyhow::bail!("{}: {reason}", self.run.display());
        }
        match &self.input {
            Tasks { questions: Some(questions), .. } => self.answer(questions),
            Tasks { haystack: Some(haystack), .. } => self.reply(haystack),
            Tasks { audit: Some(databases), .. } => {
                let rephrase = self.rephrase.as_deref();
                self.write(&audit::lines(&self.open(Vec::new())?, databases, rephrase)?)
            }
            Tasks { edits: Some(edits), .. } => {
                self.write(&audit::lines_of_edits(&self.open(Vec::new())?, *edits as usize)?)
            }
            _ => anyhow::bail!("give --questions, --haystack, --audit or --edits"),
        }
    }

    /// Writes the results of prompts about facts.
    fn write(&self, lines: &audit::Lines) -> anyhow::Result<Outcome> {
        output::write_atomic(&self.out, &lines.bytes)?;
        let results = counted(lines.count, "result");
        output::note(&format!("{results} written to {}", self.out.display()));
        Ok(Outcome::Done)
    }

    /// Answers the questions in a file.
    fn answer(&self, input: &Path) -> anyhow::Result<Outcome> {
        let Questions { list: questions, images } = read_questions(input)?;
        let answerer = self.open(images)?;
        if let Some((index, error)) = answerer.first_broken_image() {
            let affected = questions.iter().find(|question| question.image_index == index);
            let line = affected.map_or(0, |question| question.line);
            anyhow::bail!("{}, line {line}: {error}", input.display());
        }
        let detail = Detail {
            attribution: self.evidence.is_some(),
            shapley: self.evidence == Some(Method::Shapley),
        };
        let bar = output::progress_bar(questions.len(), "answers");
        let (mut lines, mut answers) = (Vec::new(), Vec::new());
        for questions in questions.chunks(BATCH) {
            for answer in answerer.answer(questions, detail)? {
                let answer = AnswerLine { credit: quality(&answer), answer };
                serde_json::to_writer(&mut lines, &answer)?;
                lines.push(b'\n');
                answers.push(answer);
            }
            bar.inc(questions.len() as u64);
        }
        bar.finish_and_clear();
        output::write_atomic(&self.out, &lines)?;
        let truncated: Vec<&answerer::Answer> = answers
            .iter()
            .map(|line| &line.answer)
            .filter(|answer| answer.question_truncated)
            .collect();
        if let Some(first) = truncated.first() {
            output::warn(&format!(
                "truncated to the run's `data.max_query_tokens`: {}, the first {}",
                counted(truncated.len(), "question"),
                first.id
            ));
        }
        let credit: Vec<&[CreditQuality]> = answers.iter().map(|line| &*line.credit).collect();
        if let Some(table) = credit::table(&credit) {
            output::print(&table)?;
        }
        let answers = counted(answers.len(), "answer");
        output::note(&format!("{answers} written to {}", self.out.display()));
        Ok(Outcome::Done)
    }

    /// Replies to the haystack tasks in a file. Adds the reply and its details to each input line.
    fn reply(&self, haystack: &Path) -> anyhow::Result<Outcome> {
        let Haystacks { tasks, lines, images } = read_haystacks(haystack)?;
        let answerer = self.open(images)?;
        if let Some((index, error)) = answerer.first_broken_image() {
            let has_image = |task: &&Task| task.images.iter().any(|(image, _)| *image == index);
            let task = tasks.iter().find(has_image).map_or("", |task| &task.location);
            anyhow::bail!("{task}: {error}");
        }
        let bar = output::progress_bar(tasks.len(), "replies");
        let mut bytes = Vec::new();
        for (tasks, lines) in tasks.chunks(BATCH).zip(lines.chunks(BATCH)) {
            let replies = answerer.reply(tasks)?;
            for (task, reply) in lines.iter().zip(replies) {
                serde_json::to_writer(&mut bytes, &TaskWithReply { task, reply })?;
                bytes.push(b'\n');
            }
            bar.inc(tasks.len() as u64);
        }
        bar.finish_and_clear();
        output::write_atomic(&self.out, &bytes)?;
        let replies = counted(tasks.len(), "reply");
        output::note(&format!("{replies} written to {}", self.out.display()));
        Ok(Outcome::Done)
    }

    /// Opens the run. Returns an error for options that have no effect without retrieval.
    fn open(&self, images: Vec<PathBuf>) -> anyhow::Result<Answerer> {
        paths::check_not_overwritten(&self.out, images.iter().map(PathBuf::as_path))?;
        let is_on_servers =
            self.memory.as_deref().is_some_and(|at| location::addresses(at).is_some());
        anyhow::ensure!(
            is_on_servers || !self.server.insecure,
            "--insecure is for memories on PostgreSQL; leave it out"
        );
        let compute = self.compute.open()?;
        let is_about_facts = self.input.audit.is_some() || self.input.edits.is_some();
        if self.memory.is_none() && self.k != Some(0) && !is_about_facts {
            restore_missing_memory(&self.run, output::is_quiet())?;
        }
        let open = || -> anyhow::Result<Answerer> {
            if is_about_facts {
                return Ok(Answerer::without_memory(&self.run, self.k, images, &compute)?);
            }
            let memory = match self.memory.as_deref().filter(|_| self.k != Some(0)) {
                Some(location) => Some((location, self.open_memory(location)?)),
                None => None,
            };
            Ok(Answerer::open(&self.run, memory, self.k, images, &compute, value_reader())?)
        };
        let mut answerer = log::stage("opened the run and its memory", open)?;
        if let Some(control) = self.control {
            answerer.set_control(control.into()).map_err(|error| anyhow!("--control: {error}"))?;
        }
        anyhow::ensure!(
            self.evidence != Some(Method::Shapley) || answerer.k() <= MAX_ENTRIES,
            "--evidence shapley needs a pass for each subset of the {} entries; give -k \
             {MAX_ENTRIES} or less",
            answerer.k()
        );
        let options = [
            ("--evidence", self.evidence.is_some()),
            ("--memory", self.memory.is_some()),
            ("--haystack", self.input.haystack.is_some()),
            ("--audit", self.input.audit.is_some()),
            ("--edits", self.input.edits.is_some()),
        ];
        match options.iter().find(|(_, is_given)| *is_given && answerer.k() == 0) {
            Some((option, _)) => anyhow::bail!(
                "{option} needs retrieved entries, but k is 0 (-k or the run's recipe); give -k"
            ),
            None => Ok(answerer),
        }
    }

    /// Opens the memory of `--memory`.
    fn open_memory(&self, location: &Path) -> anyhow::Result<Box<dyn Store>> {
        anyhow::ensure!(
            location::addresses(location).is_some() || location.is_dir(),
            "{}: no such folder; use the folder of this run's memory, or a copy of it",
            location.display()
        );
        location::open(location, self.server, false)
    }
}

#[derive(Serialize)]
struct TaskWithReply<'a> {
    #[serde(flatten)]
    task: &'a Map<String, Value>,
    #[serde(flatten)]
    reply: Reply,
}

/// A line of the output.
#[derive(Serialize)]
struct AnswerLine {
    #[serde(flatten)]
    answer: answerer::Answer,
    /// The quality of the attributions; empty without Shapley values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    credit: Vec<CreditQuality>,
}
