//! The fields of a published CLIP `config.json` that define the model, with the published defaults.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::config::{check_sizes, in_file, read_published};
use crate::error::Result;
use crate::kernels::Activation;
use crate::patch_embedding::PatchGrid;
use crate::pre_norm::PreNormConfig;

/// The `model_type` of a vision encoder without a text encoder.
pub const CLIP_VISION: &str = "clip_vision_model";

/// The configuration of both encoders.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct ClipConfig {
    /// Width `E` of the embedding space that texts and images share.
    pub projection_dim: usize,
    /// The initial logit scale, ln(1 / temperature).
    pub logit_scale_init_value: f64,
    /// The text encoder.
    pub text_config: ClipTextConfig,
    /// The vision encoder.
    pub vision_config: ClipVisionConfig,
}

/// The text encoder.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // ViTConfig documents these fields.
pub struct ClipTextConfig {
    /// Size `V` of the vocabulary.
    pub vocab_size: usize,
    /// Maximum length of a text.
    pub max_position_embeddings: usize,
    /// The end-of-text token, whose state is projected to the text embedding.
    pub eos_token_id: u32,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub hidden_act: Activation,
    pub layer_norm_eps: f64,
    pub attention_dropout: f64,
}

/// The vision encoder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // ViTConfig documents these fields.
pub struct ClipVisionConfig {
    /// Width `E` of the projection of a vision encoder alone. Within CLIP, `projection_dim` of
    /// [`ClipConfig`] applies.
    pub projection_dim: usize,
    /// Side length of the (square) image, in pixels.
    pub image_size: usize,
    /// Side length of a patch, in pixels.
    pub patch_size: usize,
    /// Number of channels of a pixel.
    pub num_channels: usize,
    /// Standard deviation of the random initial weights of the patch embedding.
    pub initializer_range: f64,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub hidden_act: Activation,
    pub layer_norm_eps: f64,
    pub attention_dropout: f64,
}

impl Default for ClipConfig {
    fn default() -> Self {
        Self {
            projection_dim: 512,
            logit_scale_init_value: 2.6592,
            text_config: ClipTextConfig::default(),
            vision_config: ClipVisionConfig::default(),
        }
    }
}

impl Default for ClipTextConfig {
    fn default() -> Self {
        Self {
            vocab_size: 49408,
            max_position_embeddings: 77,
            eos_token_id: 49407,
            hidden_size: 512,
            intermediate_size: 2048,
            num_hidden_layers: 12,
            num_attention_heads: 8,
            hidden_act: Activation::QuickGelu,
            layer_norm_eps: 1e-5,
            attention_dropout: 0.0,
        }
    }
}

impl Default for ClipVisionConfig {
    fn default() -> Self {
        Self {
            projection_dim: 512,
            image_size: 224,
            patch_size: 32,
            num_channels: 3,
            initializer_range: 0.02,
            hidden_size: 768,
            intermediate_size: 3072,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            hidden_act: Activation::QuickGelu,
            layer_norm_eps: 1e-5,
            attention_dropout: 0.0,
        }
    }
}

macro_rules! tower {
    ($config:ty) => {
        impl $config {
            /// The configuration of the encoder's blocks.
            pub(crate) fn tower(&self) -> PreNormConfig {
                PreNormConfig {
                    hidden_size: self.hidden_size,
                    intermediate_size: self.intermediate_size,
                    num_hidden_layers: self.num_hidden_layers,
                    num_attention_heads: self.num_attention_heads,
                    hidden_act: self.hidden_act,
                    layer_norm_eps: self.layer_norm_eps,
                    qkv_bias: [true; 3],
                    hidden_dropout: 0.0,
                    attention_dropout: self.attention_dropout,
                }
            }
        }
    };
}

tower!(ClipTextConfig);
tower!(ClipVisionConfig);

/// The `eos_token_id` of old configurations. It is not the end-of-text token, so the reference
/// takes the largest id in each text instead.
const OLD_END_OF_TEXT: u32 = 2;

impl ClipTextConfig {
    /// Returns the end-of-text token. `None`, for old configurations with the wrong id, means the
    /// largest id in each text.
    pub fn end_of_text(&self) -> Option<u32> {
        Some(self.eos_token_id).filter(|end| *end != OLD_END_OF_TEXT)
    }
}

impl ClipVisionConfig {
    /// The number of patches `P` of an image.
    pub fn num_patches(&self) -> usize {
        self.patch_grid().num_patches()
    }

    /// Reads the published `config.json` of a vision encoder without a text encoder.
    ///
    /// # Errors
    /// See [`ClipConfig::read`].
    pub fn read(path: &Path) -> Result<Self> {
        read_published(path, CLIP_VISION, Self::validate)
    }

    /// Checks that the values are valid and fit together.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig), which names the field.
    pub fn validate(&self) -> Result<()> {
        self.tower().validate()?;
        check_sizes(&[("projection_dim", self.projection_dim)])?;
        self.patch_grid().validate()
    }

    pub(crate) fn patch_grid(&self) -> PatchGrid {
        let Self { image_size, patch_size, num_channels, .. } = *self;
        PatchGrid { image_size, patch_size, num_channels }
    }
}

impl ClipConfig {
    /// Reads a published `config.json`.
    ///
    /// # Errors
    /// [`ModelError::Io`](crate::ModelError::Io).
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig) if the model type differs or values
    /// contradict each other.
    pub fn read(path: &Path) -> Result<Self> {
        // If an older file has these fields, the reference uses them instead of the newer fields.
        #[derive(Deserialize)]
        struct OlderConfig {
            text_config_dict: Option<ClipTextConfig>,
            vision_config_dict: Option<ClipVisionConfig>,
        }
        let older: OlderConfig = read_published(path, "clip", |_| Ok(()))?;
        let mut config: Self = read_published(path, "clip", |_| Ok(()))?;
        config.text_config = older.text_config_dict.unwrap_or(config.text_config);
        config.vision_config = older.vision_config_dict.unwrap_or(config.vision_config);
        in_file(path, config.validate())?;
        Ok(config)
    }

    /// Checks that the values are valid and fit together.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig), which names the field.
    pub fn validate(&self) -> Result<()> {
        let (text, vision) = (&self.text_config, &self.vision_config);
        text.tower().validate()?;
        check_sizes(&[
            ("projection_dim", self.projection_dim),
            ("vocab_size", text.vocab_size),
            ("max_position_embeddings", text.max_position_embeddings),
        ])?;
        vision.validate()
    }
}
