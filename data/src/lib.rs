//! Data for the Engram toolkit: data set readers (one file per data set), images, audio and speech,
//! tokenization, folds, downloads from the hub, and the embedded (synthetic) world. This crate does
//! not depend on models, trainers or recipes.
//!
//! | need | module |
//! |---|---|
//! | phrase pairs of the patent study, in the Kaggle or the research schema | [`patent`] |
//! | CPC and IPC class titles for a pair's context | [`titles`] |
//! | pairs that must be on the same side of a split; other targets of an anchor | [`groups`] |
//! | stratified group folds and held-out sets | [`folds`] |
//! | token ids of text segments | [`tokenizer`] |
//! | entries for a memory, from published data sets | [`knowledge`] |
//! | image augmentation; cut-outs pasted on photographs | [`augmentation`], [`composite`] |
//! | audio files as samples; mixing with noise | [`audio`], [`audio::mixing`] |
//! | speech clips from a file, folder, manifest or published data set; transcripts as tokens; SpecAugment | [`speech`] |
//! | images as tensors, following a published `preprocessor_config.json` | [`image`] |
//! | pictures of named things, with spoken names and sounds | [`pictures`] |
//! | published weights, from a local folder or the hub | [`hub`] |
//! | a synthetic phrase set, without download | [`world::phrases`] |
//! | synthetic images, knowledge and questions, without download | [`world`] |
//! | facts as triplets, with prompts about them | [`triplets`] |
//! | word vectors in GloVe or word2vec text format | [`vectors`] |

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod audio;
pub mod augmentation;
pub mod composite;
pub mod error;
pub mod folder;
pub mod folds;
pub mod groups;
mod guard;
pub mod hub;
pub mod image;
pub mod knowledge;
pub mod messages;
pub mod patent;
pub mod pictures;
pub mod speech;
pub mod text_to_text;
pub mod titles;
pub mod tokenizer;
pub mod triplets;
pub mod vectors;
pub mod world;

pub use error::DataError;
