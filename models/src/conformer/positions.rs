//! Sinusoidal embeddings of relative positions.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::error::Result;

/// All wavelengths of the sinusoids are shorter than 2π times this.
const BASE: f64 = 10_000.0;

/// The relative positions of a batch.
#[derive(Debug, Clone)]
pub(super) struct Positions {
    /// The embeddings `[2 n + 1, D]` of relative positions `-n` to `n`, with alternating sines and
    /// cosines.
    pub(super) table: Tensor,
    /// The table row of each relative position, in order.
    pub(super) rows: Arc<[u32]>,
}

impl Positions {
    /// Creates embeddings for clips of up to `max_length` states of width `D`.
    pub(super) fn new(
        max_length: usize,
        width: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let max_distance = max_length.saturating_sub(1) as i64;
        let count = 2 * max_distance as usize + 1;
        let row = |distance: i64| {
            (0..width).map(move |channel| {
                let frequency = BASE.powf(-((channel / 2 * 2) as f64) / width as f64);
                let angle = distance as f64 * frequency;
                if channel.is_multiple_of(2) { angle.sin() } else { angle.cos() }
            })
        };
        let values: Vec<f64> = (-max_distance..=max_distance).flat_map(row).collect();
        let table = Tensor::from_vec(values, (count, width), device)?.to_dtype(dtype)?;
        Ok(Self { table, rows: (0..count as u32).collect() })
    }
}
