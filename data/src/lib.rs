//! Engram data.
