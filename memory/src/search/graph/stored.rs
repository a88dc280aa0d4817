//! A stored graph: a list of neighbours per row, which leads to close rows in all directions.
//! Smaller graphs of some rows, the layers above, lead a search to the right part of the space.

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
use super::{GraphKind, GraphQuery, GraphSettings, hnsw, vamana};
use crate::error::MemoryError;
use crate::format::manifest::GraphRecord;
use crate::format::tensor::{MappedTensor, write_tensor};
use crate::segment::Segment;

/// The number of nodes of each layer at which the search of the next layer starts.
const LAYER_RESULTS: usize = 16;

/// A graph that a builder made.
pub(super) struct Layers {
    /// The row at which searches start.
    pub(super) start: u32,
    /// The neighbours of each row, `[rows, 2 connections]`. Unused positions have the row itself.
    /// All positions of a copy's list have the first row with the same key.
    pub(super) neighbours: Vec<u32>,
    /// The number of nodes of each layer above the lowest, smallest first.
    pub(super) nodes: Vec<usize>,
    /// The layers above the lowest, `[nodes of all layers, 2 connections + 1]`: for each node its
    /// row, then its neighbours as indices of nodes. Unused positions have the node itself.
    pub(super) upper: Vec<u32>,
}

/// A graph to be written to files.
pub(crate) struct GraphLists {
    layers: Layers,
    /// The codes of the keys; `None` for narrow keys.
    codes: Option<Vec<u8>>,
    settings: GraphSettings,
    rows: usize,
    width: usize,
}

impl GraphLists {
    /// Builds the graph of keys, `[rows, width]`.
    pub(super) fn build(
        settings: GraphSettings,
        keys: &[f32],
        width: usize,
        progress: &impl Fn(),
    ) -> Self {
        let first_rows = first_rows(keys, width);
        let codes = has_codes(width).then(|| encode(keys, width));
        let layers = match (settings.kind, &codes) {
            (GraphKind::Hnsw, _) => hnsw::build(settings, keys, width, &first_rows, progress),
            (GraphKind::Vamana, Some(codes)) => {
                vamana::build(settings, &CodedKeys::new(codes, width), &first_rows, progress)
            }
            (GraphKind::Vamana, None) => {
                vamana::build(settings, &PlainKeys { keys, width }, &first_rows, progress)
            }
        };
        Self { layers, codes, settings, rows: first_rows.len(), width }
    }

    /// Writes the graph of segment `number` to the folder of the generation `name`.
    pub(crate) fn write(
        &self,
        name: &str,
        folder: &Path,
        number: usize,
    ) -> Result<GraphRecord, MemoryError> {
        let Self { layers, codes, settings, rows, width } = self;
        let Layers { start, neighbours, nodes, upper } = layers;
        let positions = 2 * settings.connections;
        let path = |name| folder.join(format!("graph-{number}-{name}.safetensors"));
        Ok(GraphRecord {
            folder: name.to_owned(),
            settings: *settings,
            start: *start,
            neighbours: write_tensor(path("lists"), "lists", &[*rows, positions], neighbours)?,
            nodes: nodes.clone(),
            upper: write_tensor(
                path("upper"),
                "upper",
                &[nodes.iter().sum(), positions + 1],
                upper,
            )?,
            codes: match codes {
                None => None,
                Some(codes) => {
                    Some(write_tensor(path("codes"), "codes", &[*rows, row_bytes(*width)], codes)?)
                }
            },
        })
    }
}

/// A memory-mapped graph.
#[derive(Debug)]
pub(crate) struct Graph {
    rows: usize,
    width: usize,
    /// The row at which searches start.
    start: u32,
    /// The lists, `[rows, 2 connections]`, as in [`Layers`].
    lists: MappedTensor<u32>,
    /// The codes of the keys, `[rows, row_bytes]`; `None` for narrow keys.
    codes: Option<MappedTensor<u8>>,
    /// The number of nodes of each layer above the lowest, smallest first.
    nodes: Vec<usize>,
    /// The layers above the lowest, as in [`Layers`].
    upper: MappedTensor<u32>,
    checked: OnceLock<Checked>,
}

/// The rows of the upper layers and the copies of keys, found while the lists were checked.
#[derive(Debug)]
struct Checked {
    /// The row of each node of the largest layer above the lowest. Smaller layers have its first
    /// nodes.
    upper_rows: Vec<u32>,
    /// Pairs of the first row with a key and a later row with an equal key, sorted.
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
pub(super) struct LayerLists<'a> {
    /// The row of each node.
    pub(super) rows: &'a [u32],
    /// For each node its row, and its neighbours, `[nodes, positions]`.
    pub(super) lists: &'a [u32],
    pub(super) positions: usize,
}

impl Neighbours for LayerLists<'_> {
    fn of(&self, node: u32) -> &[u32] {
        &self.lists[node as usize * self.positions..][1..self.positions]
    }
}

/// Searches layers above the lowest, smallest first. Returns the rows at which the search of the
/// lowest layer starts.
pub(super) fn descend<'a, S: Similarity>(
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

impl Graph {
    /// Opens the graph of a segment with this many rows.
    pub(crate) fn open(
        memory: &Path,
        record: &GraphRecord,
        rows: usize,
        width: usize,
    ) -> Result<Self, MemoryError> {
        let folder = memory.join(&record.folder);
        let positions = 2 * record.settings.connections;
        let lists = MappedTensor::open(&folder, &record.neighbours, "lists", &[rows, positions])?;
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
        let shape = [all_nodes, positions + 1];
        let upper = MappedTensor::open(&folder, &record.upper, "upper", &shape)?;
        let (start, checked) = (record.start, OnceLock::new());
        Ok(Self { rows, width, start, lists, codes, nodes, upper, checked })
    }

    /// Returns an error unless the files contain a valid graph. Checks the files only once.
    pub(crate) fn check(&self) -> Result<(), MemoryError> {
        self.checked().map(|_| ())
    }

    /// Checks that all numbers in the lists are rows and nodes.
    fn checked(&self) -> Result<&Checked, MemoryError> {
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

    /// Checks every file against its checksums. Returns one result per file.
    pub(crate) fn verify(&self) -> Vec<Result<(), MemoryError>> {
        let codes = self.codes.as_ref().map(MappedTensor::verify);
        [self.lists.verify(), self.upper.verify()].into_iter().chain(codes).collect()
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
        let Checked { upper_rows, copies } = self.checked()?;
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
