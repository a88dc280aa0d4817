//! Layers: each holds its parameters, under their published names, and applies them with a fused
//! kernel.

mod attention;
mod convolution;
mod linear;
mod low_rank;
mod lstm;
mod norm;

pub use attention::CrossKeyValues;
pub(crate) use attention::Projections;
pub use convolution::Convolution;
pub(crate) use convolution::Pointwise;
pub use linear::Linear;
pub(crate) use linear::LinearWeight;
pub(crate) use low_rank::{Branch, add_product};
pub use low_rank::{LowRank, LowRankPattern, branch_weight, is_branch, merge, up_projection};
pub use lstm::{Lstm, LstmState};
pub use norm::LayerNorm;
