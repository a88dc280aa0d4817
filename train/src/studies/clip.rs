//! A small CLIP image encoder, trained to map the embedded world's images to the frozen vectors of
//! their names.
//!
//! As in CLIP (arXiv 2103.00020), a symmetric contrastive loss matches the images and texts of a
//! batch, with a learned temperature. Unlike CLIP, the text side is frozen and has no projection.
//!
//! | part | module |
//! |---|---|
//! | recipe settings | [`settings`] |
//! | pixels of augmented views | [`images`] |
//! | text vectors of the names | [`names`] |
//! | nearest-name accuracy | [`evaluation`] |
//! | the [`Study`](crate::study::Study) implementation | [`study`] |
//! | training and testing one run | [`run`] |

pub mod evaluation;
pub mod images;
pub mod names;
pub mod run;
pub mod settings;
pub mod study;
