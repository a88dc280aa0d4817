//! Validates the files of a graph. Matching checksums show that the files are unchanged, but not
//! that they contain a valid graph.

use std::ops::Range;

use rayon::prelude::*;

use super::LayeredGraph;
use crate::error::MemoryError;

/// The number of nodes that a thread checks at a time.
const NODES_PER_TASK: usize = 1 << 14;

impl LayeredGraph {
    /// Returns an error unless every number refers to a node of the right layer.
    pub(super) fn check_lists(&self) -> Result<(), MemoryError> {
        let layers = self.check_layers()?;
        let nodes = layers.last().map_or(0, |layer| layer.end);
        let offsets = self.offsets.read(0..nodes + 1)?;
        let is_ascending = offsets.windows(2).all(|pair| pair[0] <= pair[1]);
        if offsets[0] != 0 || offsets[nodes] != self.edges as u64 || !is_ascending {
            let reason = format!("does not ascend from 0 to {}", self.edges);
            return Err(self.offsets.corrupt(reason));
        }
        let neighbours = self.neighbours.read(0..self.edges)?;
        for layer in &layers {
            let starts: Vec<usize> = layer.clone().step_by(NODES_PER_TASK).collect();
            starts.into_par_iter().try_for_each(|start| {
                let end = layer.end.min(start + NODES_PER_TASK);
                let edges = offsets[start] as usize..offsets[end] as usize;
                let outside =
                    neighbours[edges].iter().find(|node| !layer.contains(&(**node as usize)));
                outside.map_or(Ok(()), |outside| {
                    let reason = format!(
                        "has the neighbour {outside} at nodes {start} to {end}, outside their \
                         layer of nodes {} to {}",
                        layer.start, layer.end
                    );
                    Err(self.neighbours.corrupt(reason))
                })
            })?;
        }
        match layers.last().filter(|layer| layer.contains(&(self.entry as usize))) {
            Some(_) => Ok(()),
            None => {
                let reason = format!("has no entry node {} in its highest layer", self.entry);
                Err(self.upper.corrupt(reason))
            }
        }
    }

    /// Returns the range of nodes of each layer. Checks that rows ascend within a layer, and that
    /// each row is in all layers below.
    fn check_layers(&self) -> Result<Vec<Range<usize>>, MemoryError> {
        let rows = self.rows;
        let upper = self.upper.read(0..self.upper_nodes)?;
        let row_of = |node: usize| match node.checked_sub(rows) {
            None => node,
            Some(index) => upper[2 * index] as usize,
        };
        let mut layers = Vec::new();
        // The layer below, and the current layer.
        let (mut lower, mut layer) = (0..0, 0..rows);
        for (node, pair) in (rows..).zip(upper.chunks_exact(2)) {
            let (row, below) = (pair[0] as usize, pair[1] as usize);
            // A node that leads into the current layer begins the next layer.
            if layer.contains(&below) {
                layers.push(layer.clone());
                (lower, layer) = (layer.clone(), node..node);
            }
            let ascends = layer.is_empty() || row_of(node - 1) < row;
            if row >= rows || !lower.contains(&below) || row_of(below) != row || !ascends {
                let reason = format!("has invalid row {row} or lower node {below} for node {node}");
                return Err(self.upper.corrupt(reason));
            }
            layer.end = node + 1;
        }
        layers.push(layer);
        Ok(layers)
    }
}
