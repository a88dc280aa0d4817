//! What a recipe of the study says in `[data]` and `[model]`.

use engram_data::world::PICTURES;
use engram_models::clip::ClipVisionConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[data]`: pictures of the embedded world, and their names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClipData {
    /// Pictures of the embedded world, evenly from all; 0 for all of them.
    pub pictures: usize,
    /// Whether a picture's text is told apart from the names of all pictures, as it is when it is measured, and not from
    /// those of the batch alone, as in CLIP: frozen vectors cost nothing.
    pub all_names: bool,
    /// Views of each picture that choose the checkpoint.
    pub validation_views: usize,
    /// Views of each picture that are measured at the end.
    pub test_views: usize,
}

impl Default for ClipData {
    fn default() -> Self {
        Self { pictures: 0, all_names: false, validation_views: 1, test_views: 2 }
    }
}

impl ClipData {
    /// A value that cannot be, and why.
    pub fn conflict(&self) -> Option<(&'static str, String)> {
        if self.pictures == 1 || self.pictures > PICTURES {
            let reason = format!("is {}; give 2 to {PICTURES}, or 0 for all", self.pictures);
            return Some(("pictures", reason));
        }
        [("validation_views", self.validation_views), ("test_views", self.test_views)]
            .into_iter()
            .find(|(_, views)| !(1..=1000).contains(views))
            .map(|(key, views)| (key, format!("is {views}; give 1 to 1000")))
    }
}

/// `[model]`: the encoder of pictures. The sizes have the names of the published `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClipModel {
    /// The frozen encoder of the names: a folder or `hf://owner/name`; empty for hashed words, which need no weights.
    pub text_encoder: String,
    /// Pixels of an edge of the picture.
    pub image_size: usize,
    /// Pixels of an edge of a patch.
    pub patch_size: usize,
    /// Width `D` of the blocks.
    pub hidden_size: usize,
    /// Width of their feed-forward part.
    pub intermediate_size: usize,
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Heads `H`.
    pub num_attention_heads: usize,
    /// The logarithm of the temperature at the start.
    pub logit_scale_init_value: f64,
}

impl Default for ClipModel {
    fn default() -> Self {
        Self {
            text_encoder: String::new(),
            image_size: 48,
            patch_size: 8,
            hidden_size: 128,
            intermediate_size: 512,
            num_hidden_layers: 4,
            num_attention_heads: 4,
            logit_scale_init_value: 2.6592,
        }
    }
}

impl ClipModel {
    /// The encoder's configuration, for text vectors of `width`.
    pub fn vision(&self, width: usize) -> ClipVisionConfig {
        ClipVisionConfig {
            projection_dim: width,
            image_size: self.image_size,
            patch_size: self.patch_size,
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: self.num_attention_heads,
            ..ClipVisionConfig::default()
        }
    }
}
