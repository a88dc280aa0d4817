//! Errors for folders and files that are not a model here, with what to do.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use engram_data::DataError;
use engram_data::hub::WeightsLocation;
use engram_models::weights::{ADAPTER_CONFIG, ADAPTER_WEIGHTS, INDEX_FILE, WEIGHTS_FILE};
use serde_json::Value;

use super::{PretrainedFolder, TOKENIZER, WITH_ADAPTER, is_missing};
use crate::error::{InferError, Result};

/// Files of slow tokenizers. transformers converts them to `tokenizer.json`.
const SLOW_TOKENIZERS: [&str; 6] = [
    "spm.model",
    "sentencepiece.bpe.model",
    "spiece.model",
    "tokenizer.model",
    "vocab.txt",
    "vocab.json",
];

const UNSUPPORTED_WEIGHTS_FILES: [&str; 5] = [
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "tf_model.h5",
    "flax_model.msgpack",
    "onnx/model.onnx",
];

/// The LoRA of an image generator of `diffusers`.
const DIFFUSERS_ADAPTER: &str = "pytorch_lora_weights.safetensors";

/// The extensions of models in formats that are not supported, and the names of the formats.
const FOREIGN_FORMATS: [(&str, &str); 8] = [
    ("gguf", "GGUF"),
    ("ggml", "GGML"),
    ("onnx", "ONNX"),
    ("bin", "PyTorch"),
    ("pt", "PyTorch"),
    ("pth", "PyTorch"),
    ("ckpt", "PyTorch"),
    ("h5", "Keras"),
];

/// What to give in the place of a model in another format.
const WHOLE_FOLDER: &str = "give the folder of the model as published for transformers, with \
                            config.json, tokenizer.json and model.safetensors";

/// The name of the format of a file; `None` if it is not a known format of models.
fn foreign_format(path: &Path) -> Option<&'static str> {
    let extension = path.extension()?.to_str()?.to_lowercase();
    let mut formats = FOREIGN_FORMATS.iter();
    formats.find(|(known, _)| *known == extension).map(|(_, format)| *format)
}

/// Whether a file has the extension of a model's weights, which no text file has.
pub fn is_model_file(path: &Path) -> bool {
    match path.extension().and_then(OsStr::to_str) {
        Some("safetensors") => true,
        Some("bin") => false,
        _ => foreign_format(path).is_some(),
    }
}

/// The error for a file that is given in the place of a model's folder.
pub(super) fn file_error(file: &Path) -> InferError {
    let reason = match foreign_format(file) {
        Some(format) => {
            format!("is a file in the format {format}, which is not supported; {WHOLE_FOLDER}")
        }
        None => format!("is a file, not the folder of a model; {WHOLE_FOLDER}"),
    };
    InferError::Encoder { name: file.display().to_string(), reason }
}

impl PretrainedFolder {
    /// The name of the folder for messages.
    fn display_name(&self) -> String {
        match self.subfolder.as_str() {
            "" => self.location.to_string(),
            _ => self.name_of(""),
        }
    }

    /// The weights of the adapter in this folder.
    pub(super) fn adapter_weights(&self) -> Result<PathBuf> {
        match self.file(ADAPTER_WEIGHTS) {
            Err(missing) if is_missing(&missing) => match self.optional("adapter_model.bin")? {
                None => Err(missing.into()),
                Some(file) => Err(InferError::Encoder {
                    name: file.display().to_string(),
                    reason: format!(
                        "this format is not supported; load the adapter with peft in Python, and \
                         write {ADAPTER_WEIGHTS} with save_pretrained"
                    ),
                }),
            },
            found => Ok(found?),
        }
    }

    /// The error for a folder with a PEFT adapter that is given as a model. It has the name of the
    /// base model with the adapter.
    pub(super) fn adapter_error(&self) -> DataError {
        let config = self.json(ADAPTER_CONFIG);
        let has = |name| matches!(self.optional(name), Ok(Some(_)));
        let base = if has("config.json") && [WEIGHTS_FILE, INDEX_FILE].into_iter().any(has) {
            Some(self.display_name())
        } else {
            config["base_model_name_or_path"].as_str().and_then(|name| {
                let hub = WeightsLocation::parse(&format!("hf://{name}")).ok();
                let is_folder = Path::new(name).is_dir();
                if is_folder { Some(name.to_owned()) } else { hub.map(|hub| hub.to_string()) }
            })
        };
        let remedy = match base {
            Some(_) => "give that name",
            None => "give that name, with the base model's folder or hf:// address for MODEL",
        };
        let (base, name) = (base.unwrap_or_else(|| "MODEL".to_owned()), self.display_name());
        DataError::Malformed {
            path: self.name_of(ADAPTER_CONFIG).into(),
            place: None,
            reason: format!(
                "is a PEFT adapter, not a whole model; the name of its base model with it is \
                 '{base}{WITH_ADAPTER}{name}'"
            ),
            remedy,
        }
    }

    /// The error for a local folder that has only a model in a format that is not supported.
    pub(super) fn foreign_error(&self) -> Option<DataError> {
        let WeightsLocation::Folder(folder) = &self.location else { return None };
        let entries = std::fs::read_dir(folder.join(&self.subfolder)).ok()?;
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort_unstable();
        let adapter = paths.iter().find(|path| path.ends_with(DIFFUSERS_ADAPTER)).cloned();
        let foreign = || paths.iter().find_map(|path| Some((path.clone(), foreign_format(path)?)));
        let (path, reason) = match adapter {
            Some(path) => (path, "is an adapter of an image generator, not a model".to_owned()),
            None => {
                let (path, format) = foreign()?;
                (path, format!("is a model in the format {format}, which is not supported"))
            }
        };
        Some(DataError::Malformed { path, place: None, reason, remedy: WHOLE_FOLDER })
    }

    /// The error for a missing file. If the model has the file in another format, the error gives
    /// the commands to convert it. Other errors stay unchanged.
    pub(super) fn missing_file_error(&self, error: DataError) -> InferError {
        if !is_missing(&error) {
            return error.into();
        }
        let has = |name: &str| matches!(self.optional(name), Ok(Some(_)));
        if has(ADAPTER_CONFIG) && self.adapter.is_none() {
            return self.adapter_error().into();
        }
        let unsupported_file = |supported: &[&str], unsupported: &[&'static str]| {
            let has_supported = supported.iter().any(|name| has(name));
            if has_supported { None } else { unsupported.iter().copied().find(|name| has(name)) }
        };
        let tokenizer = unsupported_file(&[TOKENIZER], &SLOW_TOKENIZERS);
        let weights = unsupported_file(&[WEIGHTS_FILE, INDEX_FILE], &UNSUPPORTED_WEIGHTS_FILES);
        let mut problems = Vec::new();
        let mut commands = Vec::new();
        let (from, to) = self.python_names();
        let mut add_problem = |missing: &str, unsupported: &str, class: &str| {
            problems.push(format!("no {missing} (only {unsupported})"));
            commands.push(format!(
                "\n  python3 -c 'import transformers as t; \
                 t.{class}.from_pretrained({from:?}).save_pretrained({to:?})'"
            ));
        };
        if let Some(file) = tokenizer {
            add_problem(TOKENIZER, file, "AutoTokenizer");
        }
        if let Some(file) = weights {
            add_problem(WEIGHTS_FILE, file, &self.python_class());
        }
        if problems.is_empty() {
            return self.foreign_error().unwrap_or(error).into();
        }
        let reason = format!(
            "has {}; convert it (after `pip install transformers torch sentencepiece protobuf`) \
             with{}\n\
             and use {to}",
            problems.join(" and "),
            commands.concat(),
        );
        InferError::Encoder { name: self.display_name(), reason }
    }

    /// The model's name in the suggested Python commands, and the path of their output folder.
    fn python_names(&self) -> (String, String) {
        match &self.location {
            WeightsLocation::Folder(folder) => {
                let folder = folder.join(&self.subfolder).display().to_string();
                let folder = folder.trim_end_matches('/').to_owned();
                (folder.clone(), folder)
            }
            WeightsLocation::Hub { repository, .. } => {
                let name = repository.rsplit('/').next().unwrap_or(repository);
                (repository.clone(), name.to_owned())
            }
        }
    }

    /// The transformers class in `config.json`, or `AutoModel` if it names none.
    fn python_class(&self) -> String {
        let config = self.json("config.json");
        let class = config["architectures"][0].as_str().unwrap_or_default();
        let is_identifier = class.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if is_identifier && !class.is_empty() { class.to_owned() } else { "AutoModel".to_owned() }
    }

    /// The content of a JSON file; null if it cannot be read.
    fn json(&self, name: &str) -> Value {
        let text = self.optional_text(name).ok().flatten();
        text.and_then(|(text, _)| serde_json::from_str(&text).ok()).unwrap_or_default()
    }
}
