//! Engram as one library that all cells of a notebook share.

pub use engram::*;
