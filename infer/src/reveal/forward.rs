//! One forward pass: queries, retrieved entries, and their attentive fusion.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use candle_core::{D, DType, Device, Tensor};
use engram_memory::Row;
use engram_memory::search::Hit;
use engram_models::kernels::{Mode, embedding_sum};
use engram_models::reveal::{BaseStates, Retrieved, Reveal};
use engram_models::t5::GenerateOptions;

use super::augmentation::BatchAugmentation;
use super::control::Control;
use super::corpus::Corpus;
use super::retriever::Retriever;
use super::sequences::Sequencer;
use crate::error::Result;

/// The model, the data and the settings of a forward pass.
#[derive(Clone, Copy)]
pub struct Forward<'a> {
    /// The model.
    pub model: &'a Reveal,
    /// The data.
    pub corpus: &'a Corpus,
    /// Token sequences of the texts.
    pub sequencer: &'a Sequencer,
    /// The memory; `None` to retrieve nothing.
    pub retriever: Option<&'a Retriever>,
    /// The number `K` of entries to retrieve per query; 0 to retrieve nothing.
    pub k: usize,
    /// The number of the best retrieved entries to encode again with the current weights; 0 for
    /// none.
    pub reencoded: usize,
    /// The augmentation of re-encoded entries' images.
    pub augmentation: BatchAugmentation,
    /// A change to what queries read from the memory; `None` in normal use.
    pub control: Option<Control>,
}

/// An entry that is fused with a query.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EntryRef {
    /// The item with this index in the corpus, encoded with the current weights.
    Fresh(usize),
    /// A row of the memory.
    Stored(Row),
}

impl EntryRef {
    /// The row in the memory; `None` for an entry that is encoded.
    fn stored(&self) -> Option<Row> {
        match self {
            Self::Fresh(_) => None,
            Self::Stored(row) => Some(*row),
        }
    }
}

/// The entries to fuse with each query. Each entry has the index of its source.
pub type EntriesOfQueries = Vec<Vec<(EntryRef, u32)>>;

/// Queries fused with their entries.
pub struct Fused {
    /// The input of the decoder.
    pub states: BaseStates,
    /// Keys and values of the entries that were encoded with the current weights; `None` if there
    /// are none.
    pub fresh: Option<Fresh>,
}

/// Entries that were encoded with the current weights. `M` is the number of value tokens per entry.
pub struct Fresh {
    /// The row in `keys` of each encoded item, by the index of the item in the corpus.
    pub row_of: HashMap<usize, u32>,
    /// Keys `[N, key_dim]`: first of the `R` entries to fuse, then of entries that only a loss
    /// uses.
    pub keys: Tensor,
    /// Values `[R M, D]` of the `R` entries to fuse.
    pub values: Tensor,
    /// The number `R` of entries to fuse.
    pub num_fused: usize,
}

impl Forward<'_> {
    /// The options of answer generation: greedy search, up to the recipe's `max_answer_tokens`.
    pub fn generation(&self) -> GenerateOptions {
        let max_new_tokens = self.sequencer.max_answer_tokens() + 1;
        let t5 = &self.model.config.t5;
        let greedy = GenerateOptions::greedy(t5.decoder_start_token_id, t5.eos_token_id);
        GenerateOptions { max_new_tokens, ..greedy }
    }

    /// Retrieves the best entries of each query `[B, key_dim]`. `documents` holds the document that
    /// each query comes from; the entries of this document are excluded. `None` and an empty list
    /// exclude nothing. Without a memory, no entries are retrieved. The queries are detached.
    pub fn search(&self, queries: &Tensor, documents: &[Option<&str>]) -> Result<Vec<Vec<Hit>>> {
        let queries = queries.detach();
        match self.retriever.filter(|_| self.k > 0) {
            Some(retriever) => {
                let gates = self.gates(&queries)?;
                let mut hits = retriever.search(&queries, &gates, documents, self.k)?.hits;
                if let Some(control) = self.control {
                    control.exchange(&mut hits);
                }
                Ok(hits)
            }
            None => Ok(vec![Vec::new(); queries.dim(0)?]),
        }
    }

    /// The weight of each source for each query, `[B, sources]`.
    pub fn gates(&self, queries: &Tensor) -> Result<Tensor> {
        let gates = self.model.gates(queries)?;
        match self.control {
            Some(control) => control.gates(gates),
            None => Ok(gates),
        }
    }

    /// Turns hits into entries to fuse. The first [`Forward::reencoded`] hits of each query are
    /// encoded again, if the corpus has them.
    pub fn entries_to_fuse(&self, hits: &[Vec<Hit>]) -> EntriesOfQueries {
        let query_entries = hits.iter().map(|hits| {
            let ranked = hits.iter().enumerate();
            let entries = ranked.map(|(rank, hit)| {
                let index = self.corpus.index_of(hit.id).filter(|_| rank < self.reencoded);
                (index.map_or(EntryRef::Stored(hit.row), EntryRef::Fresh), hit.source)
            });
            entries.collect()
        });
        query_entries.collect()
    }

    /// Returns the keys `[N, key_dim]` of items of the corpus with the current weights, detached.
    pub fn keys(&self, indices: &[usize]) -> Result<Tensor> {
        let mode = Mode::inference();
        let input = self.sequencer.entries(self.corpus, indices)?;
        Ok(self.model.key(&self.model.encode(&input, &mode)?, &mode)?)
    }

    /// Fuses queries with their entries. `extra` holds the indices of further items to encode, for
    /// a loss.
    pub fn fuse(
        &self,
        base: &BaseStates,
        queries: &Tensor,
        entries: &EntriesOfQueries,
        extra: &[usize],
        mode: &Mode,
    ) -> Result<Fused> {
        self.prefetch(entries)?;
        let fresh = self.encode_fresh(entries, extra, mode)?;
        if entries.iter().all(Vec::is_empty) {
            let states = self.model.fuse(base, None, mode)?;
            return Ok(Fused { states, fresh });
        }
        let (prior, values) = self.prior_and_values(queries, entries, fresh.as_ref())?;
        let counts: Vec<usize> = entries.iter().map(Vec::len).collect();
        let retrieved = Retrieved { counts: &counts, prior: &prior, values: &values };
        let states = self.model.fuse(base, Some(&retrieved), mode)?;
        Ok(Fused { states, fresh })
    }

    /// Returns the prior `[ΣK]` and the values `[ΣK M, D]` of entries, detached. `ΣK` is the number
    /// of entries of all queries, and `M` the number of value tokens per entry.
    pub fn read(&self, queries: &Tensor, entries: &EntriesOfQueries) -> Result<(Tensor, Tensor)> {
        self.prefetch(entries)?;
        let fresh = self.encode_fresh(entries, &[], &Mode::inference())?;
        let (prior, values) = self.prior_and_values(queries, entries, fresh.as_ref())?;
        Ok((prior.detach(), values.detach()))
    }

    /// Starts to read the stored values of entries, so that they arrive while other entries are
    /// encoded.
    fn prefetch(&self, entries: &EntriesOfQueries) -> Result<()> {
        let Some(retriever) = self.retriever else { return Ok(()) };
        let stored = entries.iter().flatten().filter_map(|(entry, _)| entry.stored());
        retriever.prefetch(&stored.collect::<Vec<Row>>())
    }

    /// Encodes the entries to re-encode, and the items in `extra`, with the current weights; each
    /// item once. `None` if there are none.
    fn encode_fresh(
        &self,
        entries: &EntriesOfQueries,
        extra: &[usize],
        mode: &Mode,
    ) -> Result<Option<Fresh>> {
        let fused = entries.iter().flatten().filter_map(|(entry, _)| match entry {
            EntryRef::Fresh(index) => Some(*index),
            EntryRef::Stored(_) => None,
        });
        let fused: BTreeSet<usize> = fused.collect();
        let others: BTreeSet<usize> =
            extra.iter().copied().filter(|index| !fused.contains(index)).collect();
        let indices: Vec<usize> = fused.iter().chain(&others).copied().collect();
        if indices.is_empty() {
            return Ok(None);
        }
        let input = self.augmentation.of(self.sequencer.entries(self.corpus, &indices)?)?;
        let states = self.model.encode(&input, mode)?;
        let keys = self.model.key(&states, mode)?;
        let values = match (fused.len(), others.len()) {
            // Without entries to fuse, the value table is empty.
            (0, _) => {
                let width = self.model.config.t5.d_model;
                Tensor::zeros((0, width), keys.dtype(), keys.device())?
            }
            (_, 0) => self.model.value(&states, mode)?,
            (count, _) => {
                let fused_rows: Vec<usize> = (0..count).collect();
                self.model.value(&states.select(&fused_rows)?, mode)?
            }
        };
        let rows = indices.iter().enumerate();
        let row_of = rows.map(|(row, index)| (*index, row as u32)).collect();
        Ok(Some(Fresh { row_of, keys, values, num_fused: fused.len() }))
    }

    /// Returns the prior `[ΣK]` and the values `[ΣK M, D]` of the entries of all queries.
    fn prior_and_values(
        &self,
        queries: &Tensor,
        query_entries: &EntriesOfQueries,
        fresh: Option<&Fresh>,
    ) -> Result<(Tensor, Tensor)> {
        let entries: Vec<(EntryRef, u32)> = query_entries.iter().flatten().copied().collect();
        let stored = entries.iter().filter_map(|(entry, _)| entry.stored());
        // Fresh entries precede stored entries in both tables.
        let (key_table, value_table) =
            self.tables(fresh, &stored.collect::<Vec<Row>>(), queries.device())?;
        let mut next_stored = fresh.map_or(0, |fresh| fresh.num_fused) as u32;
        let row = |(entry, _): &(EntryRef, u32)| match entry {
            EntryRef::Fresh(index) => fresh.map_or(0, |fresh| fresh.row_of[index]),
            EntryRef::Stored(_) => {
                next_stored += 1;
                next_stored - 1
            }
        };
        let rows: Vec<u32> = entries.iter().map(row).collect();
        let tokens = self.model.config.value_tokens as u32;
        let value_rows: Arc<[u32]> =
            rows.iter().flat_map(|row| row * tokens..(row + 1) * tokens).collect();
        let counts: Vec<usize> = query_entries.iter().map(Vec::len).collect();
        let query_of: Vec<u32> = counts
            .iter()
            .enumerate()
            .flat_map(|(query, count)| std::iter::repeat_n(query as u32, *count))
            .collect();
        let gates = self.gates(queries)?;
        let num_sources = gates.dim(1)? as u32;
        let gate_indices = query_of.iter().zip(&entries);
        let gate_indices: Vec<u32> =
            gate_indices.map(|(query, (_, source))| query * num_sources + source).collect();
        let gate_indices = Tensor::from_vec(gate_indices, entries.len(), gates.device())?;
        let entry_gates = gates.flatten_all()?.index_select(&gate_indices, 0)?;
        let keys = embedding_sum(&[(&key_table, rows.into())])?;
        let entry_queries = embedding_sum(&[(queries, query_of.into())])?;
        let scores = ((keys * entry_queries)?.sum(D::Minus1)? * entry_gates)?;
        let prior = self.model.prior(&scores, &counts)?;
        Ok((prior, embedding_sum(&[(&value_table, value_rows)])?))
    }

    /// Returns tables of keys and values: first of the fresh entries, then of the stored entries.
    fn tables(
        &self,
        fresh: Option<&Fresh>,
        rows: &[Row],
        device: &Device,
    ) -> Result<(Tensor, Tensor)> {
        let config = &self.model.config;
        let stored = match (self.retriever, rows.is_empty()) {
            (Some(retriever), false) => {
                let (keys, values) = retriever.read(rows, self.control)?;
                let (num_keys, num_values) = (rows.len(), rows.len() * config.value_tokens);
                let key_shape = (num_keys, config.key_dim);
                let value_shape = (num_values, config.t5.d_model);
                let keys = Tensor::from_vec(keys, key_shape, device)?;
                let values = Tensor::from_vec(values, value_shape, device)?;
                Some((keys, values))
            }
            _ => None,
        };
        let fresh = match fresh.filter(|fresh| fresh.num_fused > 0) {
            Some(fresh) => {
                let values = fresh.values.to_dtype(DType::F32)?;
                Some((fresh.keys.narrow(0, 0, fresh.num_fused)?, values))
            }
            None => None,
        };
        match (fresh, stored) {
            (Some(only), None) | (None, Some(only)) => Ok(only),
            (Some(fresh), Some(stored)) => Ok((
                Tensor::cat(&[&fresh.0, &stored.0], 0)?,
                Tensor::cat(&[&fresh.1, &stored.1], 0)?,
            )),
            (None, None) => Err("no entries to read".into()),
        }
    }
}
