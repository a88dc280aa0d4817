//! Use of trained models without the trainer: transcription, encoding, answering, scoring.
//!
//! | Module | Content |
//! |---|---|
//! | [`asr`] | speech to text: Whisper and Conformer, long recordings, streaming, adapters |
//! | [`encode`] | texts and images as unit vectors |
//! | [`reveal`] | answers to questions about images, with a retrieval memory |
//! | [`similarity`] | scores of phrase pairs |
//! | [`families`] | the families of published models |
//! | [`pretrained`] | the folder of a published model, on disk or on the Hub |
//! | [`finished_run`] | the folder of a finished run: file names and checksums |
//! | [`digest`] | SHA-256 hashes of files |
//!
//! A model's location is a published folder, `hf://owner/name`, or the folder of a finished run.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod asr;
pub mod digest;
pub mod encode;
mod error;
pub mod families;
pub mod finished_run;
pub mod pretrained;
pub mod reveal;
pub mod similarity;
mod stop;

pub use error::{InferError, Result, remedy};
pub use stop::{Hold, Stop, Stopped};
