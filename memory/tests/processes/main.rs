//! The tests that start processes. They have a program of their own, because a new process inherits
//! for a moment the locks of the memories that other tests of its parent have open.
#![allow(clippy::unwrap_used)]

mod codes;
mod descriptors;
#[path = "../support/mod.rs"]
mod support;
