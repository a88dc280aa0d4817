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
use super::corpus::Corpus;
use super::error::Result;
use super::retriever::Retriever;
use super::sequences::Sequencer;

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
    /// How many of these, from the best on, are encoded again with the current weights; 0 for none.
    pub reencoded: usize,
    /// The augmentation of re-encoded entries' images.
    pub augmentation: BatchAugmentation,
}

/// An entry that is fused with a query.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EntryRef {
    /// The item with this index in the corpus, encoded with the current weights.
    Fresh(usize),
    /// A row of the memory.
    Stored(Row),
}

/// The entries to fuse with each query. Each entry has the index of its source.
pub type EntriesOfQueries = Vec<Vec<(EntryRef, u32)>>;

/// Queries fused with their entries.
pub struct Fused {
    /// The input of the decoder.
    pub states: BaseStates,
    /// Keys and values of the re-encoded entries; `None` if no entry was re-encoded.
    pub fresh: Option<Fresh>,
}

/// Entries that were encoded with the current weights.
pub struct Fresh {
    /// The row in `keys` of each item of the corpus.
    pub row_of: HashMap<usize, u32>,
    /// Keys `[N, key_dim]`: first of the `R` entries to fuse, then of entries that only a loss
    /// uses.
    pub keys: Tensor,
    /// Values `[R M, D]` of the `R` entries to fuse.
    pub values: Tensor,
    /// The number `R` of entries to fuse.
    pub read: usize,
}

impl Forward<'_> {
    /// The options of answer generation: greedy search, up to the recipe's `max_answer_tokens`.
    pub fn generation(&self) -> GenerateOptions {
        let max_new_tokens = self.sequencer.max_answer_tokens() + 1;
        let t5 = &self.model.config().t5;
        let greedy = GenerateOptions::greedy(t5.decoder_start_token_id, t5.eos_token_id);
        GenerateOptions { max_new_tokens, ..greedy }
    }

    /// Retrieves the best entries of each query `[B, key_dim]`. `own` holds the document of each
    /// query, whose entries are excluded; it may be empty. Without a memory, no entries are
    /// retrieved. The queries are detached.
    pub fn search(&self, queries: &Tensor, own: &[Option<&str>]) -> Result<Vec<Vec<Hit>>> {
        let queries = queries.detach();
        match self.retriever.filter(|_| self.k > 0) {
            Some(retriever) => {
                Ok(retriever.search(&queries, &self.model.gates(&queries)?, own, self.k)?.hits)
            }
            None => Ok(vec![Vec::new(); queries.dim(0)?]),
        }
    }

    /// Turns hits into entries to fuse. The first [`Forward::reencoded`] hits of each query are
    /// encoded again, if the corpus has them.
    pub fn reading(&self, hits: &[Vec<Hit>]) -> EntriesOfQueries {
        let of_query = hits.iter().map(|hits| {
            let ranked = hits.iter().enumerate();
            let read = ranked.map(|(rank, hit)| {
                let index = self.corpus.index_of(hit.id).filter(|_| rank < self.reencoded);
                (index.map_or(EntryRef::Stored(hit.row), EntryRef::Fresh), hit.source)
            });
            read.collect()
        });
        of_query.collect()
    }

    /// Fuses queries with their entries. `also` holds the indices of further items to encode, for a
    /// loss.
    pub fn fuse(
        &self,
        base: &BaseStates,
        queries: &Tensor,
        reading: &EntriesOfQueries,
        also: &[usize],
        mode: &Mode,
    ) -> Result<Fused> {
        let fresh = self.encode_fresh(reading, also, mode)?;
        if reading.iter().all(Vec::is_empty) {
            let states = self.model.fuse(base, None, mode)?;
            return Ok(Fused { states, fresh });
        }
        let (prior, values) = self.prior_and_values(queries, reading, fresh.as_ref())?;
        let counts: Vec<usize> = reading.iter().map(Vec::len).collect();
        let retrieved = Retrieved { counts: &counts, prior: &prior, values: &values };
        let states = self.model.fuse(base, Some(&retrieved), mode)?;
        Ok(Fused { states, fresh })
    }

    /// Returns the prior `[ΣK]` and the values `[ΣK M, D]` of the entries in `reading`, detached.
    pub fn read(&self, queries: &Tensor, reading: &EntriesOfQueries) -> Result<(Tensor, Tensor)> {
        let fresh = self.encode_fresh(reading, &[], &Mode::inference())?;
        let (prior, values) = self.prior_and_values(queries, reading, fresh.as_ref())?;
        Ok((prior.detach(), values.detach()))
    }

    /// Encodes the entries to re-encode, and the items in `also`, with the current weights; each
    /// item once.
    fn encode_fresh(
        &self,
        reading: &EntriesOfQueries,
        also: &[usize],
        mode: &Mode,
    ) -> Result<Option<Fresh>> {
        let read = reading.iter().flatten().filter_map(|(read, _)| match read {
            EntryRef::Fresh(index) => Some(*index),
            EntryRef::Stored(_) => None,
        });
        let read: BTreeSet<usize> = read.collect();
        let others: BTreeSet<usize> =
            also.iter().copied().filter(|index| !read.contains(index)).collect();
        let indices: Vec<usize> = read.iter().chain(&others).copied().collect();
        if indices.is_empty() {
            return Ok(None);
        }
        let entries = self.augmentation.of(self.sequencer.entries(self.corpus, &indices)?)?;
        let states = self.model.encode(&entries, mode)?;
        let keys = self.model.key(&states, mode)?;
        let values = match (read.len(), others.len()) {
            // Without entries to fuse, the value table is empty.
            (0, _) => {
                let width = self.model.config().t5.d_model;
                Tensor::zeros((0, width), keys.dtype(), keys.device())?
            }
            (_, 0) => self.model.value(&states, mode)?,
            (count, _) => {
                let first: Vec<usize> = (0..count).collect();
                self.model.value(&states.select(&first)?, mode)?
            }
        };
        let rows = indices.iter().enumerate();
        let row_of = rows.map(|(row, index)| (*index, row as u32)).collect();
        Ok(Some(Fresh { row_of, keys, values, read: read.len() }))
    }

    /// Returns the prior `[ΣK]` and the values `[ΣK M, D]` of the entries in `reading`.
    fn prior_and_values(
        &self,
        queries: &Tensor,
        reading: &EntriesOfQueries,
        fresh: Option<&Fresh>,
    ) -> Result<(Tensor, Tensor)> {
        let entries: Vec<(EntryRef, u32)> = reading.iter().flatten().copied().collect();
        let stored = entries.iter().filter_map(|(read, _)| match read {
            EntryRef::Stored(row) => Some(*row),
            EntryRef::Fresh(_) => None,
        });
        // Fresh entries precede stored entries in both tables.
        let (key_table, value_table) =
            self.tables(fresh, &stored.collect::<Vec<Row>>(), queries.device())?;
        let mut next_stored = fresh.map_or(0, |fresh| fresh.read) as u32;
        let row = |(read, _): &(EntryRef, u32)| match read {
            EntryRef::Fresh(index) => fresh.map_or(0, |fresh| fresh.row_of[index]),
            EntryRef::Stored(_) => {
                next_stored += 1;
                next_stored - 1
            }
        };
        let rows: Vec<u32> = entries.iter().map(row).collect();
        let tokens = self.model.config().value_tokens as u32;
        let value_rows: Arc<[u32]> =
            rows.iter().flat_map(|row| row * tokens..(row + 1) * tokens).collect();
        let counts: Vec<usize> = reading.iter().map(Vec::len).collect();
        let query_of: Vec<u32> = counts
            .iter()
            .enumerate()
            .flat_map(|(query, count)| std::iter::repeat_n(query as u32, *count))
            .collect();
        let gates = self.model.gates(queries)?;
        let sources = gates.dim(1)? as u32;
        let gate_of = query_of.iter().zip(&entries);
        let gate_of: Vec<u32> =
            gate_of.map(|(query, (_, source))| query * sources + source).collect();
        let gate_of = Tensor::from_vec(gate_of, entries.len(), gates.device())?;
        let gate = gates.flatten_all()?.index_select(&gate_of, 0)?;
        let keys = embedding_sum(&[(&key_table, rows.into())])?;
        let of_query = embedding_sum(&[(queries, query_of.into())])?;
        let scores = ((keys * of_query)?.sum(D::Minus1)? * gate)?;
        let prior = self.model.prior(&scores, &counts)?;
        Ok((prior, embedding_sum(&[(&value_table, value_rows)])?))
    }

    /// Returns keys and values: first of the fresh entries, then of the stored entries.
    fn tables(
        &self,
        fresh: Option<&Fresh>,
        rows: &[Row],
        device: &Device,
    ) -> Result<(Tensor, Tensor)> {
        let config = self.model.config();
        let stored = match (self.retriever, rows.is_empty()) {
            (Some(retriever), false) => {
                let (keys, values) = retriever.read(rows)?;
                let (n, m) = (rows.len(), rows.len() * config.value_tokens);
                let keys = Tensor::from_vec(keys, (n, config.key_dim), device)?;
                let values = Tensor::from_vec(values, (m, config.t5.d_model), device)?;
                Some((keys, values))
            }
            _ => None,
        };
        let fresh = match fresh.filter(|fresh| fresh.read > 0) {
            Some(fresh) => {
                let values = fresh.values.to_dtype(DType::F32)?;
                Some((fresh.keys.narrow(0, 0, fresh.read)?, values))
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
