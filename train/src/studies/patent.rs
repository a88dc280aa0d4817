//! Patent phrase similarity (arXiv 2208.01171): how alike are two phrases in a patent class?
//!
//! | part | module |
//! |---|---|
//! | what a recipe says in `[data]` and `[model]` | [`settings`] |
//! | rows, titles, folds | [`corpus`] |
//! | rows laid out as token sequences, pair by pair or listwise | `sequences` |
//! | encoder and head | `scorer` |
//! | the study as the trainer sees it | [`study`] |
//! | runs of several folds and variants; a finished member; what they come to; the ensemble's model card | [`run`], `member`, `results`, `card` |
//! | stacking of the members' scores | `stacking` |
//! | prediction from a run | [`predict`] |
//! | Pearson's r with its interval | [`figure`] |
//! | baselines without training | [`zero_shot`] |

mod card;
pub mod corpus;
pub mod figure;
mod member;
pub mod predict;
mod results;
pub mod run;
mod scorer;
mod sequences;
pub mod settings;
mod stacking;
pub mod study;
pub mod zero_shot;
