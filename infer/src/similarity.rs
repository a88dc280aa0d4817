//! Similarity of phrase pairs: the models of a finished patent run, and baselines without training.
//!
//! | part | module |
//! |---|---|
//! | a finished run that scores pairs | [`run`] |
//! | one model of the run's ensemble | [`member`] |
//! | encoder and head | [`scorer`] |
//! | settings of the encoder and head: a recipe's `[model]` | [`settings`] |
//! | token sequences, pair by pair or listwise | [`sequences`] |
//! | conversion of scores to similarities | [`calibration`] |
//! | columns and score range of the training file | [`pairs`] |
//! | combination of the members' scores: mean or stacking | [`combination`], [`stacking`] |
//! | baselines | [`zero_shot`] |

pub mod calibration;
pub mod combination;
pub mod member;
pub mod pairs;
pub mod run;
pub mod scorer;
pub mod sequences;
pub mod settings;
pub mod stacking;
pub mod zero_shot;
