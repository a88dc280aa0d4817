//! Answers, searches and edits for one question or entry at a time, for interactive use.

use std::path::Path;

use engram_data::DataError;
use engram_data::world::{World, WorldOptions, view_augmentation};
use engram_memory::search::{Filter, Hit};
use engram_memory::{Batch, Entry};
use engram_models::compute::to_host;
use engram_models::kernels::Mode;
use serde_json::Value;

use super::{Answer, Answerer, Detail, Evidence};
use crate::error::Result;
use crate::reveal::corpus::Corpus;
use crate::reveal::questions::Question;
use crate::reveal::retriever::encode;

const NO_MEMORY: &str = "the run was trained without a memory; use a run with a memory";

impl Answerer {
    /// The embedded world that the run was trained on, with views of the model's image size; `None`
    /// for a run on images from files.
    ///
    /// # Errors
    /// [`DataError::OutOfRange`]
    pub fn world(&self) -> Result<Option<World>, DataError> {
        let size = self.encoding.config.image.image_size as u32;
        let world = |id: super::WorldId| {
            World::new(&WorldOptions {
                seed: id.seed,
                images: Some(id.images),
                view: view_augmentation(size),
            })
        };
        self.world.map(world).transpose()
    }

    /// Answers a question about an image, or describes the image if `question` is `None`. The
    /// entries with the ids in `ignored_ids` are left out.
    ///
    /// # Errors
    /// An image does not decode, or the memory is damaged.
    pub fn answer_one(
        &self,
        question: Option<&str>,
        image: &Path,
        ignored_ids: &[i64],
        detail: Detail,
    ) -> Result<Answer> {
        let question = Question {
            id: Value::Null,
            question: question.map(str::to_owned),
            image: image.to_path_buf(),
            image_index: 0,
            line: 0,
        };
        let mut answers =
            self.answer_about(&self.image_corpus(Some(image)), &[question], detail, ignored_ids)?;
        answers.pop().ok_or_else(|| "no answer was generated".into())
    }

    /// Retrieves the `k` best entries for a question, an image or both, among the entries that pass
    /// `filter`, with the model's gates.
    ///
    /// # Errors
    /// The errors of [`Answerer::answer_one`]; an error for a run without a memory.
    pub fn find(
        &self,
        question: Option<&str>,
        image: Option<&Path>,
        k: usize,
        filter: Filter,
    ) -> Result<Vec<Evidence>> {
        let retriever = self.retriever.as_ref().ok_or(NO_MEMORY)?;
        let (sequencer, mode) = (&self.encoding.sequencer, Mode::inference());
        let text = match question {
            Some(question) => sequencer.question(question)?.0,
            None => sequencer.describe(),
        };
        let view = image.map(|_| (0, 0));
        let input = sequencer.input(&self.image_corpus(image), &[text], &[view])?;
        let query = self.model.query(&self.model.encode(&input, &mode)?, &mode)?;
        let gates = self.model.gates(&query)?;
        let results = retriever.filtered(&query, &gates, k, filter)?;
        let (snapshot, gates) = (retriever.snapshot(), to_host(&gates)?);
        let evidence = |hit: Hit| Ok(Evidence::of(snapshot.entry(hit.row)?, &hit, &gates));
        results.hits.into_iter().flatten().map(evidence).collect()
    }

    /// Adds an entry to the memory with the model's key and value, or replaces the entry with the
    /// same id. This changes the memory on disk. To preserve the original, open the run with a copy
    /// of the memory.
    ///
    /// # Errors
    /// An image does not decode, another process writes to the memory, or the run has no memory.
    pub fn put(&mut self, entry: Entry, image: Option<&Path>) -> Result<()> {
        let sequencer = &self.encoding.sequencer;
        let text = sequencer.entry(&entry.text())?.0;
        let view = image.map(|_| (0, 0));
        let input = sequencer.input(&self.image_corpus(image), &[text], &[view])?;
        let (keys, values) = encode(&self.model, &input)?;
        let retriever = self.retriever.as_mut().ok_or(NO_MEMORY)?;
        let id = entry.id;
        let mut batch = std::iter::once(Ok(Batch { entries: vec![entry], keys, values }));
        retriever.edit(|transaction| match transaction.base().find(&[id])?.first() {
            Some(Some(_)) => transaction.update(1, &mut batch),
            _ => transaction.add(1, &mut batch),
        })
    }

    fn image_corpus(&self, image: Option<&Path>) -> Corpus {
        self.inputs.corpus(image.map(Path::to_path_buf).into_iter().collect())
    }
}
