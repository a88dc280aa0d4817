//! The folder of a published model: its files and its weights, in one file or in shards. Errors
//! about unsupported formats say how to convert the model.

use std::path::{Path, PathBuf};

use engram_data::DataError;
use engram_data::hub::{HubSettings, WeightsLocation};
use engram_data::image::Preprocessing;
use engram_models::weights::{INDEX_FILE, WEIGHTS_FILE, Weights, shards_of_index};
use serde::Deserialize;

use crate::digest;
use crate::error::{InferError, Result};
use crate::finished_run::check_checksums;

/// The configuration file of an image processor.
const IMAGE_PROCESSOR: &str = "preprocessor_config.json";

/// The configuration file of several processors, which transformers 5 writes.
const PROCESSOR: &str = "processor_config.json";

/// The file that PEFT writes beside the weights of an adapter.
pub(crate) const ADAPTER: &str = "adapter_config.json";

/// The file of a fast tokenizer.
pub const TOKENIZER: &str = "tokenizer.json";

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

/// A model's folder on disk or on the Hub, or a subfolder of it.
#[derive(Clone)]
pub struct PretrainedFolder {
    location: WeightsLocation,
    settings: HubSettings,
    /// The path of the subfolder within the model's folder; empty for the model's folder itself.
    subfolder: String,
}

/// The weights of a model.
#[derive(Debug, Clone)]
pub struct PretrainedWeights {
    /// `model.safetensors`, or the index of its shards.
    pub path: PathBuf,
    /// The SHA-256 of the file, or of its shards' hashes.
    pub sha256: String,
}

impl PretrainedFolder {
    /// Opens a folder or `hf://owner/name[@revision]`. The files of a run are checked against its
    /// checksums.
    ///
    /// # Errors
    /// [`InferError::Data`] for an invalid address or cache folder; the errors of
    /// [`check_checksums`].
    pub fn open(location: &str) -> Result<Self> {
        let location = WeightsLocation::parse(location)?;
        // Files from the Hub were checked when they were downloaded.
        if let WeightsLocation::Folder(folder) = &location {
            check_checksums(folder)?;
        }
        Ok(Self { location, settings: HubSettings::from_env()?, subfolder: String::new() })
    }

    /// Returns a subfolder. An empty path returns the same folder.
    pub fn within(&self, path: &str) -> Self {
        Self { subfolder: self.path_of(path), ..self.clone() }
    }

    /// Refuses a folder that may have a CTranslate2 model.
    ///
    /// # Errors
    /// [`InferError::Refused`]
    pub(crate) fn refuse_ctranslate2(&self) -> Result<()> {
        match &self.location {
            WeightsLocation::Folder(folder)
                if folder.join("model.bin").is_file() && !folder.join(WEIGHTS_FILE).is_file() =>
            {
                let reason = "contains a model.bin; if it is a CTranslate2 model, convert it with \
                              `engram data convert ctranslate2`";
                Err(InferError::Refused(format!("{}: {reason}", folder.display())))
            }
            _ => Ok(()),
        }
    }

    /// The location of the model.
    pub fn location(&self) -> &WeightsLocation {
        &self.location
    }

    /// The name of a file for messages.
    pub fn name_of(&self, file: &str) -> String {
        match &self.location {
            WeightsLocation::Folder(folder) => {
                folder.join(self.path_of(file)).display().to_string()
            }
            hub => format!("{hub}: {}", self.path_of(file)),
        }
    }

    /// The path of a file within the model's folder.
    fn path_of(&self, file: &str) -> String {
        match (self.subfolder.as_str(), file) {
            ("", file) => file.to_owned(),
            (subfolder, "") => subfolder.to_owned(),
            (subfolder, file) => format!("{subfolder}/{file}"),
        }
    }

    /// The path of a required file.
    ///
    /// # Errors
    /// [`InferError::Data`] for a missing file, and if the Hub cannot be reached.
    pub fn file(&self, name: &str) -> Result<PathBuf> {
        Ok(self.find(name)?)
    }

    /// Like [`file`](Self::file), with the error type of the data crate.
    ///
    /// # Errors
    /// [`DataError`] for a missing file, for the configuration of a PEFT adapter, and if the Hub
    /// cannot be reached.
    pub fn find(&self, name: &str) -> Result<PathBuf, DataError> {
        let file = |name: &str| self.location.file(&self.path_of(name), &self.settings);
        let found = file(name);
        // The Hub is asked only if the model lacks the file, because each question takes time.
        let is_folder = matches!(self.location, WeightsLocation::Folder(_));
        let looks_for_adapter = is_folder || matches!(found, Err(DataError::MissingFile { .. }));
        if name == "config.json" && looks_for_adapter && file(ADAPTER).is_ok() {
            return Err(self.adapter_error());
        }
        found
    }

    /// The error for a folder with a PEFT adapter.
    pub(crate) fn adapter_error(&self) -> DataError {
        DataError::Malformed {
            path: self.name_of(ADAPTER).into(),
            place: None,
            reason: "is a PEFT adapter, which is not supported".to_owned(),
            remedy: "merge it into its base model, save that, and give the new folder",
        }
    }

    /// The path of an optional file; `None` if it is missing.
    ///
    /// # Errors
    /// [`InferError::Data`] if the Hub cannot be reached.
    pub fn optional(&self, name: &str) -> Result<Option<PathBuf>> {
        Ok(self.location.optional_file(&self.path_of(name), &self.settings)?)
    }

    /// The text of an optional file, and its name for messages; `None` if it is missing.
    ///
    /// # Errors
    /// The errors of [`optional`](Self::optional); [`InferError::Io`].
    pub(crate) fn optional_text(&self, name: &str) -> Result<Option<(String, String)>> {
        let Some(path) = self.optional(name)? else { return Ok(None) };
        let text = engram_durable::read_text(&path).map_err(InferError::io(&path))?;
        Ok(Some((text, path.display().to_string())))
    }

    /// The file and settings of image preprocessing. They come from the `image_processor` of
    /// `processor_config.json`, or else from `preprocessor_config.json`.
    ///
    /// # Errors
    /// [`InferError::Data`]
    pub fn image_processor(&self) -> Result<(PathBuf, Preprocessing)> {
        if let Some(processor) = self.optional_image_processor()? {
            return Ok(processor);
        }
        let path = self.file(IMAGE_PROCESSOR)?;
        let preprocessing = Preprocessing::read(&path)?;
        Ok((path, preprocessing))
    }

    /// Like [`image_processor`](Self::image_processor). Returns `None` if the model has neither
    /// file.
    ///
    /// # Errors
    /// [`InferError::Data`]
    pub fn optional_image_processor(&self) -> Result<Option<(PathBuf, Preprocessing)>> {
        for name in [PROCESSOR, IMAGE_PROCESSOR] {
            if let Some(path) = self.optional(name)?
                && let Some(preprocessing) = Preprocessing::read_optional(&path)?
            {
                return Ok(Some((path, preprocessing)));
            }
        }
        Ok(None)
    }

    /// The path of `tokenizer.json`.
    ///
    /// # Errors
    /// [`InferError::Encoder`] with the commands to create it, if the model only has the files of a
    /// slow tokenizer; otherwise [`InferError::Data`].
    pub fn tokenizer(&self) -> Result<PathBuf> {
        self.find(TOKENIZER).map_err(|error| self.missing_file_error(error))
    }

    /// The path of `model.safetensors`, or of `model.safetensors.index.json` if all its shards
    /// exist.
    ///
    /// # Errors
    /// [`InferError::Encoder`] with the commands to create it, if the model only has weights in
    /// another format; [`InferError::Model`] for the weights of an adapter, and for quantised
    /// weights; otherwise [`InferError::Data`].
    pub(crate) fn weights_path(&self) -> Result<PathBuf> {
        let path = self.find_weights()?;
        // Damaged weights are reported by their reader.
        if let Ok(weights) = Weights::open(&path) {
            weights.check_published()?;
        }
        Ok(path)
    }

    fn find_weights(&self) -> Result<PathBuf> {
        let missing = match self.find(WEIGHTS_FILE) {
            Ok(path) => return Ok(path),
            Err(missing) if is_missing(&missing) => missing,
            Err(error) => return Err(error.into()),
        };
        let Some(index) = self.optional(INDEX_FILE)? else {
            return Err(self.missing_file_error(missing));
        };
        for shard in shards(&index)? {
            self.file(&shard)?;
        }
        Ok(index)
    }

    /// The weights with their hash.
    ///
    /// # Errors
    /// [`InferError::Encoder`] with the commands to convert weights in another format; otherwise
    /// [`InferError::Data`], and the errors of [`weights_sha256`].
    pub fn weights(&self) -> Result<PretrainedWeights> {
        let path = self.weights_path()?;
        Ok(PretrainedWeights { sha256: weights_sha256(&path)?, path })
    }

    /// The error for a missing file. If the model has the file in another format, the error gives
    /// the commands to convert it. Other errors stay unchanged.
    fn missing_file_error(&self, error: DataError) -> InferError {
        if !is_missing(&error) {
            return error.into();
        }
        let has = |name: &str| matches!(self.optional(name), Ok(Some(_)));
        if has(ADAPTER) {
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
            return error.into();
        }
        let reason = format!(
            "has {}; convert it (after `pip install transformers torch sentencepiece protobuf`) \
             with{}\n\
             and use {to}",
            problems.join(" and "),
            commands.concat(),
        );
        let name = match self.subfolder.as_str() {
            "" => self.location.to_string(),
            _ => self.name_of(""),
        };
        InferError::Encoder { name, reason }
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
        #[derive(Deserialize)]
        struct Config {
            architectures: Option<Vec<String>>,
        }
        let text = self.optional_text("config.json").ok().flatten();
        let config = text.and_then(|(text, _)| serde_json::from_str::<Config>(&text).ok());
        let class = config.and_then(|config| config.architectures?.into_iter().next());
        let is_identifier = |class: &String| {
            !class.is_empty() && class.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        class.filter(is_identifier).unwrap_or_else(|| "AutoModel".to_owned())
    }
}

/// The file names of the shards in an index.
fn shards(index: &Path) -> Result<Vec<String>> {
    let text = engram_durable::read_text(index).map_err(InferError::io(index))?;
    Ok(shards_of_index(&text, &index.display().to_string())?)
}

/// The SHA-256 of a weights file, or of the hashes of the shards in an index.
///
/// # Errors
/// [`InferError::Io`]; [`InferError::Model`] for a broken index.
pub fn weights_sha256(path: &Path) -> Result<String> {
    let hash = |path: &Path| match digest::of_file(path) {
        Ok((_, sha256)) => Ok(sha256),
        Err(error) => Err(InferError::io(path)(error)),
    };
    if path.file_name().is_none_or(|name| name != INDEX_FILE) {
        return hash(path);
    }
    let mut hashes = String::new();
    for shard in shards(path)? {
        hashes.push_str(&hash(&path.with_file_name(shard))?);
    }
    Ok(digest::of_bytes(hashes))
}

/// Whether the error reports a missing file, or, offline, a file that is not in the cache.
pub fn is_missing(error: &DataError) -> bool {
    matches!(error, DataError::MissingFile { .. } | DataError::Offline { .. })
}
