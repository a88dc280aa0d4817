//! Patent phrase similarity (arXiv 2208.01171): how similar are two phrases in a patent class?
//!
//! | part | module |
//! |---|---|
//! | recipe settings | [`settings`] |
//! | phrase pairs, titles, folds | [`corpus`] |
//! | token sequences, pair by pair or listwise | `sequences` |
//! | encoder and head | `scorer` |
//! | the [`Study`](crate::study::Study) implementation | [`study`] |
//! | training all folds and variants; one trained member; the results; the ensemble's model card | [`run`], `member`, `results`, `card` |
//! | stacking of the members' scores | `stacking` |
//! | prediction from a run | [`predict`] |
//! | Pearson's r with its interval | [`metric`] |
//! | baselines without training | [`zero_shot`] |

mod card;
pub mod corpus;
mod member;
pub mod metric;
pub mod predict;
mod results;
pub mod run;
mod scorer;
mod sequences;
pub mod settings;
mod stacking;
pub mod study;
pub mod zero_shot;
