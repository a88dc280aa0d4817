//! The requests of one rank to the shard of another, the replies, and their bytes.

use engram_memory::search::{Filter, Gates};
use engram_memory::{Entry, Method};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A request. Rows are rows of the shard.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// The best entries of each query. The numbers are the query vectors, then the gates.
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

/// A search without its numbers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Search {
    k: usize,
    /// See [`Method::Graph`]; `None` for an exact search.
    candidates: Option<usize>,
    pub(super) sources: Option<Vec<String>>,
    pub(super) ids: Option<Vec<i64>>,
    excluded_documents: Vec<Vec<String>>,
    /// The sources of the gates; `None` without gates.
    gates: Option<Vec<String>>,
    /// The number of components of all query vectors.
    components: usize,
}

/// A reply.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    /// For each query, the hits as id, source of the whole memory, and row of the shard. The numbers
    /// are their keys.
    Hits(Vec<Vec<(i64, u32, u32)>>),
    /// The rows of the shard; `None` for an unknown id.
    Found(Vec<Option<u32>>),
    /// The entries.
    Entries(Vec<Entry>),
    /// Only numbers: keys or values.
    Numbers,
}

impl Search {
    /// The search of `k` entries for each query, with its numbers. `filter.ids` is replaced by `ids`.
    pub(super) fn new(
        (method, k): (Method, usize),
        queries: &[f32],
        filter: &Filter,
        ids: Option<Vec<i64>>,
    ) -> (Self, Vec<f32>) {
        let mut numbers = queries.to_vec();
        let gates = filter.gates.as_ref().map(|Gates { sources, weights }| {
            numbers.extend_from_slice(weights);
            sources.clone()
        });
        let candidates = match method {
            Method::Exact => None,
            Method::Graph { candidates } => Some(candidates),
        };
        let Filter { sources, excluded_documents, .. } = filter.clone();
        let components = queries.len();
        (Self { k, candidates, sources, ids, excluded_documents, gates, components }, numbers)
    }

    pub(super) fn components(&self) -> usize {
        self.components
    }

    pub(super) fn k(&self) -> usize {
        self.k
    }

    pub(super) fn method(&self) -> Method {
        self.candidates.map_or(Method::Exact, |candidates| Method::Graph { candidates })
    }

    /// The query vectors and the filter. `numbers` are the numbers of [`Search::new`].
    pub(super) fn parts<'a>(&self, numbers: &'a [f32]) -> Option<(&'a [f32], Filter)> {
        let (queries, weights) = numbers.split_at_checked(self.components)?;
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

/// A header as JSON, after its length, and numbers.
pub(super) fn pack(header: &impl Serialize, numbers: &[f32]) -> Result<Vec<u8>, String> {
    let header = serde_json::to_vec(header).map_err(|error| error.to_string())?;
    let mut bytes = Vec::with_capacity(8 + header.len() + 4 * numbers.len());
    bytes.extend_from_slice(&(header.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&header);
    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    Ok(bytes)
}

/// Reads the bytes of [`pack`].
pub(super) fn unpack<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, Vec<f32>), String> {
    let damaged = || "sent a damaged message".to_owned();
    let (length, rest) = bytes.split_first_chunk().ok_or_else(damaged)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| damaged())?;
    let (header, numbers) = rest.split_at_checked(length).ok_or_else(damaged)?;
    let (numbers, []) = numbers.as_chunks::<4>() else { return Err(damaged()) };
    let header = serde_json::from_slice(header).map_err(|error| error.to_string())?;
    Ok((header, numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_numbers_and_damaged_ones_are_errors() {
        let numbers = [0.1, f32::NAN, -0.0, f32::MIN_POSITIVE];
        let bytes = pack(&Request::Find(vec![3, i64::MAX]), &numbers).expect("bytes");
        let (request, read): (Request, _) = unpack(&bytes).expect("a message");
        assert!(matches!(request, Request::Find(ids) if ids == [3, i64::MAX]));
        let bits = |numbers: &[f32]| numbers.iter().map(|n| n.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&read), bits(&numbers));
        for end in 0..bytes.len() {
            let shorter = unpack::<Request>(&bytes[..end]);
            // A message that ends between two numbers has fewer of them.
            assert!(shorter.is_err() || shorter.is_ok_and(|(_, read)| read.len() < 4), "{end}");
        }
    }
}
