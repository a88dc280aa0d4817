//! A Vamana graph: a list of neighbours per row, which leads to close rows in all directions
//! (Subramanya et al., DiskANN, NeurIPS 2019). Smaller graphs of some of the rows, the layers above,
//! lead a search to the right part of the space.

mod build;

use std::path::Path;
use std::sync::OnceLock;

use rayon::prelude::*;

use super::super::top_k::Candidate;
use super::beam::{Beam, Neighbours, Scored};
use super::duplicates::first_rows;
use super::similarity::{
    CodedKeys, CodedQuery, PlainKeys, Similarity, Subset, cosine_error, encode, has_codes,
    row_bytes, single_precision_error,
};
use super::{GraphQuery, GraphSettings, write_tensor};
use crate::error::MemoryError;
use crate::format::manifest::VamanaRecord;
use crate::format::tensor::MappedTensor;
use crate::segment::Segment;
use build::Builder;

/// The number of nodes of each layer at which the search of the next layer starts.
const LAYER_RESULTS: usize = 16;

/// A graph to be written to files.
pub(crate) struct VamanaLists {
    /// The lists, `[rows, degree + 1]`. The unused positions of a list have the number of its own row.
    /// All positions of a copy's list have the first row with the same key.
    neighbours: Vec<u32>,
    degree: usize,
    /// The row at which searches start.
    start: u32,
    /// The number of nodes of each layer above the lowest, smallest first.
    nodes: Vec<usize>,
    /// The layers above the lowest, `[nodes of all layers, degree + 2]`: for each node its row, and
    /// its neighbours, which are nodes of the layer. Unused positions have the node itself.
    upper: Vec<u32>,
    /// The codes of the keys; `None` for narrow keys.
    codes: Option<Vec<u8>>,
    rows: usize,
    width: usize,
}

impl VamanaLists {
    /// Builds the graph of keys, `[rows, width]`.
    pub(super) fn build(
        settings: GraphSettings,
        keys: &[f32],
        width: usize,
        progress: &impl Fn(),
    ) -> Self {
        let first_rows = first_rows(keys, width);
        if has_codes(width) {
            let codes = encode(keys, width);
            let coded = CodedKeys::new(&codes, width);
            let lists = Self::of(settings, &coded, &first_rows, width, progress);
            Self { codes: Some(codes), ..lists }
        } else {
            Self::of(settings, &PlainKeys { keys, width }, &first_rows, width, progress)
        }
    }

    fn of(
        settings: GraphSettings,
        similarity: &impl Similarity,
        first_rows: &[u32],
        width: usize,
        progress: &impl Fn(),
    ) -> Self {
        let (rows, degree) = (similarity.rows(), 2 * settings.connections - 1);
        let is_first = |row: &u32| first_rows[*row as usize] == *row;
        let distinct: Vec<u32> = (0..rows as u32).filter(is_first).collect();
        (distinct.len()..rows).for_each(|_| progress());
        let candidates = settings.ef_construction;
        let graph = Builder::build(similarity, distinct, degree, candidates, progress);
        let mut neighbours = Vec::with_capacity(rows * (degree + 1));
        for (row, first) in (0..).zip(first_rows) {
            let end = neighbours.len() + degree + 1;
            if row == *first {
                neighbours.extend_from_slice(graph.neighbours(row));
            }
            neighbours.resize(end, *first);
        }
        let Builder { start, layers, .. } = graph;
        let nodes = layers.iter().map(|layer| layer.nodes).collect();
        let upper = layers.into_iter().flat_map(|layer| layer.lists).collect();
        Self { neighbours, degree, start, nodes, upper, codes: None, rows, width }
    }

    /// Writes the graph of segment `number` to the folder of the generation `name`.
    pub(super) fn write(
        &self,
        name: &str,
        folder: &Path,
        number: usize,
        settings: GraphSettings,
    ) -> Result<VamanaRecord, MemoryError> {
        let Self { neighbours, degree, start, nodes, upper, codes, rows, width } = self;
        let tensor = |name| (folder, name, number);
        Ok(VamanaRecord {
            folder: name.to_owned(),
            degree: *degree,
            ef_construction: settings.ef_construction,
            start: *start,
            neighbours: write_tensor(tensor("lists"), neighbours, &[*rows, degree + 1])?,
            nodes: nodes.clone(),
            upper: write_tensor(tensor("upper"), upper, &[nodes.iter().sum(), degree + 2])?,
            codes: match codes {
                None => None,
                Some(codes) => {
                    Some(write_tensor(tensor("codes"), codes, &[*rows, row_bytes(*width)])?)
                }
            },
        })
    }
}

/// A memory-mapped graph.
#[derive(Debug)]
pub(crate) struct VamanaGraph {
    rows: usize,
    width: usize,
    /// The row at which searches start.
    start: u32,
    /// The lists, `[rows, degree + 1]`, as in [`VamanaLists`].
    lists: MappedTensor<u32>,
    /// The codes of the keys, `[rows, row_bytes]`; `None` for narrow keys.
    codes: Option<MappedTensor<u8>>,
    /// The number of nodes of each layer above the lowest, smallest first.
    nodes: Vec<usize>,
    /// The layers above the lowest, as in [`VamanaLists`].
    upper: MappedTensor<u32>,
    checked: OnceLock<Checked>,
}

/// Facts about a graph with valid lists.
#[derive(Debug)]
pub(super) struct Checked {
    /// The row of each node of the largest layer above the lowest. Smaller layers have its first
    /// nodes.
    upper_rows: Vec<u32>,
    /// The first row of a key, and a copy. Sorted.
    copies: Vec<(u32, u32)>,
}

/// The lists of a mapped graph.
struct MappedLists<'a> {
    lists: &'a [u32],
    positions: usize,
}

impl Neighbours for MappedLists<'_> {
    fn of(&self, row: u32) -> &[u32] {
        // Unused positions have the row itself, which is visited.
        &self.lists[row as usize * self.positions..][..self.positions]
    }
}

/// A layer above the lowest.
struct LayerLists<'a> {
    /// The row of each node.
    rows: &'a [u32],
    /// For each node its row, and its neighbours, `[nodes, positions]`.
    lists: &'a [u32],
    positions: usize,
}

impl Neighbours for LayerLists<'_> {
    fn of(&self, node: u32) -> &[u32] {
        &self.lists[node as usize * self.positions..][1..self.positions]
    }
}

/// Searches layers above the lowest, smallest first. Returns the rows at which the search of the
/// lowest layer starts.
fn descend<'a, S: Similarity>(
    similarity: &S,
    query: &S::Query,
    layers: impl Iterator<Item = LayerLists<'a>>,
    beam: &mut Beam,
) -> Vec<u32> {
    let (mut nodes, mut rows): (Vec<u32>, &[u32]) = (Vec::new(), &[]);
    for layer in layers {
        rows = layer.rows;
        if nodes.is_empty() {
            nodes.extend(0..rows.len() as u32);
        }
        let subset = Subset { all: similarity, rows };
        let found = beam.search(&subset, query, (&nodes, &layer), LAYER_RESULTS, |_| true);
        nodes = found.into_iter().map(Scored::row).collect();
    }
    nodes.into_iter().map(|node| rows[node as usize]).collect()
}

impl VamanaGraph {
    pub(super) fn open(
        memory: &Path,
        record: &VamanaRecord,
        rows: usize,
        width: usize,
    ) -> Result<Self, MemoryError> {
        let folder = memory.join(&record.folder);
        let lists =
            MappedTensor::open(&folder, &record.neighbours, "lists", &[rows, record.degree + 1])?;
        let codes = match &record.codes {
            Some(codes) if has_codes(width) => {
                Some(MappedTensor::open(&folder, codes, "codes", &[rows, row_bytes(width)])?)
            }
            None if !has_codes(width) => None,
            _ => {
                let reason = format!("has a graph with other codes than for a width of {width}");
                return Err(MemoryError::corrupt(&folder, reason));
            }
        };
        let nodes = record.nodes.clone();
        let all_nodes = nodes.iter().sum();
        let shape = [all_nodes, record.degree + 2];
        let upper = MappedTensor::open(&folder, &record.upper, "upper", &shape)?;
        let (start, checked) = (record.start, OnceLock::new());
        Ok(Self { rows, width, start, lists, codes, nodes, upper, checked })
    }

    /// Returns an error unless all numbers in the lists are rows and nodes. Checks them only once.
    pub(super) fn check(&self) -> Result<&Checked, MemoryError> {
        if let Some(checked) = self.checked.get() {
            return Ok(checked);
        }
        let rows = self.rows as u32;
        let lists = self.lists.read(0..self.rows)?;
        if let Some(outside) = lists.par_iter().find_first(|row| **row >= rows) {
            return Err(self.lists.corrupt(format!("has the neighbour {outside} of {rows} rows")));
        }
        let mut copies = Vec::new();
        for (row, list) in (0..).zip(lists.chunks_exact(self.lists.row_len())) {
            let (first, last) = (list[0], list[list.len() - 1]);
            if first == last && first != row {
                copies.push((first, row));
            }
        }
        copies.par_sort_unstable();
        let upper_rows = self.check_upper()?;
        Ok(self.checked.get_or_init(|| Checked { upper_rows, copies }))
    }

    /// Checks the layers above the lowest. Returns the rows of the largest.
    fn check_upper(&self) -> Result<Vec<u32>, MemoryError> {
        let mut rows: Vec<u32> = Vec::new();
        for (nodes, lists) in self.upper_layers()? {
            let records = lists.chunks_exact(self.upper.row_len());
            let layer_rows: Vec<u32> = records.clone().map(|record| record[0]).collect();
            let is_valid = layer_rows.starts_with(&rows)
                && layer_rows.iter().all(|row| (*row as usize) < self.rows)
                && records.flat_map(|record| &record[1..]).all(|node| (*node as usize) < nodes);
            if !is_valid {
                return Err(self.upper.corrupt(format!("has an invalid layer of {nodes} nodes")));
            }
            rows = layer_rows;
        }
        Ok(rows)
    }

    /// Returns the layers above the lowest, smallest first: the nodes and lists of each.
    fn upper_layers(&self) -> Result<impl Iterator<Item = (usize, &[u32])>, MemoryError> {
        let mut lists = self.upper.read(0..self.nodes.iter().sum())?;
        Ok(self.nodes.iter().map(move |nodes| {
            let (layer, rest) = lists.split_at(nodes * self.upper.row_len());
            lists = rest;
            (*nodes, layer)
        }))
    }

    /// Checks every file against its checksums.
    pub(super) fn verify(&self) -> Vec<Result<(), MemoryError>> {
        let codes = self.codes.as_ref().map(MappedTensor::verify);
        [self.lists.verify(), self.upper.verify()].into_iter().chain(codes).collect()
    }

    /// See [`Graph::search`](super::Graph::search).
    pub(super) fn search(
        &self,
        segment: &Segment,
        query: GraphQuery<'_>,
        count: usize,
        is_visible: impl Fn(usize) -> bool,
        beam: &mut Beam,
    ) -> Result<Vec<Candidate>, MemoryError> {
        let Checked { upper_rows, copies } = self.check()?;
        let copies_of = |row: u32| {
            let start = copies.partition_point(|(first, _)| *first < row);
            copies[start..].iter().take_while(move |(first, _)| *first == row)
        };
        let rows_of = |row: u32| [row].into_iter().chain(copies_of(row).map(|(_, copy)| *copy));
        // A row stands for its copies, too.
        let has_visible = |row: u32| match copies.as_slice() {
            [] => is_visible(row as usize),
            _ => rows_of(row).any(|row| is_visible(row as usize)),
        };
        let lists =
            MappedLists { lists: self.lists.read(0..self.rows)?, positions: self.lists.row_len() };
        let positions = self.upper.row_len();
        let layers = self.upper_layers()?.map(|(nodes, lists)| LayerLists {
            rows: &upper_rows[..nodes],
            lists,
            positions,
        });
        let (found, error): (Vec<Scored>, f32) = match &self.codes {
            Some(codes) => {
                let keys = CodedKeys::new(codes.read(0..self.rows)?, self.width);
                let query = CodedQuery::new(query.codes);
                let mut starts = descend(&keys, &query, layers, beam);
                starts.push(self.start);
                let found = beam.search(&keys, &query, (&starts, &lists), count, has_visible);
                (found, cosine_error(self.width))
            }
            None => {
                let (keys, width) = (segment.keys(0..self.rows)?, self.width);
                let query = query.unit.to_vec();
                let keys = PlainKeys { keys, width };
                let mut starts = descend(&keys, &query, layers, beam);
                starts.push(self.start);
                let found = beam.search(&keys, &query, (&starts, &lists), count, has_visible);
                (found, single_precision_error(width))
            }
        };
        let mut candidates = Vec::with_capacity(found.len());
        for scored in found {
            let visible = rows_of(scored.row()).filter(|row| is_visible(*row as usize));
            let score = scored.cosine();
            candidates.extend(visible.map(|row| Candidate { score, error, row }));
        }
        Ok(candidates)
    }
}
