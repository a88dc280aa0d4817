//! A Conformer ASR model: pre-training on audio alone (BEST-RQ, arXiv 2202.01855), then training on
//! texts (CTC, a transducer, or attention with CTC).
//!
//! | part | module |
//! |---|---|
//! | recipe settings | [`settings`] |
//! | audio with texts, from the [embedded world](engram_data::world) or from files | [`corpus`] |
//! | the encoder with its decoder and its head for BEST-RQ | [`model`], [`decoder`] |
//! | the [`Study`](crate::study::Study) implementation | `study` |
//! | training and testing one run | [`run`] |

pub mod corpus;
pub mod decoder;
pub mod model;
pub mod run;
pub mod settings;
mod study;

use engram_eval::wer::report::WER;

use crate::grid::TestItems;
use crate::recipe::reference::{NoKeys, RecipeSchema};
use crate::registry::{RunReport, StudyDefinition};

use settings::{SpeechData, SpeechFeed, SpeechModel};

/// The value of `study` in its recipes.
const NAME: &str = "speech";

/// The metric of the study, for grids.
static GRIDS: TestItems = TestItems {
    title: "Speech recognition",
    description: "Word error rates on the test utterances.",
    metrics: &[(WER, "WER")],
    unit: "utterance",
};

/// The study, as commands see it.
pub static SPEECH: StudyDefinition = StudyDefinition {
    name: NAME,
    recipe_schema: || RecipeSchema::new::<SpeechData, SpeechModel, NoKeys, SpeechFeed>(NAME),
    complete: |recipe| run::settings(recipe).map(drop),
    train: |recipe, options| {
        let summary = run::train_speech(recipe, options)?;
        RunReport::new(NAME, &summary, &summary.check_failures)
    },
    ablations: &GRIDS,
};
