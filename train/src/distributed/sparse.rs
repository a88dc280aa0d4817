//! Sparse gradients, such as those of word embeddings. Ranks exchange only the blocks in which some
//! rank has a value other than +0. The sum has the same bits as if they exchanged all blocks.

use engram_models::gradients::{GradientSet, Gradients};
use rayon::prelude::*;

use super::Ranks;
use super::tree::Node;
use crate::error::Result;

/// Values per block.
const BLOCK: usize = 64;
/// Parameters with fewer values are always exchanged as a whole.
const SMALLEST: usize = 1 << 20;

/// The blocks to exchange.
pub(super) struct Blocks {
    /// For each parameter: the indices of its blocks, in order; `None` to exchange all values.
    of_parameters: Vec<Option<Vec<u32>>>,
}

/// The buffers that [`Blocks::pack`] has replaced.
pub(super) struct Unpacked {
    /// For each packed parameter: its buffers in the sums of micro-batches.
    of_sums: Vec<(usize, Vec<Vec<f32>>)>,
    /// For each packed parameter: its buffer for the result.
    of_results: Vec<(usize, Vec<f32>)>,
}

impl Blocks {
    /// Finds the blocks with a value other than zero in the sums of any rank.
    pub(super) fn find(
        ranks: &Ranks,
        sums: &[(Node, GradientSet)],
        gradients: &mut Gradients,
    ) -> Result<Self> {
        let lengths: Vec<usize> = gradients.values_mut().iter().map(Vec::len).collect();
        let large = || (0..lengths.len()).filter(|parameter| lengths[*parameter] >= SMALLEST);
        let own: Vec<Vec<u8>> = large()
            .map(|parameter| {
                let written = sums.iter().filter(|(_, set)| set.written()[parameter]);
                let buffers: Vec<&[f32]> =
                    written.map(|(_, set)| set.values()[parameter].as_slice()).collect();
                flags(lengths[parameter], &buffers)
            })
            .collect();
        let mut any = own.concat();
        for flags in ranks.gather_bytes(any.clone())? {
            any.iter_mut().zip(flags).for_each(|(any, flags)| *any |= flags);
        }
        let mut of_parameters: Vec<Option<Vec<u32>>> = lengths.iter().map(|_| None).collect();
        let mut rest = any.as_slice();
        for (parameter, flags) in large().zip(&own) {
            let flags = rest.split_off(..flags.len()).unwrap_or_default();
            let count = lengths[parameter].div_ceil(BLOCK);
            let is_set = |block: &u32| flags[*block as usize / 8] >> (block % 8) & 1 == 1;
            let blocks: Vec<u32> = (0..count as u32).filter(is_set).collect();
            // For more than half of the blocks, packing costs more than it saves.
            of_parameters[parameter] = (blocks.len() <= count / 2).then_some(blocks);
        }
        Ok(Self { of_parameters })
    }

    /// Replaces the buffers of parameters by buffers of their blocks.
    pub(super) fn pack(
        &self,
        sums: &mut [(Node, GradientSet)],
        gradients: &mut Gradients,
    ) -> Unpacked {
        let mut unpacked = Unpacked { of_sums: Vec::new(), of_results: Vec::new() };
        for (parameter, blocks) in self.packed() {
            let pack = |(_, set): &mut (Node, GradientSet)| {
                let buffer = &mut set.values_mut()[parameter];
                let packed = blocks.iter().flat_map(|block| &buffer[range(*block, buffer.len())]);
                let packed = packed.copied().collect();
                std::mem::replace(buffer, packed)
            };
            unpacked.of_sums.push((parameter, sums.iter_mut().map(pack).collect()));
            let result = &mut gradients.values_mut()[parameter];
            let length = blocks.iter().map(|block| range(*block, result.len()).len()).sum();
            let result = std::mem::replace(result, vec![0.0; length]);
            unpacked.of_results.push((parameter, result));
        }
        unpacked
    }

    /// Puts the buffers back, and the result into its blocks.
    pub(super) fn unpack(
        &self,
        unpacked: Unpacked,
        sums: &mut [(Node, GradientSet)],
        gradients: &mut Gradients,
    ) {
        for (parameter, buffers) in unpacked.of_sums {
            for ((_, set), buffer) in sums.iter_mut().zip(buffers) {
                set.values_mut()[parameter] = buffer;
            }
        }
        for ((parameter, mut buffer), (_, blocks)) in
            unpacked.of_results.into_iter().zip(self.packed())
        {
            buffer.par_chunks_mut(1 << 16).for_each(|chunk| chunk.fill(0.0));
            let result = &mut gradients.values_mut()[parameter];
            let mut rest = result.as_slice();
            let length = buffer.len();
            for block in blocks {
                let block = &mut buffer[range(*block, length)];
                block.copy_from_slice(rest.split_off(..block.len()).unwrap_or_default());
            }
            *result = buffer;
        }
    }

    /// The packed parameters with their blocks.
    fn packed(&self) -> impl Iterator<Item = (usize, &Vec<u32>)> {
        let blocks = self.of_parameters.iter().enumerate();
        blocks.filter_map(|(parameter, blocks)| Some((parameter, blocks.as_ref()?)))
    }
}

/// The values of a block of a parameter with this number of values.
fn range(block: u32, length: usize) -> std::ops::Range<usize> {
    let start = block as usize * BLOCK;
    start..(start + BLOCK).min(length)
}

/// One bit for each block: whether any of the buffers has a value other than +0 there.
fn flags(length: usize, buffers: &[&[f32]]) -> Vec<u8> {
    let mut flags = vec![0u8; length.div_ceil(8 * BLOCK)];
    flags.par_iter_mut().enumerate().with_min_len(256).for_each(|(byte, flags)| {
        for bit in 0..8 {
            let start = ((8 * byte + bit) * BLOCK).min(length);
            let values = start..(start + BLOCK).min(length);
            let is_zero = |buffer: &&[f32]| {
                buffer[values.clone()].iter().fold(0, |bits, value| bits | value.to_bits()) == 0
            };
            *flags |= u8::from(!buffers.iter().all(is_zero)) << bit;
        }
    });
    flags
}
