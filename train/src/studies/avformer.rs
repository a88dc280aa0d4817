//! AVFormer: pictures and adapters for a frozen recogniser of speech, learnt in a curriculum.
//!
//! | part | module |
//! |---|---|
//! | what a recipe says, the feeds of the curriculum's phases | [`settings`] |
//! | sound with texts and frames; of the embedded world or from files | [`corpus`] |
//! | each picture encoded once | [`gallery`] |
//! | the study as the trainer sees it | [`study`] |
//! | the test: frozen, and with right, wrong and no frames | [`evaluate`] |
//! | a run | [`run`] |

pub mod corpus;
pub mod evaluate;
pub mod gallery;
pub mod run;
pub mod settings;
pub mod study;
