//! Prompts about facts in three states: with the whole memory, after the deletion of a fact, and
//! without the memory.

use std::collections::BTreeMap;
use std::path::Path;

use engram_memory::{Batch, ValueDtype};

use super::Answerer;
use crate::error::Result;
use crate::reveal::answers::Answers;
use crate::reveal::augmentation::BatchAugmentation;
use crate::reveal::corpus::{Corpus, CorpusEntry, Example, FACTS};
use crate::reveal::forward::Forward;
use crate::reveal::retriever::{ItemEncoder, Retriever};
use crate::stop::Stop;

/// A prompt and the facts that are deleted before it is answered again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletionPrompt {
    /// The text.
    pub text: String,
    /// The indices of the facts.
    pub deleted: Vec<usize>,
}

/// The answers to a prompt: with the whole memory, after the deletion, and without the memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletionAnswers {
    /// The answers.
    pub texts: [String; 3],
    /// The indices of the retrieved facts for each answer, best first.
    pub retrieved: [Vec<usize>; 3],
}

impl Answerer {
    /// Builds a memory of facts, given as texts, in `folder`, and answers prompts. Facts are really
    /// deleted from this memory, and added again after the answers. `done` gets the number of
    /// prompts that have been answered since the last call.
    ///
    /// # Errors
    /// The run was not trained on facts; `folder` has other files; the errors of the model and of the
    /// memory; [`InferError::Stopped`](crate::InferError::Stopped)
    pub fn answer_after_deletions(
        &self,
        folder: &Path,
        facts: &[String],
        prompts: &[DeletionPrompt],
        stop: &Stop,
        done: &dyn Fn(usize),
    ) -> Result<Vec<DeletionAnswers>> {
        if !self.is_of_facts {
            let remedy = "train one with `engram train reveal --recipe reveal/triplets`";
            return Err(format!("the run was not trained on facts alone; {remedy}").into());
        }
        let facts = facts.iter().cloned().enumerate();
        let items = facts.map(|(index, fact)| CorpusEntry::of_fact(index, fact, false));
        let mut corpus: Corpus = self.inputs.corpus(Vec::new());
        corpus.items = items.collect();
        corpus.stored = corpus.items.len();
        corpus.sources = vec![FACTS.to_owned()];
        let (model, sequencer) = (&self.model, &self.encoding.sequencer.of(&corpus)?);
        let mut retriever =
            Retriever::build(folder, model, &corpus, sequencer, ValueDtype::F16, stop)?;
        let example =
            |(id, prompt): (usize, &DeletionPrompt)| Example::of_text(id, prompt.text.clone());
        let examples: Vec<Example> = prompts.iter().enumerate().map(example).collect();
        let examples: Vec<&Example> = examples.iter().collect();
        let answer = |retriever: Option<&Retriever>, examples: &[&Example]| {
            let k = retriever.map_or(0, |_| self.k);
            let (corpus, augmentation) = (&corpus, BatchAugmentation::default());
            let forward =
                Forward { model, corpus, sequencer, retriever, k, reencoded: 0, augmentation };
            Answers::of(&forward, examples, stop)
        };
        let full = answer(Some(&retriever), &examples)?;
        let off = answer(None, &examples)?;
        let mut answers: Vec<DeletionAnswers> = (0..prompts.len())
            .map(|prompt| DeletionAnswers {
                texts: [full.texts[prompt].clone(), String::new(), off.texts[prompt].clone()],
                retrieved: [indices(&full.retrieved[prompt]), Vec::new(), Vec::new()],
            })
            .collect();
        let mut prompts_of: BTreeMap<&[usize], Vec<usize>> = BTreeMap::new();
        for (index, prompt) in prompts.iter().enumerate() {
            prompts_of.entry(&prompt.deleted).or_default().push(index);
        }
        let mut encoder = ItemEncoder::new(model, &corpus, sequencer);
        for (deleted, prompts) in prompts_of {
            let entries = deleted.iter().map(|index| corpus.items[*index].entry.clone());
            let entries: Vec<_> = entries.collect();
            let ids: Vec<i64> = entries.iter().map(|entry| entry.id).collect();
            retriever.edit(|transaction| transaction.delete(&ids))?;
            let of_prompts: Vec<&Example> = prompts.iter().map(|index| examples[*index]).collect();
            let after = answer(Some(&retriever), &of_prompts)?;
            for (prompt, (text, retrieved)) in
                prompts.iter().zip(after.texts.into_iter().zip(&after.retrieved))
            {
                answers[*prompt].texts[1] = text;
                answers[*prompt].retrieved[1] = indices(retrieved);
            }
            let (keys, values) = encoder.encode(deleted)?;
            let mut batches = std::iter::once(Ok(Batch { entries, keys, values }));
            retriever.edit(|transaction| transaction.add(ids.len(), &mut batches))?;
            done(prompts.len());
        }
        Ok(answers)
    }
}

fn indices(ids: &[i64]) -> Vec<usize> {
    ids.iter().map(|id| *id as usize).collect()
}
