//! The key-value cache of a decoder, updated in place.
//!
//! Each sequence has a slot: a span of rows that is filled from its start. All slots grow together.
//! Unused slots are skipped.

use std::sync::Arc;

use candle_core::{CpuStorage, DType, Device, InplaceOp1, InplaceOp2, Layout, Tensor};

use crate::error::Result;
use crate::kernels::{Segments, Span};

/// The initial capacity of a slot, in rows.
const INITIAL_CAPACITY: usize = 16;

/// The keys and values of all layers.
pub(crate) struct KeyValueCache {
    layers: Vec<LayerCache>,
    slots: usize,
    /// The capacity of each slot, in rows.
    capacity: usize,
    /// The number of rows in each slot.
    length: usize,
}

/// The keys and values of one layer.
pub(crate) struct LayerCache {
    /// `[slots * capacity, W]`.
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

    /// Returns the layers.
    pub fn layers(&self) -> &[LayerCache] {
        &self.layers
    }

    /// Returns the number of rows in each slot.
    pub fn length(&self) -> usize {
        self.length
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
        let start = |slot: usize| slot * self.capacity;
        let spans = pairs.iter().map(|&(from, to)| (start(from), start(to))).collect();
        let copy = CopyRows { spans, count: self.length, column: 0 };
        for tensor in self.layers.iter().flat_map(|layer| [&layer.keys, &layer.values]) {
            tensor.inplace_op1(&copy)?;
        }
        Ok(())
    }

    /// Doubles the capacity of each slot.
    fn grow(&mut self) -> Result<()> {
        let capacity = 2 * self.capacity;
        let spans = (0..self.slots).map(|slot| (slot * self.capacity, slot * capacity)).collect();
        let copy = CopyRows { spans, count: self.length, column: 0 };
        for layer in &mut self.layers {
            for tensor in [&mut layer.keys, &mut layer.values] {
                let shape = (self.slots * capacity, tensor.dim(1)?);
                let larger = Tensor::zeros(shape, tensor.dtype(), tensor.device())?;
                larger.inplace_op2(&*tensor, &copy)?;
                *tensor = larger;
            }
        }
        self.capacity = capacity;
        Ok(())
    }
}

impl LayerCache {
    /// Stores the keys and values of a step's rows. `qkv` `[S, 3 W]` holds queries, keys and
    /// values.
    pub fn write(&self, qkv: &Tensor, step: &Step) -> Result<()> {
        let width = self.keys.dim(1)?;
        let spans: Vec<(usize, usize)> = step.rows.iter().copied().enumerate().collect();
        let keys = CopyRows { spans, count: 1, column: width };
        self.keys.inplace_op2(qkv, &keys)?;
        self.values.inplace_op2(qkv, &CopyRows { column: 2 * width, ..keys })?;
        Ok(())
    }
}

/// Copies spans of `count` rows, from column `column` on, into a narrower matrix.
struct CopyRows {
    /// The first row of each span, in the source and in the target.
    spans: Vec<(usize, usize)>,
    count: usize,
    column: usize,
}

impl CopyRows {
    /// Copies from one matrix to another.
    fn between<T: Copy>(
        &self,
        (to, to_layout): (&mut [T], &Layout),
        (from, from_layout): (&[T], &Layout),
    ) -> candle_core::Result<()> {
        let (to, from) =
            (&mut to[contiguous_range(to_layout)?], &from[contiguous_range(from_layout)?]);
        let ((_, width), (_, stride)) = (to_layout.shape().dims2()?, from_layout.shape().dims2()?);
        for (from_row, to_row) in &self.spans {
            for row in 0..self.count {
                let start = (from_row + row) * stride + self.column;
                let target = &mut to[(to_row + row) * width..][..width];
                target.copy_from_slice(&from[start..start + width]);
            }
        }
        Ok(())
    }

    /// Copies within a matrix.
    fn within<T: Copy>(&self, data: &mut [T], layout: &Layout) -> candle_core::Result<()> {
        let (_, width) = layout.shape().dims2()?;
        let data = &mut data[contiguous_range(layout)?];
        for (from, to) in &self.spans {
            data.copy_within(from * width..(from + self.count) * width, to * width);
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

const UNSUPPORTED_DTYPE: &str = "decoder cache: the dtype is neither f32 nor f64";

impl InplaceOp2 for CopyRows {
    fn name(&self) -> &'static str {
        "copy-rows"
    }

    fn cpu_fwd(
        &self,
        to: &mut CpuStorage,
        to_layout: &Layout,
        from: &CpuStorage,
        from_layout: &Layout,
    ) -> candle_core::Result<()> {
        match (to, from) {
            (CpuStorage::F32(to), CpuStorage::F32(from)) => {
                self.between((to, to_layout), (from, from_layout))
            }
            (CpuStorage::F64(to), CpuStorage::F64(from)) => {
                self.between((to, to_layout), (from, from_layout))
            }
            _ => candle_core::bail!("{UNSUPPORTED_DTYPE}"),
        }
    }
}

impl InplaceOp1 for CopyRows {
    fn name(&self) -> &'static str {
        "copy-slots"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        match storage {
            CpuStorage::F32(data) => self.within(data, layout),
            CpuStorage::F64(data) => self.within(data, layout),
            _ => candle_core::bail!("{UNSUPPORTED_DTYPE}"),
        }
    }
}
