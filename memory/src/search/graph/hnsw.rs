//! An HNSW graph over the keys of a segment (Malkov and Yashunin, arXiv 1603.09320). The crate
//! hnsw_rs builds it. It is stored as lists of neighbours and searched in the memory-mapped files.
//!
//! A node is a key in a layer. Nodes of layer 0 have the numbers of their rows. Nodes of the upper
//! layers follow, layer by layer, each with its row and the node of the same row in the layer
//! below. A search starts at a node of the highest layer.

mod check;

use std::cmp::{self, Reverse};
use std::collections::BinaryHeap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use hnsw_rs::hnsw::Hnsw;
use hnsw_rs::prelude::Distance;

use super::super::products::{dot_f32, prefetch};
use super::super::top_k::Candidate;
use super::duplicates::first_rows;
use super::similarity::single_precision_error;
use super::{GraphSettings, write_tensor};
use crate::error::MemoryError;
use crate::format::manifest::HnswRecord;
use crate::format::tensor::MappedTensor;
use crate::generation::Bits;
use crate::segment::Segment;

/// The maximum number of layers of a graph, as in hnsw_rs.
const LAYERS: usize = 16;

/// While a key is scored, the key this many positions later is prefetched. The keys of neighbours
/// are scattered in main memory.
const PREFETCH_DISTANCE: usize = 2;

/// 1 minus the dot product of unit vectors. Negative values, which come from rounding, become 0,
/// because hnsw_rs rejects them.
#[derive(Debug, Clone, Copy, Default)]
struct UnitDistance;

impl Distance<f32> for UnitDistance {
    fn eval(&self, a: &[f32], b: &[f32]) -> f32 {
        (1.0 - dot_f32(a, b)).max(0.0)
    }
}

/// A graph to be written to files.
pub(crate) struct LayeredLists {
    /// The start of each node's neighbours, and the end of the last node's neighbours.
    offsets: Vec<u64>,
    neighbours: Vec<u32>,
    /// For each node above layer 0: its row, and the node of this row in the layer below.
    upper: Vec<u32>,
    /// The node at which a search starts.
    entry: u32,
}

impl LayeredLists {
    /// Builds a graph in one thread, so that equal keys give equal graphs.
    pub(super) fn build(
        settings: GraphSettings,
        keys: &[f32],
        width: usize,
        progress: &impl Fn(),
    ) -> Self {
        let (rows, distance) = (keys.len() / width, UnitDistance);
        let GraphSettings { connections, ef_construction, .. } = settings;
        let graph = Hnsw::new(connections, rows, LAYERS, ef_construction, distance);
        let first_rows = first_rows(keys, width);
        for (row, key) in keys.chunks(width).enumerate() {
            if first_rows[row] as usize == row {
                graph.insert((key, row));
            }
            progress();
        }
        Self::of(&graph, rows, &first_rows)
    }

    /// Converts a graph of hnsw_rs over this many rows, and adds the duplicate keys.
    fn of(graph: &Hnsw<'_, f32, UnitDistance>, rows: usize, first_rows: &[u32]) -> Self {
        // For each row and layer, the rows of its neighbours.
        let mut neighbour_rows: Vec<Vec<Vec<u32>>> = vec![Vec::new(); rows];
        for point in graph.get_point_indexation() {
            let mut layers = point.get_neighborhood_id();
            layers.truncate(usize::from(point.get_point_id().0) + 1);
            let rows_of = |layer: Vec<hnsw_rs::prelude::Neighbour>| {
                layer.into_iter().map(|neighbour| neighbour.d_id as u32).collect()
            };
            neighbour_rows[point.get_origin_id()] = layers.into_iter().map(rows_of).collect();
        }
        // A copy of a key is a neighbour of the first row with the key only.
        for (copy, first) in (0..).zip(first_rows).filter(|(row, first)| row != *first) {
            neighbour_rows[copy as usize] = vec![vec![*first]];
            match neighbour_rows[*first as usize].first_mut() {
                Some(neighbours) => neighbours.push(copy),
                None => neighbour_rows[*first as usize].push(vec![copy]),
            }
        }
        let num_layers = neighbour_rows.iter().map(Vec::len).max().unwrap_or(0);
        // For each layer, its rows in order, and the number of its first node.
        let mut layers: Vec<(Vec<u32>, usize)> = Vec::new();
        let mut nodes = 0;
        for layer in 0..num_layers {
            let is_in_layer = |row: &u32| layer == 0 || neighbour_rows[*row as usize].len() > layer;
            let layer_rows: Vec<u32> = (0..rows as u32).filter(is_in_layer).collect();
            let first_node = nodes;
            nodes += layer_rows.len();
            layers.push((layer_rows, first_node));
        }
        let node = |layer: usize, row: u32| -> Option<u32> {
            let (layer_rows, first_node) = &layers[layer];
            layer_rows.binary_search(&row).ok().map(|index| (first_node + index) as u32)
        };
        let entry = layers.last().map_or(0, |(_, first_node)| *first_node as u32);
        let (mut offsets, mut neighbours, mut upper) = (vec![0], Vec::new(), Vec::new());
        for (layer, (layer_rows, _)) in layers.iter().enumerate() {
            for row in layer_rows {
                let neighbour_rows = neighbour_rows[*row as usize].get(layer).into_iter().flatten();
                neighbours.extend(neighbour_rows.filter_map(|row| node(layer, *row)));
                offsets.push(neighbours.len() as u64);
                if layer > 0 {
                    upper.extend([*row, node(layer - 1, *row).unwrap_or(*row)]);
                }
            }
        }
        Self { offsets, neighbours, upper, entry }
    }

    /// Writes the graph of segment `number` to the folder of the generation `name`.
    pub(super) fn write(
        &self,
        name: &str,
        folder: &Path,
        number: usize,
        settings: GraphSettings,
    ) -> Result<HnswRecord, MemoryError> {
        let Self { offsets, neighbours, upper, entry } = self;
        let tensor = |name| (folder, name, number);
        Ok(HnswRecord {
            folder: name.to_owned(),
            connections: settings.connections,
            ef_construction: settings.ef_construction,
            nodes: offsets.len() - 1,
            edges: neighbours.len(),
            entry: *entry,
            offsets: write_tensor(tensor("offsets"), offsets, &[offsets.len()])?,
            neighbours: write_tensor(tensor("neighbours"), neighbours, &[neighbours.len()])?,
            upper: write_tensor(tensor("upper"), upper, &[upper.len() / 2, 2])?,
        })
    }
}

/// A memory-mapped graph.
#[derive(Debug)]
pub(crate) struct LayeredGraph {
    rows: usize,
    edges: usize,
    /// The node at which a search starts.
    entry: u32,
    offsets: MappedTensor<u64>,
    neighbours: MappedTensor<u32>,
    upper: MappedTensor<u32>,
    /// The number of nodes above layer 0.
    upper_nodes: usize,
    is_checked: AtomicBool,
}

/// A row with its score. Of equal scores the lower row is better.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ScoredRow {
    pub(super) score: f32,
    pub(super) row: u32,
}

impl Eq for ScoredRow {}

impl PartialOrd for ScoredRow {
    fn partial_cmp(&self, other: &Self) -> Option<cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScoredRow {
    fn cmp(&self, other: &Self) -> cmp::Ordering {
        self.score.total_cmp(&other.score).then(other.row.cmp(&self.row))
    }
}

impl LayeredGraph {
    pub(super) fn open(
        memory: &Path,
        record: &HnswRecord,
        rows: usize,
    ) -> Result<Self, MemoryError> {
        let folder = memory.join(&record.folder);
        let Some(upper_nodes) = record.nodes.checked_sub(rows) else {
            let reason = format!("has a graph of {} nodes for {rows} rows", record.nodes);
            return Err(MemoryError::corrupt(&folder, reason));
        };
        let offsets = MappedTensor::open(&folder, &record.offsets, "offsets", &[record.nodes + 1])?;
        let neighbours =
            MappedTensor::open(&folder, &record.neighbours, "neighbours", &[record.edges])?;
        let upper = MappedTensor::open(&folder, &record.upper, "upper", &[upper_nodes, 2])?;
        let (edges, entry, is_checked) = (record.edges, record.entry, AtomicBool::new(false));
        Ok(Self { rows, edges, entry, offsets, neighbours, upper, upper_nodes, is_checked })
    }

    /// Returns an error unless every number in the files refers to a node of the right layer.
    /// Checks the files only once.
    pub(super) fn check(&self) -> Result<(), MemoryError> {
        if !self.is_checked.load(Ordering::Acquire) {
            self.check_lists()?;
            self.is_checked.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Checks every file against its checksums.
    pub(super) fn verify(&self) -> [Result<(), MemoryError>; 3] {
        [self.offsets.verify(), self.neighbours.verify(), self.upper.verify()]
    }

    /// Returns approximately the best `count` rows by dot product with `query`, unordered. Returns
    /// only rows for which `is_visible` is true, but the search also passes through other rows.
    /// Copies of a key do not count towards `count`.
    pub(super) fn search(
        &self,
        segment: &Segment,
        query: &[f32],
        count: usize,
        is_visible: impl Fn(usize) -> bool,
    ) -> Result<Vec<Candidate>, MemoryError> {
        let key = |row: u32| segment.keys(row as usize..row as usize + 1);
        let score = |row: u32| -> Result<ScoredRow, MemoryError> {
            Ok(ScoredRow { score: dot_f32(query, key(row)?), row })
        };
        let start = score(self.descend(&score)?)?;
        let mut visited = Bits::zeros(self.rows);
        visited.set(start.row as usize);
        let (mut candidates, mut best) = (BinaryHeap::from([start]), BinaryHeap::new());
        let (mut unvisited, mut count) = (Vec::new(), count);
        if is_visible(start.row as usize) {
            best.push(Reverse(start));
        }
        while let Some(node) = candidates.pop() {
            if best.len() >= count && best.peek().is_some_and(|Reverse(worst)| node < *worst) {
                break;
            }
            unvisited.clear();
            for row in self.neighbours(node.row)? {
                if (*row as usize) < self.rows && !visited.get(*row as usize) {
                    visited.set(*row as usize);
                    unvisited.push(*row);
                }
            }
            for (i, row) in unvisited.iter().enumerate() {
                if let Some(later) = unvisited.get(i + PREFETCH_DISTANCE) {
                    prefetch(key(*later)?);
                }
                let next = score(*row)?;
                if best.len() >= count && best.peek().is_some_and(|Reverse(worst)| next < *worst) {
                    continue;
                }
                candidates.push(next);
                if is_visible(*row as usize) {
                    best.push(Reverse(next));
                    // An equal score means a copy of the key: keep one more row.
                    count += usize::from(next.score == node.score);
                    if best.len() > count {
                        best.pop();
                    }
                }
            }
        }
        let error = single_precision_error(query.len());
        let candidate =
            |Reverse(ScoredRow { score, row }): Reverse<ScoredRow>| Candidate { score, error, row };
        Ok(best.into_iter().map(candidate).collect())
    }

    /// Searches greedily in each layer above layer 0, from the highest down. Returns the row at
    /// which the search in layer 0 starts.
    fn descend(
        &self,
        score: &impl Fn(u32) -> Result<ScoredRow, MemoryError>,
    ) -> Result<u32, MemoryError> {
        let mut node = self.entry;
        while let Some([row, mut below]) = self.upper(node)? {
            let (mut best, mut best_node) = (score(row)?, node);
            loop {
                let current = best_node;
                for neighbour in self.neighbours(current)? {
                    let Some([row, neighbour_below]) = self.upper(*neighbour)? else { continue };
                    let next = score(row)?;
                    if next > best {
                        (best, best_node, below) = (next, *neighbour, neighbour_below);
                    }
                }
                if best_node == current {
                    break;
                }
            }
            // Nodes of a lower layer have lower numbers.
            if below >= node {
                return Err(self.upper.corrupt(format!("leads from node {node} up to {below}")));
            }
            node = below;
        }
        Ok(node)
    }

    /// Returns the row of a node above layer 0, and the node of this row in the layer below. `None`
    /// in layer 0.
    fn upper(&self, node: u32) -> Result<Option<[u32; 2]>, MemoryError> {
        let Some(index) = (node as usize).checked_sub(self.rows) else { return Ok(None) };
        Ok(self.upper.read(index..index + 1)?.try_into().ok())
    }

    /// Returns the neighbours of a node.
    fn neighbours(&self, node: u32) -> Result<&[u32], MemoryError> {
        let offsets = self.offsets.read(node as usize..node as usize + 2)?;
        if offsets[0] > offsets[1] || offsets[1] > self.edges as u64 {
            return Err(self.offsets.corrupt(format!("has invalid neighbours for node {node}")));
        }
        self.neighbours.read(offsets[0] as usize..offsets[1] as usize)
    }
}
