//! A recogniser from its published files.

use std::path::Path;

use candle_core::{DType, Device};
use engram_data::hub::WeightsLocation;
use engram_data::speech::tokens::SpeechTokeniser;
use engram_models::params::{ParameterBuilder, ParameterGroup};
use engram_models::speech::log_mel::LogMel;
use engram_models::weights::Weights;
use engram_models::whisper::{AlignmentHeads, Whisper, WhisperConfig, WhisperTokens};
use serde::Deserialize;

use super::Recogniser;
use crate::error::{Result, TrainError};
use crate::published::PublishedFolder;

/// What is read of `generation_config.json`: the tokens that are never written, which older folders have
/// in `config.json`, and the heads that follow the sound.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct GenerationConfig {
    suppress_tokens: Option<Vec<u32>>,
    begin_suppress_tokens: Option<Vec<u32>>,
    alignment_heads: Option<Vec<[usize; 2]>>,
}

impl Recogniser {
    /// Opens the model of a folder or of `hf://owner/name`: `config.json`, `tokenizer.json`,
    /// `model.safetensors`, and `generation_config.json` if there is one.
    ///
    /// # Errors
    /// [`TrainError::Data`] for files that are missing, with the remedy for a folder of CTranslate2;
    /// [`TrainError::Model`] for a model that is not known or does not fit its weights.
    pub fn open(location: &str) -> Result<Self> {
        let place = WeightsLocation::parse(location)?;
        if let WeightsLocation::Folder(folder) = &place
            && folder.join("model.bin").is_file()
            && !folder.join("model.safetensors").is_file()
        {
            let folder = folder.display();
            let reason = format!(
                "{folder}: holds a model.bin; if it is CTranslate2's, run `engram data convert ctranslate2 \
                 {folder} --out NEW` and give NEW"
            );
            return Err(TrainError::Recognise { reason });
        }
        let folder = PublishedFolder::open(location)?;
        let config_file = folder.file("config.json")?;
        let config = WhisperConfig::read(&config_file)?;
        let tokeniser = SpeechTokeniser::from_file(&folder.tokenizer()?)?;
        let path = folder.weights_path()?;
        let frozen = vec![ParameterGroup::all_frozen()];
        let builder = ParameterBuilder::new(0, frozen, DType::F32, &Device::Cpu);
        let weights = std::sync::Arc::new(Weights::open(&path)?);
        let whisper = Whisper::new(&config, &builder.with_weights(weights))?;
        let parameters = builder.finish()?;
        let tokens = WhisperTokens::find(|name| tokeniser.id_of(name))?;
        tokens.check_fits(config.vocab_size)?;
        let generation_file = folder.optional("generation_config.json")?;
        let generation = match &generation_file {
            Some(file) => GenerationConfig::read(file)?,
            None => GenerationConfig::default(),
        };
        let older = GenerationConfig::read(&config_file)?;
        let heads = generation.alignment_heads.unwrap_or_default();
        let alignment_heads = AlignmentHeads::new(&heads, &config).map_err(|error| {
            let file = generation_file.as_deref().unwrap_or(&config_file).display();
            TrainError::Recognise { reason: format!("{file}: {error}") }
        })?;
        let default_at_start = || {
            // A blank and the end.
            let blank = tokeniser.encode(" ").ok().filter(|ids| ids.len() == 1);
            blank.into_iter().flatten().chain([tokens.end]).collect()
        };
        Ok(Self {
            mel: LogMel::new(config.num_mel_bins)?,
            suppressed: generation.suppress_tokens.or(older.suppress_tokens).unwrap_or_default(),
            suppressed_at_start: generation
                .begin_suppress_tokens
                .or(older.begin_suppress_tokens)
                .unwrap_or_else(default_at_start),
            alignment_heads,
            multilingual: config.vocab_size > ENGLISH_VOCABULARY,
            whisper,
            parameters,
            tokeniser,
            tokens,
            weights: path,
        })
    }
}

/// Entries of the vocabulary of English models; multilingual ones have more.
const ENGLISH_VOCABULARY: usize = 51_864;

impl GenerationConfig {
    fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(TrainError::io(path))?;
        serde_json::from_str(&text).map_err(|error| TrainError::Recognise {
            reason: format!("{}, line {}: {error}", path.display(), error.line()),
        })
    }
}
