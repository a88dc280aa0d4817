//! The tests of the trainer and its studies, in one program.

#![allow(clippy::unwrap_used)]

mod avformer;
mod clip;
mod distributed;
mod embedding_tables;
#[path = "../../tests/equal_runs/mod.rs"]
mod equal_runs;
mod files;
mod negatives;
mod new_study;
mod optimisers;
mod recipe;
mod reduction;
mod resume;
mod reveal;
mod reveal_files;
mod reveal_published;
mod reveal_things;
mod reveal_values;
mod runs;
mod safeguards;
mod sharded_memory;
mod speech;
mod threads;
mod toy;
