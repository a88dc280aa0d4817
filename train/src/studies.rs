//! The studies, one module each: data, model, training and evaluation.

pub mod avformer;
pub mod clip;
pub mod patent;
pub mod reveal;
pub mod speech;

use crate::recipe::reference::{NoKeys, RecipeSchema};

/// The recipe keys of each study.
pub fn recipe_schemas() -> Vec<RecipeSchema> {
    use avformer::settings::{AvformerData, AvformerFeed, AvformerModel};
    use clip::settings::{ClipData, ClipModel};
    use patent::settings::{PatentData, PatentModel};
    use reveal::settings::{RevealData, RevealFeed, RevealMemory, RevealModel};
    use speech::settings::{SpeechData, SpeechFeed, SpeechModel};
    vec![
        RecipeSchema::new::<PatentData, PatentModel, NoKeys, NoKeys>("patent"),
        RecipeSchema::new::<RevealData, RevealModel, RevealMemory, RevealFeed>("reveal"),
        RecipeSchema::new::<SpeechData, SpeechModel, NoKeys, SpeechFeed>("speech"),
        RecipeSchema::new::<AvformerData, AvformerModel, NoKeys, AvformerFeed>("avformer"),
        RecipeSchema::new::<ClipData, ClipModel, NoKeys, NoKeys>("clip"),
    ]
}
