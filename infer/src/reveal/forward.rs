//! One forward pass: queries, entries, the answer's logits, and the losses.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use candle_core::{D, Device, Tensor};
use engram_memory::Row;
use engram_memory::search::Hit;
use engram_models::kernels::{CrossEntropy, Mode, cross_entropy, embedding_sum};
use engram_models::packed::PackedTokens;
use engram_models::reveal::losses::{alignment, contrastive, decorrelation};
use engram_models::reveal::{BaseStates, Retrieved, Reveal, RevealInput};
use engram_models::t5::GenerateOptions;

use super::augmentation::BatchAugmentation;
use super::corpus::Corpus;
use super::retriever::Retriever;
use super::sequences::{Sequencer, Target};
use super::settings::{Knowledge, RevealFeed};
use crate::study::StudyResult;

/// The parts of a forward pass.
#[derive(Clone, Copy)]
pub struct Forward<'a> {
    /// The model.
    pub model: &'a Reveal,
    /// The data.
    pub corpus: &'a Corpus,
    /// Token sequences of the texts.
    pub sequencer: &'a Sequencer,
    /// The memory, if there is one.
    pub retriever: Option<&'a Retriever>,
    /// The number of entries to retrieve per query.
    pub k: usize,
    /// The number of these to re-encode.
    pub reencoded: usize,
    /// The augmentation of re-encoded entries' images.
    pub augmentation: BatchAugmentation,
}

/// An entry to read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EntryRef {
    /// The item with this index in the corpus, encoded with the current weights.
    Fresh(usize),
    /// A row of the memory.
    Stored(Row),
}

/// The entries of each query, each with the index of its source.
pub type EntriesOfQueries = Vec<Vec<(EntryRef, u32)>>;

/// Queries fused with their entries.
pub struct Fused {
    /// The input of the decoder.
    pub states: BaseStates,
    /// Keys and values of the re-encoded entries.
    fresh: Option<Fresh>,
}

struct Fresh {
    /// The row in `keys` of each item of the corpus.
    row_of: HashMap<usize, u32>,
    /// Keys `[N, key_dim]`: of entries to read, then of entries for the contrastive loss only.
    keys: Tensor,
    /// Values `[R M, D]` of the entries to read.
    values: Tensor,
    /// The number of entries to read.
    read: usize,
}

/// The targets and entries of each query of a batch.
#[derive(Clone, Copy)]
pub struct BatchTargets<'a> {
    /// The token sequences to generate.
    pub targets: &'a [Target],
    /// The item with the answer and the index of its source, if it is in the memory.
    pub own: &'a [Option<(usize, u32)>],
    /// Whether the query reads its own entry instead of the re-encoded entries.
    pub replaced: &'a [bool],
    /// The document to exclude from retrieval.
    pub documents: &'a [Option<&'a str>],
}

/// The losses of a batch.
pub struct Losses {
    /// Their weighted sum.
    pub total: Tensor,
    /// Each loss by name.
    pub parts: Vec<(String, f64)>,
}

impl Forward<'_> {
    /// The options of answer generation: greedy, up to the recipe's length.
    pub fn generation(&self) -> GenerateOptions {
        let max_new_tokens = self.sequencer.max_answer_tokens() + 1;
        let t5 = &self.model.config().t5;
        let greedy = GenerateOptions::greedy(t5.decoder_start_token_id, t5.eos_token_id);
        GenerateOptions { max_new_tokens, ..greedy }
    }

    /// Retrieves the best entries of each query `[B, key_dim]`, excluding its own document; none
    /// without a memory. Queries are detached.
    pub fn search(&self, queries: &Tensor, own: &[Option<&str>]) -> StudyResult<Vec<Vec<Hit>>> {
        let queries = queries.detach();
        match self.retriever.filter(|_| self.k > 0) {
            Some(retriever) => {
                Ok(retriever.search(&queries, &self.model.gates(&queries)?, own, self.k)?.hits)
            }
            None => Ok(vec![Vec::new(); queries.dim(0)?]),
        }
    }

    /// Turns hits into entries to read. The first ones of each query are re-encoded.
    pub fn reading(&self, hits: &[Vec<Hit>]) -> EntriesOfQueries {
        let of_query = hits.iter().map(|hits| {
            let ranked = hits.iter().enumerate();
            let read = ranked.map(|(rank, hit)| {
                let index = self.corpus.place_of(hit.id).filter(|_| rank < self.reencoded);
                (index.map_or(EntryRef::Stored(hit.row), EntryRef::Fresh), hit.source)
            });
            read.collect()
        });
        of_query.collect()
    }

    /// Fuses queries with their entries. `also` are further items to encode.
    pub fn fuse(
        &self,
        base: &BaseStates,
        queries: &Tensor,
        reading: &EntriesOfQueries,
        also: &[usize],
        mode: &Mode,
    ) -> StudyResult<Fused> {
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

    /// The prior `[ΣK]` and the values `[ΣK M, D]` of the memory entries that queries read.
    pub fn read(
        &self,
        queries: &Tensor,
        reading: &EntriesOfQueries,
    ) -> StudyResult<(Tensor, Tensor)> {
        let fresh = self.encode_fresh(reading, &[], &Mode::inference())?;
        let (prior, values) = self.prior_and_values(queries, reading, fresh.as_ref())?;
        Ok((prior.detach(), values.detach()))
    }

    /// Encodes fresh entries and `also` with the current weights, each item once.
    fn encode_fresh(
        &self,
        reading: &EntriesOfQueries,
        also: &[usize],
        mode: &Mode,
    ) -> StudyResult<Option<Fresh>> {
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
            // With nothing to read, the value table is empty.
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

    /// The prior `[ΣK]` and the values `[ΣK M, D]` of the entries that queries read.
    fn prior_and_values(
        &self,
        queries: &Tensor,
        reading: &EntriesOfQueries,
        fresh: Option<&Fresh>,
    ) -> StudyResult<(Tensor, Tensor)> {
        let entries: Vec<(EntryRef, u32)> = reading.iter().flatten().copied().collect();
        let stored = entries.iter().filter_map(|(read, _)| match read {
            EntryRef::Stored(row) => Some(*row),
            EntryRef::Fresh(_) => None,
        });
        // Fresh entries precede stored entries in both tables.
        let (key_table, value_table) = self.tables(fresh, &stored.collect::<Vec<Row>>())?;
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
        let gate_of = Tensor::from_vec(gate_of, entries.len(), &Device::Cpu)?;
        let gate = gates.flatten_all()?.index_select(&gate_of, 0)?;
        let keys = embedding_sum(&[(&key_table, rows.into())])?;
        let of_query = embedding_sum(&[(queries, query_of.into())])?;
        let scores = ((keys * of_query)?.sum(D::Minus1)? * gate)?;
        let prior = self.model.prior(&scores, &counts)?;
        Ok((prior, embedding_sum(&[(&value_table, value_rows)])?))
    }

    /// Keys and values of the fresh, then of the stored entries.
    fn tables(&self, fresh: Option<&Fresh>, rows: &[Row]) -> StudyResult<(Tensor, Tensor)> {
        let config = self.model.config();
        let stored = match (self.retriever, rows.is_empty()) {
            (Some(retriever), false) => {
                let (keys, values) = retriever.read(rows)?;
                let (n, m) = (rows.len(), rows.len() * config.value_tokens);
                let keys = Tensor::from_vec(keys, (n, config.key_dim), &Device::Cpu)?;
                let values = Tensor::from_vec(values, (m, config.t5.d_model), &Device::Cpu)?;
                Some((keys, values))
            }
            _ => None,
        };
        let fresh = match fresh.filter(|fresh| fresh.read > 0) {
            Some(fresh) => Some((fresh.keys.narrow(0, 0, fresh.read)?, fresh.values.clone())),
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

    /// The losses of queries with their targets.
    pub fn losses(
        &self,
        input: &RevealInput,
        examples: BatchTargets<'_>,
        feed: &RevealFeed,
        mode: &Mode,
    ) -> StudyResult<Losses> {
        let BatchTargets { targets, own, .. } = examples;
        let base = self.model.encode(input, mode)?;
        let queries = self.model.query(&base, mode)?;
        let mut parts = Vec::new();
        let reading = match feed.knowledge {
            Knowledge::None => vec![Vec::new(); targets.len()],
            Knowledge::Own => own_and_next(own)?,
            Knowledge::Retrieved => {
                let hits = self.search(&queries, examples.documents)?;
                parts.extend(self.retrieval(&hits, examples));
                let mut reading = self.reading(&hits);
                replace_by_own(&mut reading, examples);
                reading
            }
        };
        let own_indices = own.iter().flatten().map(|(index, _)| *index);
        let also: Vec<usize> = match feed.contrastive > 0.0 {
            true => own_indices.collect(),
            false => Vec::new(),
        };
        let fused = self.fuse(&base, &queries, &reading, &also, mode)?;
        let mut total = Total { parts, sum: None };
        let generation = self.generation_loss(&fused.states, targets, feed, mode)?;
        total.add("generation", generation, 1.0 - feed.contrastive)?;
        if let Some(fresh) = &fused.fresh {
            // Examples whose entry is not in the memory have no contrastive loss.
            if !also.is_empty() {
                let loss = own_contrastive(&queries, fresh, own, feed.temperature)?;
                total.add("contrastive", loss, feed.contrastive)?;
            }
            let tokens = self.model.config().value_tokens;
            if feed.decorrelation > 0.0 && tokens > 1 && fresh.read > 0 {
                let loss = decorrelation(&fresh.values, tokens)?;
                total.add("decorrelation", loss, feed.decorrelation)?;
            }
            if feed.alignment > 0.0 && fresh.read > 0 {
                let loss = alignment(&fresh.values, &base.states)?;
                total.add("alignment", loss, feed.alignment)?;
            }
        }
        total.losses()
    }

    /// The mean cross-entropy of all target tokens, in nats.
    fn generation_loss(
        &self,
        states: &BaseStates,
        targets: &[Target],
        feed: &RevealFeed,
        mode: &Mode,
    ) -> StudyResult<Tensor> {
        let inputs: Vec<&[u32]> = targets.iter().map(|target| target.input.as_slice()).collect();
        let logits = self.model.decode(&PackedTokens::new(&inputs), states, mode)?;
        let outputs: Arc<[u32]> =
            targets.iter().flat_map(|target| target.output.iter().copied()).collect();
        let label_smoothing = feed.label_smoothing;
        let options = CrossEntropy { targets: outputs, ignored: None, label_smoothing };
        Ok(cross_entropy(&logits, options)?.mean_all()?)
    }

    /// The contrastive loss alone: query `i` matches entry `i`.
    pub fn contrast(
        &self,
        queries: &RevealInput,
        entries: &RevealInput,
        temperature: f64,
        mode: &Mode,
    ) -> StudyResult<Losses> {
        let queries = self.model.query(&self.model.encode(queries, mode)?, mode)?;
        let keys = self.model.key(&self.model.encode(entries, mode)?, mode)?;
        let own = (0..queries.dim(0)? as u32).collect();
        let mut total = Total { parts: Vec::new(), sum: None };
        total.add("contrastive", contrastive(&queries, &keys, own, temperature)?, 1.0)?;
        total.losses()
    }

    /// The rates at which the entry with the answer is retrieved first, and at all; and the
    /// fraction of retrieved entries that are distinct.
    fn retrieval(&self, hits: &[Vec<Hit>], examples: BatchTargets<'_>) -> Vec<(String, f64)> {
        let id = |index: usize| self.corpus.items[index].entry.id;
        // Examples that exclude their own document cannot retrieve their entry. They are not counted.
        let known = examples.own.iter().zip(examples.documents);
        let known = known.map(|(own, document)| own.filter(|_| document.is_none()));
        let counted = hits.iter().zip(known).filter_map(|(hits, own)| Some((hits, id(own?.0))));
        let (mut first, mut among, mut all) = (0, 0, 0);
        for (hits, id) in counted {
            all += 1;
            first += usize::from(hits.first().is_some_and(|hit| hit.id == id));
            among += usize::from(hits.iter().any(|hit| hit.id == id));
        }
        let found = hits.iter().flatten().map(|hit| hit.id);
        let distinct = found.clone().collect::<HashSet<i64>>().len();
        let share = |part: usize, whole: usize| part as f64 / whole.max(1) as f64;
        let mut parts = Vec::new();
        if examples.documents.iter().any(Option::is_none) {
            parts.push(("recall_at_1".to_owned(), share(first, all)));
            parts.push((format!("recall_at_{}", self.k), share(among, all)));
        }
        parts.push(("distinct_retrieved".to_owned(), share(distinct, found.count())));
        parts
    }
}

/// Each example reads its own entry, and the next example's entry as a negative.
fn own_and_next(own: &[Option<(usize, u32)>]) -> StudyResult<EntriesOfQueries> {
    let known: Option<Vec<(usize, u32)>> = own.iter().copied().collect();
    let known = known.ok_or("a warm-start example needs its own entry")?;
    let count = known.len();
    let read = |i: usize| {
        let (own, next) = (known[i], known[(i + 1) % count]);
        let mut read = vec![(EntryRef::Fresh(own.0), own.1)];
        if next.0 != own.0 {
            read.push((EntryRef::Fresh(next.0), next.1));
        }
        read
    };
    Ok((0..count).map(read).collect())
}

/// Examples with `replaced` read their own entry instead of their re-encoded entries.
fn replace_by_own(reading: &mut EntriesOfQueries, examples: BatchTargets<'_>) {
    for ((read, own), replaced) in reading.iter_mut().zip(examples.own).zip(examples.replaced) {
        if let (Some((index, source)), true) = (own, replaced) {
            read.retain(|(read, _)| matches!(read, EntryRef::Stored(_)));
            read.insert(0, (EntryRef::Fresh(*index), *source));
        }
    }
}

/// The contrastive loss of the examples with known entries, over all fresh entries: their own
/// entries, and the top retrieved ones, which are the hardest negatives.
fn own_contrastive(
    queries: &Tensor,
    fresh: &Fresh,
    own: &[Option<(usize, u32)>],
    temperature: f64,
) -> StudyResult<Tensor> {
    let known = own.iter().enumerate().filter_map(|(i, own)| Some((i as u32, (*own)?.0)));
    let (of_query, of_key): (Vec<u32>, Vec<u32>) =
        known.map(|(query, index)| (query, fresh.row_of[&index])).unzip();
    let queries = embedding_sum(&[(queries, of_query.into())])?;
    Ok(contrastive(&queries, &fresh.keys, of_key.into(), temperature)?)
}

/// A running weighted sum of losses.
struct Total {
    parts: Vec<(String, f64)>,
    sum: Option<Tensor>,
}

impl Total {
    /// Adds a scalar loss with its weight, and records it by name.
    fn add(&mut self, name: &str, loss: Tensor, weight: f64) -> StudyResult<()> {
        self.parts.push((name.to_owned(), f64::from(loss.to_scalar::<f32>()?)));
        let weighted = (loss * weight)?;
        self.sum = Some(match self.sum.take() {
            Some(sum) => (sum + weighted)?,
            None => weighted,
        });
        Ok(())
    }

    fn losses(self) -> StudyResult<Losses> {
        Ok(Losses { total: self.sum.ok_or("no loss")?, parts: self.parts })
    }
}
