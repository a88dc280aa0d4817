//! The memory of a run: building it from the corpus, searching and reading it.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::Tensor;
use engram_memory::refresh::{CollapseLimit, RetrievalLog};
use engram_memory::search::{Filter, Gates, Queries, SearchResults};
use engram_memory::{
    Batch, Memory, MemoryError, MemoryFormat, Method, Row, Snapshot, Store, Transaction,
    ValueDtype, ValueFormat, Writer,
};
use engram_models::compute::to_host;
use engram_models::kernels::Mode;
use engram_models::reveal::{Reveal, RevealConfig, RevealInput};

use super::control::Control;
use super::corpus::Corpus;
use super::memory_folder::remove_memory;
use super::sequences::Sequencer;
use crate::error::Result;
use crate::stop::Stop;

/// The number of entries per encoding batch. [`ItemEncoder`] encodes each batch as a whole.
pub const ENTRIES_PER_BATCH: usize = 256;

/// A memory that is open for search.
pub struct Retriever {
    memory: Box<dyn Store>,
    /// The sources to search; `None` for all.
    sources: Option<Vec<String>>,
    /// Retrieval statistics since the last [`Retriever::check_collapse`].
    log: Mutex<RetrievalLog>,
}

impl Retriever {
    /// Encodes the corpus's stored items into a new memory with values of a number type. Replaces the
    /// memory in `folder`.
    ///
    /// # Errors
    /// The folder has other files, or a memory that was changed after its run. Errors of the model
    /// and of writing, and [`InferError::Stopped`](crate::InferError::Stopped).
    pub fn build(
        folder: &Path,
        model: &Reveal,
        corpus: &Corpus,
        sequencer: &Sequencer,
        dtype: ValueDtype,
        stop: &Stop,
    ) -> Result<Self> {
        let items = 0..corpus.stored;
        Self::build_part(folder, model, corpus, sequencer, dtype, (items, stop))?;
        Self::open(folder)
    }

    /// Encodes `items` of the corpus into a new memory. The range must start at a multiple of
    /// [`ENTRIES_PER_BATCH`], and end at one or at the last item. Otherwise the batches differ from
    /// those of [`Retriever::build`], and so may the last bits of keys and values.
    ///
    /// # Errors
    /// The errors of [`Retriever::build`].
    pub fn build_part(
        folder: &Path,
        model: &Reveal,
        corpus: &Corpus,
        sequencer: &Sequencer,
        dtype: ValueDtype,
        (items, stop): (Range<usize>, &Stop),
    ) -> Result<()> {
        remove_memory(folder)?;
        let format = memory_format(&model.config, dtype);
        let indices: Vec<usize> = items.collect();
        let mut items = ItemEncoder::new(model, corpus, sequencer);
        let batches = indices.chunks(ENTRIES_PER_BATCH).map(|indices| {
            stop.check().map_err(|stopped| MemoryError::Rows(stopped.into()))?;
            let entries = indices.iter().map(|index| corpus.items[*index].entry.clone()).collect();
            let (keys, values) =
                items.encode(indices).map_err(|error| MemoryError::Rows(error.into()))?;
            Ok(Batch { entries, keys, values })
        });
        Writer::create(folder, format, indices.len(), batches)?;
        Ok(())
    }

    /// The memory.
    pub fn memory(&self) -> &dyn Store {
        self.memory.as_ref()
    }

    /// Changes the memory with `change`, and reloads it.
    pub fn edit(
        &mut self,
        change: impl FnOnce(&mut dyn Transaction) -> Result<(), MemoryError>,
    ) -> Result<()> {
        let mut transaction = self.memory.begin()?;
        change(transaction.as_mut())?;
        transaction.commit()?;
        self.memory.reload()?;
        Ok(())
    }

    /// Opens an existing memory.
    pub fn open(folder: &Path) -> Result<Self> {
        Ok(Self::of(Box::new(Memory::open(folder)?)))
    }

    /// Retrieves from an open memory.
    pub fn of(memory: Box<dyn Store>) -> Self {
        Self { memory, sources: None, log: Mutex::default() }
    }

    /// Excludes some sources from search. Returns an error for an unknown source, or if no source
    /// is left.
    pub fn without_sources(mut self, excluded: &[String]) -> Result<Self> {
        let sources = self.snapshot().description().sources.clone();
        if let Some(name) = excluded.iter().find(|name| !sources.contains(name)) {
            return Err(
                format!("the memory has no source `{name}`, only {}", sources.join(", ")).into()
            );
        }
        let sources: Vec<String> =
            sources.into_iter().filter(|name| !excluded.contains(name)).collect();
        if sources.is_empty() {
            return Err("no source is left; use `k` 0 instead".into());
        }
        self.sources = (!excluded.is_empty()).then_some(sources);
        Ok(self)
    }

    /// Checks that keys and values have the model's widths.
    pub fn check_fits(&self, config: &RevealConfig) -> Result<()> {
        let snapshot = self.snapshot();
        let memory = snapshot.description();
        let stored = memory.values.map(|values| (values.tokens, values.width));
        let expected = (config.value_tokens, config.t5.d_model);
        if memory.width != config.key_dim || stored != Some(expected) {
            let values = stored.map_or("no values".to_owned(), |(tokens, width)| {
                format!("values of {tokens} tokens of width {width}")
            });
            return Err(format!(
                "{}: has keys of width {} and {values}, but the model has keys of width {} \
                 and values of {} tokens of width {}; use the memory of this run",
                memory.location, memory.width, config.key_dim, expected.0, expected.1
            )
            .into());
        }
        if memory.sources.len() > config.sources {
            return Err(format!(
                "{}: has {} sources ({}), but the model's gate has {}; use the memory of \
                 this run",
                memory.location,
                memory.sources.len(),
                memory.sources.join(", "),
                config.sources
            )
            .into());
        }
        Ok(())
    }

    /// The state of the memory that is open.
    pub fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.memory.snapshot()
    }

    /// Retrieves the best `k` entries of each query by gated scores. `documents` holds the document
    /// that each query comes from; the entries of this document are excluded. `None` and an empty
    /// list exclude nothing.
    pub fn search(
        &self,
        queries: &Tensor,
        gates: &Tensor,
        documents: &[Option<&str>],
        k: usize,
    ) -> Result<SearchResults> {
        let excluded_documents = if documents.iter().all(Option::is_none) {
            Vec::new()
        } else {
            let owned = |document: &Option<&str>| document.iter().map(|d| d.to_string()).collect();
            documents.iter().map(owned).collect()
        };
        self.filtered(queries, gates, k, Filter { excluded_documents, ..Filter::default() })
    }

    /// Retrieves the best `k` entries of each query among the entries that pass a filter. If
    /// `filter.sources` is `None`, the sources left by [`Retriever::without_sources`] are searched.
    pub fn filtered(
        &self,
        queries: &Tensor,
        gates: &Tensor,
        k: usize,
        filter: Filter,
    ) -> Result<SearchResults> {
        let keys = to_host(queries)?;
        let snapshot = self.snapshot();
        // The model's gates have the order of the sources in the memory of its run.
        let sources = snapshot.description().sources.clone();
        let gates = Some(Gates { sources, weights: to_host(gates)? });
        let sources = filter.sources.clone().or_else(|| self.sources.clone());
        let filter = Filter { gates, sources, ..filter };
        let results = snapshot.search(Method::Exact, Queries { keys: &keys, k }, &filter)?;
        self.log.lock().unwrap_or_else(PoisonError::into_inner).record(&results);
        Ok(results)
    }

    /// The retrieval statistics since the last [`Retriever::check_collapse`].
    pub fn log(&self) -> RetrievalLog {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Restores the retrieval statistics of a run that is resumed.
    pub fn set_log(&self, log: RetrievalLog) {
        *self.log.lock().unwrap_or_else(PoisonError::into_inner) = log;
    }

    /// Returns an error if the retriever has collapsed: more than 90 % of at least 1000 queries
    /// since the last call got the same entry. A memory of fewer than 4 × `k` entries is never an
    /// error.
    pub fn check_collapse(&self, k: usize) -> Result<()> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.check(CollapseLimit::default(), k, self.snapshot().description().entries)?;
        log.clear();
        Ok(())
    }

    /// Starts to read the values of rows that are slow to read, so that [`Retriever::read`] waits
    /// less.
    pub fn prefetch(&self, rows: &[Row]) -> Result<()> {
        Ok(self.snapshot().prefetch(rows)?)
    }

    /// The stored keys `[N, key_dim]` and values `[N M, D]` of `N` rows of the memory, flattened.
    /// `M` is the number of value tokens per entry. A control may change the values.
    pub fn read(&self, rows: &[Row], control: Option<Control>) -> Result<(Vec<f32>, Vec<f32>)> {
        let snapshot = self.snapshot();
        let keys = snapshot.keys(rows)?;
        let Some(control) = control else { return Ok((keys, snapshot.values(rows)?)) };
        let mut values = snapshot.values(&control.value_rows(rows, &*snapshot)?)?;
        let width = snapshot.description().values.map_or(1, |values| values.width);
        control.change_values(rows, &mut values, width);
        Ok((keys, values))
    }
}

/// The format of a model's memory, with values of a number type.
pub fn memory_format(config: &RevealConfig, dtype: ValueDtype) -> MemoryFormat {
    let values = ValueFormat { tokens: config.value_tokens, width: config.t5.d_model, dtype };
    MemoryFormat { width: config.key_dim, normalised: false, values: Some(values) }
}

/// Computes the keys and values of entries, flattened.
pub fn encode(model: &Reveal, entries: &RevealInput) -> Result<(Vec<f32>, Vec<f32>)> {
    let mode = Mode::inference();
    let states = model.encode(entries, &mode)?;
    let keys = to_host(&model.key(&states, &mode)?)?;
    let values = to_host(&model.value(&states, &mode)?)?;
    Ok((keys, values))
}

/// Encodes items of the corpus, always in the same chunks. The last bits of a matrix product may
/// depend on the number of rows, so an item is only bit-identical if its chunk is the same.
pub struct ItemEncoder<'a> {
    model: &'a Reveal,
    corpus: &'a Corpus,
    sequencer: &'a Sequencer,
    /// The index of the chunk whose keys and values are cached; `None` before the first chunk.
    chunk: Option<usize>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl<'a> ItemEncoder<'a> {
    /// Creates an encoder of the corpus's items.
    pub fn new(model: &'a Reveal, corpus: &'a Corpus, sequencer: &'a Sequencer) -> Self {
        Self { model, corpus, sequencer, chunk: None, keys: Vec::new(), values: Vec::new() }
    }

    /// Computes the keys and values of items, flattened; fastest in the order of the corpus.
    pub fn encode(&mut self, indices: &[usize]) -> Result<(Vec<f32>, Vec<f32>)> {
        let config = &self.model.config;
        let (key_size, value_size) = (config.key_dim, config.value_tokens * config.t5.d_model);
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for index in indices {
            let (chunk, row) = (index / ENTRIES_PER_BATCH, index % ENTRIES_PER_BATCH);
            if self.chunk != Some(chunk) {
                let first = chunk * ENTRIES_PER_BATCH;
                let end = (first + ENTRIES_PER_BATCH).min(self.corpus.stored);
                let indices: Vec<usize> = (first..end).collect();
                let input = self.sequencer.entries(self.corpus, &indices)?;
                (self.keys, self.values) = encode(self.model, &input)?;
                self.chunk = Some(chunk);
            }
            keys.extend_from_slice(&self.keys[row * key_size..(row + 1) * key_size]);
            values.extend_from_slice(&self.values[row * value_size..(row + 1) * value_size]);
        }
        Ok((keys, values))
    }
}
