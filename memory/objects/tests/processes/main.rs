//! The tests that start processes. They have a program of their own, because a new process inherits
//! for a moment the locks of the memories that other tests of its parent have open.
#![allow(clippy::unwrap_used)]

mod killed;
mod s3;
mod server;
#[path = "../store/mod.rs"]
mod store;
#[path = "../../../tests/support/mod.rs"]
mod support;
