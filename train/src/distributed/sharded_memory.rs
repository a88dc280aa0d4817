//! A memory in shards: each rank keeps and searches its share of the entries.
//!
//! A shard is a memory of consecutive entries. The shards in rank order are the whole memory: it
//! has the rows, the sources and the search results of a single memory with all entries.
//!
//! A search asks all ranks. Each searches its shard and returns its best entries with their keys.
//! The rank that asked scores these keys again and merges the entries by score, then by id, as in a
//! single memory. Keys, values and entries are read from the ranks that keep them.

mod messages;
mod shard;

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use engram_memory::generation::Info;
use engram_memory::search::ranking::Ranking;
use engram_memory::search::{Filter, Queries, SearchResults};
use engram_memory::store::Description;
use engram_memory::{
    Entry, Memory, MemoryError, Method, Row, Snapshot, Store, Transaction, ValueFormat,
};

use super::message::{WithFloats, pack, unpack};
use super::tree::share;
use super::{Ranks, failed};
use crate::error::{Result, TrainError};
use messages::{Reply, Request, Search};
use shard::{OwnShard, Summary};

/// The range of the `items` items that a rank encodes and keeps. The ranks share whole batches of
/// `batch` items. A rank may have no items.
pub fn shard_of(items: usize, batch: usize, ranks: &Ranks) -> Range<usize> {
    let batches = share(items.div_ceil(batch), ranks.size(), ranks.rank());
    (batches.start * batch).min(items)..(batches.end * batch).min(items)
}

/// A memory whose shards are kept by the ranks of a training run. Search it and read it only within
/// [`Ranks::share_reads`].
#[derive(Debug)]
pub struct ShardedMemory {
    ranks: Ranks,
    number: u32,
    shard: Memory,
    current: Arc<RwLock<Arc<ShardedSnapshot>>>,
}

/// One state of the memory.
#[derive(Debug)]
struct ShardedSnapshot {
    ranks: Ranks,
    number: u32,
    /// The number of changes since the memory was opened; equal on all ranks.
    version: u64,
    description: Description,
    /// The number of entries of each source.
    entries_by_source: Vec<u64>,
    /// The largest norm of a key.
    longest_key: f32,
    /// The sum of the statistics of all shards.
    info: Info,
    /// The first row of each shard, and the end of the last.
    starts: Vec<usize>,
    own: OwnShard,
}

impl ShardedMemory {
    /// Opens the memory whose shard of this rank is in `folder`. All ranks call this function.
    ///
    /// # Errors
    /// The errors of [`Memory::open`]; [`TrainError::Ranks`] if a rank has ended or its shard does
    /// not fit the others.
    pub fn open(folder: &Path, ranks: &Ranks) -> Result<Self> {
        let shard = Memory::open(folder).map_err(|error| failed(error.into()))?;
        let number = ranks.next_shard_number();
        let snapshot = ShardedSnapshot::of(&shard, ranks, number, 0)?;
        let current = Arc::new(RwLock::new(Arc::new(snapshot)));
        ranks.serve(number, &current);
        Ok(Self { ranks: ranks.clone(), number, shard, current })
    }

    fn current(&self) -> Arc<ShardedSnapshot> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl super::rounds::Shard for RwLock<Arc<ShardedSnapshot>> {
    fn answer(&self, request: &[u8]) -> Result<Vec<u8>, String> {
        let current = Arc::clone(&self.read().unwrap_or_else(PoisonError::into_inner));
        let ((version, request), floats): ((u64, Request), _) = unpack(request)?;
        if version != current.version {
            return Err("the memory was changed after the snapshot of the search".to_owned());
        }
        let answer = current.own.answer(&request, &floats);
        let (reply, floats) = answer.map_err(|error| error.to_string())?;
        pack(&reply, &floats)
    }
}

impl Store for ShardedMemory {
    fn location(&self) -> String {
        Store::location(&self.shard)
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.current()
    }

    /// Loads the state of all shards. All ranks call this function.
    fn reload(&self) -> Result<bool, MemoryError> {
        let is_changed = self.shard.reload()?;
        let version = self.current().version + 1;
        let snapshot = ShardedSnapshot::of(&self.shard, &self.ranks, self.number, version);
        let snapshot = snapshot.map_err(|error| remote_error(&Store::location(self), &error))?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
        Ok(is_changed)
    }

    /// Starts a transaction on the shard of this rank, which may only encode the entries again. All
    /// ranks change their shards and then reload.
    fn begin(&self) -> Result<Box<dyn Transaction>, MemoryError> {
        self.shard.begin()
    }
}

/// The error of a search or read that other ranks did not answer.
fn remote_error(location: &str, error: &TrainError) -> MemoryError {
    MemoryError::Remote {
        location: location.to_owned(),
        reason: error.to_string(),
        remedy: "correct the reason, and resume the run",
    }
}

impl ShardedSnapshot {
    /// The state of the shards of all ranks, which all call this function.
    fn of(shard: &Memory, ranks: &Ranks, number: u32, version: u64) -> Result<Self> {
        let generation = shard.generation();
        let own = Summary::of(&generation).map_err(|error| failed(error.into()))?;
        let summaries = ranks.gather(own)?;
        let first = &summaries[0];
        for (rank, summary) in summaries.iter().enumerate() {
            if let Some(difference) = summary.difference(first) {
                let reason = format!(
                    "the shard of rank {rank} {difference}; remove the memory folders of all ranks, \
                     and start again"
                );
                return Err(failed(reason.into()));
            }
        }
        let info = Summary::sum(&summaries);
        let mut starts = vec![0];
        for summary in &summaries {
            starts.push(starts[starts.len() - 1] + summary.info.entries);
        }
        if u32::try_from(starts[starts.len() - 1]).is_err() {
            return Err(failed("the shards have more than 4,294,967,295 entries together".into()));
        }
        let description = Description {
            location: generation.folder().display().to_string(),
            generation: info.generation,
            entries: info.entries,
            deleted: 0,
            width: info.width,
            normalised: info.normalised,
            values: first.values,
            encoders: info.encoders.clone(),
            sources: info.sources.iter().map(|(name, _)| name.clone()).collect(),
            next_id: summaries.iter().map(|summary| summary.next_id).max().unwrap_or(0),
            has_graph: false,
        };
        Ok(Self {
            ranks: ranks.clone(),
            number,
            version,
            entries_by_source: info.sources.iter().map(|(_, count)| *count as u64).collect(),
            longest_key: summaries.iter().fold(0f32, |longest, one| longest.max(one.longest_key)),
            own: OwnShard::new(generation, &summaries[ranks.rank()], &description.sources),
            info,
            starts,
            description,
        })
    }

    /// Sends a request with its floats to each rank that is asked, and returns the replies. This
    /// rank's own shard is asked directly.
    fn ask(
        &self,
        requests: Vec<Option<WithFloats<Request>>>,
    ) -> Result<Vec<Option<WithFloats<Reply>>>, MemoryError> {
        let own = self.ranks.rank();
        let asks_others =
            requests.iter().enumerate().any(|(rank, request)| rank != own && request.is_some());
        let mut messages = Vec::with_capacity(requests.len());
        let mut own_reply = None;
        let refused =
            |reason: String| remote_error(&self.description.location, &failed(reason.into()));
        for (rank, request) in requests.into_iter().enumerate() {
            messages.push(match request {
                Some((request, floats)) if rank == own => {
                    own_reply = Some(self.own.answer(&request, &floats)?);
                    None
                }
                Some((request, floats)) => {
                    Some(pack(&(self.version, request), &floats).map_err(refused)?)
                }
                None => None,
            });
        }
        let mut replies: Vec<Option<WithFloats<Reply>>> = Vec::new();
        if asks_others {
            let contents = self.ranks.ask(self.number, messages);
            let contents =
                contents.map_err(|error| remote_error(&self.description.location, &error))?;
            for content in contents {
                let reply = content.map(|content| unpack(&content)).transpose();
                replies.push(reply.map_err(refused)?);
            }
        } else {
            replies.resize_with(self.ranks.size(), || None);
        }
        replies[own] = own_reply;
        Ok(replies)
    }

    /// The rank that keeps a row.
    fn owner(&self, row: Row) -> Result<usize, MemoryError> {
        let number = row.number() as usize;
        if number >= self.description.entries {
            return Err(MemoryError::InvalidOption {
                option: "a row",
                found: number.to_string(),
                expected: "a row of this snapshot",
            });
        }
        Ok(self.starts.partition_point(|start| *start <= number) - 1)
    }

    /// Reads rows from the ranks that keep them. `request` makes the request for rows of one shard.
    /// `write` gets the reply, and the positions of the shard's rows in `rows`.
    fn read_rows(
        &self,
        rows: &[Row],
        request: impl Fn(Vec<u32>) -> Request,
        mut write: impl FnMut(Reply, Vec<f32>, &[usize]) -> Option<()>,
    ) -> Result<(), MemoryError> {
        let mut positions = vec![Vec::new(); self.ranks.size()];
        let mut shard_rows = vec![Vec::new(); self.ranks.size()];
        for (position, row) in rows.iter().enumerate() {
            let owner = self.owner(*row)?;
            positions[owner].push(position);
            shard_rows[owner].push(row.number() - self.starts[owner] as u32);
        }
        let requests = shard_rows.into_iter().map(|rows| {
            let is_asked = !rows.is_empty();
            is_asked.then(|| (request(rows), Vec::new()))
        });
        for (rank, reply) in self.ask(requests.collect())?.into_iter().enumerate() {
            if let Some((reply, floats)) = reply {
                write(reply, floats, &positions[rank]).ok_or_else(|| self.bad_reply(rank))?;
            }
        }
        Ok(())
    }

    /// Reads floats of rows, `[rows, length]`.
    fn read_numbers(
        &self,
        rows: &[Row],
        length: usize,
        request: impl Fn(Vec<u32>) -> Request,
    ) -> Result<Vec<f32>, MemoryError> {
        let mut all = vec![0.0; rows.len() * length];
        self.read_rows(rows, request, |_, floats, positions| {
            if floats.len() != positions.len() * length {
                return None;
            }
            for (position, floats) in positions.iter().zip(floats.chunks_exact(length.max(1))) {
                all[position * length..][..length].copy_from_slice(floats);
            }
            Some(())
        })?;
        Ok(all)
    }

    fn bad_reply(&self, rank: usize) -> MemoryError {
        let reason = format!("rank {rank} has sent another reply than the one asked for");
        remote_error(&self.description.location, &failed(reason.into()))
    }

    /// The ids of the filter by the rank that keeps them; `None` if all entries are allowed.
    fn ids_by_rank(&self, filter: &Filter) -> Result<Option<Vec<Vec<i64>>>, MemoryError> {
        let Some(ids) = &filter.ids else { return Ok(None) };
        let mut by_rank = vec![Vec::new(); self.ranks.size()];
        let mut unknown = Vec::new();
        for (id, row) in ids.iter().zip(self.find(ids)?) {
            match row {
                Some(row) => by_rank[self.owner(row)?].push(*id),
                None => unknown.push(*id),
            }
        }
        match unknown.first() {
            Some(id) => Err(MemoryError::UnknownId {
                id: *id,
                missing: unknown.len(),
                requested: ids.len(),
            }),
            None => Ok(Some(by_rank)),
        }
    }
}

impl Snapshot for ShardedSnapshot {
    fn description(&self) -> &Description {
        &self.description
    }

    fn info(&self) -> Result<Info, MemoryError> {
        Ok(self.info.clone())
    }

    fn search(
        &self,
        method: Method,
        queries: Queries<'_>,
        filter: &Filter,
    ) -> Result<SearchResults, MemoryError> {
        let ranking = Ranking::new(
            &self.description,
            &self.entries_by_source,
            self.longest_key,
            queries,
            filter,
        )?;
        let ids = self.ids_by_rank(filter)?;
        let requests = (0..self.ranks.size()).map(|rank| {
            let ids = ids.as_ref().map(|ids| ids[rank].clone());
            let is_empty = self.starts[rank] == self.starts[rank + 1]
                || ids.as_ref().is_some_and(Vec::is_empty);
            let search = || Search::new((method, ranking.k()), queries.keys, filter, ids);
            (!is_empty).then(search).map(|(search, floats)| (Request::Search(search), floats))
        });
        let replies = self.ask(requests.collect())?;
        let mut best: Vec<_> = (0..ranking.queries()).map(|query| ranking.best(query)).collect();
        for (rank, reply) in replies.into_iter().enumerate() {
            let Some((reply, keys)) = reply else { continue };
            let Reply::Hits(hits) = reply else { return Err(self.bad_reply(rank)) };
            let count: usize = hits.iter().map(Vec::len).sum();
            if hits.len() != best.len() || keys.len() != count * self.description.width {
                return Err(self.bad_reply(rank));
            }
            let mut keys = keys.chunks_exact(self.description.width);
            for (best, hits) in best.iter_mut().zip(hits) {
                for ((id, source, row), key) in hits.into_iter().zip(&mut keys) {
                    best.add(Row::new(self.starts[rank] as u32 + row), id, source, key);
                }
            }
        }
        let hits = best.into_iter().map(|best| best.finish()).collect();
        Ok(SearchResults { generation: self.description.generation, hits })
    }

    /// Not supported: the words of all entries would have to be counted over all shards.
    fn search_texts(&self, _: &[&str], _: usize, _: &Filter) -> Result<SearchResults, MemoryError> {
        Err(MemoryError::Remote {
            location: self.description.location.clone(),
            reason: "the memory of a training run on several processes has no search in texts"
                .to_owned(),
            remedy: "search the memory of the finished run",
        })
    }

    fn rows(&self) -> Result<Vec<Row>, MemoryError> {
        Ok((0..self.description.entries as u32).map(Row::new).collect())
    }

    fn find(&self, ids: &[i64]) -> Result<Vec<Option<Row>>, MemoryError> {
        let request = || Some((Request::Find(ids.to_vec()), Vec::new()));
        let replies = self.ask((0..self.ranks.size()).map(|_| request()).collect())?;
        let mut all = vec![None; ids.len()];
        for (rank, reply) in replies.into_iter().enumerate() {
            let Some((Reply::Found(found), _)) = reply else { return Err(self.bad_reply(rank)) };
            if found.len() != ids.len() {
                return Err(self.bad_reply(rank));
            }
            for (all, row) in all.iter_mut().zip(found) {
                *all = row.map(|row| Row::new(self.starts[rank] as u32 + row)).or(*all);
            }
        }
        Ok(all)
    }

    fn entries(&self, rows: &[Row]) -> Result<Vec<Entry>, MemoryError> {
        let mut all: Vec<Option<Entry>> = vec![None; rows.len()];
        self.read_rows(rows, Request::Entries, |reply, _, positions| {
            let Reply::Entries(entries) = reply else { return None };
            let is_whole = entries.len() == positions.len();
            for (position, entry) in positions.iter().zip(entries) {
                all[*position] = Some(entry);
            }
            is_whole.then_some(())
        })?;
        Ok(all.into_iter().flatten().collect())
    }

    fn keys(&self, rows: &[Row]) -> Result<Vec<f32>, MemoryError> {
        self.read_numbers(rows, self.description.width, Request::Keys)
    }

    fn values(&self, rows: &[Row]) -> Result<Vec<f32>, MemoryError> {
        let length = |values: ValueFormat| values.tokens * values.width;
        self.read_numbers(rows, self.description.values.map_or(0, length), Request::Values)
    }
}
