//! The sum of the gradients of a step: over the micro-batches of a rank, and over all ranks.

use std::convert::Infallible;
use std::ops::Range;

use engram_models::gradients::{GradientSet, Gradients};
use rayon::prelude::*;

use super::Ranks;
use super::sparse::Blocks;
use super::tensors;
use super::tree::{Node, are_siblings, nodes, share, sum_in_order};
use crate::error::Result;
use crate::optimiser::BLOCK;

/// Values per bucket (25 MiB). Ranks exchange one bucket at a time, which limits the memory.
pub const BUCKET: usize = 25 << 18;

/// Adds the gradients of a rank's micro-batches in a binary tree, each as soon as its neighbour is
/// finished. `n` micro-batches need at most `log2(n) + 1` further buffers on a single rank (none if
/// `n` is 1), and at most `2 log2(n) + 1` on one of several ranks.
pub struct MicroBatchSum {
    /// The number of micro-batches of the step, over all ranks.
    count: usize,
    /// Finished nodes. The gradients of the newest one are in the trainer's [`Gradients`].
    finished: Vec<(Node, GradientSet)>,
    newest: Option<Node>,
}

impl MicroBatchSum {
    /// An empty sum for a step of `count` micro-batches over all ranks.
    pub fn new(count: usize) -> Self {
        Self { count, finished: Vec::new(), newest: None }
    }

    /// Stores the sums so far, so that `gradients` is empty for the next micro-batch. Call it
    /// before each backward pass. `spare` has unused buffers.
    pub fn make_room(&mut self, gradients: &mut Gradients, spare: &mut Vec<GradientSet>) {
        if let Some(node) = self.newest.take() {
            let mut set = spare.pop().unwrap_or_else(|| gradients.new_set());
            set.clear();
            gradients.swap(&mut set);
            self.finished.push((node, set));
        }
    }

    /// Adds the gradients of a micro-batch, which are in `gradients`, to the sums.
    ///
    /// # Errors
    /// If a GPU fails.
    pub fn add(
        &mut self,
        micro_batch: usize,
        gradients: &mut Gradients,
        spare: &mut Vec<GradientSet>,
    ) -> Result<()> {
        let mut node = micro_batch..micro_batch + 1;
        let count = self.count;
        while let Some((left, set)) =
            self.finished.pop_if(|(left, _)| are_siblings(count, left, &node))
        {
            gradients.add(&set)?;
            spare.push(set);
            node = left.start..node.end;
        }
        self.newest = Some(node);
        Ok(())
    }

    /// For each finished node of this rank and each parameter: whether there is a gradient.
    pub fn written(&self, gradients: &Gradients) -> Vec<Vec<bool>> {
        let finished = self.finished.iter().map(|(_, set)| set.has_gradient());
        finished.chain(self.newest.iter().map(|_| gradients.has_gradient())).collect()
    }

    /// Adds the sums of all ranks and stores the result in `gradients`, on every rank. `written`
    /// holds [`MicroBatchSum::written`] of all ranks.
    ///
    /// Of each bucket, a rank owns a slice. It receives this slice of the other ranks' sums, adds
    /// all sums in the order of the tree, and sends the result to all ranks. Gradients on a GPU are
    /// added there, in the same order.
    ///
    /// # Errors
    /// If a rank has ended, or a GPU fails.
    pub fn reduce(
        mut self,
        ranks: &Ranks,
        written: &[Vec<Vec<bool>>],
        gradients: &mut Gradients,
        spare: &mut Vec<GradientSet>,
    ) -> Result<()> {
        let size = ranks.size();
        if size == 1 {
            return Ok(());
        }
        self.make_room(gradients, spare);
        let flags: Vec<&Vec<bool>> = written.iter().flatten().collect();
        let has_gradient = |i: usize| flags.iter().any(|flags| flags[i]);
        let has_gradient: Vec<bool> = (0..gradients.len()).map(has_gradient).collect();
        tensors::reduce(ranks, self.count, &self.finished, &flags, gradients)?;
        let is_on_cpu = |(i, has): (usize, &bool)| *has && gradients.place_on_gpu(i).is_none();
        let has_gradient: Vec<bool> = has_gradient.iter().enumerate().map(is_on_cpu).collect();
        let blocks = Blocks::find(ranks, &self.finished, gradients)?;
        let unpacked = blocks.pack(&mut self.finished, gradients);
        let buffers = gradients.values_mut().iter().zip(&has_gradient);
        let lengths = buffers.map(|(buffer, sent)| if *sent { buffer.len() } else { 0 });
        let lengths: Vec<usize> = lengths.collect();
        let total: usize = lengths.iter().sum();
        let mut received = Vec::new();
        for start in (0..total).step_by(BUCKET) {
            let bucket = start..(start + BUCKET).min(total);
            let slices = Slice::of_ranks(&lengths, &bucket, size);
            self.collect(ranks, &slices, &mut received)?;
            self.combine(ranks, &slices[ranks.rank()], &flags, &received, gradients);
            distribute(ranks, &slices, gradients)?;
        }
        blocks.unpack(unpacked, &mut self.finished, gradients);
        gradients.set_written(&has_gradient);
        spare.extend(self.finished.into_iter().map(|(_, set)| set));
        Ok(())
    }

    /// The nodes that a rank has summed.
    fn nodes_of(&self, ranks: &Ranks, rank: usize) -> Vec<Node> {
        nodes(self.count, &share(self.count, ranks.size(), rank))
    }

    /// Sends the slices of this rank's sums to their owners. Receives the other ranks' sums of this
    /// rank's slice, one sum after the other, into `received`.
    fn collect(&self, ranks: &Ranks, slices: &[Slice], received: &mut Vec<f32>) -> Result<()> {
        let (own, size) = (ranks.rank(), ranks.size());
        let send = slices.iter().enumerate().map(|(rank, slice)| {
            let sums = self.finished.iter().filter(|_| rank != own);
            sums.flat_map(|(_, set)| slice.of(set.values())).collect()
        });
        let counts =
            (0..size).map(|rank| self.nodes_of(ranks, rank).len() * usize::from(rank != own));
        let counts: Vec<usize> = counts.collect();
        received.resize(slices[own].length() * counts.iter().sum::<usize>(), 0.0);
        let mut rest = received.as_mut_slice();
        let receive = counts.into_iter().map(|count| {
            let segments = (0..count).flat_map(|_| &slices[own].0);
            let parts = segments
                .map(|segment| rest.split_off_mut(..segment.values.len()).unwrap_or_default());
            parts.collect()
        });
        let mut receive: Vec<Vec<&mut [f32]>> = receive.collect();
        ranks.exchange(&send.collect::<Vec<_>>(), &mut receive)
    }

    /// Adds all sums of this rank's slice in the order of the tree, into `gradients`.
    fn combine(
        &self,
        ranks: &Ranks,
        slice: &Slice,
        flags: &[&Vec<bool>],
        received: &[f32],
        gradients: &mut Gradients,
    ) {
        let count = self.count;
        let mut offset = 0;
        for Segment { parameter, values } in &slice.0 {
            let mut foreign = received.chunks(slice.length());
            let mut finished = self.finished.iter();
            let mut terms: Vec<(Node, Option<&[f32]>)> = Vec::new();
            for rank in 0..ranks.size() {
                for node in self.nodes_of(ranks, rank) {
                    let sum = if rank == ranks.rank() {
                        finished.next().map(|(_, set)| &set.values()[*parameter][values.clone()])
                    } else {
                        foreign.next().map(|sum| &sum[offset..offset + values.len()])
                    };
                    let has_gradient = flags[terms.len()][*parameter];
                    terms.push((node, sum.filter(|_| has_gradient)));
                }
            }
            let target = &mut gradients.values_mut()[*parameter][values.clone()];
            target.par_chunks_mut(BLOCK).enumerate().for_each(|(block, target)| {
                let start = block * BLOCK;
                let end = start + target.len();
                let terms =
                    terms.iter().map(|(node, sum)| (node.clone(), sum.map(|sum| &sum[start..end])));
                if let Some(sum) = sum_of_nodes(count, terms) {
                    target.copy_from_slice(&sum);
                }
            });
            offset += values.len();
        }
    }
}

/// Adds sums of nodes in the order of the tree. A sum without a gradient is `None`.
fn sum_of_nodes<'a>(
    count: usize,
    sums: impl Iterator<Item = (Node, Option<&'a [f32]>)>,
) -> Option<Vec<f32>> {
    let sums = sums.map(|(node, sum)| (node, sum.map(<[f32]>::to_vec)));
    let Ok(sum) = sum_in_order(count, sums, |mut left, right| {
        left.iter_mut().zip(&right).for_each(|(left, value)| *left += value);
        Ok::<_, Infallible>(left)
    });
    sum
}

/// Sends each rank's slice of the summed gradients to all other ranks.
fn distribute(ranks: &Ranks, slices: &[Slice], gradients: &mut Gradients) -> Result<()> {
    let own = ranks.rank();
    let mut rest: Vec<(usize, &mut [f32])> =
        gradients.values_mut().iter_mut().map(|buffer| (0, buffer.as_mut_slice())).collect();
    // Slices are in ascending order, so each takes the start of the rest of a buffer.
    let parts = slices.iter().map(|slice| {
        let parts = slice.0.iter().map(|Segment { parameter, values }| {
            let (position, buffer) = &mut rest[*parameter];
            let skipped = values.start - *position;
            *position = values.end;
            let _ = buffer.split_off_mut(..skipped);
            buffer.split_off_mut(..values.len()).unwrap_or_default()
        });
        parts.collect()
    });
    let mut parts: Vec<Vec<&mut [f32]>> = parts.collect();
    let own_parts = std::mem::take(&mut parts[own]);
    let send = (0..ranks.size())
        .map(|rank| own_parts.iter().filter(|_| rank != own).map(|part| &**part).collect());
    ranks.exchange(&send.collect::<Vec<_>>(), &mut parts)
}

/// Consecutive values of one parameter's gradient.
pub(super) struct Segment {
    /// The index among the trainable parameters.
    pub(super) parameter: usize,
    pub(super) values: Range<usize>,
}

/// A range of the list of all gradient values.
pub(super) struct Slice(pub(super) Vec<Segment>);

impl Slice {
    /// The range of a list of buffers with these lengths.
    fn new(lengths: &[usize], range: Range<usize>) -> Self {
        let mut segments = Vec::new();
        let mut start = 0;
        for (parameter, length) in lengths.iter().enumerate() {
            let end = start + length;
            let values = range.start.clamp(start, end) - start..range.end.clamp(start, end) - start;
            if !values.is_empty() {
                segments.push(Segment { parameter, values });
            }
            start = end;
        }
        Self(segments)
    }

    /// The equal slices of a bucket, in rank order.
    pub(super) fn of_ranks(lengths: &[usize], bucket: &Range<usize>, size: usize) -> Vec<Self> {
        let slice = |rank| {
            let slice = share(bucket.len(), size, rank);
            Self::new(lengths, bucket.start + slice.start..bucket.start + slice.end)
        };
        (0..size).map(slice).collect()
    }

    /// The number of values.
    pub(super) fn length(&self) -> usize {
        self.0.iter().map(|segment| segment.values.len()).sum()
    }

    /// The values of the range in these buffers.
    fn of<'a>(&self, buffers: &'a [Vec<f32>]) -> Vec<&'a [f32]> {
        let part = |segment: &Segment| &buffers[segment.parameter][segment.values.clone()];
        self.0.iter().map(part).collect()
    }
}
