//! Builds a Vamana graph on all threads (Subramanya et al., DiskANN, 2019).
//!
//! Rows are inserted in batches, as in ParlayANN (Manohar et al., arXiv 2305.04359). Each row of a
//! batch searches the graph of the earlier batches, and selects its neighbours among the rows that
//! it found. Then each neighbour gets the row as a neighbour, too. The batches and the order of all
//! steps depend only on the keys, so the graph is the same for any number of threads.
//!
//! In a graph of many clusters, a search that starts in one cluster may not find another one. So
//! the graph of the first eighth of the rows is kept as a layer, and of their first eighth, and so
//! on, as in HNSW. A search passes through the layers, from the smallest to the graph of all rows.

use std::cmp::Reverse;

use rayon::prelude::*;

use super::GraphSettings;
use super::beam::{Beam, Neighbours, Scored};
use super::similarity::{Cosines, Similarity};
use super::stored::{LayerLists, Layers, descend};

/// A batch has at most one in this many of all rows.
const MAX_BATCH_DIVISOR: usize = 50;
/// A batch has at most one in this many of the rows inserted so far.
const MAX_GROWTH_DIVISOR: usize = 4;
/// A key is not a neighbour if it is closer to a selected neighbour than to the row, by this factor
/// on squared distances.
const ALPHA: f32 = 1.2;
/// A list is shortened to the maximum number of neighbours when it has this many times as many.
const SLACK: usize = 2;
/// Cosines with this many selected neighbours are computed at once.
const COMPARED_NEIGHBOURS: usize = 8;
/// The seed of the order of insertion.
const SEED: u64 = 0x5DEE_CE66_D1CE_4E5B;

/// A layer has one in this many of the rows of the layer below.
const LAYER_DIVISOR: usize = 8;
/// The smallest number of rows of a layer above the lowest.
const MIN_LAYER_ROWS: usize = 8;

/// The graph of the first rows.
struct Layer {
    nodes: usize,
    /// For each node its row, and its neighbours as in the lowest layer, `[nodes, degree + 2]`. The
    /// neighbours are nodes.
    lists: Vec<u32>,
}

/// Returns the number of rows of each layer above the lowest, smallest first.
fn layer_sizes(rows: usize) -> Vec<usize> {
    let smaller = |rows: &usize| Some(rows / LAYER_DIVISOR).filter(|rows| *rows >= MIN_LAYER_ROWS);
    let mut sizes: Vec<usize> = std::iter::successors(smaller(&rows), smaller).collect();
    sizes.reverse();
    sizes
}

/// Builds the graph of keys. `first_rows` has the first row with each row's key.
pub(super) fn build(
    settings: GraphSettings,
    similarity: &impl Similarity,
    first_rows: &[u32],
    progress: &impl Fn(),
) -> Layers {
    let (rows, positions) = (similarity.rows(), 2 * settings.connections);
    let is_first = |row: &u32| first_rows[*row as usize] == *row;
    let distinct: Vec<u32> = (0..rows as u32).filter(is_first).collect();
    (distinct.len()..rows).for_each(|_| progress());
    // One position is kept for `connect`, which adds a row that no search would reach.
    let (degree, candidates) = (positions - 1, settings.ef_construction);
    let graph = Builder::build(similarity, distinct, degree, candidates, progress);
    let mut neighbours = Vec::with_capacity(rows * positions);
    for (row, first) in (0..).zip(first_rows) {
        let end = neighbours.len() + positions;
        if row == *first {
            neighbours.extend_from_slice(graph.lists.of(row));
        }
        neighbours.resize(end, *first);
    }
    let Builder { start, layers, .. } = graph;
    let nodes = layers.iter().map(|layer| layer.nodes).collect();
    let upper = layers.into_iter().flat_map(|layer| layer.lists).collect();
    Layers { start, neighbours, nodes, upper }
}

/// The lists of neighbours while a graph is built.
struct Lists {
    /// The lists, `[rows, capacity]`.
    flat: Vec<u32>,
    /// The lengths of the lists.
    lengths: Vec<u32>,
    capacity: usize,
}

impl Neighbours for Lists {
    fn of(&self, row: u32) -> &[u32] {
        &self.flat[row as usize * self.capacity..][..self.lengths[row as usize] as usize]
    }
}

impl Lists {
    fn set(&mut self, row: u32, neighbours: &[u32]) {
        self.flat[row as usize * self.capacity..][..neighbours.len()].copy_from_slice(neighbours);
        self.lengths[row as usize] = neighbours.len() as u32;
    }

    fn append(&mut self, row: u32, neighbours: impl Iterator<Item = u32>) {
        for neighbour in neighbours {
            let length = &mut self.lengths[row as usize];
            self.flat[row as usize * self.capacity + *length as usize] = neighbour;
            *length += 1;
        }
    }
}

/// The buffers of a thread.
struct Scratch<Q> {
    beam: Beam,
    query: Q,
    cosines: Cosines,
    candidates: Vec<Scored>,
    selected: Vec<u32>,
}

/// A graph under construction.
struct Builder<'a, S> {
    similarity: &'a S,
    lists: Lists,
    /// The row at which searches start.
    start: u32,
    /// The maximum number of neighbours of a row.
    degree: usize,
    /// The number of rows that a search for neighbours returns.
    candidates: usize,
    /// The graphs of the first rows, largest last.
    layers: Vec<Layer>,
    /// The first rows, in the order of insertion.
    first_rows: Vec<u32>,
}

impl<'a, S: Similarity> Builder<'a, S> {
    /// Builds a graph over at least one row. The keys of `rows` are distinct.
    fn build(
        similarity: &'a S,
        mut rows: Vec<u32>,
        degree: usize,
        candidates: usize,
        progress: &impl Fn(),
    ) -> Self {
        let (all_rows, capacity) = (similarity.rows(), SLACK * degree);
        let lists =
            Lists { flat: vec![0; all_rows * capacity], lengths: vec![0; all_rows], capacity };
        shuffle(&mut rows);
        let (start, layers, first_rows) = (rows[0], Vec::new(), Vec::new());
        let mut builder = Self { similarity, lists, start, degree, candidates, layers, first_rows };
        let sizes = layer_sizes(rows.len());
        progress();
        let mut inserted = 1;
        while inserted < rows.len() {
            let largest = rows.len() / MAX_BATCH_DIVISOR;
            let size = (inserted / MAX_GROWTH_DIVISOR).min(largest).max(1);
            let next_layer = sizes.get(builder.layers.len()).copied().unwrap_or(rows.len());
            let batch = &rows[inserted..next_layer.min(inserted + size)];
            builder.insert(batch);
            batch.iter().for_each(|_| progress());
            inserted += batch.len();
            if sizes.get(builder.layers.len()) == Some(&inserted) {
                builder.add_layer(&rows[..inserted]);
            }
        }
        builder.shorten(&rows);
        builder.connect(&rows);
        builder
    }

    fn scratch(&self) -> Scratch<S::Query> {
        Scratch {
            beam: Beam::default(),
            query: self.similarity.empty_query(),
            cosines: Cosines::default(),
            candidates: Vec::new(),
            selected: Vec::new(),
        }
    }

    fn insert(&mut self, batch: &[u32]) {
        let neighbours: Vec<Vec<u32>> = batch
            .par_iter()
            .map_init(|| self.scratch(), |scratch, row| self.neighbours_of_new(*row, scratch))
            .collect();
        let mut edges: Vec<(u32, u32)> = Vec::new();
        for (row, neighbours) in batch.iter().zip(&neighbours) {
            self.lists.set(*row, neighbours);
            edges.extend(neighbours.iter().map(|neighbour| (*neighbour, *row)));
        }
        edges.par_sort_unstable();
        let mut full: Vec<&[(u32, u32)]> = Vec::new();
        for edges in edges.chunk_by(|a, b| a.0 == b.0) {
            let row = edges[0].0;
            if self.lists.of(row).len() + edges.len() <= self.lists.capacity {
                self.lists.append(row, edges.iter().map(|(_, source)| *source));
            } else {
                full.push(edges);
            }
        }
        let shortened: Vec<Vec<u32>> = full
            .par_iter()
            .map_init(
                || self.scratch(),
                |scratch, edges| {
                    let new: Vec<u32> = edges.iter().map(|(_, source)| *source).collect();
                    self.shortened(edges[0].0, &new, scratch)
                },
            )
            .collect();
        for (edges, neighbours) in full.iter().zip(&shortened) {
            self.lists.set(edges[0].0, neighbours);
        }
    }

    /// Returns the neighbours of a row that is not in the graph yet.
    fn neighbours_of_new(&self, row: u32, scratch: &mut Scratch<S::Query>) -> Vec<u32> {
        self.similarity.set_row(&mut scratch.query, row);
        let found = self.search(&scratch.query, &mut scratch.beam);
        scratch.candidates.clear();
        scratch.candidates.extend(found);
        scratch.candidates.extend(&scratch.beam.expanded);
        self.select(row, scratch)
    }

    /// Returns approximately the best rows of the graph.
    fn search(&self, query: &S::Query, beam: &mut Beam) -> Vec<Scored> {
        let layers = self.layers.iter().map(|layer| LayerLists {
            rows: &self.first_rows[..layer.nodes],
            lists: &layer.lists,
            positions: self.degree + 2,
        });
        let mut starts = descend(self.similarity, query, layers, beam);
        starts.push(self.start);
        beam.search(self.similarity, query, (&starts, &self.lists), self.candidates, |_| true)
    }

    /// Adds the current graph of the inserted rows as a layer.
    fn add_layer(&mut self, rows: &[u32]) {
        self.shorten(rows);
        let mut nodes = vec![0; self.similarity.rows()];
        for (node, row) in (0..).zip(rows) {
            nodes[*row as usize] = node;
        }
        let mut lists = Vec::with_capacity(rows.len() * (self.degree + 2));
        for (node, row) in (0..).zip(rows) {
            let end = lists.len() + self.degree + 2;
            lists.push(*row);
            lists.extend(self.lists.of(*row).iter().map(|row| nodes[*row as usize]));
            lists.resize(end, node);
        }
        self.layers.push(Layer { nodes: rows.len(), lists });
        self.first_rows = rows.to_vec();
    }

    /// Returns the best of the neighbours of a row and of new neighbours.
    fn shortened(&self, row: u32, new: &[u32], scratch: &mut Scratch<S::Query>) -> Vec<u32> {
        let rows = [self.lists.of(row), new].concat();
        self.similarity.set_row(&mut scratch.query, row);
        self.similarity.cosines(&scratch.query, &rows, &mut scratch.cosines);
        scratch.candidates.clear();
        let cosines = scratch.cosines.values.iter();
        scratch.candidates.extend(rows.iter().zip(cosines).map(|(row, c)| Scored::new(*c, *row)));
        self.select(row, scratch)
    }

    /// Selects neighbours of a row among the candidates: the closest candidates, except candidates
    /// that are closer to a selected neighbour.
    fn select(&self, row: u32, scratch: &mut Scratch<S::Query>) -> Vec<u32> {
        let Scratch { query, cosines, candidates, selected, .. } = scratch;
        candidates.sort_unstable_by_key(|scored| Reverse(*scored));
        candidates.dedup();
        selected.clear();
        for candidate in candidates.iter().filter(|candidate| candidate.row() != row) {
            let distance = 1.0 - candidate.cosine();
            self.similarity.set_row(query, candidate.row());
            let is_closer_to_neighbour = selected.chunks(COMPARED_NEIGHBOURS).any(|neighbours| {
                self.similarity.cosines(query, neighbours, cosines);
                cosines.values.iter().any(|cosine| ALPHA * (1.0 - cosine) <= distance)
            });
            if !is_closer_to_neighbour {
                selected.push(candidate.row());
                if selected.len() == self.degree {
                    break;
                }
            }
        }
        selected.clone()
    }

    /// Shortens the lists of rows to the maximum number of neighbours.
    fn shorten(&mut self, rows: &[u32]) {
        let is_long = |row: &u32| self.lists.of(*row).len() > self.degree;
        let long: Vec<u32> = rows.iter().copied().filter(is_long).collect();
        let shortened: Vec<Vec<u32>> = long
            .par_iter()
            .map_init(|| self.scratch(), |scratch, row| self.shortened(*row, &[], scratch))
            .collect();
        for (row, neighbours) in long.iter().zip(&shortened) {
            self.lists.set(*row, neighbours);
        }
    }

    /// Connects rows that a search from the start cannot reach. Each becomes an additional
    /// neighbour of a close row that can be reached, whose list may then exceed the maximum by one.
    fn connect(&mut self, rows: &[u32]) {
        let mut reached = vec![false; self.similarity.rows()];
        self.reach(self.start, &mut reached);
        let mut scratch = self.scratch();
        for row in rows {
            if reached[*row as usize] {
                continue;
            }
            self.similarity.set_row(&mut scratch.query, *row);
            let mut found = self.search(&scratch.query, &mut scratch.beam);
            found.sort_unstable_by_key(|scored| Reverse(*scored));
            let is_open =
                |row: &u32| reached[*row as usize] && self.lists.of(*row).len() <= self.degree;
            let close = found.iter().map(|scored| scored.row()).find(is_open);
            // At first, each reached row has room for one more neighbour, and so has each added
            // row.
            let any = || rows.iter().copied().find(is_open);
            let Some(source) = close.or_else(any) else { break };
            self.lists.append(source, [*row].into_iter());
            self.reach(*row, &mut reached);
        }
    }

    /// Marks the rows that a row leads to.
    fn reach(&self, row: u32, reached: &mut [bool]) {
        let mut waiting = vec![row];
        reached[row as usize] = true;
        while let Some(row) = waiting.pop() {
            for neighbour in self.lists.of(row) {
                if !reached[*neighbour as usize] {
                    reached[*neighbour as usize] = true;
                    waiting.push(*neighbour);
                }
            }
        }
    }
}

/// Permutes rows pseudorandomly, always in the same way.
fn shuffle(rows: &mut [u32]) {
    let mut state = SEED;
    for i in (1..rows.len()).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        rows.swap(i, ((state >> 33) % (i as u64 + 1)) as usize);
    }
}
