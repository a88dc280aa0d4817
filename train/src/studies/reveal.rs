//! REVEAL (arXiv 2212.05221): answering questions about images with a retrieval memory.
//!
//! The forward pass of the model, its memory, and answering are in [`engram_infer::reveal`].
//!
//! An example's *own entry* is the memory entry that contains its answer. Test questions have three
//! parts:
//!
//! | part | training asks |
//! |---|---|
//! | `seen` | for the same fact |
//! | `unasked` | for other facts about the image, not for this fact |
//! | `held_out` | nothing about the image |
//!
//! | part | module |
//! |---|---|
//! | recipe settings | [`settings`] |
//! | loading the data, from the [embedded world](engram_data::world) or from files | [`corpus`] |
//! | published weights; the model's sizes | [`published`], [`sizes`] |
//! | the memory of a training run, and its refresh | `run_memory`, `snapshots`, `shards`, `placement` |
//! | the losses of training | [`losses`] |
//! | the [`Study`](crate::study::Study) implementation | [`study`] |
//! | exact match and recall | `metrics` |
//! | metrics of COCO, VQA and A-OKVQA | `dataset_metrics` |
//! | the test with facts changed and deleted in the memory | `swap` |
//! | the needle-in-a-haystack test | [`needle`] |
//! | training and testing one run; further tests of a finished run | [`run`]; [`evaluation`] |
//! | the ablation grid | `ablations` |

mod ablations;
pub mod corpus;
mod dataset_metrics;
pub mod evaluation;
pub mod image_recall;
pub mod losses;
mod metrics;
pub mod needle;
mod placement;
pub mod published;
pub mod run;
mod run_memory;
pub mod settings;
mod shards;
pub mod sizes;
mod snapshots;
pub mod study;
mod swap;

use crate::recipe::reference::RecipeSchema;
use crate::registry::{RunReport, StudyDefinition};
use ablations::RevealAblations;
use settings::{RevealData, RevealFeed, RevealMemory, RevealModel};

/// The value of `study` in its recipes.
const NAME: &str = "reveal";

/// The study, as commands see it.
pub static REVEAL: StudyDefinition = StudyDefinition {
    name: NAME,
    recipe_schema: || RecipeSchema::new::<RevealData, RevealModel, RevealMemory, RevealFeed>(NAME),
    complete: |recipe| run::settings(recipe).map(drop),
    train: |recipe, options| {
        let summary = run::train_reveal(recipe, options)?;
        RunReport::new(NAME, &summary, &summary.check_failures)
    },
    ablations: &RevealAblations,
};
