//! The studies, one module each: what they feed, what they train, how they are judged.

pub mod avformer;
pub mod clip;
pub mod patent;
pub mod reveal;
pub mod speech;
