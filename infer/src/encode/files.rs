//! The files of a published text encoder.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use engram_data::tokenizer::SegmentTokenizer;
use engram_frozen::Family;
use engram_models::params::ParameterBuilder;
use engram_models::similarity::Pooling;
use engram_models::text_encoder::{TextEncoder, TextEncoderConfig};

use super::config_text;
use super::layout::Layout;
use super::tokenizer::{TokenizerConfig, adapt_tokenizer_json};
use crate::digest;
use crate::error::{InferError, Result};
use crate::pretrained::{PretrainedFolder, PretrainedWeights};

/// The files of a text encoder.
pub struct EncoderFiles {
    /// The text of `config.json`.
    pub config_json: String,
    /// The text of `tokenizer.json`, with the changes that `tokenizer_config.json` and the settings
    /// of sentence-transformers make.
    pub tokenizer_json: Vec<u8>,
    /// The published weights; `None` to initialise the encoder with random weights.
    pub(super) weights: Option<PretrainedWeights>,
    /// The parsed `config.json`.
    pub config: TextEncoderConfig,
    /// The tokenizer, checked against the configuration.
    pub tokenizer: Arc<SegmentTokenizer>,
    /// The name of the configuration in messages.
    pub name: String,
    /// The pooling to train a bi-encoder with; `None` if bi-encoders do not support the published
    /// pooling.
    pub pooling: Option<Pooling>,
}

impl EncoderFiles {
    /// Finds the files in a folder, in the Hub cache, or on the Hub. In a sentence-transformers
    /// folder, uses the files of its Transformer module.
    ///
    /// # Errors
    /// [`InferError::Data`], [`InferError::Io`], [`InferError::Model`]; [`InferError::Encoder`]
    /// with the remedy for a tokenizer or weights in an unsupported format.
    pub fn find(location: &str) -> Result<Self> {
        Self::of_layout(&Layout::read(PretrainedFolder::open(location)?)?)
    }

    /// The files of a folder's Transformer module.
    pub(super) fn of_layout(layout: &Layout) -> Result<Self> {
        let folder = layout.transformer();
        let config = folder.file("config.json")?;
        if Family::of(&config_text(&config)?).is_some() {
            let reason = format!(
                "this encoder can only be used frozen, not trained; to train one, use a model with \
                 one of these values of model_type: {}",
                engram_models::text_encoder::Family::model_types()
            );
            return Err(InferError::Encoder { name: config.display().to_string(), reason });
        }
        let settings = layout.settings(false)?;
        let tokenizer_config = TokenizerConfig::read(&folder)?;
        let tokenizer = folder.tokenizer()?;
        let adapt = |json: Vec<u8>| {
            adapt_tokenizer_json(json, tokenizer_config.as_ref(), settings.do_lower_case)
        };
        let files = Self::read(&config, &tokenizer, adapt)?;
        let weights = Some(folder.weights()?);
        Ok(Self { weights, pooling: layout.trainable_pooling()?, ..files })
    }

    /// Reads `config.json` and `tokenizer.json` of a folder, without weights.
    ///
    /// # Errors
    /// The errors of [`EncoderFiles::find`].
    pub fn of_folder(folder: &Path) -> Result<Self> {
        Self::read(&folder.join("config.json"), &folder.join("tokenizer.json"), |json| json)
    }

    fn read(config: &Path, tokenizer: &Path, adapt: impl Fn(Vec<u8>) -> Vec<u8>) -> Result<Self> {
        let config_json = config_text(config)?;
        let json = engram_durable::read_file(tokenizer).map_err(InferError::io(tokenizer))?;
        let tokenizer_json = adapt(json);
        let tokenizer = SegmentTokenizer::from_bytes(tokenizer, &tokenizer_json)?;
        Self::new(config_json, config.display().to_string(), tokenizer_json, tokenizer)
    }

    /// Creates the files in memory, without weights. `name` stands for the configuration in
    /// messages.
    ///
    /// # Errors
    /// [`InferError::Model`] for an unknown configuration; [`InferError::Data`] for the tokenizer
    /// of another model.
    pub fn new(
        config_json: String,
        name: String,
        tokenizer_json: Vec<u8>,
        tokenizer: SegmentTokenizer,
    ) -> Result<Self> {
        let config = TextEncoderConfig::parse(&config_json, &name)?;
        tokenizer.check_fits(config.vocab_size, None)?;
        let (weights, tokenizer, pooling) = (None, Arc::new(tokenizer), Some(Pooling::Mean));
        Ok(Self { config_json, tokenizer_json, weights, config, tokenizer, name, pooling })
    }

    /// The SHA-256 of each file. The keys name the content: `model configuration`, `tokenizer`,
    /// `published weights`.
    pub fn inputs(&self) -> BTreeMap<String, String> {
        let mut inputs = BTreeMap::from([
            ("model configuration".into(), digest::of_bytes(&self.config_json)),
            ("tokenizer".into(), digest::of_bytes(&self.tokenizer_json)),
        ]);
        if let Some(weights) = &self.weights {
            inputs.insert("published weights".into(), weights.sha256.clone());
        }
        inputs
    }

    /// Builds the encoder from the published weights, or with random weights.
    ///
    /// # Errors
    /// [`InferError::Model`]
    pub fn build(&self, builder: &ParameterBuilder) -> Result<TextEncoder> {
        Ok(match &self.weights {
            Some(published) => {
                let weights = self.config.open_weights(&published.files)?;
                self.config.build(&builder.with_weights(weights))?
            }
            None => self.config.build(builder)?,
        })
    }
}
