//! The fields of a published ViT `config.json` that define the model, and the published sizes.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::config::{check_sizes, read_published, require};
use crate::error::Result;
use crate::kernels::Activation;
use crate::patch_embedding::PatchGrid;
use crate::pre_norm::PreNormConfig;

/// The configuration of a ViT. Fields missing in a published file get the published default, the
/// value of [`ViTConfig::base_16`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ViTConfig {
    /// Side length of the (square) image, in pixels.
    pub image_size: usize,
    /// Side length of a patch, in pixels.
    pub patch_size: usize,
    /// Number of channels of a pixel.
    pub num_channels: usize,
    /// Width `D`.
    pub hidden_size: usize,
    /// Width of the feed-forward part.
    pub intermediate_size: usize,
    /// Number of blocks.
    pub num_hidden_layers: usize,
    /// Number of heads `H`; `D` must be a multiple of it.
    pub num_attention_heads: usize,
    /// Activation of the feed-forward part.
    pub hidden_act: Activation,
    /// Epsilon of the layer norms, added to the variance.
    pub layer_norm_eps: f64,
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Dropout after the embeddings and in each residual branch.
    pub hidden_dropout_prob: f64,
    /// Dropout of attention weights.
    pub attention_probs_dropout_prob: f64,
    /// Standard deviation of random initial weights.
    pub initializer_range: f64,
    /// Whether a class token comes before the patches. Published files do not have this field, and
    /// their models have a class token. REVEAL's encoder has none.
    pub class_token: bool,
    /// Channels of the stem's convolutions with stride 2. The stem's output is projected to `D` and
    /// added to each patch. An empty list, as in published files, means no stem.
    pub stem_channels: Vec<usize>,
}

impl Default for ViTConfig {
    fn default() -> Self {
        Self::base_16()
    }
}

impl ViTConfig {
    /// ViT-B/16 at 224 pixels (arXiv 2010.11929, table 1).
    pub fn base_16() -> Self {
        Self {
            image_size: 224,
            patch_size: 16,
            num_channels: 3,
            hidden_size: 768,
            intermediate_size: 3072,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            hidden_act: Activation::Gelu,
            layer_norm_eps: 1e-12,
            qkv_bias: true,
            hidden_dropout_prob: 0.0,
            attention_probs_dropout_prob: 0.0,
            initializer_range: 0.02,
            class_token: true,
            stem_channels: Vec::new(),
        }
    }

    /// ViT-L/16 at 224 pixels (arXiv 2010.11929, table 1).
    pub fn large_16() -> Self {
        Self {
            hidden_size: 1024,
            intermediate_size: 4096,
            num_hidden_layers: 24,
            num_attention_heads: 16,
            ..Self::base_16()
        }
    }

    /// Reads a published `config.json`.
    ///
    /// # Errors
    /// [`ModelError::Io`](crate::ModelError::Io).
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig) if the model type differs or values
    /// contradict each other.
    pub fn read(path: &Path) -> Result<Self> {
        read_published(path, "vit", Self::validate)
    }

    /// Checks that the values are valid and fit together.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig), which names the field.
    pub fn validate(&self) -> Result<()> {
        self.blocks().validate()?;
        self.patch_grid().validate()?;
        let (stem, patch) = (self.stem_channels.len(), self.patch_size);
        let halved = u32::try_from(stem).ok().and_then(|stem| 2usize.checked_pow(stem));
        let fits = halved.is_some_and(|halved| patch.is_multiple_of(halved));
        require(fits, "stem_channels", || {
            format!("{stem} convolutions with stride 2 do not fit patches of {patch} pixels")
        })?;
        self.stem_channels
            .iter()
            .try_for_each(|count| check_sizes(&[("stem_channels", *count)]))?;
        let std = self.initializer_range;
        require((0.0..=1.0).contains(&std), "initializer_range", || {
            format!("{std} is not a standard deviation from 0 to 1")
        })
    }

    /// The number of patches `P` of an image.
    pub fn num_patches(&self) -> usize {
        self.patch_grid().num_patches()
    }

    /// The number of tokens of an image: its patches, and the class token if there is one.
    pub fn num_tokens(&self) -> usize {
        usize::from(self.class_token) + self.num_patches()
    }

    pub(super) fn patch_grid(&self) -> PatchGrid {
        let Self { image_size, patch_size, num_channels, .. } = *self;
        PatchGrid { image_size, patch_size, num_channels }
    }

    pub(super) fn blocks(&self) -> PreNormConfig {
        PreNormConfig {
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: self.num_attention_heads,
            hidden_act: self.hidden_act,
            layer_norm_eps: self.layer_norm_eps,
            qkv_bias: [self.qkv_bias; 3],
            hidden_dropout: self.hidden_dropout_prob,
            attention_dropout: self.attention_probs_dropout_prob,
        }
    }
}
