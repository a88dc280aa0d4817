//! The tests of memories on servers.
#![allow(clippy::unwrap_used)]

mod conformance;
mod encryption;
mod equal_to_local;
mod faults;
mod limits;
mod push;
mod server;
mod several_servers;
#[path = "../../../tests/conformance/mod.rs"]
mod suite;
#[path = "../../../tests/support/mod.rs"]
mod support;
