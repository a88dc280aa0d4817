//! The names of the kinds of graphs in options.

use clap::ValueEnum;
use engram_memory::search::graph::GraphKind;

/// The kind of a graph.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum GraphKindName {
    /// A Vamana graph, built on all threads and searched by 8-bit codes of the keys
    Vamana,
    /// An HNSW graph, built in one thread and searched by the keys
    Hnsw,
}

impl From<GraphKindName> for GraphKind {
    fn from(kind: GraphKindName) -> Self {
        match kind {
            GraphKindName::Vamana => Self::Vamana,
            GraphKindName::Hnsw => Self::Hnsw,
        }
    }
}
