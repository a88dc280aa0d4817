//! The needle-in-a-haystack test: yes-or-no tasks about a few images. The needles are the entries
//! with the answers, one for each image. For each task, only its needles and some entries of other
//! images can be retrieved.

use engram_data::world::World;
use engram_data::world::haystack::HaystackTask;
use engram_eval::haystack::evaluate;
use engram_eval::haystack::read::Reply as ScoredReply;
use engram_eval::result::{Measure, ReportOptions};
use engram_infer::reveal::forward::Forward;
use engram_infer::reveal::needle::{Reply, Task, parse_question, replies};
use serde::{Deserialize, Serialize};

use crate::study::StudyResult;

/// The accuracy in all tasks of one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NeedleMetrics {
    /// The number of needles in a task.
    pub needles: usize,
    /// The number of entries of other images in a task.
    pub others: usize,
    /// The fraction of correct replies; chance is 0.5.
    pub accuracy: Measure,
    /// The result of each task; all runs on one world get the same tasks.
    pub tasks: Vec<NeedleOutcome>,
}

/// The result of one task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeedleOutcome {
    /// The task's id.
    pub id: String,
    /// The ids of the needles.
    pub needles: Vec<i64>,
    /// Whether the reply is correct.
    pub correct: bool,
}

/// Replies to tasks of all sizes about the world's test images, and measures each size. Tasks about
/// a source that is not in the memory are skipped. `seed` draws the tasks; the world's own seed
/// gives the tasks of `engram data world`.
pub(crate) fn needle_metrics(
    forward: &Forward<'_>,
    world: &World,
    seed: u64,
) -> StudyResult<Vec<NeedleMetrics>> {
    let mut by_size: Vec<((usize, usize), Vec<HaystackTask>)> = Vec::new();
    for task in world.haystacks(seed)? {
        if task.haystack.iter().any(|id| forward.corpus.index_of(*id).is_none()) {
            continue;
        }
        let size = (task.needles.len(), task.haystack.len() - task.needles.len());
        match by_size.iter_mut().find(|(existing, _)| *existing == size) {
            Some((_, tasks)) => tasks.push(task),
            None => by_size.push((size, vec![task])),
        }
    }
    let mut metrics = Vec::new();
    for ((needles, others), tasks) in by_size {
        let parsed_tasks: Vec<Task> = tasks
            .iter()
            .map(|task| {
                let images =
                    task.images.iter().map(|slug| Some((world.image_index(slug)?, task.view)));
                let images: Option<Vec<_>> = images.collect();
                Ok(Task {
                    location: format!("task `{}`", task.id),
                    world: Some(task.world),
                    asked: parse_question(&task.question)?,
                    images: images.ok_or("the world does not have this image")?,
                    haystack: task.haystack.clone(),
                })
            })
            .collect::<Result<_, &str>>()?;
        let replies = replies(forward, &parsed_tasks)?;
        let scored: Vec<ScoredReply<'_>> = tasks
            .iter()
            .zip(&replies)
            .map(|(task, reply)| ScoredReply {
                id: task.id.as_str().into(),
                yes: task.answer == "yes",
                question: task.question.as_str().into(),
                response: reply.response.into(),
            })
            .collect();
        let measures = evaluate(&scored, &ReportOptions::default())?.evaluation.secondary;
        let plain_accuracy =
            measures.into_iter().find(|measure| measure.metric == "accuracy_plain");
        let accuracy = plain_accuracy.ok_or("no plain accuracy")?;
        let outcome = |(task, reply): (HaystackTask, &Reply)| NeedleOutcome {
            correct: task.answer == reply.response,
            id: task.id,
            needles: task.needles,
        };
        let tasks = tasks.into_iter().zip(&replies).map(outcome).collect();
        metrics.push(NeedleMetrics { needles, others, accuracy, tasks });
    }
    Ok(metrics)
}
