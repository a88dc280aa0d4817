//! AVFormer: pictures and adapters for a frozen recogniser of speech, learnt in a curriculum.
//!
//! | part | module |
//! |---|---|
//! | what a recipe says, the feeds of the curriculum's phases | [`settings`] |
//! | sound with texts and frames; of the embedded world or from files | [`corpus`] |
//! | each picture encoded once, for other runs too | [`gallery`], `embedding_store` |
//! | the files of what is kept for other runs | `cache` |
//! | clips of a manifest | `manifest` |
//! | what is heard; what is embedded once for each clip | `hearing` |
//! | clean speech that is rehearsed | `rehearsal` |
//! | the study as the trainer sees it | [`study`] |
//! | what the frozen recogniser writes, kept for other runs | `frozen_texts` |
//! | the test: frozen, and with right, wrong and no frames | [`evaluate`] |
//! | a run | [`run`] |
//! | what it brings to a grid of ablations | [`ablations`] |
//! | what is saved by computing frozen parts once | [`timing`] |

pub mod ablations;
mod cache;
pub mod corpus;
mod embedding_store;
pub mod evaluate;
mod frozen_texts;
pub mod gallery;
mod hearing;
mod manifest;
mod rehearsal;
pub mod run;
pub mod settings;
pub mod study;
pub mod timing;
