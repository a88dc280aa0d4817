//! A memory of facts that changes, and prompts about these facts in three states: with the whole
//! memory, after the deletion of a fact, and without the memory.

use std::collections::BTreeMap;
use std::path::Path;

use engram_memory::{Batch, ValueDtype};

use super::Answerer;
use crate::error::Result;
use crate::reveal::answers::Answers;
use crate::reveal::corpus::{Corpus, CorpusEntry, Example, FACTS};
use crate::reveal::forward::Forward;
use crate::reveal::retriever::{Retriever, encode};
use crate::reveal::sequences::Sequencer;
use crate::stop::Stop;

/// A prompt and the facts that are deleted before it is answered again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletionPrompt {
    /// The text.
    pub text: String,
    /// The ids of the facts. Those that the memory does not have are ignored.
    pub deleted: Vec<usize>,
}

/// The answers to a prompt: with the whole memory, after the deletion, and without the memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletionAnswers {
    /// The answers.
    pub texts: [String; 3],
    /// The ids of the retrieved facts for each answer, best first.
    pub retrieved: [Vec<usize>; 3],
}

/// A memory of facts. Each fact has an id and one of the texts that the memory was created with.
pub struct FactMemory<'a> {
    answerer: &'a Answerer,
    /// The texts, as items.
    corpus: Corpus,
    sequencer: Sequencer,
    retriever: Retriever,
    /// The index of the text of each fact in the memory, by the fact's id.
    text_of: BTreeMap<usize, usize>,
}

impl Answerer {
    /// Builds a memory in `folder` of the first `stored` of these texts; their indices are the ids of
    /// the facts. Later changes may use the other texts.
    ///
    /// # Errors
    /// The run was not trained on facts; `folder` has other files; the errors of the model and of the
    /// memory; [`InferError::Stopped`](crate::InferError::Stopped)
    pub fn fact_memory(
        &self,
        folder: &Path,
        texts: Vec<String>,
        stored: usize,
        stop: &Stop,
    ) -> Result<FactMemory<'_>> {
        if !self.is_of_facts {
            let remedy = "train one with `engram train reveal --recipe reveal/triplets`";
            return Err(format!("the run was not trained on facts alone; {remedy}").into());
        }
        let items = texts.into_iter().enumerate();
        let items = items.map(|(index, text)| CorpusEntry::of_fact(index, text, false));
        let mut corpus: Corpus = self.inputs.corpus(Vec::new());
        corpus.items = items.collect();
        corpus.stored = stored;
        corpus.sources = vec![FACTS.to_owned()];
        let sequencer = self.encoding.sequencer.of(&corpus)?;
        let dtype = ValueDtype::F16;
        let retriever = Retriever::build(folder, &self.model, &corpus, &sequencer, dtype, stop)?;
        let text_of = (0..stored).map(|index| (index, index)).collect();
        Ok(FactMemory { answerer: self, corpus, sequencer, retriever, text_of })
    }
}

impl FactMemory<'_> {
    /// Changes facts in one transaction: a fact with a text (its index) is added, or gets another text
    /// if the memory has it, and a fact without one is deleted. A fact may occur once.
    ///
    /// # Errors
    /// The errors of the model and of the memory, such as a deleted id that it does not have.
    pub fn change(&mut self, changes: &[(usize, Option<usize>)]) -> Result<()> {
        let with_text = changes.iter().filter_map(|(fact, text)| Some((*fact, (*text)?)));
        let (updated, added): (Vec<_>, Vec<_>) =
            with_text.clone().partition(|(fact, _)| self.text_of.contains_key(fact));
        let deleted = changes.iter().filter(|(_, text)| text.is_none());
        let deleted: Vec<i64> = deleted.map(|(fact, _)| *fact as i64).collect();
        let [new, changed] = [self.batch(&added)?, self.batch(&updated)?];
        self.retriever.edit(|transaction| {
            if !deleted.is_empty() {
                transaction.delete(&deleted)?;
            }
            if let Some(changed) = changed {
                transaction.update(updated.len(), &mut std::iter::once(Ok(changed)))?;
            }
            if let Some(new) = new {
                transaction.add(added.len(), &mut std::iter::once(Ok(new)))?;
            }
            Ok(())
        })?;
        self.text_of.retain(|fact, _| !deleted.contains(&(*fact as i64)));
        self.text_of.extend(with_text);
        Ok(())
    }

    /// The entries of facts with their texts; `None` without facts.
    fn batch(&self, facts: &[(usize, usize)]) -> Result<Option<Batch>> {
        if facts.is_empty() {
            return Ok(None);
        }
        let texts: Vec<usize> = facts.iter().map(|(_, text)| *text).collect();
        let input = self.sequencer.entries(&self.corpus, &texts)?;
        let (keys, values) = encode(&self.answerer.model, &input)?;
        let entry = |(fact, text): &(usize, usize)| {
            let mut entry = self.corpus.items[*text].entry.clone();
            entry.id = *fact as i64;
            entry
        };
        Ok(Some(Batch { entries: facts.iter().map(entry).collect(), keys, values }))
    }

    /// Answers prompts. Facts are really deleted from the memory, and added again after the answers.
    /// `done` gets the number of prompts that have been answered since the last call.
    ///
    /// # Errors
    /// The errors of the model and of the memory;
    /// [`InferError::Stopped`](crate::InferError::Stopped)
    pub fn answer(
        &mut self,
        prompts: &[DeletionPrompt],
        stop: &Stop,
        done: &dyn Fn(usize),
    ) -> Result<Vec<DeletionAnswers>> {
        let example =
            |(id, prompt): (usize, &DeletionPrompt)| Example::of_text(id, prompt.text.clone());
        let examples: Vec<Example> = prompts.iter().enumerate().map(example).collect();
        let examples: Vec<&Example> = examples.iter().collect();
        let full = self.answers(true, &examples, stop)?;
        let off = self.answers(false, &examples, stop)?;
        let mut answers: Vec<DeletionAnswers> = (0..prompts.len())
            .map(|prompt| DeletionAnswers {
                texts: [full.texts[prompt].clone(), String::new(), off.texts[prompt].clone()],
                retrieved: [indices(&full.retrieved[prompt]), Vec::new(), Vec::new()],
            })
            .collect();
        let mut prompts_of: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
        for (index, prompt) in prompts.iter().enumerate() {
            let stored = prompt.deleted.iter().filter(|fact| self.text_of.contains_key(fact));
            prompts_of.entry(stored.copied().collect()).or_default().push(index);
        }
        for (deleted, prompts) in prompts_of {
            let restored: Vec<_> =
                deleted.iter().map(|fact| (*fact, Some(self.text_of[fact]))).collect();
            let deleted: Vec<_> = deleted.iter().map(|fact| (*fact, None)).collect();
            self.change(&deleted)?;
            let of_prompts: Vec<&Example> = prompts.iter().map(|index| examples[*index]).collect();
            let after = self.answers(true, &of_prompts, stop)?;
            for (prompt, (text, retrieved)) in
                prompts.iter().zip(after.texts.into_iter().zip(&after.retrieved))
            {
                answers[*prompt].texts[1] = text;
                answers[*prompt].retrieved[1] = indices(retrieved);
            }
            self.change(&restored)?;
            done(prompts.len());
        }
        Ok(answers)
    }

    fn answers(&self, reads_memory: bool, examples: &[&Example], stop: &Stop) -> Result<Answers> {
        let retriever = reads_memory.then_some(&self.retriever);
        let k = if reads_memory { self.answerer.k } else { 0 };
        let (corpus, sequencer) = (&self.corpus, &self.sequencer);
        let forward = Forward { corpus, sequencer, retriever, k, ..self.answerer.forward() };
        Answers::of(&forward, examples, stop)
    }
}

fn indices(ids: &[i64]) -> Vec<usize> {
    ids.iter().map(|id| *id as usize).collect()
}
