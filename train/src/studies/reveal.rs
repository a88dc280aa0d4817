//! REVEAL (arXiv 2212.05221): answering questions about images with a retrieval memory.
//!
//! | part | module |
//! |---|---|
//! | recipe settings | [`settings`] |
//! | entries, images and questions, from the [embedded world](engram_data::world) or from files | [`corpus`] |
//! | published weights; the model's sizes | [`published`], [`sizes`] |
//! | token sequences | [`sequences`] |
//! | building, searching and reading the memory | [`retriever`] |
//! | the memory of a training run, and its refresh | [`run_memory`] |
//! | image augmentation in the image phase | [`augmentation`] |
//! | one forward pass and its losses | [`forward`] |
//! | the [`Study`](crate::study::Study) implementation | [`study`] |
//! | answers; exact match and recall | [`answers`], [`metrics`] |
//! | metrics of COCO, VQA and A-OKVQA | [`dataset_metrics`] |
//! | the identity of the model that built a memory | [`identity`] |
//! | safe removal of a run's memories | `memory_cleanup` |
//! | the test with facts changed and deleted in the memory | [`swap`] |
//! | attribution of an answer to retrieved entries | [`evidence`] |
//! | the needle-in-a-haystack test | [`needle`] |
//! | answers of a finished run, with evidence | [`predict`] |
//! | training and testing one run; evaluating it again | [`run`]; [`evaluation`] |
//! | the ablation grid | [`ablations`] |
//! | the results as text | `summary` |

pub mod ablations;
pub mod answers;
pub mod augmentation;
pub mod corpus;
pub mod dataset_metrics;
pub mod evaluation;
pub mod evidence;
pub mod forward;
pub mod identity;
mod memory_cleanup;
pub mod metrics;
pub mod needle;
pub mod predict;
pub mod published;
pub mod retriever;
pub mod run;
pub mod run_memory;
pub mod sequences;
pub mod settings;
pub mod sizes;
pub mod study;
mod summary;
pub mod swap;

use crate::error::Result;
use crate::grid::AblationStudy;
use crate::recipe::Recipe;
use crate::recipe::reference::RecipeSchema;
use crate::registry::{ExplorerTab, StudyDefinition, Summary};
use crate::trainer::RunOptions;
use ablations::RevealAblations;
use settings::{RevealData, RevealFeed, RevealMemory, RevealModel};

/// The value of `study` in its recipes.
const NAME: &str = "reveal";

/// The study, as commands see it.
#[derive(Debug)]
pub struct Reveal;

impl StudyDefinition for Reveal {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> &'static str {
        "Visual question answering with a retrieval memory (REVEAL)"
    }

    fn examples(&self) -> &'static str {
        "\
  engram train reveal --recipe reveal/laptop --run runs/r1
"
    }

    fn recipe_schema(&self) -> RecipeSchema {
        RecipeSchema::new::<RevealData, RevealModel, RevealMemory, RevealFeed>(NAME)
    }

    fn complete(&self, recipe: &mut Recipe) -> Result<()> {
        run::settings(recipe).map(drop)
    }

    fn train(&self, recipe: &mut Recipe, options: &RunOptions) -> Result<Option<Box<dyn Summary>>> {
        let summary = run::train_reveal(recipe, options)?;
        Ok(summary.map(|summary| Box::new(summary) as Box<dyn Summary>))
    }

    fn ablations(&self) -> Option<&'static dyn AblationStudy> {
        Some(&RevealAblations)
    }

    fn explorer_tabs(&self) -> &'static [ExplorerTab] {
        &[ExplorerTab::Answers]
    }
}
