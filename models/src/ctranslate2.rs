//! Reads CTranslate2's Whisper models (the folders of faster-whisper), and gives tensors and
//! configuration their names in `transformers`.
//!
//! Reference: `WhisperSpec` in CTranslate2's `python/ctranslate2/specs/whisper_spec.py`, and
//! `specs/model_spec.py` for the quantised types. Quantised weights are converted to f32. f16, bf16
//! and f32 weights are copied unchanged.

mod file;

use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::{ModelError, Result};
use crate::whisper::WhisperConfig;
use crate::{config, weights};
use file::File;

/// The content of a Whisper folder, with the tensor names of `transformers`.
pub struct PublishedWhisper {
    /// The configuration.
    pub config: WhisperConfig,
    /// `generation_config.json`: suppressed tokens and alignment heads.
    generation: Value,
    /// Names and tensors, in the order of the model.
    pub tensors: Vec<(String, Tensor)>,
}

/// The content of `config.json` in a CTranslate2 folder.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Ctranslate2Config {
    suppress_ids: Vec<u32>,
    suppress_ids_begin: Vec<u32>,
    alignment_heads: Vec<[usize; 2]>,
    lang_ids: Vec<u32>,
}

/// CTranslate2's id of exact GELU.
const GELU: i64 = 3;

impl PublishedWhisper {
    /// Reads `model.bin`, `config.json` and `tokenizer.json` of a folder.
    ///
    /// # Errors
    /// [`ModelError::BadFile`] for a `model.bin` that is truncated, of another version, or
    /// of another kind of model. [`ModelError::BadConfig`] for the other files. [`ModelError::Io`].
    pub fn read_ctranslate2(folder: &Path) -> Result<Self> {
        let mut file = File::open(&folder.join("model.bin"))?;
        let settings: Ctranslate2Config = read_json(&folder.join("config.json"))?;
        let (config, tensors) = to_published(&mut file, special_tokens(folder)?)?;
        let generation = json!({
            "suppress_tokens": settings.suppress_ids,
            "begin_suppress_tokens": settings.suppress_ids_begin,
            "alignment_heads": settings.alignment_heads,
            "lang_ids": settings.lang_ids,
            "decoder_start_token_id": config.decoder_start_token_id,
            "eos_token_id": config.eos_token_id,
        });
        Ok(Self { config, generation, tensors })
    }

    /// Writes `model.safetensors`, `config.json` and `generation_config.json` into an existing
    /// folder.
    ///
    /// # Errors
    /// [`ModelError::Io`] if a file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<()> {
        let mut config = serde_json::to_value(&self.config).unwrap_or_default();
        config["model_type"] = json!("whisper");
        for (name, value) in
            [("config.json", &config), ("generation_config.json", &self.generation)]
        {
            let path = folder.join(name);
            let text = format!("{value:#}\n");
            engram_durable::write_file(&path, text.as_bytes())
                .map_err(|source| ModelError::Io { path, source })?;
        }
        let named = self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
        weights::save(&folder.join("model.safetensors"), named)
    }
}

/// Returns the ids of `<|startoftranscript|>` and `<|endoftext|>` in a folder's `tokenizer.json`.
fn special_tokens(folder: &Path) -> Result<(u32, u32)> {
    #[derive(Deserialize)]
    struct Tokenizer {
        added_tokens: Vec<AddedToken>,
    }
    #[derive(Deserialize)]
    struct AddedToken {
        id: u32,
        content: String,
    }
    let path = folder.join("tokenizer.json");
    let tokenizer: Tokenizer = read_json(&path)?;
    let find = |name: &str| {
        let found = tokenizer.added_tokens.iter().find(|token| token.content == name);
        found.map(|token| token.id).ok_or_else(|| ModelError::BadConfig {
            what: path.display().to_string(),
            reason: format!("has no token `{name}`; is this a Whisper tokenizer?"),
        })
    };
    Ok((find("<|startoftranscript|>")?, find("<|endoftext|>")?))
}

/// Reads a JSON file; errors name it.
fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let io = |source| ModelError::Io { path: PathBuf::from(path), source };
    let text = engram_durable::read_text(path).map_err(io)?;
    let bad_config = |e: serde_json::Error| ModelError::BadConfig {
        what: path.display().to_string(),
        reason: e.to_string(),
    };
    serde_json::from_str(&text).map_err(bad_config)
}

/// Returns the configuration and the tensors with their published names. The sizes of the
/// configuration come from the tensors, and its start and end tokens are the given ids.
fn to_published(
    file: &mut File,
    (start, end): (u32, u32),
) -> Result<(WhisperConfig, Vec<(String, Tensor)>)> {
    if file.spec != "WhisperSpec" {
        let reason = format!("holds a `{}`, not a `WhisperSpec`", file.spec);
        return Err(file.error(reason));
    }
    if let Some(activation) = file.integer("decoder/activation")?.filter(|found| *found != GELU) {
        return Err(file.error(format!("activation {activation} is not the exact GELU ({GELU})")));
    }
    let layers = |part: &str| {
        (0..).take_while(|i| file.has(&format!("{part}/layer_{i}/ffn/linear_0/weight"))).count()
    };
    let size = |name: &str, dim: usize| file.size(name, dim);
    let heads = |part: &str| -> Result<usize> {
        let found = file.integer(&format!("{part}/num_heads"))?;
        found.and_then(|heads| usize::try_from(heads).ok()).ok_or_else(|| {
            file.error(format!("the number of heads of the {part} is missing (`{part}/num_heads`)"))
        })
    };
    let config = WhisperConfig {
        vocab_size: size("decoder/embeddings/weight", 0)?,
        num_mel_bins: size("encoder/conv1/weight", 1)?,
        d_model: size("encoder/conv1/weight", 0)?,
        encoder_layers: layers("encoder"),
        encoder_attention_heads: heads("encoder")?,
        encoder_ffn_dim: size("encoder/layer_0/ffn/linear_0/weight", 0)?,
        decoder_layers: layers("decoder"),
        decoder_attention_heads: heads("decoder")?,
        decoder_ffn_dim: size("decoder/layer_0/ffn/linear_0/weight", 0)?,
        max_source_positions: size("encoder/position_encodings/encodings", 0)?,
        max_target_positions: size("decoder/position_encodings/encodings", 0)?,
        decoder_start_token_id: start,
        eos_token_id: end,
        ..WhisperConfig::default()
    };
    config::in_file(&file.path, config.validate())?;
    let mut renamer = TensorRenamer { file, width: config.d_model, tensors: Vec::new() };
    for (part, blocks) in [("encoder", config.encoder_layers), ("decoder", config.decoder_layers)] {
        renamer.part(part, blocks)?;
    }
    Ok((config, renamer.tensors))
}

/// The layers of a block, and the published names of the parts of each. Only the decoder has
/// `attention/`, the cross-attention.
const BLOCK: [(&str, &[&str]); 10] = [
    ("self_attention/layer_norm", &["self_attn_layer_norm"]),
    ("self_attention/linear_0", &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    ("self_attention/linear_1", &["self_attn.out_proj"]),
    ("attention/layer_norm", &["encoder_attn_layer_norm"]),
    ("attention/linear_0", &["encoder_attn.q_proj"]),
    ("attention/linear_1", &["encoder_attn.k_proj", "encoder_attn.v_proj"]),
    ("attention/linear_2", &["encoder_attn.out_proj"]),
    ("ffn/layer_norm", &["final_layer_norm"]),
    ("ffn/linear_0", &["fc1"]),
    ("ffn/linear_1", &["fc2"]),
];

/// Collects tensors under their published names.
struct TensorRenamer<'a> {
    file: &'a mut File,
    width: usize,
    tensors: Vec<(String, Tensor)>,
}

impl TensorRenamer<'_> {
    /// Adds the tensors of the encoder or the decoder.
    fn part(&mut self, part: &str, blocks: usize) -> Result<()> {
        let to = format!("model.{part}");
        if part == "encoder" {
            for conv in ["conv1", "conv2"] {
                self.linear(&format!("encoder/{conv}"), &[(&format!("{to}.{conv}"), true)])?;
            }
        } else {
            let weight = self.file.tensor("decoder/embeddings/weight")?;
            self.tensors.push((format!("{to}.embed_tokens.weight"), weight));
        }
        let positions = self.file.tensor(&format!("{part}/position_encodings/encodings"))?;
        self.tensors.push((format!("{to}.embed_positions.weight"), positions));
        self.norm(&format!("{part}/layer_norm"), &format!("{to}.layer_norm"))?;
        for block in 0..blocks {
            let (from, to) = (format!("{part}/layer_{block}"), format!("{to}.layers.{block}"));
            for (from_layer, to_layers) in BLOCK {
                if part == "encoder" && from_layer.starts_with("attention/") {
                    continue;
                }
                let from = format!("{from}/{from_layer}");
                let to = to_layers.iter().map(|name| format!("{to}.{name}"));
                let to: Vec<String> = to.collect();
                if from_layer.ends_with("layer_norm") {
                    self.norm(&from, &to[0])?;
                    continue;
                }
                // As published, keys have no bias.
                let to = to.iter().map(|name| (name.as_str(), !name.ends_with("k_proj")));
                self.linear(&from, &to.collect::<Vec<_>>())?;
            }
        }
        Ok(())
    }

    /// Adds the weight and bias of a layer norm.
    fn norm(&mut self, from: &str, to: &str) -> Result<()> {
        for (ctranslate2_name, published_name) in [("gamma", "weight"), ("beta", "bias")] {
            let tensor = self.file.tensor(&format!("{from}/{ctranslate2_name}"))?;
            self.tensors.push((format!("{to}.{published_name}"), tensor));
        }
        Ok(())
    }

    /// Splits a stacked linear layer into published layers, each given by its name and whether it
    /// has a bias.
    fn linear(&mut self, from: &str, to: &[(&str, bool)]) -> Result<()> {
        let weight = self.file.tensor(&format!("{from}/weight"))?;
        let bias = self.file.tensor(&format!("{from}/bias"))?;
        let rows = if to.len() == 1 { weight.dim(0)? } else { self.width };
        if weight.dim(0)? != rows * to.len() || bias.dims() != [rows * to.len()] {
            let (found, expected) = (weight.dims(), rows * to.len());
            let reason =
                format!("`{from}` has shape {found:?}, but {expected} rows and biases are needed");
            return Err(self.file.error(reason));
        }
        for (i, (name, has_bias)) in to.iter().enumerate() {
            let part = |tensor: &Tensor| tensor.narrow(0, i * rows, rows)?.contiguous();
            self.tensors.push((format!("{name}.weight"), part(&weight)?));
            if *has_bias {
                self.tensors.push((format!("{name}.bias"), part(&bias)?));
            }
        }
        Ok(())
    }
}
