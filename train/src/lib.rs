//! Engram train.
