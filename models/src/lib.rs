//! Engram models.
