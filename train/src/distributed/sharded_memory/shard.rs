//! The shard of one rank, and its summary for the other ranks.

use std::sync::Arc;

use engram_memory::generation::Info;
use engram_memory::search::{Queries, SearchResults};
use engram_memory::{Generation, MemoryError, Row, Snapshot, ValueFormat};
use serde::{Deserialize, Serialize};

use super::messages::{Reply, Request, Search};
use crate::distributed::message::WithFloats;

/// The summary of a shard, which all ranks have.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Summary {
    pub(super) info: Info,
    pub(super) values: Option<ValueFormat>,
    pub(super) next_id: i64,
    /// The largest norm of a key.
    pub(super) longest_key: f32,
}

impl Summary {
    pub(super) fn of(generation: &Generation) -> Result<Self, MemoryError> {
        let manifest = generation.manifest();
        let segments = manifest.segments.iter();
        Ok(Self {
            info: generation.info()?,
            values: manifest.values,
            next_id: manifest.next_id,
            longest_key: segments.fold(0f32, |longest, segment| longest.max(segment.longest_key)),
        })
    }

    /// The reason why the shard does not fit the shard of rank 0; `None` if it fits. A shard must
    /// have no deleted rows, because rows are counted by entries.
    pub(super) fn difference(&self, first: &Self) -> Option<String> {
        let form = |summary: &Self| {
            let Info { width, normalised, .. } = summary.info;
            let keys = if normalised { "normalised keys" } else { "keys" };
            let values = match summary.values {
                Some(ValueFormat { tokens, width, dtype }) => {
                    format!("{tokens} x {width} {} values", dtype.name())
                }
                None => "no values".to_owned(),
            };
            format!("{keys} of width {width} and {values}")
        };
        let models = |summary: &Self| -> Vec<String> {
            let encoders = summary.info.encoders.iter();
            encoders.map(|encoder| encoder.sha256.clone()).collect()
        };
        if self.info.deleted > 0 {
            return Some(format!("has {} deleted rows", self.info.deleted));
        }
        if form(self) != form(first) {
            return Some(format!("has {}, and that of rank 0 {}", form(self), form(first)));
        }
        (models(self) != models(first)).then(|| "has keys of another model than rank 0".to_owned())
    }

    /// The statistics of all shards together. The sources are in the order of their first entries.
    pub(super) fn sum(summaries: &[Self]) -> Info {
        let mut sum = summaries[0].info.clone();
        for Self { info, .. } in &summaries[1..] {
            sum.entries += info.entries;
            sum.bytes += info.bytes;
            for (name, count) in &info.sources {
                match sum.sources.iter_mut().find(|(known, _)| known == name) {
                    Some((_, total)) => *total += count,
                    None => sum.sources.push((name.clone(), *count)),
                }
            }
        }
        sum.bytes_per_row = sum.bytes as f64 / sum.entries.max(1) as f64;
        sum
    }
}

/// The shard of this rank.
#[derive(Debug)]
pub(super) struct OwnShard {
    generation: Arc<Generation>,
    /// For each source of the shard, its index in the whole memory.
    sources: Vec<u32>,
    /// The sources with entries in the shard.
    present: Vec<String>,
}

impl OwnShard {
    /// `sources` are the sources of the whole memory.
    pub(super) fn new(generation: Arc<Generation>, own: &Summary, sources: &[String]) -> Self {
        let index = |name: &String| sources.iter().position(|source| source == name);
        let indices = own.info.sources.iter().map(|(name, _)| index(name).unwrap_or(0) as u32);
        let present = own.info.sources.iter().filter(|(_, count)| *count > 0);
        Self {
            sources: indices.collect(),
            present: present.map(|(name, _)| name.clone()).collect(),
            generation,
        }
    }

    /// Answers a request with its floats.
    pub(super) fn answer(
        &self,
        request: &Request,
        floats: &[f32],
    ) -> Result<WithFloats<Reply>, MemoryError> {
        let rows = |rows: &[u32]| rows.iter().copied().map(Row::new).collect::<Vec<_>>();
        let shard: &dyn Snapshot = self.generation.as_ref();
        Ok(match request {
            Request::Search(search) => self.search(search, floats)?,
            Request::Find(ids) => {
                let found = shard.find(ids)?.into_iter().map(|row| row.map(Row::number));
                (Reply::Found(found.collect()), Vec::new())
            }
            Request::Entries(floats) => (Reply::Entries(shard.entries(&rows(floats))?), Vec::new()),
            Request::Keys(floats) => (Reply::Floats, shard.keys(&rows(floats))?),
            Request::Values(floats) => (Reply::Floats, shard.values(&rows(floats))?),
        })
    }

    fn search(&self, search: &Search, floats: &[f32]) -> Result<WithFloats<Reply>, MemoryError> {
        let (queries, mut filter) = search.parts(floats).ok_or(MemoryError::Count {
            what: "query components",
            expected: search.components,
            found: floats.len(),
        })?;
        // The shard may lack a source that the whole memory has.
        if let Some(sources) = &mut filter.sources {
            sources.retain(|name| self.present.contains(name));
        }
        let shard: &dyn Snapshot = self.generation.as_ref();
        let queries = Queries { keys: queries, k: search.k };
        let SearchResults { hits, .. } = shard.search(search.method(), queries, &filter)?;
        let rows: Vec<Row> = hits.iter().flatten().map(|hit| hit.row).collect();
        let keys = shard.keys(&rows)?;
        let hits = hits.into_iter().map(|hits| {
            let hits = hits.into_iter();
            hits.map(|hit| (hit.id, self.sources[hit.source as usize], hit.row.number())).collect()
        });
        Ok((Reply::Hits(hits.collect()), keys))
    }
}
