//! Data of the Engram toolkit: readers (one data set, one file), tokens, folds, weights from
//! the hub, and the embedded world. This crate knows no model, no trainer and no recipe.
//!
//! | need | module |
//! |---|---|
//! | phrase pairs of the patent study, Kaggle or research schema | [`patent`] |
//! | class titles behind a pair's context | [`titles`] |
//! | groups that must not be split; other targets of an anchor | [`groups`] |
//! | grouped, stratified folds and hold-outs | [`folds`] |
//! | token ids of text pieces | [`tokenise`] |
//! | what a memory can hold, and readers of published data sets that give it | [`knowledge`] |
//! | other views of a picture | [`augmentation`] |
//! | sound files as samples; noise for them | [`audio`], [`audio::mixing`] |
//! | clips of speech, by file, folder, manifest or published data set; their texts as tokens; masked frames | [`speech`] |
//! | pictures as tensors, by a published `preprocessor_config.json` | [`image`] |
//! | files of published weights, local or from the hub | [`hub`] |
//! | a phrase set that needs no download | [`world::phrases`] |
//! | pictures, knowledge and questions that need no download | [`world`] |
//! | word vectors in GloVe or word2vec text form | [`vectors`] |

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod audio;
pub mod augmentation;
pub mod error;
pub mod folder;
pub mod folds;
pub mod groups;
mod guard;
pub mod hub;
pub mod image;
pub mod knowledge;
pub mod patent;
pub mod speech;
mod table;
pub mod text_to_text;
pub mod titles;
pub mod tokenise;
pub mod vectors;
pub mod world;

pub use error::DataError;
pub use table::read_text;
