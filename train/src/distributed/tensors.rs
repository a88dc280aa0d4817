//! The sum over ranks of gradients on GPUs. Values are added in the same order as on the CPU, so
//! the sum has the same bits for any number of ranks.
//!
//! All values of a parameter are exchanged, also if most are zero.

use candle_core::{Device, Tensor};
use engram_models::gradients::{GradientSet, Gradients};

use super::Ranks;
use super::reduction::{BUCKET, Slice};
use super::tree::{Node, nodes, share, sum_in_order};
use crate::error::{Result, TrainError};

/// Adds the sums of all ranks and stores the result in `gradients`, on every rank. `sums` has the
/// nodes of this rank. `flags` marks the parameters with a gradient, for each node of all ranks.
pub(super) fn reduce(
    ranks: &Ranks,
    count: usize,
    sums: &[(Node, GradientSet)],
    flags: &[&Vec<bool>],
    gradients: &mut Gradients,
) -> Result<()> {
    let has_gradient = |parameter: usize| flags.iter().any(|flags| flags[parameter]);
    let length = |parameter| match gradients.place_on_gpu(parameter) {
        Some((shape, _)) if has_gradient(parameter) => shape.elem_count(),
        _ => 0,
    };
    let lengths: Vec<usize> = (0..gradients.len()).map(length).collect();
    let first = lengths.iter().position(|length| *length > 0);
    let Some((_, device)) = first.and_then(|parameter| gradients.place_on_gpu(parameter)) else {
        return Ok(());
    };
    let device = device.clone();
    let reduction = Reduction { ranks, count, flags, sums: flat(sums, lengths.len())?, device };
    let mut parts: Vec<Vec<Tensor>> = lengths.iter().map(|_| Vec::new()).collect();
    let total: usize = lengths.iter().sum();
    for start in (0..total).step_by(BUCKET) {
        let bucket = start..(start + BUCKET).min(total);
        let slices = Slice::of_ranks(&lengths, &bucket, ranks.size());
        let sum = reduction.sum_of_slice(&slices)?;
        let sums = reduction.distribute(&slices, sum)?;
        for (slice, sum) in slices.iter().zip(sums) {
            let mut rest = Unread::new(sum);
            for segment in &slice.0 {
                parts[segment.parameter].push(rest.next(segment.values.len())?);
            }
        }
    }
    for (parameter, parts) in parts.iter().enumerate() {
        let Some((shape, _)) = gradients.place_on_gpu(parameter) else { continue };
        if let Some(values) = joined(parts)? {
            let gradient = values.reshape(shape).map_err(failed)?;
            gradients.set_on_gpu(parameter, gradient);
        }
    }
    Ok(())
}

/// The gradients of each sum, as vectors.
fn flat(sums: &[(Node, GradientSet)], parameters: usize) -> Result<Vec<Vec<Option<Tensor>>>> {
    let flat = |(_, set): &(Node, GradientSet)| {
        let gradient = |parameter| set.on_gpu(parameter).map(Tensor::flatten_all).transpose();
        (0..parameters).map(gradient).collect::<candle_core::Result<_>>().map_err(failed)
    };
    sums.iter().map(flat).collect()
}

struct Reduction<'a> {
    ranks: &'a Ranks,
    /// The number of micro-batches of the step, over all ranks.
    count: usize,
    /// For each node of all ranks, which parameters have a gradient.
    flags: &'a [&'a Vec<bool>],
    /// For each node of this rank, the gradients of the parameters.
    sums: Vec<Vec<Option<Tensor>>>,
    device: Device,
}

impl Reduction<'_> {
    /// The nodes of all ranks, in order, each with the rank that has summed it.
    fn nodes(&self) -> Vec<(usize, Node)> {
        let size = self.ranks.size();
        let of_rank = |rank| nodes(self.count, &share(self.count, size, rank));
        (0..size).flat_map(|rank| of_rank(rank).into_iter().map(move |node| (rank, node))).collect()
    }

    /// Sends the slices of this rank's sums to their owners. Adds all ranks' sums of this rank's
    /// slice, in the order of the tree.
    fn sum_of_slice(&self, slices: &[Slice]) -> Result<Option<Tensor>> {
        let (own, size) = (self.ranks.rank(), self.ranks.size());
        let own_slice = &slices[own];
        let mut send = vec![None; size];
        for (rank, slice) in slices.iter().enumerate().filter(|(rank, _)| *rank != own) {
            send[rank] = joined(&self.pieces(slice)?)?;
        }
        let nodes = self.nodes();
        let mut lengths = vec![0; size];
        for ((rank, _), flags) in nodes.iter().zip(self.flags).filter(|((rank, _), _)| *rank != own)
        {
            let sent = own_slice.0.iter().filter(|segment| flags[segment.parameter]);
            lengths[*rank] += sent.map(|segment| segment.values.len()).sum::<usize>();
        }
        let received = self.ranks.exchange_tensors(&send, &lengths, &self.device)?;
        let mut unread: Vec<Unread> = received.into_iter().map(Unread::new).collect();
        unread[own] = Unread::new(joined(&self.pieces(own_slice)?)?);
        // For each segment, the terms of all nodes.
        let mut terms: Vec<Vec<Option<Tensor>>> = own_slice.0.iter().map(|_| Vec::new()).collect();
        for ((rank, _), flags) in nodes.iter().zip(self.flags) {
            for (segment, terms) in own_slice.0.iter().zip(&mut terms) {
                let has_gradient = flags[segment.parameter];
                let mut next = || unread[*rank].next(segment.values.len());
                terms.push(if has_gradient { Some(next()?) } else { None });
            }
        }
        let mut sums = Vec::with_capacity(terms.len());
        for terms in terms {
            let terms = nodes.iter().map(|(_, node)| node.clone()).zip(terms);
            let sum = sum_in_order(self.count, terms, |left: Tensor, right| left + right);
            // A segment has a gradient in one of the nodes.
            sums.extend(sum.map_err(failed)?);
        }
        joined(&sums)
    }

    /// The values of a slice in the sums of this rank, one sum after the other.
    fn pieces(&self, slice: &Slice) -> Result<Vec<Tensor>> {
        let mut pieces = Vec::new();
        for sum in &self.sums {
            for segment in &slice.0 {
                if let Some(values) = &sum[segment.parameter] {
                    let (start, length) = (segment.values.start, segment.values.len());
                    pieces.push(values.narrow(0, start, length).map_err(failed)?);
                }
            }
        }
        Ok(pieces)
    }

    /// Sends the sum of this rank's slice to all ranks. Returns the sums of all slices.
    fn distribute(&self, slices: &[Slice], sum: Option<Tensor>) -> Result<Vec<Option<Tensor>>> {
        let own = self.ranks.rank();
        let to = |rank| if rank == own { None } else { sum.clone() };
        let send: Vec<Option<Tensor>> = (0..slices.len()).map(to).collect();
        let length = |(rank, slice): (usize, &Slice)| if rank == own { 0 } else { slice.length() };
        let lengths: Vec<usize> = slices.iter().enumerate().map(length).collect();
        let mut sums = self.ranks.exchange_tensors(&send, &lengths, &self.device)?;
        sums[own] = sum;
        Ok(sums)
    }
}

/// The part of a vector that is not read yet.
struct Unread {
    values: Option<Tensor>,
    position: usize,
}

impl Unread {
    fn new(values: Option<Tensor>) -> Self {
        Self { values, position: 0 }
    }

    /// The next `length` values.
    fn next(&mut self, length: usize) -> Result<Tensor> {
        let start = self.position;
        self.position += length;
        let Some(values) = &self.values else {
            return Err(super::failed("a rank sent too few values".into()));
        };
        values.narrow(0, start, length).map_err(failed)
    }
}

/// One vector of several.
fn joined(parts: &[Tensor]) -> Result<Option<Tensor>> {
    match parts {
        [] => Ok(None),
        [only] => Ok(Some(only.clone())),
        parts => Tensor::cat(parts, 0).map(Some).map_err(failed),
    }
}

fn failed(error: candle_core::Error) -> TrainError {
    TrainError::Model(error.into())
}
