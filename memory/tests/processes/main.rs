//! The tests that start processes. For a moment, a new process has the locks of the memories that
//! other tests of its parent have open, so these tests have a program of their own.
#![allow(clippy::unwrap_used)]

mod codes;
mod descriptors;
#[path = "../support/mod.rs"]
mod support;
