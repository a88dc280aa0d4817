//! The tests of values in object stores that need no process of their own.
#![allow(clippy::unwrap_used)]

mod faults;
mod folder;
#[path = "../store/mod.rs"]
mod store;
#[path = "../../../tests/support/mod.rs"]
mod support;
mod tiers;
