//! Graphs over the keys of a segment, for search.
//!
//! | module | responsibility |
//! |---|---|
//! | `vamana` | a Vamana graph, built on all threads and searched by codes of the keys |
//! | `hnsw` | an HNSW graph, built by the crate hnsw_rs and searched by the keys |
//! | `beam` | the search of a Vamana graph |
//! | `similarity` | cosines of keys, estimated from codes or computed in single precision |
//! | `row_products` | products of codes, compiled for several processors |
//! | `duplicates` | rows with equal keys |

mod beam;
mod duplicates;
mod hnsw;
mod row_products;
mod similarity;
mod vamana;

use std::ops::RangeInclusive;
use std::path::Path;

use super::norm;
use super::top_k::Candidate;
use crate::error::MemoryError;
use crate::format::file::FileRecord;
use crate::format::manifest::{GraphRecord, Manifest, SegmentRecord};
use crate::format::tensor::{Number, TensorWriter};
use crate::segment::Segment;
pub(crate) use beam::Beam;
use hnsw::{LayeredGraph, LayeredLists};
use vamana::{VamanaGraph, VamanaLists};

/// The valid values of `connections`.
const VALID_CONNECTIONS: RangeInclusive<usize> = 2..=256;
/// The valid values of `ef_construction`. hnsw_rs allocates memory for all candidates in advance.
const VALID_EF_CONSTRUCTION: RangeInclusive<usize> = 1..=100_000;

/// The kind of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraphKind {
    /// A Vamana graph, built on all threads and searched by 8-bit codes of the keys.
    Vamana,
    /// An HNSW graph, built by the crate hnsw_rs in one thread.
    Hnsw,
}

/// The settings for building a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

impl From<&GraphRecord> for GraphSettings {
    fn from(record: &GraphRecord) -> Self {
        match record {
            GraphRecord::Vamana(record) => Self {
                kind: GraphKind::Vamana,
                connections: record.degree.div_ceil(2),
                ef_construction: record.ef_construction,
            },
            GraphRecord::Hnsw(record) => Self {
                kind: GraphKind::Hnsw,
                connections: record.connections,
                ef_construction: record.ef_construction,
            },
        }
    }
}

impl Default for GraphSettings {
    fn default() -> Self {
        Self::of(GraphKind::Vamana)
    }
}

/// A graph to be written to files.
pub(crate) enum GraphLists {
    Vamana(VamanaLists),
    Hnsw(LayeredLists),
}

impl GraphSettings {
    /// Whether a segment has no graph of these settings.
    pub fn is_missing(self, segment: &SegmentRecord) -> bool {
        segment.graph.as_ref().is_none_or(|graph| Self::from(graph) != self)
    }

    /// Returns an error if a setting is out of range.
    pub(crate) fn check(self) -> Result<(), MemoryError> {
        if !VALID_CONNECTIONS.contains(&self.connections)
            || !VALID_EF_CONSTRUCTION.contains(&self.ef_construction)
        {
            return Err(MemoryError::InvalidOption {
                option: "the number of connections",
                found: format!("{} with {} candidates", self.connections, self.ef_construction),
                expected: "2 to 256, with 1 to 100,000 candidates",
            });
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
            return Err(MemoryError::InvalidOption {
                option: "the memory",
                found: "built with --no-normalize".to_owned(),
                expected: "normalised for a graph; use exact search",
            });
        }
        let (keys, width) = (segment.keys(0..segment.rows)?, manifest.width);
        Ok(match self.kind {
            GraphKind::Vamana => {
                GraphLists::Vamana(VamanaLists::build(self, keys, width, progress))
            }
            GraphKind::Hnsw => GraphLists::Hnsw(LayeredLists::build(self, keys, width, progress)),
        })
    }
}

impl GraphLists {
    /// Writes the graph of segment `number` to the folder of the generation `name`.
    pub(crate) fn write(
        &self,
        name: &str,
        folder: &Path,
        number: usize,
        settings: GraphSettings,
    ) -> Result<GraphRecord, MemoryError> {
        match self {
            Self::Vamana(lists) => {
                lists.write(name, folder, number, settings).map(GraphRecord::Vamana)
            }
            Self::Hnsw(lists) => lists.write(name, folder, number, settings).map(GraphRecord::Hnsw),
        }
    }
}

/// Writes a tensor of the graph of segment `number`.
fn write_tensor<T: Number>(
    (folder, name, number): (&Path, &str, usize),
    numbers: &[T],
    shape: &[usize],
) -> Result<FileRecord, MemoryError> {
    let path = folder.join(format!("graph-{number}-{name}.safetensors"));
    let mut writer = TensorWriter::create(path, name, shape)?;
    writer.write(numbers)?;
    writer.finish()
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
    /// Prepares queries, `[queries, width]`. Graphs compare directions; the norm of a query does not
    /// change the order.
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

/// A memory-mapped graph.
#[derive(Debug)]
pub(crate) enum Graph {
    Vamana(VamanaGraph),
    Hnsw(LayeredGraph),
}

impl Graph {
    /// Opens the graph of a segment with this many rows.
    pub(crate) fn open(
        memory: &Path,
        record: &GraphRecord,
        rows: usize,
        width: usize,
    ) -> Result<Self, MemoryError> {
        match record {
            GraphRecord::Vamana(record) => {
                VamanaGraph::open(memory, record, rows, width).map(Self::Vamana)
            }
            GraphRecord::Hnsw(record) => LayeredGraph::open(memory, record, rows).map(Self::Hnsw),
        }
    }

    /// Returns an error unless the files contain a valid graph. Checks the files only once.
    pub(crate) fn check(&self) -> Result<(), MemoryError> {
        match self {
            Self::Vamana(graph) => graph.check().map(|_| ()),
            Self::Hnsw(graph) => graph.check(),
        }
    }

    /// Checks every file against its checksums. Returns one result per file.
    pub(crate) fn verify(&self) -> Vec<Result<(), MemoryError>> {
        match self {
            Self::Vamana(graph) => graph.verify(),
            Self::Hnsw(graph) => graph.verify().into(),
        }
    }

    /// Returns approximately the best `count` rows, unordered, with bounds on their cosines that
    /// very probably hold. Returns only rows for which `is_visible` is true, but the search also
    /// passes through other rows. Copies of a key do not count towards `count`.
    pub(crate) fn search(
        &self,
        segment: &Segment,
        query: GraphQuery<'_>,
        count: usize,
        is_visible: impl Fn(usize) -> bool,
        beam: &mut Beam,
    ) -> Result<Vec<Candidate>, MemoryError> {
        match self {
            Self::Vamana(graph) => graph.search(segment, query, count, is_visible, beam),
            Self::Hnsw(graph) => graph.search(segment, query.unit, count, is_visible),
        }
    }
}
