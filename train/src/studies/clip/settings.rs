//! Settings of the study: `[data]` and `[model]`.

use engram_data::world::IMAGES;
use engram_models::clip::ClipVisionConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::checks::{Invalid, count, first, invalid_if};

/// The maximum number of views of an image.
const MAX_VIEWS: usize = 1000;

/// `[data]`: the embedded world's images and their names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClipData {
    /// Images of the embedded world, evenly spaced; 0 for all.
    pub images: usize,
    /// Whether an image is contrasted with the names of all images, as in evaluation, or only with
    /// the names of the batch, as in CLIP. All names cost no extra time, because the text vectors
    /// are frozen.
    pub all_names: bool,
    /// Validation views per image, which select the checkpoint.
    pub validation_views: usize,
    /// Test views per image.
    pub test_views: usize,
}

impl Default for ClipData {
    fn default() -> Self {
        Self { images: 0, all_names: false, validation_views: 1, test_views: 2 }
    }
}

impl ClipData {
    /// The first invalid key, with the reason.
    pub fn first_invalid_key(&self) -> Invalid {
        first([
            invalid_if(
                self.images == 1 || self.images > IMAGES,
                "images",
                format!("is {}; must be from 2 to {IMAGES}, or 0 for all", self.images),
            ),
            count("validation_views", self.validation_views, MAX_VIEWS),
            count("test_views", self.test_views, MAX_VIEWS),
        ])
    }
}

/// `[model]`: the image encoder. Sizes are named as in the published `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClipModel {
    /// The frozen text encoder: a folder or `hf://owner/name`; empty for hashed words, which need
    /// no weights.
    pub text_encoder: String,
    /// Edge of the image, in pixels.
    pub image_size: usize,
    /// Edge of a patch, in pixels.
    pub patch_size: usize,
    /// Width `D` of the blocks.
    pub hidden_size: usize,
    /// Width of the feed-forward layers.
    pub intermediate_size: usize,
    /// Number of blocks.
    pub num_hidden_layers: usize,
    /// Number of heads `H`.
    pub num_attention_heads: usize,
    /// The initial logarithm of the logit scale, which is the inverse temperature.
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
