//! Work on blocks of rows. The blocks are the same for any number of threads.

use std::mem::MaybeUninit;

use rayon::prelude::*;

/// Rows in one block. Partial sums over blocks are added in block order.
pub(crate) const ROWS: usize = 64;

/// Elements in one block of an element-wise kernel.
pub(crate) const ELEMENTS: usize = 1 << 14;

/// Returns `count` values that `fill` computes in blocks of `block` values, in parallel. `fill`
/// gets the number of the block, and the block with zeros.
pub(crate) fn new_values(
    count: usize,
    block: usize,
    fill: impl Fn(usize, &mut [f32]) + Sync,
) -> Vec<f32> {
    let mut values = Vec::with_capacity(count);
    let blocks = values.spare_capacity_mut()[..count].par_chunks_mut(block.max(1));
    blocks.enumerate().for_each(|(index, block)| {
        block.fill(MaybeUninit::new(0.0));
        // SAFETY: the line above initialises the block.
        fill(index, unsafe { block.assume_init_mut() });
    });
    // SAFETY: the blocks cover all values.
    unsafe { values.set_len(count) };
    values
}

/// Returns zeros, written in parallel.
pub(crate) fn zeros(count: usize) -> Vec<f32> {
    if count <= ELEMENTS { vec![0.0; count] } else { new_values(count, ELEMENTS, |_, _| ()) }
}

/// Adds the sum over rows of `[rows, columns]` values to `sums`. Rows are `stride` elements apart.
pub(crate) fn add_column_sums(values: &[f32], columns: usize, stride: usize, sums: &mut [f32]) {
    let partial: Vec<Vec<f32>> = values
        .par_chunks(ROWS * stride.max(1))
        .map(|block| {
            let mut sums = vec![0.0; columns];
            block_sums(block, stride, &mut sums);
            sums
        })
        .collect();
    for partial in &partial {
        add(partial, sums);
    }
}

vectorised! {
    /// Adds `values` to `sums`, element by element.
    pub(crate) fn add(values: &[f32], sums: &mut [f32]) {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += value;
        }
    }
}

vectorised! {
    /// Adds the rows of a block to `sums`. Rows are `stride` elements apart.
    fn block_sums(block: &[f32], stride: usize, sums: &mut [f32]) {
        for row in block.chunks(stride) {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += value;
            }
        }
    }
}
