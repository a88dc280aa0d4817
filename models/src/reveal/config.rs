//! The sizes of a REVEAL model, and the published sizes by name.

use serde::{Deserialize, Serialize};

use crate::config::{check_layers, check_sizes, require};
use crate::error::Result;
use crate::kernels::Activation;
use crate::t5::T5Config;
use crate::vit::ViTConfig;

/// The configuration of a REVEAL model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RevealConfig {
    /// The text encoder and the decoder. The base encoder has the lower layers of the T5 encoder,
    /// and the fusion has the upper layers.
    pub t5: T5Config,
    /// The image encoder.
    pub image: ViTConfig,
    /// Number of upper T5 encoder layers that belong to the fusion; `F` in the paper.
    pub fusion_layers: usize,
    /// Number of layers of the query head, of the key head and of the Perceiver; also `F` in the
    /// paper.
    pub head_layers: usize,
    /// Number of value tokens `M` of an entry.
    pub value_tokens: usize,
    /// Number of learned positions that are added to an entry's states; later states share the last
    /// one. The first `M` of these states are added to the value tokens, so that the decoder can
    /// copy the first words of an entry. 0 for neither, as published.
    pub value_positions: usize,
    /// Width of queries and keys.
    pub key_dim: usize,
    /// Number of sources of the memory, weighted by the gate.
    pub sources: usize,
    /// Whether there is a gate. Without a gate, all sources have weight 1.
    pub gate: bool,
    /// The upper limit of the learned factor on scores before the softmax over retrieved entries; 5
    /// in the released code.
    pub score_ceiling: f64,
    /// Whether the retrieved entries compete with a learned score of finding no entry, so that the
    /// model can tell that the memory has no answer. Published: false.
    pub no_entry: bool,
    /// The constant factor on projected patches and value tokens; 4 in the released code.
    pub token_scale: f64,
    /// Number of image encoder blocks below a stop-gradient; 0 for no stop-gradient.
    pub frozen_image_layers: usize,
    /// Number of text encoder layers below a stop-gradient; 0 for no stop-gradient.
    pub frozen_text_layers: usize,
}

/// The image encoder of the released code: no class token, flax's defaults.
fn image_encoder(size: ViTConfig) -> ViTConfig {
    ViTConfig { class_token: false, hidden_act: Activation::GeluTanh, layer_norm_eps: 1e-6, ..size }
}

impl RevealConfig {
    /// REVEAL-base: T5 base and ViT-B/16 (paper: 0.4 billion parameters).
    pub fn base(sources: usize) -> Self {
        Self {
            t5: T5Config { dropout_rate: 0.0, ..T5Config::base() },
            image: image_encoder(ViTConfig::base_16()),
            fusion_layers: 6,
            head_layers: 6,
            value_tokens: 32,
            value_positions: 0,
            key_dim: 512,
            sources,
            gate: true,
            score_ceiling: 5.0,
            no_entry: false,
            token_scale: 4.0,
            frozen_image_layers: 6,
            frozen_text_layers: 0,
        }
    }

    /// REVEAL-large: T5 large and ViT-L/16 (paper: 1.4 billion parameters).
    pub fn large(sources: usize) -> Self {
        Self {
            t5: T5Config { dropout_rate: 0.0, ..T5Config::large() },
            image: image_encoder(ViTConfig::large_16()),
            fusion_layers: 8,
            head_layers: 8,
            value_tokens: 64,
            frozen_image_layers: 20,
            ..Self::base(sources)
        }
    }

    /// The number of text encoder layers below the fusion.
    pub fn text_layers(&self) -> usize {
        self.t5.num_layers.saturating_sub(self.fusion_layers)
    }

    /// Checks that the sizes are consistent.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`], which names the field.
    pub fn validate(&self) -> Result<()> {
        self.t5.validate()?;
        self.image.validate()?;
        check_sizes(&[
            ("value_tokens", self.value_tokens),
            ("key_dim", self.key_dim),
            ("sources", self.sources),
            ("head_layers", self.head_layers),
        ])?;
        check_layers("head_layers", self.head_layers)?;
        let (layers, fused) = (self.t5.num_layers, self.fusion_layers);
        require((1..=layers).contains(&fused), "fusion_layers", || {
            format!("{fused} is not between 1 and the encoder's {layers} layers")
        })?;
        for (what, value) in
            [("score_ceiling", self.score_ceiling), ("token_scale", self.token_scale)]
        {
            require(value.is_finite() && value > 0.0, what, || {
                format!("{value} is not positive and finite")
            })?;
        }
        let (frozen, layers) = (self.frozen_text_layers, self.text_layers());
        require(frozen <= layers, "frozen_text_layers", || {
            format!("{frozen} exceeds the {layers} layers below the fusion")
        })?;
        let (frozen, blocks) = (self.frozen_image_layers, self.image.num_hidden_layers);
        require(frozen <= blocks, "frozen_image_layers", || {
            format!("{frozen} exceeds the image encoder's {blocks} blocks")
        })
    }
}
