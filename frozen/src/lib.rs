//! Frozen encoders: published encoders that run with the models of `candle-transformers`.
//!
//! Tests compare each [`Family`] with the published implementation (`tests/reference/frozen.py`). A
//! model of `candle-transformers` that differs from it is not here, or is corrected here.
//!
//! The models compute on the CPU in f32. Some of their operations give no gradient without an
//! error, so they cannot be trained. Each text is computed alone, without padding, so its states do
//! not depend on other texts.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod config;
mod images;
mod positions;
mod source;
mod texts;

use candle_core::{Device, Tensor};
use engram_models::Result;
use engram_models::weights::WeightsFiles;
use serde_json::Value;

use config::Config;
use source::Source;

/// A family of frozen encoders, and the vector of a text or an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// SigLIP, and SigLIP 2 of a fixed resolution: the output of the head of each encoder.
    Siglip,
    /// DINOv2 with or without registers, ViT, DINO: the class token, after the last norm.
    VisionTransformer,
    /// jina-embeddings-v2: the states of the tokens, to be pooled.
    JinaBert,
    /// nomic-embed-text v1 and v1.5: the states of the tokens, to be pooled.
    NomicBert,
    /// GTE and Stella, whose architecture was published as `new`: the states of the tokens, to be
    /// pooled.
    Gte,
}

/// The forward pass of a model.
type Forward = Box<dyn Fn(&Tensor) -> candle_core::Result<Tensor> + Send + Sync>;

/// A model's text encoder and image encoder; at least one is present.
pub struct FrozenEncoder {
    /// The encoder of texts.
    pub texts: Option<Texts>,
    /// The encoder of images.
    pub images: Option<Images>,
}

/// An encoder of texts.
pub struct Texts {
    /// The width `D`.
    pub width: usize,
    /// The size of the vocabulary.
    pub vocab_size: usize,
    /// The maximum length of a text, in tokens.
    pub max_tokens: usize,
    forward: Forward,
}

/// An encoder of images.
pub struct Images {
    /// The width `D`.
    pub width: usize,
    forward: Forward,
}

impl Texts {
    /// Returns the states of a text with the token ids `ids`, `[L, D]`. SigLIP needs exactly
    /// [`max_tokens`](Self::max_tokens) ids, with padding, and returns one vector, `[1, D]`.
    ///
    /// # Errors
    /// [`Candle`](engram_models::ModelError::Candle)
    pub fn encode(&self, ids: &[u32]) -> Result<Tensor> {
        let states = (self.forward)(&Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?)?;
        Ok(if states.rank() == 3 { states.squeeze(0)? } else { states })
    }
}

impl Images {
    /// Returns the vectors of images `[B, 3, H, W]`: `[B, D]`.
    ///
    /// # Errors
    /// [`Candle`](engram_models::ModelError::Candle)
    pub fn encode(&self, pixels: &Tensor) -> Result<Tensor> {
        Ok((self.forward)(pixels)?)
    }
}

impl Family {
    /// The family of a `config.json`; `None` for all other models.
    pub fn of(config: &str) -> Option<Self> {
        let config: Value = serde_json::from_str(config).ok()?;
        Some(match config["model_type"].as_str()? {
            "siglip" => Self::Siglip,
            "dinov2" | "dinov2_with_registers" | "vit" => Self::VisionTransformer,
            "bert" if config["position_embedding_type"] == "alibi" => Self::JinaBert,
            "nomic_bert" => Self::NomicBert,
            "new" | "gte" => Self::Gte,
            _ => return None,
        })
    }

    /// Builds the encoder from the text of its `config.json`, which messages name `name`, and its
    /// weights. `image_size` is the height and width of the images that the model will get.
    ///
    /// # Errors
    /// [`BadConfig`](engram_models::ModelError::BadConfig) for a variant that is not supported, for
    /// code of the model's own (`auto_map`), and for images of a size that the model does not take.
    /// [`BadFile`](engram_models::ModelError::BadFile) for weights that do not fit the configuration.
    pub fn open(
        self,
        config: &str,
        name: &str,
        weights: &WeightsFiles,
        image_size: Option<(usize, usize)>,
    ) -> Result<FrozenEncoder> {
        let config = Config::parse(config, name)?;
        let (classes, prefixes) = self.published();
        config.refuse_code(classes)?;
        let source = Source::open(weights, prefixes)?;
        let encoder = match self {
            Self::Siglip => images::siglip(&config, &source, image_size),
            Self::VisionTransformer => images::vision_transformer(&config, &source, image_size),
            Self::JinaBert => texts::jina_bert(&config, &source),
            Self::NomicBert => texts::nomic_bert(&config, &source),
            Self::Gte => texts::gte(&config, &source),
        }?;
        source.refuse_unread(&weights.path)?;
        Ok(encoder)
    }

    /// The classes of published code, in `auto_map`, that this family runs instead; and the
    /// beginnings of tensor names in files of models with a head.
    fn published(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Self::Siglip => (&[], &[]),
            Self::VisionTransformer => (&[], &["dinov2.", "dinov2_with_registers.", "vit."]),
            Self::JinaBert => (&["JinaBertModel"], &["bert."]),
            Self::NomicBert => (&["NomicBertModel"], &["bert.", "nomic_bert."]),
            Self::Gte => (&["NewModel", "GteModel"], &["new.", "gte."]),
        }
    }
}
