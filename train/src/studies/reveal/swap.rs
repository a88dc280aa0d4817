//! Measures whether the model takes its answers from the memory. Facts are changed in the memory
//! and then deleted; everything else stays the same.

use engram_data::world::World;
use engram_eval::result::Measure;
use engram_infer::reveal::answers::Answers;
use engram_infer::reveal::corpus::{Corpus, Example};
use engram_infer::reveal::forward::Forward;
use engram_infer::reveal::images::Images;
use engram_infer::reveal::is_correct;
use engram_infer::reveal::retriever::{Retriever, encode};
use engram_memory::{Batch, Entry};
use rand::SeedableRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_chacha::ChaCha8Rng;
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
    /// The index of the question's image, or of another image of the same thing; `None` if it has
    /// none.
    pub image: Option<usize>,
    /// The correct answers before and after the change.
    pub references: [String; 2],
    /// The model's answers before, after the change, and after the deletion.
    pub answers: [String; 3],
    /// Whether the answer equals the new fact after the change, and neither the old nor the new
    /// fact after the deletion.
    pub fell_back: bool,
}

/// Facts to change, and test questions about them.
struct Changes {
    /// The changed entries, each with its image.
    entries: Vec<(Entry, Option<usize>)>,
    /// The index of each question in the test, with the new answers.
    questions: Vec<(usize, Vec<String>)>,
}

impl Changes {
    /// Draws up to `count` facts. Facts without a test question or without an entry in the memory
    /// are excluded.
    fn draw(corpus: &Corpus, count: usize, seed: u64) -> StudyResult<Self> {
        match &corpus.images {
            Images::World { world, .. } => Self::of_world(corpus, world, count, seed),
            _ => Ok(Self::exchanged(corpus, count, seed)),
        }
    }

    fn of_world(corpus: &Corpus, world: &World, count: usize, seed: u64) -> StudyResult<Self> {
        let max_facts = corpus.test.iter().filter(|example| example.made_up).count();
        let mut swap = world.swap(count.min(max_facts), seed)?;
        swap.facts.retain(|fact| corpus.index_of(fact.entry.id).is_some());
        let ids = swap.ids();
        swap.questions.retain(|question| ids.contains(&question.entry));
        let entries = swap.facts.into_iter().map(|fact| {
            let image = fact.entry.image().map(|_| fact.image);
            (fact.entry, image)
        });
        let questions = swap.questions.into_iter().filter_map(|question| {
            let index = corpus.test.iter().position(|example| example.id == question.id)?;
            Some((index, question.answers))
        });
        Ok(Self { entries: entries.collect(), questions: questions.collect() })
    }

    /// Gives an entry the text of another entry with the same question, such as the name of
    /// another thing in the same language.
    fn exchanged(corpus: &Corpus, count: usize, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut order: Vec<usize> = (0..corpus.test.len()).collect();
        order.shuffle(&mut rng);
        let (mut entries, mut questions) = (Vec::new(), Vec::new());
        for index in order {
            if entries.len() == count {
                break;
            }
            let example = &corpus.test[index];
            let Some(own) = example.own_entry.map(|own| &corpus.items[own]) else { continue };
            let others: Vec<&Example> = corpus
                .test
                .iter()
                .filter(|other| other.text == example.text && other.answers != example.answers)
                .collect();
            let other = others.choose(&mut rng);
            let text = other.and_then(|other| Some(&corpus.items[other.own_entry?].text));
            let (Some(other), Some(text)) = (other, text) else { continue };
            let mut entry = own.entry.clone();
            entry.payload.insert("text".to_owned(), text.as_str().into());
            entries.push((entry, own.image));
            questions.push((index, other.answers.clone()));
        }
        entries.sort_by_key(|(entry, _)| entry.id);
        Self { entries, questions }
    }
}

/// Changes up to `count` facts in the memory and answers questions about them. Then deletes these
/// facts and answers again. The changed facts stay deleted.
pub fn swap(
    forward: &Forward<'_>,
    retriever: &mut Retriever,
    count: usize,
    seed: u64,
) -> StudyResult<SwapReport> {
    let corpus = forward.corpus;
    let Changes { entries, questions } = Changes::draw(corpus, count, seed)?;
    let ids: Vec<i64> = entries.iter().map(|(entry, _)| entry.id).collect();
    let examples: Vec<&Example> = questions.iter().map(|(index, _)| &corpus.test[*index]).collect();
    let changed = |(index, answers): &(usize, Vec<String>)| Example {
        answers: answers.clone(),
        ..corpus.test[*index].clone()
    };
    let changed_examples: Vec<Example> = questions.iter().map(changed).collect();
    let changed_examples: Vec<&Example> = changed_examples.iter().collect();

    let answer = |retriever: &Retriever, examples: &[&Example]| {
        Answers::of(&Forward { retriever: Some(retriever), ..*forward }, examples, &Stop::default())
    };
    let before = answer(retriever, &examples)?;
    let batch = changed_batch(forward, corpus, &entries)?;
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
        image: examples[index].group.or(examples[index].image),
        references: [
            examples[index].answers.join(", "),
            changed_examples[index].answers.join(", "),
        ],
        answers: [&before, &after, &deleted].map(|answers| answers.texts[index].clone()),
        fell_back: is_correct(&after.texts[index], &changed_examples[index].answers)
            && !is_correct(&deleted.texts[index], &old_or_new[index].answers),
    });
    Ok(SwapReport {
        facts: entries.len(),
        before: measure(&examples, &before),
        new_answer: measure(&changed_examples, &after),
        old_answer: measure(&examples, &after),
        deleted: measure(&old_or_new.iter().collect::<Vec<_>>(), &deleted),
        questions: questions.collect(),
    })
}

/// The changed entries with their new keys and values.
fn changed_batch(
    forward: &Forward<'_>,
    corpus: &Corpus,
    changed: &[(Entry, Option<usize>)],
) -> StudyResult<Batch> {
    let text = |(entry, _): &(Entry, _)| Ok(forward.sequencer.entry(&entry.text())?.0);
    let texts: Vec<Vec<u32>> = changed.iter().map(text).collect::<StudyResult<_>>()?;
    let views: Vec<_> = changed.iter().map(|(_, image)| image.map(|image| (image, 0))).collect();
    let (keys, values) = encode(forward.model, &forward.sequencer.input(corpus, &texts, &views)?)?;
    let entries = changed.iter().map(|(entry, _)| entry.clone()).collect();
    Ok(Batch { entries, keys, values })
}
