//! The command as a user runs it.
#![allow(clippy::unwrap_used)]

#[path = "../equal_runs/mod.rs"]
mod equal_runs;
mod explorer;
#[cfg(feature = "postgres")]
mod postgres_server;
mod running;
mod tiny_models;

mod avformer;
mod compute;
mod documents;
mod encoder;
mod entries;
mod explore;
mod explore_attacks;
mod explore_examples;
mod html_page;
mod intervals;
mod log;
mod low_rank;
mod memory;
mod memory_inputs;
mod memory_models;
mod memory_retrieval;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "objects")]
mod objects;
#[cfg(feature = "objects")]
mod objects_reveal;
mod outputs;
mod own_data;
mod phrases;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod postgres_reveal;
mod recipe;
mod reproduce;
mod reveal;
mod reveal_files;
mod speech;
mod speech_data;
mod stop;
mod text;
mod wer;
mod world;
