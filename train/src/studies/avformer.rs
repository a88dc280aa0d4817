//! AVFormer: adapters and visual tokens for a frozen ASR model, trained with a curriculum.
//!
//! | part | module |
//! |---|---|
//! | recipe settings, and the feed of each curriculum phase | [`settings`] |
//! | clips with audio, text and frames, from the embedded world or from files | [`corpus`] |
//! | image embeddings, computed once and shared between runs | [`gallery`], `embedding_store` |
//! | files of the cache that runs share | `cache` |
//! | clips of a manifest | `manifest` |
//! | transcription, and audio embeddings computed once per clip | `transcription` |
//! | clean speech for rehearsal | `rehearsal` |
//! | the [`Study`](crate::study::Study) implementation | [`study`] |
//! | transcripts of the frozen ASR model, cached between runs | `frozen_texts` |
//! | the test: the frozen model, and adapters with right, wrong and no frames | [`evaluate`] |
//! | training and testing one run | [`run`] |
//! | the ablation grid | [`ablations`] |
//! | the time saved by computing frozen parts once | [`timing`] |

pub mod ablations;
mod cache;
pub mod corpus;
mod embedding_store;
pub mod evaluate;
mod frozen_texts;
pub mod gallery;
mod manifest;
mod rehearsal;
pub mod run;
pub mod settings;
pub mod study;
pub mod timing;
mod transcription;
