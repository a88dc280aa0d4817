//! REVEAL (arXiv 2212.05221): answering questions about pictures out of a memory.
//!
//! | part | module |
//! |---|---|
//! | what a recipe says | [`settings`] |
//! | entries, pictures, questions; from the embedded world or from files | [`corpus`] |
//! | published weights to start from; the model's sizes | [`published`], [`sizes`] |
//! | as token sequences | [`sequences`] |
//! | the memory: made, searched, read | [`retriever`] |
//! | the memory of a training run, and its refresh | [`run_memory`] |
//! | pictures made of others, for the picture phase | [`alteration`] |
//! | one forward pass and its losses | [`forward`] |
//! | the study as the trainer sees it | [`study`] |
//! | answers; exact match and recall | [`answers`], [`figures`] |
//! | figures by the rules of COCO, VQA and A-OKVQA | [`judge`] |
//! | which model made a memory | [`identity`] |
//! | removing what a run made | `own_memory` |
//! | facts changed and deleted in the memory | [`swap`] |
//! | the credit of entries for an answer | [`evidence`] |
//! | needles in a haystack | [`needle`] |
//! | answers of a finished run, with evidence | [`predict`] |
//! | a run; asking it again | [`run`]; [`finished`] |
//! | what it brings to a grid of ablations | [`ablations`] |

pub mod ablations;
pub mod alteration;
pub mod answers;
pub mod corpus;
pub mod evidence;
pub mod figures;
pub mod finished;
pub mod forward;
pub mod identity;
pub mod judge;
pub mod needle;
mod own_memory;
pub mod predict;
pub mod published;
pub mod retriever;
pub mod run;
pub mod run_memory;
pub mod sequences;
pub mod settings;
pub mod sizes;
pub mod study;
pub mod swap;
