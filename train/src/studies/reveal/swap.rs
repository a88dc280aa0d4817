//! Measures whether the model takes its answers from the memory. Facts are changed in the memory
//! and then deleted; everything else stays the same.

use engram_data::world::World;
use engram_data::world::facts::Fact;
use engram_eval::result::Measure;
use engram_infer::reveal::answers::Answers;
use engram_infer::reveal::corpus::{Corpus, Example};
use engram_infer::reveal::forward::Forward;
use engram_infer::reveal::is_correct;
use engram_infer::reveal::retriever::{Retriever, encode};
use engram_memory::Batch;
use serde::{Deserialize, Serialize};

use super::metrics::QuestionMetrics;
use crate::Stop;
use crate::study::StudyResult;

/// The results of changing facts in the memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwapReport {
    /// The number of changed facts.
    pub facts: usize,
    /// The fraction of correct answers before the change.
    pub before: Measure,
    /// The fraction of answers after the change that equal the new fact.
    pub new_answer: Measure,
    /// The fraction of answers after the change that equal the old fact.
    pub old_answer: Measure,
    /// The fraction of answers after the deletion that equal the old or the new fact.
    pub deleted: Measure,
    /// The results of each question.
    pub questions: Vec<SwappedQuestion>,
}

/// One question about a changed fact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwappedQuestion {
    /// The question's id.
    pub question: i64,
    /// The id of the changed entry; −1 if the question has no own entry.
    pub entry: i64,
    /// The index of the question's image; `None` if it has none.
    pub image: Option<usize>,
    /// The correct answers before and after the change.
    pub references: [String; 2],
    /// The model's answers before, after the change, and after the deletion.
    pub answers: [String; 3],
    /// Whether the answer equals the new fact after the change, and neither the old nor the new
    /// fact after the deletion.
    pub fell_back: bool,
}

/// Changes up to `count` facts in the memory and answers questions about them. Then deletes these
/// facts and answers again. Facts without a test question or without an entry in the memory are
/// excluded. The changed facts stay deleted.
pub fn swap(
    forward: &Forward<'_>,
    retriever: &mut Retriever,
    world: &World,
    count: usize,
    seed: u64,
) -> StudyResult<SwapReport> {
    let corpus = forward.corpus;
    let max_facts = corpus.test.iter().filter(|example| example.made_up).count();
    let mut swap = world.swap(count.min(max_facts), seed)?;
    swap.facts.retain(|fact| corpus.index_of(fact.entry.id).is_some());
    let ids = swap.ids();
    swap.questions.retain(|question| ids.contains(&question.entry));
    let examples: Vec<&Example> = swap
        .questions
        .iter()
        .filter_map(|question| corpus.test.iter().find(|example| example.id == question.id))
        .collect();
    let new_answers = |example: &Example| -> Vec<String> {
        let question = swap.questions.iter().find(|question| question.id == example.id);
        question.map_or_else(Vec::new, |question| question.answers.clone())
    };
    let changed_examples: Vec<Example> = examples
        .iter()
        .map(|example| Example { answers: new_answers(example), ..(*example).clone() })
        .collect();
    let changed_examples: Vec<&Example> = changed_examples.iter().collect();

    let answer = |retriever: &Retriever, examples: &[&Example]| {
        Answers::of(&Forward { retriever: Some(retriever), ..*forward }, examples, &Stop::default())
    };
    let before = answer(retriever, &examples)?;
    let batch = changed_batch(forward, corpus, &swap.facts)?;
    let num_entries = batch.entries.len();
    let mut batches = std::iter::once(Ok(batch));
    retriever.edit(|transaction| transaction.update(num_entries, &mut batches))?;
    let after = answer(retriever, &changed_examples)?;
    retriever.edit(|transaction| transaction.delete(&ids))?;
    let deleted = answer(retriever, &changed_examples)?;

    let indices: Vec<usize> = (0..examples.len()).collect();
    let measure = |examples: &[&Example], answers: &Answers| {
        QuestionMetrics::of("swapped".to_owned(), corpus, examples, answers, &indices).exact_match
    };
    let old_or_new: Vec<Example> = examples
        .iter()
        .zip(&changed_examples)
        .map(|(old, new)| {
            let answers = old.answers.iter().chain(&new.answers).cloned().collect();
            Example { answers, ..(*old).clone() }
        })
        .collect();
    let questions = indices.iter().map(|&index| SwappedQuestion {
        question: examples[index].id,
        entry: examples[index].own_entry.map_or(-1, |index| corpus.items[index].entry.id),
        image: examples[index].image,
        references: [
            examples[index].answers.join(", "),
            changed_examples[index].answers.join(", "),
        ],
        answers: [&before, &after, &deleted].map(|answers| answers.texts[index].clone()),
        fell_back: is_correct(&after.texts[index], &changed_examples[index].answers)
            && !is_correct(&deleted.texts[index], &old_or_new[index].answers),
    });
    Ok(SwapReport {
        facts: swap.facts.len(),
        before: measure(&examples, &before),
        new_answer: measure(&changed_examples, &after),
        old_answer: measure(&examples, &after),
        deleted: measure(&old_or_new.iter().collect::<Vec<_>>(), &deleted),
        questions: questions.collect(),
    })
}

/// The entries of the changed facts with their new keys and values.
fn changed_batch(forward: &Forward<'_>, corpus: &Corpus, facts: &[Fact]) -> StudyResult<Batch> {
    let entries = facts.iter().map(|fact| fact.entry.clone()).collect();
    let texts: Vec<Vec<u32>> = facts
        .iter()
        .map(|fact| Ok(forward.sequencer.entry(&fact.entry.text())?.0))
        .collect::<StudyResult<_>>()?;
    let views: Vec<Option<(usize, u32)>> =
        facts.iter().map(|fact| fact.entry.image().map(|_| (fact.image, 0))).collect();
    let (keys, values) = encode(forward.model, &forward.sequencer.input(corpus, &texts, &views)?)?;
    Ok(Batch { entries, keys, values })
}
