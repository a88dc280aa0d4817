//! A recogniser of speech: a Conformer that learns from sound alone (BEST-RQ), then from texts (CTC).
//!
//! | part | module |
//! |---|---|
//! | what a recipe says | [`settings`] |
//! | sound with texts; from the embedded world or from files | [`corpus`] |
//! | the encoder with both heads | [`model`] |
//! | the study as the trainer sees it | [`study`] |
//! | a run | [`run`] |

pub mod corpus;
pub mod model;
pub mod run;
pub mod settings;
pub mod study;
