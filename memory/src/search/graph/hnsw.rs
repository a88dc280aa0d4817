//! Builds an HNSW graph (Malkov and Yashunin, arXiv 1603.09320) by the crate hnsw_rs, in one
//! thread, so that equal keys give equal graphs.

use std::cmp::Reverse;

use hnsw_rs::hnsw::Hnsw;
use hnsw_rs::prelude::{Distance, Neighbour};

use super::super::products::dot_f32;
use super::GraphSettings;
use super::stored::Layers;

/// The maximum number of layers of a graph, as in hnsw_rs.
const LAYERS: usize = 16;

/// 1 minus the dot product of unit vectors. Negative values, which come from rounding, become 0,
/// because hnsw_rs rejects them.
#[derive(Debug, Clone, Copy, Default)]
struct UnitDistance;

impl Distance<f32> for UnitDistance {
    fn eval(&self, a: &[f32], b: &[f32]) -> f32 {
        (1.0 - dot_f32(a, b)).max(0.0)
    }
}

/// Builds the graph of keys, `[rows, width]`. `first_rows` has the first row with each row's key.
pub(super) fn build(
    settings: GraphSettings,
    keys: &[f32],
    width: usize,
    first_rows: &[u32],
    progress: &impl Fn(),
) -> Layers {
    let (rows, positions) = (first_rows.len(), 2 * settings.connections);
    let GraphSettings { connections, ef_construction, .. } = settings;
    let graph = Hnsw::new(connections, rows, LAYERS, ef_construction, UnitDistance);
    for (row, key) in keys.chunks(width).enumerate() {
        if first_rows[row] as usize == row {
            graph.insert((key, row));
        }
        progress();
    }
    // For each row and layer, the rows of its neighbours.
    let mut lists: Vec<Vec<Vec<u32>>> = vec![Vec::new(); rows];
    for point in graph.get_point_indexation() {
        let mut layers = point.get_neighborhood_id();
        layers.truncate(usize::from(point.get_point_id().0) + 1);
        let rows_of = |layer: Vec<Neighbour>| {
            layer.into_iter().map(|neighbour| neighbour.d_id as u32).collect()
        };
        lists[point.get_origin_id()] = layers.into_iter().map(rows_of).collect();
    }
    let mut neighbours = Vec::with_capacity(rows * positions);
    for (list, first) in lists.iter().zip(first_rows) {
        let end = neighbours.len() + positions;
        neighbours.extend(list.iter().take(1).flatten().take(positions));
        neighbours.resize(end, *first);
    }
    // The rows of higher layers come first, so that each layer has the first nodes of the next.
    let mut upper_rows: Vec<u32> =
        (0..rows as u32).filter(|row| lists[*row as usize].len() > 1).collect();
    upper_rows.sort_by_key(|row| (Reverse(lists[*row as usize].len()), *row));
    let mut node_of = vec![0; rows];
    for (node, row) in (0..).zip(&upper_rows) {
        node_of[*row as usize] = node;
    }
    let highest = upper_rows.first().map_or(0, |row| lists[*row as usize].len() - 1);
    let (mut nodes, mut upper) = (Vec::new(), Vec::new());
    for layer in (1..=highest).rev() {
        let is_in_layer = |row: &u32| lists[*row as usize].len() > layer;
        let layer_rows = upper_rows.iter().take_while(|row| is_in_layer(row));
        nodes.push(layer_rows.clone().count());
        for (node, row) in (0..).zip(layer_rows) {
            let end = upper.len() + positions + 1;
            upper.push(*row);
            let list = lists[*row as usize][layer].iter().filter(|row| is_in_layer(row));
            upper.extend(list.take(positions).map(|row| node_of[*row as usize]));
            upper.resize(end, node);
        }
    }
    let start = upper_rows.first().copied().unwrap_or(first_rows[0]);
    Layers { start, neighbours, nodes, upper }
}
