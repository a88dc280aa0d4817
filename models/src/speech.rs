//! What speech recognisers share.

pub mod best_rq;
pub mod decode;
pub mod log_mel;

use candle_core::Tensor;

/// States of packed clips.
#[derive(Debug, Clone)]
pub struct AudioStates {
    /// `[T, D]`.
    pub states: Tensor,
    /// States of each clip.
    pub lengths: Vec<usize>,
}
