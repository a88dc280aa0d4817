//! AVFormer (arXiv 2303.16501): adapters and visual tokens for a frozen ASR model, trained with a
//! curriculum.
//!
//! | part | module |
//! |---|---|
//! | recipe settings, and the feed of each curriculum phase | [`settings`] |
//! | clips with audio, text and frames, from the [embedded world](engram_data::world) or from files | [`corpus`] |
//! | image embeddings, computed once and cached for all runs | `gallery`, `embedding_store` |
//! | opening the files in the cache folder `data.cache` | `cache` |
//! | clips of a manifest | `manifest` |
//! | transcription, and audio embeddings computed once per clip | `transcription` |
//! | clean speech for rehearsal, so that adapters do not worsen clean speech | `rehearsal` |
//! | the [`Study`](crate::study::Study) implementation | [`study`] |
//! | transcripts of the frozen ASR model, cached for all runs | `frozen_texts` |
//! | the test: the frozen model, and adapters with right, wrong and no frames | [`evaluate`] |
//! | training and testing one run | [`run`] |
//! | the ablation grid | `ablations` |

mod ablations;
mod cache;
pub mod corpus;
mod embedding_store;
pub mod evaluate;
mod frozen_texts;
mod gallery;
mod manifest;
mod rehearsal;
pub mod run;
mod scoring;
pub mod settings;
pub mod study;
mod transcription;

use crate::recipe::reference::{NoKeys, RecipeSchema};
use crate::registry::{RunReport, StudyDefinition};
use ablations::AvformerAblations;
use settings::{AvformerData, AvformerFeed, AvformerModel};

/// The value of `study` in its recipes.
const NAME: &str = "avformer";

/// The study, as commands see it.
pub static AVFORMER: StudyDefinition = StudyDefinition {
    name: NAME,
    recipe_schema: || RecipeSchema::new::<AvformerData, AvformerModel, NoKeys, AvformerFeed>(NAME),
    complete: |recipe| run::complete_settings(recipe).map(drop),
    train: |recipe, options| {
        let summary = run::train_avformer(recipe, options)?;
        RunReport::new(NAME, &summary, &summary.check_failures)
    },
    ablations: &AvformerAblations,
};
