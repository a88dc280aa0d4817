//! A small CLIP image encoder. It is trained to map the images of the
//! [embedded world](engram_data::world) to the frozen text vectors of their names.
//!
//! As in CLIP (arXiv 2103.00020), a symmetric contrastive loss matches the images and texts of a
//! batch, with a learned temperature. Unlike CLIP, the text side is frozen and has no projection.
//!
//! | part | module |
//! |---|---|
//! | recipe settings | `settings` |
//! | pixels of augmented views | `images` |
//! | text vectors of the names | `names` |
//! | nearest-name accuracy | `evaluation` |
//! | the [`Study`](crate::study::Study) implementation | `study` |
//! | training and testing one run | [`run`] |

mod evaluation;
mod images;
mod names;
pub mod run;
mod settings;
mod study;

use crate::grid::TestItems;
use crate::recipe::reference::{NoKeys, RecipeSchema};
use crate::registry::{RunReport, StudyDefinition};

use settings::{ClipData, ClipModel};

/// The value of `study` in its recipes.
const NAME: &str = "clip";

/// The metric of the study, for grids.
static GRIDS: TestItems = TestItems {
    title: "Image encoder",
    description: "The share of test views whose nearest name is the name of their image.",
    metrics: &[(evaluation::ACCURACY, "accuracy")],
    unit: "image",
};

/// The study, as commands see it.
pub static CLIP: StudyDefinition = StudyDefinition {
    name: NAME,
    recipe_schema: || RecipeSchema::new::<ClipData, ClipModel, NoKeys, NoKeys>(NAME),
    complete: |recipe| run::settings(recipe).map(drop),
    train: |recipe, options| {
        let summary = run::train_clip(recipe, options)?;
        RunReport::new(NAME, &summary, &summary.check_failures)
    },
    ablations: &GRIDS,
};
