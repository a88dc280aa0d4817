//! How far apart two states of a clip are, as sinusoids.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::error::Result;

/// The wavelength of the slowest sinusoid is 2π times this.
const BASE: f64 = 10_000.0;

/// The distances that a batch has.
#[derive(Debug, Clone)]
pub(super) struct Positions {
    /// `[2 n + 1, D]`: from the distance `-n` to `n`, sines and cosines in turns.
    pub(super) table: Tensor,
    /// Each distance's row, in order.
    pub(super) rows: Arc<[u32]>,
}

impl Positions {
    /// Those of clips of up to `longest` states of width `D`.
    pub(super) fn new(
        longest: usize,
        width: usize,
        (dtype, device): (DType, &Device),
    ) -> Result<Self> {
        let farthest = longest.saturating_sub(1) as i64;
        let count = 2 * farthest as usize + 1;
        let row = |distance: i64| {
            (0..width).map(move |channel| {
                let frequency = BASE.powf(-((channel / 2 * 2) as f64) / width as f64);
                let angle = distance as f64 * frequency;
                if channel.is_multiple_of(2) { angle.sin() } else { angle.cos() }
            })
        };
        let values: Vec<f64> = (-farthest..=farthest).flat_map(row).collect();
        let table = Tensor::from_vec(values, (count, width), device)?.to_dtype(dtype)?;
        Ok(Self { table, rows: (0..count as u32).collect() })
    }
}
