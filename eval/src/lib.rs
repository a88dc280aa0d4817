//! Engram eval.
