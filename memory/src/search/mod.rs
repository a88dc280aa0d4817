//! Searches a generation: queries, filters and results.
//!
//! | module | responsibility |
//! |---|---|
//! | [`exact`] | the best keys for each query, as if all keys were scored in double precision |
//! | `scan` | finds the keys whose scores may be among the best, from bounds |
//! | `query_codes` | the codes of queries, and the bounds of the scores of codes |
//! | `kernels` | products of codes, compiled for several processors |
//! | `graph_search` | searches graphs over the keys: faster for many keys, nearly exact |
//! | [`graph`] | the graphs of segments: Vamana or HNSW |
//! | `products` | dot products, compiled for several processors |
//! | [`ranking`] | scores in double precision, and the order of hits |
//! | `top_k` | the best of a stream of bounded scores |
//!
//! If the memory is normalised, a score is the cosine of query and key, whatever the query's norm.
//! Otherwise it is their dot product. If gates are given, the score is multiplied by the gate of
//! the key's source. All sources share one list of the best `k` entries, sorted by gated score, as
//! in REVEAL's released code; there is no quota per source. Equal scores are sorted by id.

pub mod exact;
pub mod graph;
pub(crate) mod graph_search;
mod kernels;
pub(crate) mod products;
mod query_codes;
pub mod ranking;
mod scan;
mod top_k;

use std::borrow::Cow;
use std::collections::HashSet;

use serde::Serialize;

use crate::document::document_hash;
use crate::error::{MemoryError, one_line};
use crate::generation::{Bits, Generation, Part, Row};
use crate::store::{Description, Snapshot};

/// The queries of a search.
#[derive(Debug, Clone, Copy)]
pub struct Queries<'a> {
    /// The query vectors, `[queries, width]`.
    pub keys: &'a [f32],
    /// The number of entries to retrieve per query, at least 1. If it exceeds the number of entries
    /// that the filter allows, all of these are returned.
    pub k: usize,
}

/// The entries that may be retrieved, and the factors on their scores.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// The names of the searched sources; `None` searches all sources, an empty list none.
    pub sources: Option<Vec<String>>,
    /// The ids of the entries that may be retrieved; `None` allows all entries, an empty list none.
    /// An entry must pass both `ids` and `sources`.
    pub ids: Option<Vec<i64>>,
    /// For each query, the documents whose entries are excluded. An empty outer list excludes
    /// nothing for all queries.
    pub excluded_documents: Vec<Vec<String>>,
    /// The weights of the sources; `None` leaves scores unweighted.
    pub gates: Option<Gates>,
}

/// For each query, the weight of each source.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gates {
    /// The names of the sources. They must include all sources of the memory.
    pub sources: Vec<String>,
    /// The weights, `[queries, sources]`.
    pub weights: Vec<f32>,
}

/// A retrieved entry.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Hit {
    /// The id of the entry.
    pub id: i64,
    /// The cosine of query and key, from -1 to 1, if the memory is
    /// [normalised](crate::MemoryFormat::normalised); otherwise their dot product. Multiplied by
    /// the gate if gates are given.
    pub score: f32,
    /// The index of the source in [`Description::sources`](crate::store::Description::sources).
    pub source: u32,
    /// The row in the searched snapshot.
    #[serde(skip)]
    pub row: Row,
}

/// The results of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchResults {
    /// The number of the searched generation.
    pub generation: u64,
    /// At most `k` entries for each query, best first. Fewer if the filter allows fewer.
    pub hits: Vec<Vec<Hit>>,
}

impl SearchResults {
    /// Keeps the entries whose score is at least `min_score`. A query may keep fewer than `k`
    /// entries, or none.
    #[must_use]
    pub fn with_min_score(mut self, min_score: f32) -> Self {
        for hits in &mut self.hits {
            hits.retain(|hit| hit.score >= min_score);
        }
        self
    }

    /// Returns the recall relative to the exact search: the fraction of the exact results that
    /// this search also found. It is 1 if the exact search found nothing.
    ///
    /// An entry with the same score as the last exact result counts as correct, too.
    pub fn recall(&self, exact: &Self) -> f64 {
        let (mut correct, mut total) = (0, 0);
        for (hits, exact) in self.hits.iter().zip(&exact.hits) {
            let last_score = exact.last().map_or(f32::INFINITY, |hit| hit.score);
            total += exact.len();
            correct += hits.iter().filter(|hit| hit.score >= last_score).count().min(exact.len());
        }
        if total == 0 { 1.0 } else { correct as f64 / total as f64 }
    }
}

/// The maximum score, far below the largest f32 number.
const MAX_SCORE: f64 = 1e37;

/// The rows of a segment that a search skips.
#[derive(Debug, Clone)]
pub(crate) enum Hidden {
    Nothing,
    Rows(Bits),
    Everything,
}

impl Hidden {
    /// Whether a search skips this row of the segment.
    pub(crate) fn has(&self, row: usize) -> bool {
        match self {
            Self::Nothing => false,
            Self::Rows(rows) => rows.get(row),
            Self::Everything => true,
        }
    }
}

/// A filter prepared for a generation.
#[derive(Clone)]
pub(crate) struct PreparedFilter<'a> {
    /// The width of a query.
    pub(crate) width: usize,
    /// The number of queries.
    pub(crate) queries: usize,
    /// The number of entries per query, at least 1 and at most the number of entries.
    pub(crate) k: usize,
    /// Whether scores are cosines.
    cosines: bool,
    /// For each segment, the rows that may not be retrieved.
    pub(crate) hidden: Vec<Hidden>,
    /// For each query, the hashes of the excluded documents.
    pub(crate) excluded: Vec<HashSet<u64>>,
    /// The gates, `[queries, sources]`, in the manifest's order; `None` if scores are not weighted.
    pub(crate) gates: Option<Cow<'a, [f32]>>,
    /// The number of sources in the manifest.
    pub(crate) sources: usize,
}

impl<'a> PreparedFilter<'a> {
    /// Checks the queries, and prepares their filter.
    pub(crate) fn new(
        generation: &Generation,
        queries: Queries<'_>,
        filter: &'a Filter,
    ) -> Result<Self, MemoryError> {
        let segments = generation.manifest().segments.iter();
        let longest_key = segments.fold(0f32, |maximum, record| maximum.max(record.longest_key));
        let prepared = Self::of_keys(generation.description(), longest_key, queries, filter)?;
        Ok(Self { hidden: hidden_rows(generation, filter)?, ..prepared })
    }

    /// Checks queries against keys whose norms are at most `longest_key`, and prepares the filter
    /// without its hidden rows.
    fn of_keys(
        description: &Description,
        longest_key: f32,
        queries: Queries<'_>,
        filter: &'a Filter,
    ) -> Result<Self, MemoryError> {
        let width = description.width;
        if !queries.keys.len().is_multiple_of(width) {
            let what = "queries".to_owned();
            return Err(MemoryError::Width { what, expected: width, found: queries.keys.len() });
        }
        for (row, query) in queries.keys.chunks(width).enumerate() {
            check_query(row, query, description.normalised)?;
        }
        let count = queries.keys.len() / width;
        let prepared = Self::without_rows(description, count, queries.k, filter)?;
        for (row, query) in queries.keys.chunks(width).enumerate() {
            let largest_gate = f64::from(prepared.largest_gate(row));
            if norm(query) * f64::from(longest_key) * largest_gate > MAX_SCORE {
                let reason = "is too long: its products with keys and gates could overflow";
                return Err(MemoryError::BadVector { what: "query", row, reason });
            }
        }
        Ok(prepared)
    }

    /// Prepares the filter of `count` queries, of any kind, without hidden rows.
    pub(crate) fn without_rows(
        description: &Description,
        count: usize,
        k: usize,
        filter: &'a Filter,
    ) -> Result<Self, MemoryError> {
        if k == 0 {
            return Err(MemoryError::invalid("k", "0", "at least 1"));
        }
        let check_count = |option: &'static str, found: usize, expected: (usize, &'static str)| {
            let (expected_count, expected) = expected;
            if found == expected_count {
                return Ok(());
            }
            Err(MemoryError::InvalidOption { option, found: found.to_string(), expected })
        };
        if !filter.excluded_documents.is_empty() {
            let lists = filter.excluded_documents.len();
            let expected = (count, "one for each query");
            check_count("the number of lists of excluded documents", lists, expected)?;
        }
        let gates = match &filter.gates {
            None => None,
            Some(gates) => {
                let expected = (count * gates.sources.len(), "one for each query and source");
                check_count("the number of gates", gates.weights.len(), expected)?;
                Some(gates.in_order_of(&description.sources)?)
            }
        };
        let to_hashes =
            |names: &Vec<String>| names.iter().map(|name| document_hash(name)).collect();
        Ok(Self {
            width: description.width,
            queries: count,
            k: k.min(description.entries).max(1),
            cosines: description.normalised,
            hidden: Vec::new(),
            excluded: filter.excluded_documents.iter().map(to_hashes).collect(),
            gates,
            sources: description.sources.len(),
        })
    }

    /// Returns the factor that turns a dot product with the query into a cosine; `None` if scores
    /// are dot products.
    pub(crate) fn scale(&self, query: &[f32]) -> Option<f64> {
        let norm = norm(query);
        // As for keys, a norm that differs from 1 only by rounding counts as 1.
        let is_unit = (norm - 1.0).abs() <= f64::from(f32::EPSILON);
        self.cosines.then_some(if is_unit { 1.0 } else { 1.0 / norm })
    }

    /// The weight of a source for a query.
    pub(crate) fn gate(&self, query: usize, source: u32) -> f32 {
        let gate = |gates: &[f32]| gates.get(query * self.sources + source as usize).copied();
        self.gates.as_deref().and_then(gate).unwrap_or(1.0)
    }

    /// The largest absolute gate of a query.
    fn largest_gate(&self, query: usize) -> f32 {
        let gates =
            self.gates.as_deref().map(|gates| &gates[query * self.sources..][..self.sources]);
        gates.map_or(1.0, |gates| gates.iter().fold(0f32, |largest, gate| largest.max(gate.abs())))
    }
}

impl Gates {
    /// Returns the weights `[queries, sources]` in the order of these sources.
    fn in_order_of(&self, sources: &[String]) -> Result<Cow<'_, [f32]>, MemoryError> {
        if self.weights.iter().any(|gate| !gate.is_finite() || gate.abs() > 1e18) {
            return Err(MemoryError::invalid(
                "a gate",
                "not finite or too large",
                "finite and not too large, such as a softmax output",
            ));
        }
        if self.sources == sources {
            return Ok(Cow::Borrowed(&self.weights));
        }
        let column = |name: &String| {
            let column = self.sources.iter().position(|source| source == name);
            column.ok_or_else(|| MemoryError::MissingGate { name: name.clone() })
        };
        let columns: Vec<usize> = sources.iter().map(column).collect::<Result<_, _>>()?;
        let queries = self.weights.chunks(self.sources.len().max(1));
        Ok(queries.flat_map(|gates| columns.iter().map(|column| gates[*column])).collect())
    }
}

fn check_query(row: usize, query: &[f32], normalised: bool) -> Result<(), MemoryError> {
    let bad_query = |reason| MemoryError::BadVector { what: "query", row, reason };
    if query.iter().any(|number| !number.is_finite()) {
        return Err(bad_query("contains NaN or infinity"));
    }
    if norm(query) > 1e18 {
        return Err(bad_query("has a norm above 1e18"));
    }
    if normalised && norm(query) == 0.0 {
        return Err(bad_query("is a zero vector, so it has no cosine with a key"));
    }
    Ok(())
}

/// The norm of a vector.
pub(crate) fn norm(vector: &[f32]) -> f64 {
    vector.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>().sqrt()
}

/// Returns the deleted rows, and the rows of sources and entries that are not searched.
pub(crate) fn hidden_rows(
    generation: &Generation,
    filter: &Filter,
) -> Result<Vec<Hidden>, MemoryError> {
    let by_source = hidden_by_source(generation, filter)?;
    let Some(ids) = &filter.ids else { return Ok(by_source) };
    let (mut unknown, mut rows) = (Vec::new(), Vec::with_capacity(ids.len()));
    for id in ids {
        match generation.row_of(*id)? {
            Some(row) => rows.push(row),
            None => unknown.push(*id),
        }
    }
    MemoryError::check_known(&unknown, ids.len())?;
    let all_rows = |part: &Part| Bits(vec![u8::MAX; part.segment.rows.div_ceil(8)]);
    let mut hidden: Vec<Bits> = generation.parts().iter().map(all_rows).collect();
    for row in rows {
        let part = generation.part_index(row);
        let row = row.0 as usize - generation.parts()[part].start;
        if !by_source[part].has(row) {
            hidden[part].clear(row);
        }
    }
    Ok(hidden.into_iter().map(Hidden::Rows).collect())
}

/// Returns the deleted rows, and the rows of sources that are not searched.
fn hidden_by_source(generation: &Generation, filter: &Filter) -> Result<Vec<Hidden>, MemoryError> {
    let parts = generation.parts().iter();
    let sources = &generation.manifest().sources;
    let Some(indices) = searched_sources(sources, filter)? else {
        let deleted = parts.map(|part| part.deleted.clone());
        return Ok(deleted.map(|rows| rows.map_or(Hidden::Nothing, Hidden::Rows)).collect());
    };
    // The number of searchable rows of each source.
    let mut visible = vec![0; sources.len()];
    let mut hidden_parts = Vec::with_capacity(parts.len());
    for part in parts {
        let mut hidden = part.deleted.clone().unwrap_or_else(|| Bits::zeros(part.segment.rows));
        for (row, source) in part.segment.sources()?.iter().enumerate() {
            if !indices.contains(source) {
                hidden.set(row);
            } else if !hidden.get(row) {
                visible[*source as usize] += 1;
            }
        }
        hidden_parts.push(Hidden::Rows(hidden));
    }
    match indices.iter().find(|index| visible[**index as usize] == 0) {
        Some(index) => Err(unknown_source(&sources[*index as usize], sources)),
        None => Ok(hidden_parts),
    }
}

/// Returns the indices of the searched sources; `None` if all sources are searched.
fn searched_sources(sources: &[String], filter: &Filter) -> Result<Option<Vec<u32>>, MemoryError> {
    let index = |name: &String| {
        let index = sources.iter().position(|source| source == name);
        index.map(|index| index as u32).ok_or_else(|| unknown_source(name, sources))
    };
    filter.sources.as_ref().map(|names| names.iter().map(index).collect()).transpose()
}

fn unknown_source(name: &str, sources: &[String]) -> MemoryError {
    let known: Vec<String> = sources.iter().map(|name| format!("`{name}`")).collect();
    MemoryError::UnknownSource { name: name.to_owned(), known: one_line(&known.join(", ")) }
}
