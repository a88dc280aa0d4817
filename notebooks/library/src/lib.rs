//! Engram as one shared library for all cells of a notebook.

pub use engram::*;
