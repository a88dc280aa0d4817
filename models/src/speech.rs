//! What speech recognisers share.

pub mod log_mel;
