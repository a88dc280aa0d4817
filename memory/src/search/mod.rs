//! Searching a generation: what is asked for, what is found.
//!
//! | file | what it is responsible for |
//! |---|---|
//! | [`exact`] | all keys against all queries, in blocks |
//! | [`hnsw`] | a graph over the keys: quicker where there are many, and nearly exact |
//! | [`graph`] | the graph of a segment: made, written, searched |
//! | `products` | products of vectors, for each kind of processor |
//! | `bf16` | many products at once, rounded: quicker, and off by no more than is known |
//! | `top_k` | the best of a stream of scores |
//!
//! A score is the cosine of query and key where the memory's keys have unit length, whatever the query's length, and the
//! product of both elsewhere; times the gate of the key's source where gates are given. There is one joint list of the best `k` over all sources, ordered by the gated score (REVEAL's released code, not a quota for each
//! source); of equal scores the entry with the lower id comes first.

pub(crate) mod bf16;
pub mod exact;
pub mod graph;
pub mod hnsw;
mod products;
mod top_k;

use std::collections::HashSet;

use serde::Serialize;

use crate::entry::document_hash;
use crate::error::{MemoryError, one_line};
use crate::generation::{Bits, Generation, Part, Row};

/// What is searched for.
#[derive(Debug, Clone, Copy)]
pub struct Queries<'a> {
    /// `[queries, width]`.
    pub keys: &'a [f32],
    /// How many entries are wanted for each; more than the memory has are as many as it has.
    pub k: usize,
}

/// Which entries may be found, and what their scores are multiplied by.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Names of the sources that are searched; all of them where it is `None`.
    pub sources: Option<Vec<String>>,
    /// Ids of the only entries that may be found, of those sources; all of them where it is `None`.
    pub ids: Option<Vec<i64>>,
    /// For each query the documents whose entries it may not get; empty where there are none for any.
    pub excluded_documents: Vec<Vec<String>>,
    /// For each query a weight for each source, in the manifest's order, `[queries, sources]`.
    pub gates: Option<Vec<f32>>,
}

/// An entry that was found.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Hit {
    /// Its id.
    pub id: i64,
    /// The cosine of query and key, in -1..=1, where the memory is [normalised](crate::MemoryFormat::normalised); the
    /// product elsewhere. Times the gate, where gates were given.
    pub score: f32,
    /// Its source's place in the manifest's list.
    pub source: u32,
    /// Its row in the generation that was searched.
    #[serde(skip)]
    pub row: Row,
}

/// What a search found.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The generation that was searched.
    pub generation: u64,
    /// For each query at most `k` entries, the best first; fewer where fewer may be found.
    pub hits: Vec<Vec<Hit>>,
}

impl Found {
    /// The share of what the exact search found that is here too; 1 where it found nothing.
    ///
    /// Of entries with the same score as the last one any may have been found.
    pub fn recall(&self, exact: &Self) -> f64 {
        let (mut right, mut all) = (0, 0);
        for (found, exact) in self.hits.iter().zip(&exact.hits) {
            let last = exact.last().map_or(f32::INFINITY, |hit| hit.score);
            all += exact.len();
            right += found.iter().filter(|hit| hit.score >= last).count().min(exact.len());
        }
        if all == 0 { 1.0 } else { right as f64 / all as f64 }
    }
}

/// A way to search a generation.
pub trait Index {
    /// The best `k` entries for each query among those that the filter lets through.
    ///
    /// # Errors   [`MemoryError::Width`], [`MemoryError::BadVector`] and [`MemoryError::BadOption`] for queries and
    /// filters that do not fit, and for a query of zeros where scores are cosines; [`MemoryError::UnknownSource`], [`MemoryError::UnknownId`]; [`MemoryError::Corrupt`]
    fn search(
        &self,
        generation: &Generation,
        queries: Queries<'_>,
        filter: &Filter,
    ) -> Result<Found, MemoryError>;
}

/// Scores up to here stay far from the largest number of single precision.
const LARGEST_SCORE: f64 = 1e37;

/// The rows of a segment that a search does not look at.
#[derive(Debug, Clone)]
pub(crate) enum Hidden {
    Nothing,
    Rows(Bits),
    Everything,
}

impl Hidden {
    pub(crate) fn has(&self, row: usize) -> bool {
        match self {
            Self::Nothing => false,
            Self::Rows(rows) => rows.get(row),
            Self::Everything => true,
        }
    }
}

/// A filter made ready for a generation.
#[derive(Clone)]
pub(crate) struct Prepared<'a> {
    /// Numbers of a query.
    pub(crate) width: usize,
    pub(crate) queries: usize,
    /// How many entries are wanted for each, no more than there are; at least 1.
    pub(crate) k: usize,
    /// Whether scores are cosines.
    cosines: bool,
    /// Of each segment the rows that may not be found.
    pub(crate) hidden: Vec<Hidden>,
    /// For each query the documents it may not get, as hashes.
    pub(crate) excluded: Vec<HashSet<u64>>,
    /// `[queries, sources]`.
    pub(crate) gates: Option<&'a [f32]>,
    pub(crate) sources: usize,
}

impl<'a> Prepared<'a> {
    pub(crate) fn new(
        generation: &Generation,
        queries: Queries<'_>,
        filter: &'a Filter,
    ) -> Result<Self, MemoryError> {
        let manifest = generation.manifest();
        let (width, sources) = (manifest.width, manifest.sources.len());
        if queries.k == 0 {
            return Err(MemoryError::BadOption {
                option: "k",
                found: "0".to_owned(),
                expected: "at least 1",
            });
        }
        if !queries.keys.len().is_multiple_of(width) {
            let what = "queries".to_owned();
            return Err(MemoryError::Width { what, expected: width, found: queries.keys.len() });
        }
        let count = queries.keys.len() / width;
        for (row, query) in queries.keys.chunks(width).enumerate() {
            check_query(row, query, manifest.normalised)?;
        }
        let fits = |what: &'static str, found: usize, expected: usize, each: &'static str| {
            if found == expected {
                return Ok(());
            }
            Err(MemoryError::BadOption {
                option: what,
                found: format!("{found} of them"),
                expected: each,
            })
        };
        if !filter.excluded_documents.is_empty() {
            let found = filter.excluded_documents.len();
            fits("lists of excluded documents", found, count, "one for each query")?;
        }
        if let Some(gates) = &filter.gates {
            fits("gates", gates.len(), count * sources, "one for each query and source")?;
            if gates.iter().any(|gate| !gate.is_finite() || gate.abs() > 1e18) {
                return Err(MemoryError::BadOption {
                    option: "a gate",
                    found: "not finite or too large".to_owned(),
                    expected: "a number such as a softmax gives",
                });
            }
        }
        let hashes = |names: &Vec<String>| names.iter().map(|name| document_hash(name)).collect();
        let prepared = Self {
            width,
            queries: count,
            k: queries.k.min(generation.len()).max(1),
            cosines: manifest.normalised,
            hidden: hidden_rows(generation, filter)?,
            excluded: filter.excluded_documents.iter().map(hashes).collect(),
            gates: filter.gates.as_deref(),
            sources,
        };
        let longest = manifest.segments.iter().fold(0f32, |most, own| most.max(own.longest_key));
        for (row, query) in queries.keys.chunks(width).enumerate() {
            let largest =
                length(query) * f64::from(longest) * f64::from(prepared.largest_gate(row));
            if largest > LARGEST_SCORE {
                let reason = "is too long to be multiplied by the keys and its gates";
                return Err(MemoryError::BadVector { what: "query", row, reason });
            }
        }
        Ok(prepared)
    }

    /// What makes a cosine of a query's product with a key; `None` where scores are products.
    pub(crate) fn scale(&self, query: &[f32]) -> Option<f64> {
        let length = length(query);
        // As in keys, a length that is off by rounding alone counts as 1.
        let is_unit = (length - 1.0).abs() <= f64::from(f32::EPSILON);
        self.cosines.then_some(if is_unit { 1.0 } else { 1.0 / length })
    }

    /// The weight of a source for a query.
    pub(crate) fn gate(&self, query: usize, source: u32) -> f32 {
        let gate = |gates: &[f32]| gates.get(query * self.sources + source as usize).copied();
        self.gates.and_then(gate).unwrap_or(1.0)
    }

    /// The largest weight of a query, by its size.
    pub(crate) fn largest_gate(&self, query: usize) -> f32 {
        let gates = self.gates.map(|gates| &gates[query * self.sources..][..self.sources]);
        gates.map_or(1.0, |gates| gates.iter().fold(0f32, |largest, gate| largest.max(gate.abs())))
    }
}

fn check_query(row: usize, query: &[f32], normalised: bool) -> Result<(), MemoryError> {
    let bad = |reason| MemoryError::BadVector { what: "query", row, reason };
    if query.iter().any(|number| !number.is_finite()) {
        return Err(bad("has a number that is not finite"));
    }
    if length(query) > 1e18 {
        return Err(bad("is too long to be multiplied"));
    }
    if normalised && length(query) == 0.0 {
        return Err(bad("is zero and has no direction, so it has no cosine with a key"));
    }
    Ok(())
}

/// The length of a vector.
pub(crate) fn length(vector: &[f32]) -> f64 {
    vector.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>().sqrt()
}

/// Deleted rows, and those of sources and entries that are not searched.
fn hidden_rows(generation: &Generation, filter: &Filter) -> Result<Vec<Hidden>, MemoryError> {
    let by_source = hidden_by_source(generation, filter)?;
    let Some(ids) = &filter.ids else { return Ok(by_source) };
    let (mut unknown, mut rows) = (Vec::new(), Vec::with_capacity(ids.len()));
    for id in ids {
        match generation.row_of(*id)? {
            Some(row) => rows.push(row),
            None => unknown.push(*id),
        }
    }
    if let Some(id) = unknown.first() {
        return Err(MemoryError::UnknownId { id: *id, missing: unknown.len(), asked: ids.len() });
    }
    let all_rows = |part: &Part| Bits(vec![u8::MAX; part.segment.rows.div_ceil(8)]);
    let mut hidden: Vec<Bits> = generation.parts().iter().map(all_rows).collect();
    for Row(row) in rows {
        let row = row as usize;
        let part = generation.parts().partition_point(|part| part.start <= row) - 1;
        let row = row - generation.parts()[part].start;
        if !by_source[part].has(row) {
            hidden[part].clear(row);
        }
    }
    Ok(hidden.into_iter().map(Hidden::Rows).collect())
}

/// Deleted rows, and those of sources that are not searched.
fn hidden_by_source(generation: &Generation, filter: &Filter) -> Result<Vec<Hidden>, MemoryError> {
    let parts = generation.parts().iter();
    let Some(names) = &filter.sources else {
        let deleted = parts.map(|part| part.deleted.clone());
        return Ok(deleted.map(|rows| rows.map_or(Hidden::Nothing, Hidden::Rows)).collect());
    };
    let known = &generation.manifest().sources;
    let unknown = |name: &String| {
        let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
        MemoryError::UnknownSource { name: name.clone(), known: one_line(&known.join(", ")) }
    };
    let place =
        |name: &String| known.iter().position(|known| known == name).ok_or_else(|| unknown(name));
    let places: Vec<usize> = names.iter().map(place).collect::<Result<_, _>>()?;
    // How many rows of each source may be found.
    let mut visible = vec![0; known.len()];
    let mut all = Vec::with_capacity(parts.len());
    for part in parts {
        let mut hidden = part.deleted.clone().unwrap_or_else(|| Bits::zeros(part.segment.rows));
        for (row, source) in part.segment.sources()?.iter().enumerate() {
            let source = *source as usize;
            if !places.contains(&source) {
                hidden.set(row);
            } else if !hidden.get(row) {
                visible[source] += 1;
            }
        }
        all.push(Hidden::Rows(hidden));
    }
    match names.iter().zip(&places).find(|(_, place)| visible[**place] == 0) {
        Some((name, _)) => Err(unknown(name)),
        None => Ok(all),
    }
}
