//! Answers from a REVEAL run.

use std::path::{Path, PathBuf};

use engram_train::studies::reveal::evidence::area;
use engram_train::studies::reveal::needle::{Haystacks, Reply, Task, read_haystacks};
use engram_train::studies::reveal::predict::{Answer, Answerer, Detail, Questions, read_questions};
use serde::Serialize;
use serde_json::{Map, Value};

use super::Predict;
use crate::cli::{Outcome, output, paths};

/// Number of questions in a batch.
const BATCH: usize = 32;

impl Predict {
    /// Answers the questions in the input.
    pub(super) fn answer(&self, run: &Path, input: &Path) -> anyhow::Result<Outcome> {
        let Questions { list: questions, images } = read_questions(input)?;
        let answerer = self.open(run, images)?;
        if let Some((index, fault)) = answerer.first_broken_image() {
            let asked = questions.iter().find(|question| question.place == index);
            let line = asked.map_or(0, |question| question.line);
            anyhow::bail!("{}, line {line}: {fault}", input.display());
        }
        let detail = Detail { credit: self.evidence, curves: self.curves };
        let bar = output::progress_bar(questions.len(), "answers", self.quiet);
        let (mut lines, mut answers) = (Vec::new(), Vec::new());
        for questions in questions.chunks(BATCH) {
            for answer in answerer.answer(questions, detail).map_err(anyhow::Error::from_boxed)? {
                serde_json::to_writer(&mut lines, &answer)?;
                lines.push(b'\n');
                answers.push(answer);
            }
            bar.inc(questions.len() as u64);
        }
        bar.finish_and_clear();
        output::write_atomic(&self.output, &lines)?;
        let truncated: Vec<&Answer> = answers.iter().filter(|answer| answer.question_cut).collect();
        if let Some(first) = truncated.first() {
            let reason = "are longer than the run's `data.max_query_tokens` and were truncated";
            let message =
                format!("{} questions, the first {}, {reason}", truncated.len(), first.id);
            output::note(&message, false);
        }
        if let Some(text) = attribution_quality(&answers) {
            output::print(&text)?;
        }
        let done = format!("{} answers written to {}", answers.len(), self.output.display());
        output::note(&done, self.quiet);
        Ok(Outcome::Done)
    }

    /// Replies to the haystack tasks in a file. Adds the reply and its details to each input line.
    pub(super) fn reply(&self, run: &Path, haystack: &Path) -> anyhow::Result<Outcome> {
        let Haystacks { tasks, lines, images } = read_haystacks(haystack)?;
        let answerer = self.open(run, images)?;
        if let Some((index, fault)) = answerer.first_broken_image() {
            let has_image = |task: &&Task| task.images.iter().any(|(image, _)| *image == index);
            let task = tasks.iter().find(has_image).map_or("", |task| &task.place);
            anyhow::bail!("{task}: {fault}");
        }
        let bar = output::progress_bar(tasks.len(), "replies", self.quiet);
        let mut bytes = Vec::new();
        for (tasks, lines) in tasks.chunks(BATCH).zip(lines.chunks(BATCH)) {
            let replies = answerer.reply(tasks).map_err(anyhow::Error::from_boxed)?;
            for (task, reply) in lines.iter().zip(replies) {
                serde_json::to_writer(&mut bytes, &TaskWithReply { task, reply })?;
                bytes.push(b'\n');
            }
            bar.inc(tasks.len() as u64);
        }
        bar.finish_and_clear();
        output::write_atomic(&self.output, &bytes)?;
        let done = format!("{} replies written to {}", tasks.len(), self.output.display());
        output::note(&done, self.quiet);
        Ok(Outcome::Done)
    }
}

impl Predict {
    /// Opens a run. Returns an error for options that have no effect without retrieval.
    fn open(&self, run: &Path, images: Vec<PathBuf>) -> anyhow::Result<Answerer> {
        paths::check_not_overwritten(&self.output, images.iter().map(PathBuf::as_path))?;
        let answerer = Answerer::open(run, self.memory.as_deref(), self.k, images)?;
        let options = [
            ("--evidence", self.evidence),
            ("--curves", self.curves),
            ("--memory", self.memory.is_some()),
            ("--haystack", self.haystack.is_some()),
        ];
        match options.iter().find(|(_, given)| *given && answerer.k() == 0) {
            Some((option, _)) => anyhow::bail!(
                "{option} needs retrieved entries, but k is 0 (-k or the run's recipe); give -k"
            ),
            None => Ok(answerer),
        }
    }
}

/// A task and its reply.
#[derive(Serialize)]
struct TaskWithReply<'a> {
    #[serde(flatten)]
    task: &'a Map<String, Value>,
    #[serde(flatten)]
    reply: Reply,
}

/// The quality of the attributions over all answers, as text.
fn attribution_quality(answers: &[Answer]) -> Option<String> {
    let mean = |values: Vec<f64>| {
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let correlations: Vec<f64> = answers.iter().filter_map(|one| one.rank_correlation).collect();
    let n = correlations.len();
    let mut lines = Vec::new();
    if let Some(correlation) = mean(correlations) {
        lines.push(format!(
            "gradient attribution vs. leave-one-out: Spearman {correlation:.3}, mean of {n} answers"
        ));
    }
    let orders = answers.iter().flat_map(|answer| &answer.curves).map(|curves| curves.order);
    let mut names: Vec<&str> = Vec::new();
    for name in orders {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if !names.is_empty() {
        lines.push(
            "mean log-probability of the answer in nats, as entries are removed or added"
                .to_owned(),
        );
        lines.push(format!("{:<16} {:>9} {:>9}", "order", "deletion", "insertion"));
    }
    for name in names {
        let of_order = answers.iter().flat_map(|answer| &answer.curves);
        let of_order: Vec<_> = of_order.filter(|curves| curves.order == name).collect();
        let deletion = mean(of_order.iter().map(|one| area(&one.curves.deletion)).collect())?;
        let insertion = mean(of_order.iter().map(|one| area(&one.curves.insertion)).collect())?;
        lines.push(format!("{name:<16} {deletion:>9.3} {insertion:>9.3}"));
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}
