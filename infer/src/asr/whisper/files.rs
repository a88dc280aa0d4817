//! Loads a Whisper model from its published files.

use std::path::Path;

use engram_data::speech::tokenizer::SpeechTokenizer;
use engram_models::compute::Compute;
use engram_models::params::ParameterBuilder;
use engram_models::speech::log_mel::LogMel;
use engram_models::whisper::{AlignmentHeads, Whisper, WhisperConfig, WhisperTokens};
use serde::Deserialize;

use super::WhisperAsr;
use crate::error::{InferError, Result};
use crate::pretrained::PretrainedFolder;

/// The fields of `generation_config.json` that decoding uses: suppressed tokens (in `config.json`
/// of older folders) and the attention heads for word times.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct GenerationConfig {
    suppress_tokens: Option<Vec<u32>>,
    begin_suppress_tokens: Option<Vec<u32>>,
    alignment_heads: Option<Vec<[usize; 2]>>,
}

impl WhisperAsr {
    /// Opens the model in a folder: `config.json`, `tokenizer.json`, `model.safetensors`, and
    /// `generation_config.json` if it exists.
    pub(crate) fn open(folder: &PretrainedFolder, compute: &Compute) -> Result<Self> {
        folder.refuse_ctranslate2()?;
        let config_file = folder.file("config.json")?;
        let config = WhisperConfig::read(&config_file)?;
        let tokenizer = SpeechTokenizer::from_file(&folder.tokenizer()?)?;
        let files = folder.weights_files()?;
        let builder = ParameterBuilder::frozen(compute);
        let weights = std::sync::Arc::new(files.open()?);
        let whisper = Whisper::new(&config, &builder.with_weights(weights))?;
        let parameters = builder.finish()?;
        let tokens = WhisperTokens::find(|name| tokenizer.id_of(name))?;
        tokens.check_fits(config.vocab_size)?;
        let generation_file = folder.optional("generation_config.json")?;
        let generation = match &generation_file {
            Some(file) => GenerationConfig::read(file)?,
            None => GenerationConfig::default(),
        };
        let generation_in_config = GenerationConfig::read(&config_file)?;
        let heads = generation.alignment_heads.unwrap_or_default();
        let alignment_heads = AlignmentHeads::new(&heads, &config).map_err(|error| {
            let file = generation_file.as_deref().unwrap_or(&config_file).display();
            InferError::Refused(format!("{file}: {error}"))
        })?;
        let default_at_start = || {
            // The space and the end-of-text token.
            let space = tokenizer.encode(" ").ok().filter(|ids| ids.len() == 1);
            space.into_iter().flatten().chain([tokens.end]).collect()
        };
        Ok(Self {
            mel: LogMel::whisper(config.num_mel_bins)?,
            suppressed: generation
                .suppress_tokens
                .or(generation_in_config.suppress_tokens)
                .unwrap_or_default(),
            suppressed_at_start: generation
                .begin_suppress_tokens
                .or(generation_in_config.begin_suppress_tokens)
                .unwrap_or_else(default_at_start),
            alignment_heads,
            multilingual: config.vocab_size > ENGLISH_VOCABULARY,
            language: None,
            whisper,
            parameters,
            tokenizer,
            tokens,
            weights: files,
        })
    }
}

/// The vocabulary size of English-only models. Multilingual models have a larger vocabulary.
const ENGLISH_VOCABULARY: usize = 51_864;

impl GenerationConfig {
    fn read(path: &Path) -> Result<Self> {
        let text = engram_durable::read_text(path).map_err(InferError::io(path))?;
        serde_json::from_str(&text).map_err(|error| {
            InferError::Refused(format!("{}, line {}: {error}", path.display(), error.line()))
        })
    }
}
