//! The embedded world: data that is built in code, so that a fresh machine without network
//! runs every study for real.

pub mod phrases;
mod words;
