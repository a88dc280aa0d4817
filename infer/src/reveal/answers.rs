//! Generated answers, with the retrieved entries.

use engram_models::kernels::Mode;

use super::corpus::Example;
use super::forward::Forward;
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
        let mut answers = Self { texts: Vec::new(), retrieved: Vec::new() };
        for examples in examples.chunks(QUESTIONS_PER_BATCH) {
            stop.check()?;
            answers.add_batch(forward, examples)?;
        }
        Ok(answers)
    }

    /// Answers a batch of examples.
    fn add_batch(&mut self, forward: &Forward<'_>, examples: &[&Example]) -> Result<()> {
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
        let hits = stored.search(&queries, &documents)?;
        let entries = stored.entries_to_fuse(&hits);
        let fused = stored.fuse(&base, &queries, &entries, &[], &mode)?;
        let options = forward.generation();
        for answer in forward.model.generate(&fused.states, &options)? {
            let text = sequencer.tokens().decode(answer.without_end())?;
            self.texts.push(text.trim().to_owned());
        }
        for hits in hits {
            self.retrieved.push(hits.iter().map(|hit| hit.id).collect());
        }
        Ok(())
    }
}
