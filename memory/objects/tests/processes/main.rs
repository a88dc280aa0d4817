//! The tests that start processes. For a moment, a new process has the locks of the memories that
//! other tests of its parent have open, so these tests have a program of their own.
#![allow(clippy::unwrap_used)]

mod killed;
mod s3;
mod server;
#[path = "../store/mod.rs"]
mod store;
#[path = "../../../tests/support/mod.rs"]
mod support;
