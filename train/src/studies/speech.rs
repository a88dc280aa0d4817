//! A Conformer ASR model: pre-training on audio alone (BEST-RQ), then training on texts (CTC).
//!
//! | part | module |
//! |---|---|
//! | recipe settings | [`settings`] |
//! | audio with texts, from the embedded world or from files | [`corpus`] |
//! | the encoder with both heads | [`model`] |
//! | the [`Study`](crate::study::Study) implementation | [`study`] |
//! | training and testing one run | [`run`] |

pub mod corpus;
pub mod model;
pub mod run;
pub mod settings;
pub mod study;
