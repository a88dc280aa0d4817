//! Graphs over the keys of a segment, for search.
//!
//! | module | responsibility |
//! |---|---|
//! | `vamana` | builds a Vamana graph on all threads |
//! | `hnsw` | builds an HNSW graph by the crate hnsw_rs |
//! | `stored` | writes a graph of either kind to files, and searches the mapped files |
//! | `beam` | the search of a layer |
//! | `similarity` | cosines of keys, estimated from codes or computed in single precision |
//! | `row_products` | products of codes, compiled for several processors |
//! | `duplicates` | rows with equal keys |

mod beam;
mod duplicates;
mod hnsw;
mod row_products;
mod similarity;
mod stored;
mod vamana;

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::norm;
use crate::error::MemoryError;
use crate::format::manifest::{Manifest, SegmentRecord};
use crate::segment::Segment;
pub(crate) use beam::Beam;
pub(crate) use stored::{Graph, GraphLists};

/// The valid values of `connections`.
const VALID_CONNECTIONS: RangeInclusive<usize> = 2..=256;
/// The valid values of `ef_construction`. hnsw_rs allocates memory for all candidates in advance.
const VALID_EF_CONSTRUCTION: RangeInclusive<usize> = 1..=100_000;

/// The kind of a graph. All kinds are stored and searched in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GraphKind {
    /// A Vamana graph, built on all threads.
    Vamana,
    /// An HNSW graph, built by the crate hnsw_rs in one thread.
    Hnsw,
}

/// The settings for building a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphSettings {
    /// The kind of the graph.
    pub kind: GraphKind,
    /// Half the maximum number of neighbours of a key, from 2 to 256. In an HNSW graph, this holds
    /// for layer 0; other layers allow half as many.
    pub connections: usize,
    /// The number of candidate neighbours of a new key, from 1 to 100,000. More candidates give
    /// higher recall and a slower construction.
    pub ef_construction: usize,
}

impl GraphSettings {
    /// The default settings of a kind.
    pub fn of(kind: GraphKind) -> Self {
        match kind {
            GraphKind::Vamana => Self { kind, connections: 16, ef_construction: 100 },
            GraphKind::Hnsw => Self { kind, connections: 24, ef_construction: 200 },
        }
    }
}

impl Default for GraphSettings {
    fn default() -> Self {
        Self::of(GraphKind::Vamana)
    }
}

impl GraphSettings {
    /// Whether a segment has no graph of these settings.
    pub fn is_missing(self, segment: &SegmentRecord) -> bool {
        segment.graph.as_ref().is_none_or(|graph| graph.settings != self)
    }

    /// Returns an error if a setting is out of range.
    pub(crate) fn check(self) -> Result<(), MemoryError> {
        if !VALID_CONNECTIONS.contains(&self.connections)
            || !VALID_EF_CONSTRUCTION.contains(&self.ef_construction)
        {
            return Err(MemoryError::invalid(
                "the number of connections",
                format!("{} with {} candidates", self.connections, self.ef_construction),
                "2 to 256, with 1 to 100,000 candidates",
            ));
        }
        Ok(())
    }

    /// Builds the graph of a segment. Equal keys give equal graphs, for any number of threads.
    pub(crate) fn build(
        self,
        segment: &Segment,
        manifest: &Manifest,
        progress: &impl Fn(),
    ) -> Result<GraphLists, MemoryError> {
        self.check()?;
        if !manifest.normalised {
            return Err(MemoryError::invalid(
                "the memory",
                "of keys that are not normalised",
                "normalised for a graph; use exact search",
            ));
        }
        Ok(GraphLists::build(self, segment.keys(0..segment.rows)?, manifest.width, progress))
    }
}

/// The queries of a batch, prepared for graphs.
pub(crate) struct GraphQueries {
    /// The queries divided by their norms, `[queries, width]`.
    units: Vec<f32>,
    width: usize,
    /// The codes of the queries; empty for narrow queries.
    codes: Vec<u8>,
}

/// A query of [`GraphQueries`].
#[derive(Clone, Copy)]
pub(crate) struct GraphQuery<'a> {
    unit: &'a [f32],
    codes: &'a [u8],
}

impl GraphQueries {
    /// Prepares queries, `[queries, width]`. Graphs compare directions; the norm of a query does
    /// not change the order.
    pub(crate) fn new(queries: &[f32], width: usize) -> Self {
        let mut units = Vec::with_capacity(queries.len());
        for query in queries.chunks(width) {
            let norm = Some(norm(query)).filter(|norm| *norm > 0.0).unwrap_or(1.0);
            units.extend(query.iter().map(|number| (f64::from(*number) / norm) as f32));
        }
        let has_codes = similarity::has_codes(width);
        let codes = if has_codes { similarity::encode(&units, width) } else { Vec::new() };
        Self { units, width, codes }
    }

    pub(crate) fn get(&self, query: usize) -> GraphQuery<'_> {
        let unit = &self.units[query * self.width..][..self.width];
        let codes = self.codes.chunks(similarity::row_bytes(self.width)).nth(query);
        GraphQuery { unit, codes: codes.unwrap_or_default() }
    }
}
