//! Patent phrase similarity (arXiv 2208.01171): predicts how similar two phrases are in the context
//! of a patent class.
//!
//! | part | module |
//! |---|---|
//! | recipe settings | [`settings`] |
//! | phrase pairs, class titles, folds | [`corpus`] |
//! | text pairs of one CSV, without classes | `pairs` |
//! | the encoder that training starts from | `encoder` |
//! | the [`Study`](crate::study::Study) implementation | [`study`] |
//! | training of all folds and variants | [`run`] |
//! | the end of a member's training | `member` |
//! | the results; the model card | `results`, `card` |
//! | Pearson's r with its interval | [`metric`] |
//!
//! A run trains one model, or an ensemble of *members*: one for each fold and variant of the
//! recipe. A member's *held-out rows* are the rows of its fold, on which it is not trained. The
//! scorer and prediction are in [`engram_infer::similarity`].

mod ablations;
mod card;
pub mod corpus;
mod encoder;
mod member;
pub mod metric;
mod pairs;
mod results;
pub mod run;
pub mod settings;
pub mod study;

use crate::recipe::reference::{NoKeys, RecipeSchema};
use crate::registry::{RunReport, StudyDefinition};

use engram_infer::similarity::run::STUDY as NAME;
use engram_infer::similarity::settings::ScorerSettings;
use settings::PatentData;

/// The study, as commands see it.
pub static PATENT: StudyDefinition = StudyDefinition {
    name: NAME,
    recipe_schema: || RecipeSchema::new::<PatentData, ScorerSettings, NoKeys, NoKeys>(NAME),
    complete: |recipe| run::settings(recipe).map(drop),
    train: |recipe, options| {
        let summary = run::train_patent(recipe, options)?;
        RunReport::new(NAME, &summary, &summary.check_failures)
    },
    ablations: &ablations::PatentAblations,
};
