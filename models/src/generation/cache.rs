//! The key-value cache of a decoder, updated in place.
//!
//! Each sequence has a slot: a span of rows that is filled from its start. All slots grow together.
//! Unused slots are skipped.

use std::sync::Arc;

use candle_core::{CpuStorage, DType, Device, InplaceOp2, Layout, Tensor};

use crate::error::Result;
use crate::kernels::{Segments, Span};

/// The initial capacity of a slot, in rows.
const INITIAL_CAPACITY: usize = 16;

/// The keys and values of all layers.
pub(crate) struct KeyValueCache {
    pub layers: Vec<LayerCache>,
    slots: usize,
    /// The capacity of each slot, in rows.
    capacity: usize,
    /// The number of rows in each slot.
    pub length: usize,
}

/// The keys and values of one layer.
pub(crate) struct LayerCache {
    /// `[slots * capacity, W]`, where `W` is the width of a row.
    pub keys: Tensor,
    /// The same shape as the keys.
    pub values: Tensor,
}

/// The cache rows of one decoding step.
pub(crate) struct Step {
    /// The cache row of each new row.
    rows: Vec<usize>,
    /// The segments: each new row attends to its slot, including itself.
    pub segments: Segments,
}

impl KeyValueCache {
    /// Creates a cache for `slots` sequences with rows of `width` in each of `layers`.
    pub fn new(
        layers: usize,
        slots: usize,
        width: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let zeros = || Tensor::zeros((slots * INITIAL_CAPACITY, width), dtype, device);
        let layer = |_| Ok(LayerCache { keys: zeros()?, values: zeros()? });
        let layers = (0..layers).map(layer).collect::<Result<_>>()?;
        Ok(Self { layers, slots, capacity: INITIAL_CAPACITY, length: 0 })
    }

    /// Reserves one more row in each of these slots, which must be in ascending order.
    pub fn next(&mut self, slots: &[usize]) -> Result<Step> {
        if self.length == self.capacity {
            self.grow()?;
        }
        self.length += 1;
        let start = |slot: &usize| slot * self.capacity;
        let span = |slot| Span { start: start(slot), length: self.length };
        let spans: Arc<[Span]> = slots.iter().map(span).collect();
        let rows = slots.iter().map(|slot| start(slot) + self.length - 1).collect();
        Ok(Step { rows, segments: Segments::to_key_spans(&vec![1; slots.len()], spans) })
    }

    /// Copies the first slot of each pair to the second. A slot must not be both source and target.
    pub fn copy(&self, pairs: &[(usize, usize)]) -> Result<()> {
        let rows = |slots: Vec<usize>| {
            rows_of(slots.into_iter().map(|slot| slot * self.capacity), self.length)
        };
        let from = rows(pairs.iter().map(|pair| pair.0).collect());
        let to = rows(pairs.iter().map(|pair| pair.1).collect());
        for tensor in self.layers.iter().flat_map(|layer| [&layer.keys, &layer.values]) {
            let source = Tensor::from_slice(&from, from.len(), tensor.device())?;
            write_rows(tensor, to.clone(), &tensor.index_select(&source, 0)?)?;
        }
        Ok(())
    }

    /// Doubles the capacity of each slot.
    fn grow(&mut self) -> Result<()> {
        for layer in &mut self.layers {
            for tensor in [&mut layer.keys, &mut layer.values] {
                let slots = tensor.reshape((self.slots, self.capacity, ()))?;
                *tensor = slots.pad_with_zeros(1, 0, self.capacity)?.flatten(0, 1)?.contiguous()?;
            }
        }
        self.capacity *= 2;
        Ok(())
    }
}

impl LayerCache {
    /// Stores the keys and values of a step's rows. `qkv` `[S, 3 W]` holds queries, keys and
    /// values.
    pub fn write(&self, qkv: &Tensor, step: &Step) -> Result<()> {
        let width = self.keys.dim(1)?;
        let rows: Vec<u32> = step.rows.iter().map(|row| *row as u32).collect();
        write_rows(&self.keys, rows.clone(), &qkv.narrow(1, width, width)?)?;
        write_rows(&self.values, rows, &qkv.narrow(1, 2 * width, width)?)
    }
}

/// Returns the indices of `count` consecutive rows for each start.
fn rows_of(starts: impl Iterator<Item = usize>, count: usize) -> Vec<u32> {
    starts.flat_map(|start| start..start + count).map(|row| row as u32).collect()
}

/// Writes `values` `[N, W]` to these rows of `target` `[R, W]`, in place.
fn write_rows(target: &Tensor, rows: Vec<u32>, values: &Tensor) -> Result<()> {
    if target.device().is_cpu() {
        let width = target.dim(1)?;
        return Ok(target.inplace_op2(&values.contiguous()?, &WriteRows { rows, width })?);
    }
    let rows = Tensor::from_vec(rows, (values.dim(0)?, 1), target.device())?;
    let rows = rows.broadcast_as(values.shape())?.contiguous()?;
    Ok(target.scatter_set(&rows, &values.contiguous()?, 0)?)
}

/// Writes rows on the CPU.
struct WriteRows {
    rows: Vec<u32>,
    width: usize,
}

impl WriteRows {
    /// Copies from one matrix to another.
    fn write<T: Copy>(
        &self,
        (to, to_layout): (&mut [T], &Layout),
        (from, from_layout): (&[T], &Layout),
    ) -> candle_core::Result<()> {
        let (to, from) =
            (&mut to[contiguous_range(to_layout)?], &from[contiguous_range(from_layout)?]);
        for (row, values) in self.rows.iter().zip(from.chunks_exact(self.width)) {
            to[*row as usize * self.width..][..self.width].copy_from_slice(values);
        }
        Ok(())
    }
}

/// Returns the range of a contiguous matrix in its storage.
fn contiguous_range(layout: &Layout) -> candle_core::Result<std::ops::Range<usize>> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(start..end),
        None => candle_core::bail!("decoder cache: rows are not contiguous"),
    }
}

impl InplaceOp2 for WriteRows {
    fn name(&self) -> &'static str {
        "write-rows"
    }

    fn cpu_fwd(
        &self,
        to: &mut CpuStorage,
        to_layout: &Layout,
        from: &CpuStorage,
        from_layout: &Layout,
    ) -> candle_core::Result<()> {
        use CpuStorage::{BF16, F16, F32, F64};
        match (to, from) {
            (F32(to), F32(from)) => self.write((to, to_layout), (from, from_layout)),
            (F64(to), F64(from)) => self.write((to, to_layout), (from, from_layout)),
            (F16(to), F16(from)) => self.write((to, to_layout), (from, from_layout)),
            (BF16(to), BF16(from)) => self.write((to, to_layout), (from, from_layout)),
            _ => candle_core::bail!("decoder cache: rows of different or unsupported dtypes"),
        }
    }
}
