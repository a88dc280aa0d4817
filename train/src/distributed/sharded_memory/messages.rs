//! The requests of one rank to the shard of another, and the replies.

use engram_memory::search::{Filter, Gates};
use engram_memory::{Entry, Method};
use serde::{Deserialize, Serialize};

use crate::distributed::message::WithFloats;

/// A request. Rows are rows of the shard.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// The best entries of each query. The floats are the query vectors, then the gates.
    Search(Search),
    /// The rows of ids.
    Find(Vec<i64>),
    /// The entries of rows.
    Entries(Vec<u32>),
    /// The keys of rows.
    Keys(Vec<u32>),
    /// The values of rows.
    Values(Vec<u32>),
}

/// A search without its floats.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Search {
    pub(super) k: usize,
    /// See [`Method::Graph`]; `None` for an exact search.
    candidates: Option<usize>,
    pub(super) sources: Option<Vec<String>>,
    pub(super) ids: Option<Vec<i64>>,
    excluded_documents: Vec<Vec<String>>,
    /// The sources of the gates; `None` without gates.
    gates: Option<Vec<String>>,
    /// The number of components of all query vectors.
    pub(super) components: usize,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    /// For each query, the hits: id, index of the source in the whole memory, and row of the shard.
    /// The floats are their keys.
    Hits(Vec<Vec<(i64, u32, u32)>>),
    /// The rows of the shard; `None` for an unknown id.
    Found(Vec<Option<u32>>),
    Entries(Vec<Entry>),
    /// Only floats: keys or values.
    Floats,
}

impl Search {
    /// The search of `k` entries for each query, with its floats. `ids` replaces `filter.ids`.
    pub(super) fn new(
        (method, k): (Method, usize),
        queries: &[f32],
        filter: &Filter,
        ids: Option<Vec<i64>>,
    ) -> WithFloats<Self> {
        let mut floats = queries.to_vec();
        let gates = filter.gates.as_ref().map(|Gates { sources, weights }| {
            floats.extend_from_slice(weights);
            sources.clone()
        });
        let candidates = match method {
            Method::Exact => None,
            Method::Graph { candidates } => Some(candidates),
        };
        let Filter { sources, excluded_documents, .. } = filter.clone();
        let components = queries.len();
        (Self { k, candidates, sources, ids, excluded_documents, gates, components }, floats)
    }

    pub(super) fn method(&self) -> Method {
        self.candidates.map_or(Method::Exact, |candidates| Method::Graph { candidates })
    }

    /// The query vectors and the filter. `floats` are the floats of [`Search::new`].
    pub(super) fn parts<'a>(&self, floats: &'a [f32]) -> Option<(&'a [f32], Filter)> {
        let (queries, weights) = floats.split_at_checked(self.components)?;
        let gates = self.gates.clone();
        let filter = Filter {
            sources: self.sources.clone(),
            ids: self.ids.clone(),
            excluded_documents: self.excluded_documents.clone(),
            gates: gates.map(|sources| Gates { sources, weights: weights.to_vec() }),
        };
        Some((queries, filter))
    }
}
