//! Answers questions about images with a finished REVEAL run (arXiv 2212.05221) and its retrieval
//! memory.
//!
//! | part | module |
//! |---|---|
//! | a finished run that answers questions, with evidence | [`answerer`] |
//! | questions in a file | [`questions`] |
//! | entries, images and examples | [`corpus`], [`images`], [`cut_outs`] |
//! | token sequences | [`sequences`] |
//! | one forward pass: retrieval, attentive fusion, generation | [`forward`] |
//! | image augmentation in training | [`augmentation`] |
//! | building, searching and reading the memory | [`retriever`] |
//! | which model built a memory | [`identity`] |
//! | safe removal of a run's memory | [`memory_folder`] |
//! | model sizes, entries and sequences together | [`encoding`] |
//! | answers to many examples | [`answers`] |
//! | controls, with which answers from the memory must fail | [`control`] |
//! | attribution of an answer to entries | [`evidence`], [`shapley`] |
//! | needles in a haystack | [`needle`] |

pub mod answerer;
pub mod answers;
pub mod augmentation;
pub mod control;
pub mod corpus;
pub mod cut_outs;
pub mod encoding;
pub mod evidence;
pub mod feature_maps;
pub mod forward;
pub mod identity;
pub mod images;
pub mod memory_folder;
pub mod needle;
pub mod questions;
pub mod retriever;
pub mod sequences;
pub mod shapley;

use std::path::Path;

use crate::finished_run;

/// The value of `study` in the recipe of a run.
pub const STUDY: &str = "reveal";

/// Whether a folder has a finished run of this study.
pub fn is_finished(folder: &Path) -> bool {
    folder.join(encoding::MODEL).is_file() && finished_run::is_finished(folder)
}

/// Whether an answer equals one of the reference answers, regardless of case and outer spaces.
pub fn is_correct(answer: &str, references: &[String]) -> bool {
    let answer = answer.trim().to_lowercase();
    references.iter().any(|reference| reference.trim().to_lowercase() == answer)
}
