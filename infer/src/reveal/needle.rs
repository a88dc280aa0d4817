//! Needle-in-a-haystack tasks: yes-or-no questions about a few images. The entries with the answers
//! (the needles) and many other entries form the haystack.
//!
//! The model is not trained to answer yes or no. For each image it answers a question as in its
//! training ("Which spice does this smell of?"), and only the entries of the haystack can be
//! retrieved. The reply is yes if the model gives the expected answer for every image. The reply
//! does not depend on the ids of the needles or on the label. A random model nearly always replies
//! no, which is right for half of the tasks.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use engram_data::world::haystack::{WorldId, YesNoQuestion};
use engram_memory::MemoryError;
use engram_memory::search::Filter;
use engram_models::kernels::Mode;
use engram_textfile::{Location, TextError, base_folder, non_blank_lines, read_text};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::forward::Forward;
use super::is_correct;
use crate::error::{InferError, Result};

const TASKS_PER_BATCH: usize = 32;

/// A task with the indices of its images.
#[derive(Debug, Clone)]
pub struct Task {
    /// File and line, or the task's name; for messages.
    pub location: String,
    /// The embedded world of the task; `None` if the file does not name it.
    pub world: Option<WorldId>,
    /// The question about each image, and the expected answer.
    pub asked: YesNoQuestion,
    /// Index and view of each image.
    pub images: Vec<(usize, u32)>,
    /// The ids of the entries that may be retrieved.
    pub haystack: Vec<i64>,
}

/// The reply to a task, with the answers and entries behind it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reply {
    /// `yes` or `no`.
    pub response: &'static str,
    /// The answer for each image.
    pub answers: Vec<String>,
    /// The ids of the retrieved entries for each image, best first.
    pub retrieved: Vec<Vec<i64>>,
}

/// Replies to tasks.
///
/// # Errors
/// The errors of the memory; an id that is not in the memory, with the location of the task.
pub fn replies(forward: &Forward<'_>, tasks: &[Task]) -> Result<Vec<Reply>> {
    let mut replies = Vec::with_capacity(tasks.len());
    for tasks in tasks.chunks(TASKS_PER_BATCH) {
        replies.extend(reply_to_batch(forward, tasks)?);
    }
    Ok(replies)
}

fn reply_to_batch(forward: &Forward<'_>, tasks: &[Task]) -> Result<Vec<Reply>> {
    let (model, sequencer, mode) = (forward.model, forward.sequencer, Mode::inference());
    let (mut texts, mut views) = (Vec::new(), Vec::new());
    for task in tasks {
        for image in &task.images {
            texts.push(sequencer.question(task.asked.question)?.0);
            views.push(Some(*image));
        }
    }
    let base = model.encode(&sequencer.input(forward.corpus, &texts, &views)?, &mode)?;
    let queries = model.query(&base, &mode)?;
    let gates = forward.gates(&queries)?;
    let (mut hits, mut first_query) = (Vec::new(), 0);
    for task in tasks {
        let count = task.images.len();
        match forward.retriever.filter(|_| forward.k > 0) {
            None => hits.extend(vec![Vec::new(); count]),
            Some(retriever) => {
                let (queries, gates) =
                    (queries.narrow(0, first_query, count)?, gates.narrow(0, first_query, count)?);
                let filter = Filter { ids: Some(task.haystack.clone()), ..Filter::default() };
                let results = retriever.filtered(&queries, &gates, forward.k, filter);
                let results = results.map_err(|error| {
                    let remedy = match &error {
                        InferError::Memory(error)
                            if matches!(**error, MemoryError::UnknownId { .. }) =>
                        {
                            "; use a haystack of this memory"
                        }
                        _ => "",
                    };
                    format!("{}: {error}{remedy}", task.location)
                })?;
                hits.extend(results.hits);
            }
        }
        first_query += count;
    }
    let stored = Forward { reencoded: 0, ..*forward };
    let fused = stored.fuse(&base, &queries, &stored.entries_to_fuse(&hits), &[], &mode)?;
    let mut answers = Vec::new();
    for answer in model.generate(&fused.states, &forward.generation())? {
        answers.push(sequencer.tokens().decode(answer.without_end())?.trim().to_owned());
    }
    let (mut answers, mut hits) = (answers.into_iter(), hits.into_iter());
    let reply = |task: &Task| {
        let count = task.images.len();
        let answers: Vec<String> = answers.by_ref().take(count).collect();
        let retrieved = hits.by_ref().take(count);
        Reply {
            response: response(&answers, task.asked.answer),
            retrieved: retrieved.map(|hits| hits.iter().map(|hit| hit.id).collect()).collect(),
            answers,
        }
    };
    Ok(tasks.iter().map(reply).collect())
}

/// Returns `yes` if every answer is the expected answer, and `no` otherwise.
fn response(answers: &[String], expected: &str) -> &'static str {
    let expected = [expected.to_owned()];
    if answers.iter().all(|answer| is_correct(answer, &expected)) { "yes" } else { "no" }
}

/// Parses the text of a task's question.
///
/// # Errors
/// The reason, for a question that no haystack of the embedded world has.
pub fn parse_question(question: &str) -> Result<YesNoQuestion, &'static str> {
    YesNoQuestion::of(question)
        .ok_or("the question is not a haystack question of `engram data world`")
}

/// The fields of a task's line, without the label.
#[derive(Deserialize)]
struct TaskLine {
    id: String,
    world: Option<WorldId>,
    question: String,
    images: Vec<String>,
    view: u32,
    haystack: Vec<i64>,
}

/// The tasks of a file, and their distinct images.
#[derive(Debug, Clone, Default)]
pub struct Haystacks {
    /// The tasks.
    pub tasks: Vec<Task>,
    /// The original line of each task.
    pub lines: Vec<Map<String, Value>>,
    /// The image files.
    pub images: Vec<PathBuf>,
}

/// Reads the `haystack.jsonl` of `engram data world`; the images are in `views`, in the same
/// folder.
///
/// # Errors
/// [`TextError::Malformed`] naming the file and line of an invalid task, or of a task without its
/// images.
pub fn read_haystacks(path: &Path) -> Result<Haystacks> {
    let text = read_text(path)?;
    let views = base_folder(path).join("views");
    let mut haystacks = Haystacks::default();
    let mut index_of: HashMap<PathBuf, usize> = HashMap::new();
    let mut line_of: HashMap<String, u64> = HashMap::new();
    for (number, line) in non_blank_lines(&text) {
        let malformed = |reason: String| {
            let remedy = "use the haystack.jsonl that `engram data world` wrote, in its folder";
            TextError::malformed(path, number, reason, remedy)
        };
        let mut line: Map<String, Value> =
            serde_json::from_str(line).map_err(|error| malformed(error.to_string()))?;
        // Removes the fields that an earlier reply has added to the line.
        for key in ["response", "answers", "retrieved"] {
            line.shift_remove(key);
        }
        let task: TaskLine = serde_json::from_value(Value::Object(line.clone()))
            .map_err(|error| malformed(error.to_string()))?;
        if task.haystack.is_empty() {
            return Err(malformed("has no entries in `haystack`".to_owned()).into());
        }
        let mut ids = HashSet::new();
        if let Some(id) = task.haystack.iter().find(|id| !ids.insert(**id)) {
            return Err(malformed(format!("the entry {id} occurs twice in `haystack`")).into());
        }
        if let Some(first) = line_of.insert(task.id.clone(), number) {
            return Err(
                malformed(format!("the id `{}` is already used in line {first}", task.id)).into()
            );
        }
        let mut images = Vec::new();
        for slug in &task.images {
            let file = views.join(format!("{slug}-{}.png", task.view));
            if !file.is_file() {
                return Err(malformed(format!("image not found: {}", file.display())).into());
            }
            let next = index_of.len();
            let index = *index_of.entry(file.clone()).or_insert(next);
            if index == next {
                haystacks.images.push(file);
            }
            // The file already shows the view, so it is used as view 0.
            images.push((index, 0));
        }
        if images.is_empty() {
            return Err(malformed("has no images".to_owned()).into());
        }
        let asked =
            parse_question(&task.question).map_err(|reason| malformed(reason.to_owned()))?;
        let location = Location::new(path, number).to_string();
        let TaskLine { world, haystack, .. } = task;
        haystacks.tasks.push(Task { location, world, asked, images, haystack });
        haystacks.lines.push(line);
    }
    if haystacks.tasks.is_empty() {
        let remedy = "use the haystack.jsonl that `engram data world` wrote";
        return Err(TextError::malformed(path, None, "has no tasks", remedy).into());
    }
    Ok(haystacks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yes_requires_the_expected_answer_for_every_image() {
        let answers =
            |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(response(&answers(&["saffron"]), "saffron"), "yes");
        assert_eq!(response(&answers(&[" Saffron", "saffron"]), "saffron"), "yes");
        assert_eq!(response(&answers(&["saffron", "cumin"]), "saffron"), "no");
        assert_eq!(response(&answers(&[""]), "saffron"), "no");
    }
}
