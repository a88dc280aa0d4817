//! Patent phrase similarity (arXiv 2208.01171): predicts how similar two phrases are in the context
//! of a patent class.
//!
//! | part | module |
//! |---|---|
//! | recipe settings | [`settings`] |
//! | phrase pairs, titles, folds | [`corpus`] |
//! | text pairs of one CSV, without classes | `pairs` |
//! | token sequences, pair by pair or listwise | `sequences` |
//! | encoder and head | `scorer` |
//! | the [`Study`](crate::study::Study) implementation | [`study`] |
//! | training of all folds and variants | [`run`] |
//! | a trained member of the ensemble | `member` |
//! | the results; the model card | `results`, `card` |
//! | stacking of the members' scores | `stacking` |
//! | prediction from a run | [`predict`] |
//! | Pearson's r with its interval | [`metric`] |
//! | baselines without training | [`zero_shot`] |
//! | the results as text | `summary` |

mod card;
pub mod corpus;
mod member;
pub mod metric;
mod pairs;
pub mod predict;
mod results;
pub mod run;
mod scorer;
mod sequences;
pub mod settings;
mod stacking;
pub mod study;
mod summary;
pub mod zero_shot;

use crate::error::Result;
use crate::recipe::Recipe;
use crate::recipe::reference::{NoKeys, RecipeSchema};
use crate::registry::{RunReport, StudyDefinition};
use crate::trainer::RunOptions;

pub use pairs::ScoreRange;
use settings::{PatentData, PatentModel};

/// The value of `study` in its recipes.
const NAME: &str = "patent";

/// The study, as commands see it.
#[derive(Debug)]
pub struct Patent;

impl StudyDefinition for Patent {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> &'static str {
        "Patent phrase similarity"
    }

    fn examples(&self) -> &'static [&'static str] {
        &[
            "engram train patent --recipe patent/world --run runs/p0",
            "engram train patent --recipe patent/minilm --set data.dir=patent --run runs/p1",
            "engram train patent --recipe patent/minilm --tiny --run runs/try",
        ]
    }

    fn recipe_schema(&self) -> RecipeSchema {
        RecipeSchema::new::<PatentData, PatentModel, NoKeys, NoKeys>(NAME)
    }

    fn complete(&self, recipe: &mut Recipe) -> Result<()> {
        run::settings(recipe).map(drop)
    }

    fn train(&self, recipe: &mut Recipe, options: &RunOptions) -> Result<RunReport> {
        let summary = run::train_patent(recipe, options)?;
        RunReport::new(NAME, &summary, summary.to_text(), &summary.check_failures)
    }
}
