//! The fields of a published CLIP `config.json` that shape the model, with the published defaults.

use std::path::Path;

use serde::Deserialize;

use crate::config::{bad_field, check_dropout, check_heads, check_layers, check_sizes};
use crate::error::{ModelError, Result};
use crate::kernels::Activation;

/// The configuration of both encoders.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct ClipConfig {
    /// Width `E` of the common space.
    pub projection_dim: usize,
    /// The logarithm of the temperature at the start.
    pub logit_scale_init_value: f64,
    /// The text encoder.
    pub text_config: ClipTextConfig,
    /// The vision encoder.
    pub vision_config: ClipVisionConfig,
}

/// The shape of a stack of blocks, which both encoders have.
#[derive(Debug, Clone, Copy)]
pub struct TowerConfig {
    /// Width `D`.
    pub hidden_size: usize,
    /// Width of the feed-forward part.
    pub intermediate_size: usize,
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Heads `H`.
    pub num_attention_heads: usize,
    /// Activation of the feed-forward part.
    pub hidden_act: Activation,
    /// Added to the variance in norms.
    pub layer_norm_eps: f64,
    /// Dropout of attention weights.
    pub attention_dropout: f64,
}

/// The text encoder.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // As in TowerConfig.
pub struct ClipTextConfig {
    /// Vocabulary `V`.
    pub vocab_size: usize,
    /// Longest text.
    pub max_position_embeddings: usize,
    /// The token whose state stands for the text.
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
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // As in TowerConfig.
pub struct ClipVisionConfig {
    /// Pixels of an edge of the (square) picture.
    pub image_size: usize,
    /// Pixels of an edge of a patch.
    pub patch_size: usize,
    /// Colours of a pixel.
    pub num_channels: usize,
    /// Standard deviation of a fresh patch embedding.
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
            /// The shape of its blocks.
            pub fn tower(&self) -> TowerConfig {
                TowerConfig {
                    hidden_size: self.hidden_size,
                    intermediate_size: self.intermediate_size,
                    num_hidden_layers: self.num_hidden_layers,
                    num_attention_heads: self.num_attention_heads,
                    hidden_act: self.hidden_act,
                    layer_norm_eps: self.layer_norm_eps,
                    attention_dropout: self.attention_dropout,
                }
            }
        }
    };
}

tower!(ClipTextConfig);
tower!(ClipVisionConfig);

/// The end-of-text id that old configurations give by mistake; the reference then takes the largest id.
const OLD_END_OF_TEXT: u32 = 2;

impl ClipTextConfig {
    /// The end-of-text token; `None` where it is the largest id of a text.
    pub fn end_of_text(&self) -> Option<u32> {
        Some(self.eos_token_id).filter(|end| *end != OLD_END_OF_TEXT)
    }
}

impl ClipVisionConfig {
    /// Patches `P` of a picture.
    pub fn num_patches(&self) -> usize {
        (self.image_size / self.patch_size).pow(2)
    }
}

/// A picture's edge beyond this is a mistake in the configuration.
const LONGEST_EDGE: usize = 4096;

impl ClipConfig {
    /// Reads a published `config.json`.
    ///
    /// # Errors
    /// [`ModelError::Io`]; [`ModelError::BadConfig`] for another model type, or values that do not
    /// fit each other.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ModelError::Io { path: path.to_path_buf(), source })?;
        #[derive(Deserialize)]
        struct Published {
            model_type: String,
            // Where older files have these, the reference takes them in place of the others.
            text_config_dict: Option<ClipTextConfig>,
            vision_config_dict: Option<ClipVisionConfig>,
        }
        let bad =
            |reason: String| ModelError::BadConfig { what: path.display().to_string(), reason };
        let published: Published = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
        if published.model_type != "clip" {
            return Err(bad(format!("model_type `{}` is not `clip`", published.model_type)));
        }
        let mut config: Self = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
        config.text_config = published.text_config_dict.unwrap_or(config.text_config);
        config.vision_config = published.vision_config_dict.unwrap_or(config.vision_config);
        config.validate().map_err(|error| match error {
            ModelError::BadConfig { what, reason } => bad(format!("`{what}`: {reason}")),
            other => other,
        })?;
        Ok(config)
    }

    /// Checks what the types do not.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`] naming the field.
    pub fn validate(&self) -> Result<()> {
        let (text, vision) = (&self.text_config, &self.vision_config);
        for tower in [text.tower(), vision.tower()] {
            check_heads(tower.hidden_size, tower.num_attention_heads)?;
            check_layers(tower.num_hidden_layers)?;
            check_sizes(&[
                ("hidden_size", tower.hidden_size),
                ("intermediate_size", tower.intermediate_size),
            ])?;
            check_dropout(0.0, tower.attention_dropout)?;
        }
        check_sizes(&[
            ("projection_dim", self.projection_dim),
            ("vocab_size", text.vocab_size),
            ("max_position_embeddings", text.max_position_embeddings),
            ("num_channels", vision.num_channels),
        ])?;
        let (image, patch) = (vision.image_size, vision.patch_size);
        if patch == 0 || patch > image || image > LONGEST_EDGE || !image.is_multiple_of(patch) {
            let reason = format!("patches of {patch} pixels do not fill pictures of {image}");
            return Err(bad_field("patch_size", reason));
        }
        Ok(())
    }
}
