//! One forward pass: queries, what they are given to read, the answer's logits, the losses.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{D, Device, Tensor};
use engram_memory::Row;
use engram_models::kernels::{CrossEntropy, Mode, cross_entropy, embedding_sum};
use engram_models::packed::PackedTokens;
use engram_models::reveal::losses::{alignment, contrastive, decorrelation};
use engram_models::reveal::{BaseStates, Retrieved, Reveal, RevealInput};

use super::corpus::Corpus;
use super::retriever::Retriever;
use super::sequences::{Sequencer, Target};
use super::settings::{Knowledge, RevealFeed};
use crate::study::StudyResult;

/// What a forward pass works with.
#[derive(Clone, Copy)]
pub struct Forward<'a> {
    /// The model.
    pub model: &'a Reveal,
    /// Its data.
    pub corpus: &'a Corpus,
    /// Texts as sequences.
    pub sequencer: &'a Sequencer,
    /// The memory, if there is one.
    pub retriever: Option<&'a Retriever>,
    /// Entries that are retrieved for a query.
    pub k: usize,
    /// How many of them are encoded anew.
    pub reencoded: usize,
}

/// Where an entry that is read comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Read {
    /// The item of the corpus at this place, encoded with the present weights.
    Fresh(usize),
    /// A row of the memory.
    Stored(Row),
}

/// What each query is given to read: an entry and the place of its source.
pub type Reading = Vec<Vec<(Read, u32)>>;

/// Queries with what they read, fused.
pub struct Fused {
    /// For the decoder.
    pub states: BaseStates,
    /// The prior of each entry, one query's after the other's.
    pub prior: Option<Tensor>,
    /// Keys and values of the entries that were encoded anew, and their places in the corpus.
    fresh: Option<Fresh>,
}

struct Fresh {
    places: HashMap<usize, u32>,
    keys: Tensor,
    values: Tensor,
}

/// The losses of a batch.
pub struct Losses {
    /// Their weighted sum.
    pub total: Tensor,
    /// Each by its name.
    pub parts: Vec<(String, f64)>,
}

impl Forward<'_> {
    /// The best entries of each query `[B, key_dim]`, the first of them to be encoded anew.
    pub fn retrieve(&self, queries: &Tensor) -> StudyResult<Reading> {
        let Some(retriever) = self.retriever.filter(|_| self.k > 0) else {
            return Ok(vec![Vec::new(); queries.dim(0)?]);
        };
        let gates = self.model.gates(&queries.detach())?;
        let found = retriever.search(&queries.detach(), &gates, self.k)?;
        let of_query = found.hits.iter().map(|hits| {
            let ranked = hits.iter().enumerate();
            let read = ranked.map(|(rank, hit)| {
                let place = self.corpus.place_of(hit.id).filter(|_| rank < self.reencoded);
                (place.map_or(Read::Stored(hit.row), Read::Fresh), hit.source)
            });
            read.collect()
        });
        Ok(of_query.collect())
    }

    /// Fuses queries with what they read. `also` are items to encode beside those that are read.
    pub fn fuse(
        &self,
        base: &BaseStates,
        queries: &Tensor,
        reading: &Reading,
        also: &[usize],
        mode: &Mode,
    ) -> StudyResult<Fused> {
        let entries: Vec<(Read, u32)> = reading.iter().flatten().copied().collect();
        let mut places: Vec<usize> = also.to_vec();
        let mut rows = Vec::new();
        for (read, _) in &entries {
            match read {
                Read::Fresh(place) => places.push(*place),
                Read::Stored(row) => rows.push(*row),
            }
        }
        places.sort_unstable();
        places.dedup();
        let fresh = match places.is_empty() {
            true => None,
            false => {
                let states =
                    self.model.encode(&self.sequencer.entries(self.corpus, &places)?, mode)?;
                let (keys, values) =
                    (self.model.key(&states, mode)?, self.model.value(&states, mode)?);
                let order = places.iter().enumerate();
                let places = order.map(|(i, place)| (*place, i as u32)).collect();
                Some(Fresh { places, keys, values })
            }
        };
        if entries.is_empty() {
            let states = self.model.fuse(base, None, mode)?;
            return Ok(Fused { states, prior: None, fresh });
        }
        // Fresh entries lie before the stored ones in both tables.
        let (key_table, value_table) = self.tables(fresh.as_ref(), &rows)?;
        let mut next_stored = fresh.as_ref().map_or(0, |fresh| fresh.places.len()) as u32;
        let mut place = |read: &Read| match read {
            Read::Fresh(place) => fresh.as_ref().map_or(0, |fresh| fresh.places[place]),
            Read::Stored(_) => {
                next_stored += 1;
                next_stored - 1
            }
        };
        let places: Vec<u32> = entries.iter().map(|(read, _)| place(read)).collect();
        let tokens = self.model.config().value_tokens as u32;
        let value_rows: Arc<[u32]> =
            places.iter().flat_map(|place| place * tokens..(place + 1) * tokens).collect();
        let counts: Vec<usize> = reading.iter().map(Vec::len).collect();
        let query_of: Vec<u32> = counts
            .iter()
            .enumerate()
            .flat_map(|(query, count)| std::iter::repeat_n(query as u32, *count))
            .collect();
        let gates = self.model.gates(queries)?;
        let sources = gates.dim(1)? as u32;
        let gate_of: Vec<u32> = query_of
            .iter()
            .zip(&entries)
            .map(|(query, (_, source))| query * sources + source)
            .collect();
        let keys = embedding_sum(&[(&key_table, places.into())])?;
        let of_query = embedding_sum(&[(queries, query_of.into())])?;
        let gate_of = Tensor::from_vec(gate_of, entries.len(), &Device::Cpu)?;
        let gate = gates.flatten_all()?.index_select(&gate_of, 0)?;
        let scores = ((keys * of_query)?.sum(D::Minus1)? * gate)?;
        let prior = self.model.prior(&scores, &counts)?;
        let values = embedding_sum(&[(&value_table, value_rows)])?;
        let retrieved = Retrieved { counts: &counts, prior: &prior, values: &values };
        let states = self.model.fuse(base, Some(&retrieved), mode)?;
        Ok(Fused { states, prior: Some(prior), fresh })
    }

    /// Keys and values, of fresh entries and then of stored ones.
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
        match (fresh, stored) {
            (Some(fresh), None) => Ok((fresh.keys.clone(), fresh.values.clone())),
            (None, Some(stored)) => Ok(stored),
            (Some(fresh), Some((keys, values))) => Ok((
                Tensor::cat(&[&fresh.keys, &keys], 0)?,
                Tensor::cat(&[&fresh.values, &values], 0)?,
            )),
            (None, None) => Err("no entries to read".into()),
        }
    }

    /// The losses of queries with their targets; `own` are the items that have the answers.
    pub fn losses(
        &self,
        input: &RevealInput,
        targets: &[Target],
        own: &[Option<(usize, u32)>],
        replaced: &[bool],
        feed: &RevealFeed,
        mode: &Mode,
    ) -> StudyResult<Losses> {
        let base = self.model.encode(input, mode)?;
        let queries = self.model.query(&base, mode)?;
        let mut parts = Vec::new();
        let reading = match feed.knowledge {
            Knowledge::None => vec![Vec::new(); targets.len()],
            Knowledge::Own => own_and_next(own)?,
            Knowledge::Retrieved => {
                let mut reading = self.retrieve(&queries)?;
                parts.extend(self.recall(&reading, own));
                for ((read, own), _) in
                    reading.iter_mut().zip(own).zip(replaced).filter(|(_, replaced)| **replaced)
                {
                    if let Some((place, source)) = own {
                        read.retain(|(read, _)| matches!(read, Read::Stored(_)));
                        read.insert(0, (Read::Fresh(*place), *source));
                    }
                }
                reading
            }
        };
        let contrasted = feed.contrastive > 0.0;
        let also: Vec<usize> = match contrasted {
            true => own.iter().flatten().map(|(place, _)| *place).collect(),
            false => Vec::new(),
        };
        let fused = self.fuse(&base, &queries, &reading, &also, mode)?;
        let inputs: Vec<&[u32]> = targets.iter().map(|target| target.input.as_slice()).collect();
        let logits = self.model.decode(&PackedTokens::new(&inputs), &fused.states, mode)?;
        let outputs: Vec<u32> =
            targets.iter().flat_map(|target| target.output.iter().copied()).collect();
        let options = CrossEntropy {
            targets: outputs.into(),
            ignored: None,
            label_smoothing: feed.label_smoothing,
        };
        let generation = cross_entropy(&logits, options)?.mean_all()?;
        parts.push(("generation".to_owned(), number(&generation)?));
        let mut total = (generation * (1.0 - feed.contrastive))?;
        if let (Some(fresh), true) = (&fused.fresh, contrasted) {
            let asked = own.iter().enumerate().filter_map(|(i, own)| Some((i as u32, (*own)?.0)));
            let (of_query, of_key): (Vec<u32>, Vec<u32>) =
                asked.map(|(query, place)| (query, fresh.places[&place])).unzip();
            let count = of_query.len() as u32;
            let queries = embedding_sum(&[(&queries, of_query.into())])?;
            let keys = embedding_sum(&[(&fresh.keys, of_key.into())])?;
            let loss = contrastive(&queries, &keys, (0..count).collect(), feed.temperature)?;
            parts.push(("contrastive".to_owned(), number(&loss)?));
            total = (total + (loss * feed.contrastive)?)?;
        }
        if let Some(fresh) = &fused.fresh {
            let tokens = self.model.config().value_tokens;
            if feed.decorrelation > 0.0 && tokens > 1 {
                let loss = decorrelation(&fresh.values, tokens)?;
                parts.push(("decorrelation".to_owned(), number(&loss)?));
                total = (total + (loss * feed.decorrelation)?)?;
            }
            if feed.alignment > 0.0 {
                let loss = alignment(&fresh.values, &base.states)?;
                parts.push(("alignment".to_owned(), number(&loss)?));
                total = (total + (loss * feed.alignment)?)?;
            }
        }
        Ok(Losses { total, parts })
    }

    /// How often the entry with the answer is the first of those retrieved, and among them.
    fn recall(&self, reading: &Reading, own: &[Option<(usize, u32)>]) -> Vec<(String, f64)> {
        let is = |read: &Read, place: usize| match read {
            Read::Fresh(fresh) => *fresh == place,
            Read::Stored(row) => {
                let generation = self.retriever.map(Retriever::generation);
                let id = self.corpus.items[place].entry.id;
                generation.is_some_and(|g| g.row_of(id).is_ok_and(|found| found == Some(*row)))
            }
        };
        let asked = reading.iter().zip(own).filter_map(|(read, own)| Some((read, (*own)?.0)));
        let (mut first, mut among, mut all) = (0, 0, 0);
        for (read, place) in asked {
            all += 1;
            first += usize::from(read.first().is_some_and(|(read, _)| is(read, place)));
            among += usize::from(read.iter().any(|(read, _)| is(read, place)));
        }
        let share = |count: usize| count as f64 / all.max(1) as f64;
        vec![
            ("recall_at_1".to_owned(), share(first)),
            (format!("recall_at_{}", self.k), share(among)),
        ]
    }
}

/// Each example's own entry, and that of the next one as a negative.
fn own_and_next(own: &[Option<(usize, u32)>]) -> StudyResult<Reading> {
    let known: Option<Vec<(usize, u32)>> = own.iter().copied().collect();
    let known = known.ok_or("an example without an entry of its own cannot warm up")?;
    let count = known.len();
    let read = |i: usize| {
        let (own, next) = (known[i], known[(i + 1) % count]);
        let mut read = vec![(Read::Fresh(own.0), own.1)];
        if next.0 != own.0 {
            read.push((Read::Fresh(next.0), next.1));
        }
        read
    };
    Ok((0..count).map(read).collect())
}

fn number(scalar: &Tensor) -> StudyResult<f64> {
    Ok(f64::from(scalar.to_scalar::<f32>()?))
}
