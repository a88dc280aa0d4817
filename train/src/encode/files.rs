//! The files of a published text encoder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engram_data::hub::{HubSettings, WeightsLocation};
use engram_data::tokenise::Tokeniser;
use engram_models::params::ParameterBuilder;
use engram_models::text_encoder::{TextEncoder, TextEncoderConfig};

use crate::checksums::check_model;
use crate::digest;
use crate::error::{Result, TrainError};
use crate::study::Inputs;

/// The files that a text encoder is made of, found once.
pub struct EncoderFiles {
    /// The text of `config.json`.
    pub config_json: String,
    /// The text of `tokenizer.json`.
    pub tokenizer_json: Vec<u8>,
    /// The published weights with their SHA-256; `None` starts afresh.
    weights: Option<(PathBuf, String)>,
    /// What `config.json` says.
    pub config: TextEncoderConfig,
    /// The tokeniser, checked against the configuration.
    pub tokeniser: Arc<Tokeniser>,
    /// The configuration's name in messages.
    pub name: String,
}

impl EncoderFiles {
    /// Finds the files in a folder, in the hub's cache, or on the hub.
    ///
    /// # Errors
    /// [`TrainError::Data`], [`TrainError::Io`], [`TrainError::Model`]
    pub fn find(location: &str) -> Result<Self> {
        let settings = HubSettings::from_env();
        let location = WeightsLocation::parse(location)?;
        check_model(&location)?;
        let config = location.file("config.json", &settings)?;
        let tokenizer = location.file("tokenizer.json", &settings)?;
        let weights = location.file("model.safetensors", &settings)?;
        let (_, hash) = digest::of_file(&weights).map_err(TrainError::io(&weights))?;
        Self::read(&config, &tokenizer, Some((weights, hash)))
    }

    /// The `config.json` and `tokenizer.json` of a folder, without weights.
    ///
    /// # Errors
    /// As [`EncoderFiles::find`].
    pub fn of_folder(folder: &Path) -> Result<Self> {
        Self::read(&folder.join("config.json"), &folder.join("tokenizer.json"), None)
    }

    fn read(config: &Path, tokenizer: &Path, weights: Option<(PathBuf, String)>) -> Result<Self> {
        let read = |path: &Path| std::fs::read(path).map_err(TrainError::io(path));
        let config_json = String::from_utf8_lossy(&read(config)?).into_owned();
        let tokenizer_json = read(tokenizer)?;
        let tokeniser = Tokeniser::from_bytes(tokenizer, &tokenizer_json)?;
        let files =
            Self::new(config_json, config.display().to_string(), tokenizer_json, tokeniser)?;
        Ok(Self { weights, ..files })
    }

    /// Files that are made here, without weights; `name` stands for the configuration in messages.
    ///
    /// # Errors
    /// [`TrainError::Model`] for a configuration that is not known; [`TrainError::Data`] for the tokenizer of another
    /// model.
    pub fn new(
        config_json: String,
        name: String,
        tokenizer_json: Vec<u8>,
        tokeniser: Tokeniser,
    ) -> Result<Self> {
        let config = TextEncoderConfig::parse(&config_json, &name)?;
        tokeniser.check_fits(config.vocab_size(), None)?;
        let (weights, tokeniser) = (None, Arc::new(tokeniser));
        Ok(Self { config_json, tokenizer_json, weights, config, tokeniser, name })
    }

    /// What the files are, by name and SHA-256.
    pub fn inputs(&self) -> Inputs {
        let mut inputs = Inputs::from([
            ("model configuration".into(), digest::of_bytes(&self.config_json)),
            ("tokenizer".into(), digest::of_bytes(&self.tokenizer_json)),
        ]);
        if let Some((_, hash)) = &self.weights {
            inputs.insert("published weights".into(), hash.clone());
        }
        inputs
    }

    /// The SHA-256 of the published weights; `None` for an encoder that starts afresh.
    pub fn weights_sha256(&self) -> Option<&str> {
        self.weights.as_ref().map(|(_, hash)| hash.as_str())
    }

    /// Builds the encoder: from the published weights, or fresh where there are none.
    ///
    /// # Errors
    /// [`TrainError::Model`]
    pub fn build(&self, builder: &ParameterBuilder) -> Result<TextEncoder> {
        Ok(match &self.weights {
            Some((path, _)) => {
                let weights = self.config.open_weights(path)?;
                self.config.build(&builder.with_weights(weights))?
            }
            None => self.config.build(builder)?,
        })
    }
}
