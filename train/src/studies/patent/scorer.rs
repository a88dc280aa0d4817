//! Encoder and head of the patent study: from a recipe's `[model]` to scores.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use engram_data::hub::{HubSettings, WeightsLocation};
use engram_data::tokenise::Tokeniser;
use engram_data::world::phrases::phrase_tokenizer;
use engram_models::kernels::Mode;
use engram_models::params::{ParameterBuilder, ParameterGroup, Parameters};
use engram_models::similarity::{BiEncoder, CrossEncoder, CrossEncoderConfig, PairLoss};
use engram_models::text_encoder::TextEncoderConfig;

use super::sequences::Input;
use super::settings::{Layout, PatentModel};
use crate::digest;
use crate::error::TrainError;
use crate::study::{Inputs, StudyResult};

/// The files that an encoder is made of, found once.
pub struct EncoderFiles {
    /// The text of `config.json`.
    pub config_json: String,
    /// The text of `tokenizer.json`.
    pub tokenizer_json: Vec<u8>,
    /// The published weights with their SHA-256; `None` starts afresh.
    weights: Option<(PathBuf, String)>,
    config: TextEncoderConfig,
    /// The tokeniser, checked against the configuration.
    pub tokeniser: Arc<Tokeniser>,
}

impl EncoderFiles {
    /// Finds the files that `[model]` names: in a folder, in the hub's cache, or on the hub.
    pub fn find(model: &PatentModel) -> StudyResult<Self> {
        if model.weights.is_empty() {
            return Self::fresh(model);
        }
        let settings = HubSettings::from_env();
        let location = WeightsLocation::parse(&model.weights)?;
        let config_path = location.file("config.json", &settings)?;
        let tokenizer_path = location.file("tokenizer.json", &settings)?;
        let weights = location.file("model.safetensors", &settings)?;
        let read = |path: &PathBuf| std::fs::read(path).map_err(TrainError::io(path));
        let config_json = String::from_utf8_lossy(&read(&config_path)?).into_owned();
        let tokenizer_json = read(&tokenizer_path)?;
        let tokeniser = Tokeniser::from_bytes(&tokenizer_path, &tokenizer_json)?;
        let name = config_path.display().to_string();
        let (_, hash) = digest::of_file(&weights).map_err(TrainError::io(&weights))?;
        Self::new(config_json, &name, tokenizer_json, tokeniser, Some((weights, hash)), model)
    }

    /// The files that a finished run keeps in its folder.
    pub fn of_run(run: &Path, model: &PatentModel) -> StudyResult<Self> {
        let read = |name: &str| {
            let path = run.join(name);
            std::fs::read(&path).map_err(TrainError::io(&path))
        };
        let config_json = String::from_utf8_lossy(&read("config.json")?).into_owned();
        let tokenizer_json = read("tokenizer.json")?;
        let tokeniser = Tokeniser::from_bytes(run.join("tokenizer.json"), &tokenizer_json)?;
        let name = run.join("config.json").display().to_string();
        Self::new(config_json, &name, tokenizer_json, tokeniser, None, model)
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

    fn fresh(model: &PatentModel) -> StudyResult<Self> {
        let tokenizer_json = phrase_tokenizer();
        let tokeniser = Tokeniser::from_bytes("the embedded tokenizer", &tokenizer_json)?;
        let config = model.fresh.config(tokeniser.vocabulary_size(), model.max_tokens);
        let config_json = serde_json::to_string_pretty(&config)?;
        Self::new(config_json, "[model.fresh]", tokenizer_json, tokeniser, None, model)
    }

    fn new(
        config_json: String,
        name: &str,
        tokenizer_json: Vec<u8>,
        tokeniser: Tokeniser,
        weights: Option<(PathBuf, String)>,
        model: &PatentModel,
    ) -> StudyResult<Self> {
        let mut config = TextEncoderConfig::parse(&config_json, name)?;
        tokeniser.check_fits(config.vocab_size(), None)?;
        if model.max_tokens > config.max_length() {
            let (asked, longest) = (model.max_tokens, config.max_length());
            return Err(format!(
                "model.max_tokens is {asked}, but {name} takes at most {longest} tokens"
            )
            .into());
        }
        config.set_dropout(model.hidden_dropout, model.attention_dropout);
        Ok(Self { config_json, tokenizer_json, weights, config, tokeniser: Arc::new(tokeniser) })
    }
}

/// A model that scores rows.
pub enum Scorer {
    /// Both phrases are read together.
    Cross(CrossEncoder),
    /// Each phrase alone.
    Bi(BiEncoder),
}

impl Scorer {
    /// Builds the model and its parameters.
    pub fn build(
        files: &EncoderFiles,
        model: &PatentModel,
        groups: Vec<ParameterGroup>,
        seed: u64,
    ) -> StudyResult<(Self, Parameters)> {
        let builder = ParameterBuilder::new(seed, groups, DType::F32, &Device::Cpu);
        let encoder = match &files.weights {
            Some((path, _)) => {
                let weights = files.config.open_weights(path)?;
                files.config.build(&builder.with_weights(weights))?
            }
            None => files.config.build(&builder)?,
        };
        let scorer = if model.layout == Layout::BiEncoder {
            Self::Bi(BiEncoder::new(model.pooling, encoder, &builder)?)
        } else {
            let config = CrossEncoderConfig {
                pooling: model.pooling,
                compare_anchor: model.compare_anchor && model.layout == Layout::Listwise,
                head_dropout: model.head_dropout,
                score_bias: model.loss != PairLoss::Pearson,
            };
            Self::Cross(CrossEncoder::new(config, encoder, &builder)?)
        };
        Ok((scorer, builder.finish()?))
    }

    /// One score for each row of the input: `[N]`.
    pub fn score(&self, input: &Input, mode: &Mode) -> StudyResult<Tensor> {
        match (self, input) {
            (Self::Cross(model), Input::Spans(tokens, spans)) => {
                Ok(model.score(tokens, spans, mode)?)
            }
            (Self::Bi(model), Input::Phrases(tokens, pairs)) => {
                Ok(model.score(tokens, pairs, mode)?)
            }
            _ => Err("the input is laid out for another kind of model".into()),
        }
    }
}
