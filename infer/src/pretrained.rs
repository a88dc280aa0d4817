//! The folder of a published model: its files and its weights, in one file or in shards. Errors
//! about unsupported formats (module `unusable`) say how to convert the model.

mod unusable;

use std::path::{Path, PathBuf};

use engram_data::DataError;
use engram_data::hub::{HubSettings, WeightsLocation, has_responded};
use engram_data::image::Preprocessing;
use engram_data::messages::note_once;
use engram_models::weights::{
    ADAPTER_CONFIG, INDEX_FILE, WEIGHTS_FILE, Weights, WeightsFiles, shards_of_index,
};

use crate::digest;
use crate::error::{InferError, Result};
use crate::finished_run::check_checksums;
pub use unusable::is_model_file;

/// The configuration file of an image processor.
const IMAGE_PROCESSOR: &str = "preprocessor_config.json";

/// The configuration file of several processors, which transformers 5 writes.
const PROCESSOR: &str = "processor_config.json";

/// What stands between a model and its adapter in the name of both: `MODEL?adapter=ADAPTER`.
pub const WITH_ADAPTER: &str = "?adapter=";

/// The file of a fast tokenizer.
pub const TOKENIZER: &str = "tokenizer.json";

/// A model's folder on disk or on the Hub, or a subfolder of it.
#[derive(Clone)]
pub struct PretrainedFolder {
    location: WeightsLocation,
    settings: HubSettings,
    /// The path of the subfolder within the model's folder; empty for the model's folder itself.
    subfolder: String,
    /// The folder of a LoRA or DoRA adapter for the model.
    adapter: Option<Box<Self>>,
}

/// The weights of a model.
#[derive(Debug, Clone)]
pub struct PretrainedWeights {
    /// The files.
    pub files: WeightsFiles,
    /// The hash of the files: see [`weights_sha256`].
    pub sha256: String,
}

impl PretrainedFolder {
    /// Opens a folder or `hf://owner/name[@revision]`, or such a model with a LoRA or DoRA adapter of
    /// PEFT, `MODEL?adapter=ADAPTER`. The files of a run are checked against its checksums.
    ///
    /// # Errors
    /// [`InferError::Data`] for an invalid address or cache folder; [`InferError::Encoder`] for a
    /// file in the place of a folder; the errors of [`check_checksums`].
    pub fn open(location: &str) -> Result<Self> {
        if let Some((model, adapter)) = location.split_once(WITH_ADAPTER) {
            let (folder, adapter) = (Self::open(model)?, Self::open(adapter)?);
            if adapter.adapter.is_some() {
                let reason = "names two adapters; merge one of them into the model with peft";
                return Err(InferError::Encoder { name: location.into(), reason: reason.into() });
            }
            return Ok(Self { adapter: Some(Box::new(adapter)), ..folder });
        }
        let location = WeightsLocation::parse(location)?;
        // Files from the Hub were checked when they were downloaded.
        if let WeightsLocation::Folder(folder) = &location {
            if folder.is_file() {
                return Err(unusable::file_error(folder));
            }
            check_checksums(folder)?;
        }
        let (settings, subfolder) = (HubSettings::from_env()?, String::new());
        Ok(Self { location, settings, subfolder, adapter: None })
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

    /// The absolute path of the folder, or its Hub address; with an adapter, `MODEL?adapter=ADAPTER`.
    pub fn name(&self) -> String {
        let name = match &self.location {
            WeightsLocation::Folder(path) => match path.canonicalize() {
                Ok(absolute) => absolute.display().to_string(),
                Err(_) => self.location.to_string(),
            },
            hub => hub.to_string(),
        };
        match &self.adapter {
            Some(adapter) => format!("{name}{WITH_ADAPTER}{}", adapter.name()),
            None => name,
        }
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
    /// [`DataError`] for a missing file, for the configuration of a PEFT adapter, and if the Hub
    /// cannot be reached.
    pub fn file(&self, name: &str) -> Result<PathBuf, DataError> {
        let file = |name: &str| self.location.file(&self.path_of(name), &self.settings);
        let found = file(name);
        if name != "config.json" || self.adapter.is_some() {
            return found;
        }
        // The Hub is asked only if the model lacks the file, or was just downloaded.
        let looks_for_adapter = matches!(self.location, WeightsLocation::Folder(_))
            || matches!(found, Err(DataError::MissingFile { .. }))
            || has_responded(&self.settings.endpoint);
        if looks_for_adapter && file(ADAPTER_CONFIG).is_ok() {
            return Err(self.adapter_error());
        }
        match found {
            Err(missing @ DataError::MissingFile { .. }) => {
                Err(self.foreign_error().unwrap_or(missing))
            }
            found => found,
        }
    }

    /// The path of an optional file; `None` if it is missing.
    ///
    /// # Errors
    /// [`InferError::Data`] if the Hub cannot be reached.
    pub fn optional(&self, name: &str) -> Result<Option<PathBuf>> {
        Ok(self.location.optional_file(&self.path_of(name), &self.settings)?)
    }

    /// The text of a required file, and its name for messages.
    ///
    /// # Errors
    /// The errors of [`file`](Self::file); [`InferError::Io`].
    pub(crate) fn text(&self, name: &str) -> Result<(String, String)> {
        let path = self.file(name)?;
        let text = engram_durable::read_text(&path).map_err(InferError::io(&path))?;
        Ok((text, path.display().to_string()))
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
        self.file(TOKENIZER).map_err(|error| self.missing_file_error(error))
    }

    /// The files of the weights: `model.safetensors`, or `model.safetensors.index.json` if all its
    /// shards exist, and those of the adapter. A note on standard error says if the weights are
    /// quantised.
    ///
    /// # Errors
    /// [`InferError::Encoder`] with the commands to create the file, if the model only has weights
    /// in another format; [`InferError::Model`] for the weights of an adapter, and for weights
    /// quantised by an unknown method; otherwise [`InferError::Data`].
    pub(crate) fn weights_files(&self) -> Result<WeightsFiles> {
        let path = self.find_weights()?;
        // Damaged weights are reported by their reader.
        if let Ok(weights) = Weights::open(&path) {
            weights.check_published()?;
            if let Some(note) = weights.note() {
                note_once(&format!("note: {note}"), path.display().to_string());
            }
        }
        let adapter = match &self.adapter {
            None => None,
            Some(adapter) => Some([adapter.file(ADAPTER_CONFIG)?, adapter.adapter_weights()?]),
        };
        Ok(WeightsFiles { path, adapter })
    }

    fn find_weights(&self) -> Result<PathBuf> {
        let missing = match self.file(WEIGHTS_FILE) {
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
        let files = self.weights_files()?;
        Ok(PretrainedWeights { sha256: weights_sha256(&files)?, files })
    }
}

/// The file names of the shards in an index.
fn shards(index: &Path) -> Result<Vec<String>> {
    let text = engram_durable::read_text(index).map_err(InferError::io(index))?;
    Ok(shards_of_index(&text, &index.display().to_string())?)
}

/// The SHA-256 of a weights file, or of the hashes of the shards in an index. With an adapter, the
/// hash of this hash and those of the adapter's files.
///
/// # Errors
/// [`InferError::Io`]; [`InferError::Model`] for a broken index.
pub fn weights_sha256(files: &WeightsFiles) -> Result<String> {
    let hash = |path: &Path| match digest::of_file(path) {
        Ok((_, sha256)) => Ok(sha256),
        Err(error) => Err(InferError::io(path)(error)),
    };
    let path = &files.path;
    let mut sha256 = if path.file_name().is_some_and(|name| name == INDEX_FILE) {
        let of_shard = |shard: String| hash(&path.with_file_name(shard));
        digest::of_bytes(shards(path)?.into_iter().map(of_shard).collect::<Result<String>>()?)
    } else {
        hash(path)?
    };
    if let Some([config, tensors]) = &files.adapter {
        sha256 = digest::of_bytes([sha256, hash(config)?, hash(tensors)?].concat());
    }
    Ok(sha256)
}

/// Whether the error reports a missing file, or, offline, a file that is not in the cache.
pub fn is_missing(error: &DataError) -> bool {
    matches!(error, DataError::MissingFile { .. } | DataError::Offline { .. })
}
