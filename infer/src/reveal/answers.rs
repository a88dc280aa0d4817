//! Generated answers, with the retrieved entries.

use engram_memory::search::Hit;
use engram_models::kernels::Mode;

use super::corpus::Example;
use super::forward::{EntryRef, Forward};
use crate::error::Result;
use crate::stop::Stop;

const QUESTIONS_PER_BATCH: usize = 64;

/// The answers of a model.
pub struct Answers {
    /// The answer to each question.
    pub texts: Vec<String>,
    /// The ids of the retrieved entries, best first.
    pub retrieved: Vec<Vec<i64>>,
}

impl Answers {
    /// Answers examples with a model.
    ///
    /// # Errors
    /// The errors of the model; [`InferError::Stopped`](crate::InferError::Stopped)
    pub fn of(forward: &Forward<'_>, examples: &[&Example], stop: &Stop) -> Result<Self> {
        Self::in_batches(forward, examples, false, stop)
    }

    /// Answers examples from their own entries, which contain the answers, instead of retrieved
    /// ones. An example without an own entry reads none.
    ///
    /// # Errors
    /// as [`Answers::of`]
    pub fn of_own_entries(
        forward: &Forward<'_>,
        examples: &[&Example],
        stop: &Stop,
    ) -> Result<Self> {
        Self::in_batches(forward, examples, true, stop)
    }

    fn in_batches(
        forward: &Forward<'_>,
        examples: &[&Example],
        reads_own: bool,
        stop: &Stop,
    ) -> Result<Self> {
        let mut answers = Self { texts: Vec::new(), retrieved: Vec::new() };
        for examples in examples.chunks(QUESTIONS_PER_BATCH) {
            stop.check()?;
            answers.add_batch(forward, examples, reads_own)?;
        }
        Ok(answers)
    }

    /// Answers a batch of examples.
    fn add_batch(
        &mut self,
        forward: &Forward<'_>,
        examples: &[&Example],
        reads_own: bool,
    ) -> Result<()> {
        let mode = Mode::inference();
        let sequencer = forward.sequencer;
        let texts: Vec<Vec<u32>> =
            examples.iter().map(|example| sequencer.query_of(example)).collect::<Result<_, _>>()?;
        let views: Vec<_> = examples
            .iter()
            .map(|example| example.image.map(|image| (image, example.view)))
            .collect();
        let base =
            forward.model.encode(&sequencer.input(forward.corpus, &texts, &views)?, &mode)?;
        let queries = forward.model.query(&base, &mode)?;
        let stored = Forward { reencoded: 0, ..*forward };
        let documents: Vec<_> =
            examples.iter().map(|example| example.document.as_deref()).collect();
        let (entries, retrieved) = if reads_own {
            let corpus = forward.corpus;
            let own = examples.iter().map(|example| example.own_entry);
            let entry = |index| (EntryRef::Fresh(index), corpus.source_of(index));
            let entries = own.clone().map(|own| own.into_iter().map(entry).collect()).collect();
            let id = |index: usize| corpus.items[index].entry.id;
            (entries, own.map(|own| own.into_iter().map(id).collect()).collect())
        } else {
            let hits = stored.search(&queries, &documents)?;
            let ids = |hits: &Vec<Hit>| hits.iter().map(|hit| hit.id).collect();
            (stored.entries_to_fuse(&hits), hits.iter().map(ids).collect::<Vec<Vec<i64>>>())
        };
        let fused = stored.fuse(&base, &queries, &entries, &[], &mode)?;
        let options = forward.generation();
        for answer in forward.model.generate(&fused.states, &options)? {
            let text = sequencer.tokens().decode(answer.without_end())?;
            self.texts.push(text.trim().to_owned());
        }
        self.retrieved.extend(retrieved);
        Ok(())
    }
}
