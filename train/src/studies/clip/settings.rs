//! Settings of the study: `[data]` and `[model]`.

use engram_data::world::IMAGES;
use engram_models::clip::ClipVisionConfig;

use super::super::checks::{Invalid, count, first, invalid_if};
use crate::recipe::table;

/// The maximum number of views of an image.
const MAX_VIEWS: usize = 1000;

table! {
    /// `[data]`: the embedded world's images and their names.
    #[derive(Eq)]
    pub struct ClipData {
        /// Images of the embedded world, evenly spaced; 0 for all.
        pub images: usize = 0,
        /// Whether an image is contrasted with the names of all images, as in evaluation, or only
        /// with the names of the batch, as in CLIP. All names cost no extra time, because the text
        /// vectors are frozen.
        pub all_names: bool = false,
        /// Validation views per image, which select the checkpoint.
        pub validation_views: usize = 1,
        /// Test views per image.
        pub test_views: usize = 2,
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

table! {
    /// `[model]`: the image encoder. Sizes are named as in the published `config.json`.
    pub struct ClipModel {
        /// The frozen text encoder: a folder or `hf://owner/name`; empty for hashed words, which
        /// need no weights.
        pub text_encoder: String = String::new(),
        /// Edge of the image, in pixels.
        pub image_size: usize = 48,
        /// Edge of a patch, in pixels.
        pub patch_size: usize = 8,
        /// Width `D` of the blocks.
        pub hidden_size: usize = 128,
        /// Width of the feed-forward layers.
        pub intermediate_size: usize = 512,
        /// Number of blocks.
        pub num_hidden_layers: usize = 4,
        /// Number of heads `H`.
        pub num_attention_heads: usize = 4,
        /// The initial logarithm of the logit scale, which is the inverse temperature.
        pub logit_scale_init_value: f64 = 2.6592,
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
