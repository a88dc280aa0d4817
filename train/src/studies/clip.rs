//! A small CLIP image encoder: the embedded world's pictures, each to be near the frozen vector of its name.
//!
//! As in CLIP (arXiv 2103.00020) a batch's pictures and texts are told apart in both directions, with a learned
//! temperature; unlike there the text side does not move, and has no projection.
//!
//! | part | module |
//! |---|---|
//! | what a recipe says | [`settings`] |
//! | views of pictures as pixels | [`pictures`] |
//! | names as vectors | [`names`] |
//! | which name a view is nearest to | [`evaluation`] |
//! | the study as the trainer sees it | [`study`] |
//! | a run | [`run`] |

pub mod evaluation;
pub mod names;
pub mod pictures;
pub mod run;
pub mod settings;
pub mod study;
