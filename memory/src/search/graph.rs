//! A graph over the keys of a segment (Malkov and Yashunin, arXiv 1603.09320): made by hnsw_rs, kept as lists of
//! neighbours, searched where they lie in their files.
//!
//! A node is a key in a layer. Those of layer 0 have the numbers of their rows; those of the layers above follow, layer
//! by layer, each with its row and with its node in the layer below. Searching begins at a node of the highest layer.

mod check;

use std::cmp::{self, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use hnsw_rs::hnsw::Hnsw;
use hnsw_rs::prelude::Distance;

use super::products::{prefetch, quick_dot};
use crate::error::MemoryError;
use crate::format::file::FileRecord;
use crate::format::manifest::{GraphRecord, Manifest};
use crate::format::tensor::{MappedTensor, Number, TensorWriter};
use crate::generation::Bits;
use crate::segment::Segment;

/// Layers of a graph, as many as hnsw_rs has.
const LAYERS: usize = 16;

/// Candidates of [`GraphSettings`]: hnsw_rs takes memory for all of them beforehand.
const CANDIDATES: RangeInclusive<usize> = 1..=100_000;

/// Keys lie scattered in main memory: each is asked for while so many before it are multiplied.
const AHEAD: usize = 2;

/// How a graph is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphSettings {
    /// Most neighbours of a key in a layer, and half of the most in layer 0; at most 256.
    pub connections: usize,
    /// Candidates that are kept while it is made, at most 100,000; more give a better graph and take longer.
    pub ef_construction: usize,
}

impl Default for GraphSettings {
    fn default() -> Self {
        Self { connections: 24, ef_construction: 200 }
    }
}

/// 1 less the product, for vectors of unit length; hnsw_rs refuses what rounding takes below 0.
#[derive(Debug, Clone, Copy, Default)]
struct UnitDistance;

impl Distance<f32> for UnitDistance {
    fn eval(&self, a: &[f32], b: &[f32]) -> f32 {
        (1.0 - quick_dot(a, b)).max(0.0)
    }
}

/// A graph on its way into files.
pub(crate) struct GraphLists {
    /// Where the neighbours of each node begin, and where those of the last end.
    offsets: Vec<u64>,
    neighbours: Vec<u32>,
    /// Of each node above layer 0 the row, and the node in the layer below.
    upper: Vec<u32>,
    entry: u32,
}

impl GraphSettings {
    /// Makes the graph of a segment; one thread does, so that the same keys give the same graph.
    pub(crate) fn build(
        self,
        segment: &Segment,
        manifest: &Manifest,
        progress: &impl Fn(),
    ) -> Result<GraphLists, MemoryError> {
        if !(2..=256).contains(&self.connections) || !CANDIDATES.contains(&self.ef_construction) {
            return Err(MemoryError::BadOption {
                option: "the number of connections",
                found: format!("{} with {} candidates", self.connections, self.ef_construction),
                expected: "2 to 256, with 1 to 100,000 candidates",
            });
        }
        if !manifest.normalised {
            return Err(MemoryError::BadOption {
                option: "the memory",
                found: "made with --no-normalize".to_owned(),
                expected: "of keys of unit length for a graph; search it exactly",
            });
        }
        let (rows, distance) = (segment.rows, UnitDistance);
        let graph = Hnsw::new(self.connections, rows, LAYERS, self.ef_construction, distance);
        let keys = segment.keys(0..rows)?;
        let mut copies = Copies::default();
        for (row, key) in keys.chunks(manifest.width).enumerate() {
            if copies.is_new(
                row as u32,
                |other| keys[other * manifest.width..].starts_with(key),
                key,
            ) {
                graph.insert((key, row));
            }
            progress();
        }
        Ok(GraphLists::of(&graph, rows, &copies))
    }
}

/// Rows whose key an earlier row has too. In a graph they would be neighbours of each other alone, and cut it into
/// pieces: they are neighbours of that row instead, and of nothing else.
#[derive(Default)]
struct Copies {
    /// Rows with different keys, by a hash of the key.
    of_hash: HashMap<u64, Vec<u32>>,
    /// The row of each copy, and the first row with its key.
    of: Vec<(u32, u32)>,
}

impl Copies {
    /// Takes a row in; whether its key is new. `same` compares it with the key of another row.
    fn is_new(&mut self, row: u32, same: impl Fn(usize) -> bool, key: &[f32]) -> bool {
        let mut hasher = DefaultHasher::new();
        // Adding zero turns -0 into 0, which is the same number.
        key.iter().for_each(|number| (number + 0.0).to_bits().hash(&mut hasher));
        let alike = self.of_hash.entry(hasher.finish()).or_default();
        match alike.iter().find(|first| same(**first as usize)) {
            Some(first) => {
                self.of.push((row, *first));
                false
            }
            None => {
                alike.push(row);
                true
            }
        }
    }
}

impl GraphLists {
    fn of(graph: &Hnsw<'_, f32, UnitDistance>, rows: usize, copies: &Copies) -> Self {
        // Of each row, by layer, the rows of its neighbours.
        let mut of_row: Vec<Vec<Vec<u32>>> = vec![Vec::new(); rows];
        for point in graph.get_point_indexation() {
            let mut layers = point.get_neighborhood_id();
            layers.truncate(usize::from(point.get_point_id().0) + 1);
            let rows_of = |layer: Vec<hnsw_rs::prelude::Neighbour>| {
                layer.into_iter().map(|neighbour| neighbour.d_id as u32).collect()
            };
            of_row[point.get_origin_id()] = layers.into_iter().map(rows_of).collect();
        }
        for (copy, first) in &copies.of {
            of_row[*copy as usize] = vec![vec![*first]];
            match of_row[*first as usize].first_mut() {
                Some(neighbours) => neighbours.push(*copy),
                None => of_row[*first as usize].push(vec![*copy]),
            }
        }
        let highest = of_row.iter().map(Vec::len).max().unwrap_or(0);
        // Of each layer the rows in it, in order, and the number of its first node.
        let mut layers: Vec<(Vec<u32>, usize)> = Vec::new();
        let mut nodes = 0;
        for layer in 0..highest {
            let in_layer = |row: &u32| layer == 0 || of_row[*row as usize].len() > layer;
            let members: Vec<u32> = (0..rows as u32).filter(in_layer).collect();
            let first = nodes;
            nodes += members.len();
            layers.push((members, first));
        }
        let node = |layer: usize, row: u32| -> Option<u32> {
            let (members, first) = &layers[layer];
            members.binary_search(&row).ok().map(|at| (first + at) as u32)
        };
        let entry = layers.last().map_or(0, |(_, first)| *first as u32);
        let (mut offsets, mut neighbours, mut upper) = (vec![0], Vec::new(), Vec::new());
        for (layer, (members, _)) in layers.iter().enumerate() {
            for row in members {
                let of_row = of_row[*row as usize].get(layer).into_iter().flatten();
                neighbours.extend(of_row.filter_map(|row| node(layer, *row)));
                offsets.push(neighbours.len() as u64);
                if layer > 0 {
                    upper.extend([*row, node(layer - 1, *row).unwrap_or(*row)]);
                }
            }
        }
        Self { offsets, neighbours, upper, entry }
    }

    /// Writes the graph of segment `number` into the folder of the generation `name`.
    pub(crate) fn write(
        &self,
        name: &str,
        folder: &Path,
        number: usize,
        settings: GraphSettings,
    ) -> Result<GraphRecord, MemoryError> {
        fn tensor<T: Number>(
            folder: &Path,
            (name, number): (&str, usize),
            numbers: &[T],
            shape: &[usize],
        ) -> Result<FileRecord, MemoryError> {
            let path = folder.join(format!("graph-{number}-{name}.safetensors"));
            let mut writer = TensorWriter::create(path, name, shape)?;
            writer.write(numbers)?;
            writer.finish()
        }
        let Self { offsets, neighbours, upper, entry } = self;
        Ok(GraphRecord {
            folder: name.to_owned(),
            connections: settings.connections,
            ef_construction: settings.ef_construction,
            nodes: offsets.len() - 1,
            edges: neighbours.len(),
            entry: *entry,
            offsets: tensor(folder, ("offsets", number), offsets, &[offsets.len()])?,
            neighbours: tensor(folder, ("neighbours", number), neighbours, &[neighbours.len()])?,
            upper: tensor(folder, ("upper", number), upper, &[upper.len() / 2, 2])?,
        })
    }
}

/// A graph, mapped.
#[derive(Debug)]
pub(crate) struct Graph {
    rows: usize,
    edges: usize,
    entry: u32,
    offsets: MappedTensor<u64>,
    neighbours: MappedTensor<u32>,
    upper: MappedTensor<u32>,
    upper_nodes: usize,
    is_checked: AtomicBool,
}

/// A row with its score; of equal scores the lower row is the better one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scored {
    pub(crate) score: f32,
    pub(crate) row: u32,
}

impl Eq for Scored {}

impl PartialOrd for Scored {
    fn partial_cmp(&self, other: &Self) -> Option<cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scored {
    fn cmp(&self, other: &Self) -> cmp::Ordering {
        self.score.total_cmp(&other.score).then(other.row.cmp(&self.row))
    }
}

impl Graph {
    pub(crate) fn open(
        memory: &Path,
        record: &GraphRecord,
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

    /// Fails unless every number in its files leads to a node of the right layer; looks at them once.
    pub(crate) fn check(&self) -> Result<(), MemoryError> {
        if !self.is_checked.load(Ordering::Acquire) {
            self.check_lists()?;
            self.is_checked.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Reads every file against its checksums.
    pub(crate) fn verify(&self) -> [Result<(), MemoryError>; 3] {
        [self.offsets.verify(), self.neighbours.verify(), self.upper.verify()]
    }

    /// The rows with the largest products with `query`, at most `count` of those that `visible` lets through, in no
    /// order; nearly the best ones.
    ///
    /// The walk also passes through rows that may not be found.
    pub(crate) fn search(
        &self,
        segment: &Segment,
        query: &[f32],
        count: usize,
        visible: impl Fn(usize) -> bool,
    ) -> Result<Vec<Scored>, MemoryError> {
        let key = |row: u32| segment.keys(row as usize..row as usize + 1);
        let score = |row: u32| -> Result<Scored, MemoryError> {
            Ok(Scored { score: quick_dot(query, key(row)?), row })
        };
        let start = score(self.descend(&score)?)?;
        let mut seen = Bits::zeros(self.rows);
        seen.set(start.row as usize);
        let (mut open, mut best) = (BinaryHeap::from([start]), BinaryHeap::new());
        let (mut fresh, mut count) = (Vec::new(), count);
        if visible(start.row as usize) {
            best.push(Reverse(start));
        }
        while let Some(node) = open.pop() {
            if best.len() >= count && best.peek().is_some_and(|Reverse(worst)| node < *worst) {
                break;
            }
            fresh.clear();
            for row in self.neighbours(node.row)? {
                if (*row as usize) < self.rows && !seen.get(*row as usize) {
                    seen.set(*row as usize);
                    fresh.push(*row);
                }
            }
            for (at, row) in fresh.iter().enumerate() {
                if let Some(later) = fresh.get(at + AHEAD) {
                    prefetch(key(*later)?);
                }
                let next = score(*row)?;
                if best.len() >= count && best.peek().is_some_and(|Reverse(worst)| next < *worst) {
                    continue;
                }
                open.push(next);
                if visible(*row as usize) {
                    best.push(Reverse(next));
                    // A copy of the key takes no other key's place.
                    count += usize::from(next.score == node.score);
                    if best.len() > count {
                        best.pop();
                    }
                }
            }
        }
        Ok(best.into_iter().map(|Reverse(scored)| scored).collect())
    }

    /// The row of layer 0 that going from neighbour to better neighbour leads to, layer by layer.
    fn descend(
        &self,
        score: &impl Fn(u32) -> Result<Scored, MemoryError>,
    ) -> Result<u32, MemoryError> {
        let mut node = self.entry;
        while let Some([row, mut below]) = self.upper(node)? {
            let (mut best, mut at) = (score(row)?, node);
            loop {
                let from = at;
                for neighbour in self.neighbours(from)? {
                    let Some([row, its_below]) = self.upper(*neighbour)? else { continue };
                    let next = score(row)?;
                    if next > best {
                        (best, at, below) = (next, *neighbour, its_below);
                    }
                }
                if at == from {
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

    /// The row of a node above layer 0, and its node in the layer below; `None` in layer 0.
    fn upper(&self, node: u32) -> Result<Option<[u32; 2]>, MemoryError> {
        let Some(at) = (node as usize).checked_sub(self.rows) else { return Ok(None) };
        Ok(self.upper.read(at..at + 1)?.try_into().ok())
    }

    fn neighbours(&self, node: u32) -> Result<&[u32], MemoryError> {
        let ends = self.offsets.read(node as usize..node as usize + 2)?;
        if ends[0] > ends[1] || ends[1] > self.edges as u64 {
            return Err(self.offsets.corrupt(format!("has no neighbours for node {node}")));
        }
        self.neighbours.read(ends[0] as usize..ends[1] as usize)
    }
}
