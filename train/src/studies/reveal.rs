//! REVEAL (arXiv 2212.05221): answering questions about pictures out of a memory.
//!
//! | part | module |
//! |---|---|
//! | what a recipe says | [`settings`] |
//! | entries, pictures, questions | [`corpus`] |
//! | as token sequences | [`sequences`] |
//! | the memory: made, searched, read | [`retriever`] |
//! | the memory of a training run, and its refresh | [`run_memory`] |
//! | one forward pass and its losses | [`forward`] |
//! | the study as the trainer sees it | [`study`] |
//! | answers; exact match and recall | [`answers`], [`figures`] |
//! | facts changed and deleted in the memory | [`swap`] |
//! | the credit of entries for an answer | [`evidence`] |
//! | answers of a finished run, with evidence | [`predict`] |
//! | a run | [`run`] |

pub mod answers;
pub mod corpus;
pub mod evidence;
pub mod figures;
pub mod forward;
pub mod predict;
pub mod retriever;
pub mod run;
pub mod run_memory;
pub mod sequences;
pub mod settings;
pub mod study;
pub mod swap;
