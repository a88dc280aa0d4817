//! REVEAL (arXiv 2212.05221): answering questions about images with a retrieval memory.
//!
//! | part | module |
//! |---|---|
//! | recipe settings | [`settings`] |
//! | entries, images and questions, from the embedded world or from files | [`corpus`] |
//! | published weights; the model's sizes | [`published`], [`sizes`] |
//! | token sequences | [`sequences`] |
//! | building, searching and reading the memory | [`retriever`] |
//! | the memory of a training run, and its refresh | [`run_memory`] |
//! | image augmentation in the image phase | [`augmentation`] |
//! | one forward pass and its losses | [`forward`] |
//! | the [`Study`](crate::study::Study) implementation | [`study`] |
//! | answers; exact match and recall | [`answers`], [`metrics`] |
//! | metrics of COCO, VQA and A-OKVQA | [`dataset_metrics`] |
//! | which model built a memory | [`identity`] |
//! | safe removal of a run's memories | `memory_cleanup` |
//! | facts changed and deleted in the memory | [`swap`] |
//! | attribution of an answer to entries | [`evidence`] |
//! | needles in a haystack | [`needle`] |
//! | answers of a finished run, with evidence | [`predict`] |
//! | training and testing one run; evaluating it again | [`run`]; [`evaluation`] |
//! | the ablation grid | [`ablations`] |

pub mod ablations;
pub mod answers;
pub mod augmentation;
pub mod corpus;
pub mod dataset_metrics;
pub mod evaluation;
pub mod evidence;
pub mod forward;
pub mod identity;
mod memory_cleanup;
pub mod metrics;
pub mod needle;
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
