//! The folder of a published model: its files, its weights in one file or several, and advice where they have a form
//! that is not read.

use std::path::{Path, PathBuf};

use engram_data::DataError;
use engram_data::hub::{HubSettings, WeightsLocation};
use engram_data::image::Preprocessing;
use engram_models::weights::{FILE, INDEX, shards_of_index};
use serde::Deserialize;

use crate::checksums::check_model;
use crate::digest;
use crate::error::{Result, TrainError};

/// The file of an image processor.
const IMAGE_PROCESSOR: &str = "preprocessor_config.json";

/// The file of several processors, which transformers 5 writes.
const PROCESSOR: &str = "processor_config.json";

/// The file of a fast tokenizer.
pub(crate) const TOKENIZER: &str = "tokenizer.json";

/// Files of tokenizers that `tokenizer.json` is made of.
const SLOW_TOKENIZERS: [&str; 6] = [
    "spm.model",
    "sentencepiece.bpe.model",
    "spiece.model",
    "tokenizer.model",
    "vocab.txt",
    "vocab.json",
];

/// Weights in forms that are not read.
const OTHER_WEIGHTS: [&str; 5] = [
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "tf_model.h5",
    "flax_model.msgpack",
    "onnx/model.onnx",
];

/// A model's folder on the disk or on the hub, or a folder inside of it.
#[derive(Clone)]
pub(crate) struct PublishedFolder {
    place: WeightsLocation,
    settings: HubSettings,
    /// The folder inside; empty for the model's own.
    inner: String,
}

/// The weights of a model.
#[derive(Debug, Clone)]
pub(crate) struct PublishedWeights {
    /// `model.safetensors`, or the index of its parts.
    pub(crate) path: PathBuf,
    /// The SHA-256 of the file, or of the hashes of its parts.
    pub(crate) sha256: String,
}

impl PublishedFolder {
    /// The folder, or `hf://owner/name[@revision]`. The files of a run are checked against its checksums.
    ///
    /// # Errors
    /// [`TrainError::Data`] for an address that names no model; those of the check.
    pub(crate) fn open(location: &str) -> Result<Self> {
        let place = WeightsLocation::parse(location)?;
        check_model(&place)?;
        Ok(Self { place, settings: HubSettings::from_env(), inner: String::new() })
    }

    /// A folder inside; the same one for an empty path.
    pub(crate) fn within(&self, path: &str) -> Self {
        Self { inner: self.path_of(path), ..self.clone() }
    }

    /// Where it is.
    pub(crate) fn place(&self) -> &WeightsLocation {
        &self.place
    }

    /// The name of a file in messages.
    pub(crate) fn name_of(&self, file: &str) -> String {
        match &self.place {
            WeightsLocation::Folder(folder) => {
                folder.join(self.path_of(file)).display().to_string()
            }
            hub => format!("{hub}: {}", self.path_of(file)),
        }
    }

    fn path_of(&self, file: &str) -> String {
        match (self.inner.as_str(), file) {
            ("", file) => file.to_owned(),
            (inner, "") => inner.to_owned(),
            (inner, file) => format!("{inner}/{file}"),
        }
    }

    /// A file that the model must have.
    ///
    /// # Errors
    /// [`TrainError::Data`]
    pub(crate) fn file(&self, name: &str) -> Result<PathBuf> {
        Ok(self.find(name)?)
    }

    /// As [`file`](Self::file), with the error of the data crate.
    pub(crate) fn find(&self, name: &str) -> Result<PathBuf, DataError> {
        self.place.file(&self.path_of(name), &self.settings)
    }

    /// A file that the model may have.
    ///
    /// # Errors
    /// [`TrainError::Data`] for a hub that cannot be reached.
    pub(crate) fn optional(&self, name: &str) -> Result<Option<PathBuf>> {
        Ok(self.place.optional_file(&self.path_of(name), &self.settings)?)
    }

    /// The text of a file that the model may have, and its name in messages.
    ///
    /// # Errors
    /// As [`optional`](Self::optional); [`TrainError::Io`].
    pub(crate) fn optional_text(&self, name: &str) -> Result<Option<(String, String)>> {
        let Some(path) = self.optional(name)? else { return Ok(None) };
        let text = std::fs::read_to_string(&path).map_err(TrainError::io(&path))?;
        Ok(Some((text, path.display().to_string())))
    }

    /// How images become pixels: the `image_processor` of `processor_config.json`, else `preprocessor_config.json`.
    /// Beside it: the file.
    ///
    /// # Errors
    /// [`TrainError::Data`]
    pub(crate) fn image_processor(&self) -> Result<(PathBuf, Preprocessing)> {
        if let Some(found) = self.optional_image_processor()? {
            return Ok(found);
        }
        let path = self.file(IMAGE_PROCESSOR)?;
        let preprocessing = Preprocessing::read(&path)?;
        Ok((path, preprocessing))
    }

    /// As [`image_processor`](Self::image_processor), but `None` where the model has neither.
    ///
    /// # Errors
    /// [`TrainError::Data`]
    pub(crate) fn optional_image_processor(&self) -> Result<Option<(PathBuf, Preprocessing)>> {
        for name in [PROCESSOR, IMAGE_PROCESSOR] {
            if let Some(path) = self.optional(name)?
                && let Some(preprocessing) = Preprocessing::of_file(&path)?
            {
                return Ok(Some((path, preprocessing)));
            }
        }
        Ok(None)
    }

    /// `tokenizer.json`.
    ///
    /// # Errors
    /// [`TrainError::Encoder`] with the commands that make it, where the model has the files of a slow tokenizer alone.
    pub(crate) fn tokenizer(&self) -> Result<PathBuf> {
        self.find(TOKENIZER).map_err(|error| self.unready(error))
    }

    /// `model.safetensors`, or the `model.safetensors.index.json` whose files are all there.
    ///
    /// # Errors
    /// [`TrainError::Encoder`] with the commands that make it, where the model has weights in another form alone.
    pub(crate) fn weights_path(&self) -> Result<PathBuf> {
        let missing = match self.find(FILE) {
            Ok(path) => return Ok(path),
            Err(missing) if is_missing(&missing) => missing,
            Err(error) => return Err(error.into()),
        };
        let Some(index) = self.optional(INDEX)? else { return Err(self.unready(missing)) };
        for shard in shards(&index)? {
            self.file(&shard)?;
        }
        Ok(index)
    }

    /// The weights with their hash.
    ///
    /// # Errors
    /// As [`weights_path`](Self::weights_path).
    pub(crate) fn weights(&self) -> Result<PublishedWeights> {
        let path = self.weights_path()?;
        Ok(PublishedWeights { sha256: weights_sha256(&path)?, path })
    }

    /// The error of a missing file, with the commands that make the model ready where it has files of other forms.
    fn unready(&self, error: DataError) -> TrainError {
        if !is_missing(&error) {
            return error.into();
        }
        let has = |name: &str| matches!(self.optional(name), Ok(Some(_)));
        let other = |wanted: &[&str], others: &[&'static str]| {
            let is_there = wanted.iter().any(|name| has(name));
            if is_there { None } else { others.iter().copied().find(|name| has(name)) }
        };
        let tokenizer = other(&[TOKENIZER], &SLOW_TOKENIZERS);
        let weights = other(&[FILE, INDEX], &OTHER_WEIGHTS);
        let mut found = Vec::new();
        let mut lines = Vec::new();
        let (from, to) = self.python_names();
        let mut add = |wanted: &str, other: &str, class: &str| {
            found.push(format!("no {wanted} (only {other})"));
            lines.push(format!(
                "\n  python3 -c 'import transformers as t; t.{class}.from_pretrained({from:?}).save_pretrained({to:?})'"
            ));
        };
        if let Some(file) = tokenizer {
            add(TOKENIZER, file, "AutoTokenizer");
        }
        if let Some(file) = weights {
            add(FILE, file, &self.python_class());
        }
        if found.is_empty() {
            return error.into();
        }
        let reason = format!(
            "has {}; make it ready (after `pip install transformers torch sentencepiece protobuf`) by{}\n\
             and give {to}",
            found.join(" and "),
            lines.concat(),
        );
        let name = match self.inner.as_str() {
            "" => self.place.to_string(),
            inner => self.within("").name_of(inner),
        };
        TrainError::Encoder { name, reason }
    }

    /// What Python calls the model, and the folder that it writes to.
    fn python_names(&self) -> (String, String) {
        match &self.place {
            WeightsLocation::Folder(folder) => {
                let folder = folder.join(&self.inner).display().to_string();
                let folder = folder.trim_end_matches('/').to_owned();
                (folder.clone(), folder)
            }
            WeightsLocation::Hub { repository, .. } => {
                let name = repository.rsplit('/').next().unwrap_or(repository);
                (repository.clone(), name.to_owned())
            }
        }
    }

    /// The class of transformers that `config.json` names; `AutoModel` where it names none.
    fn python_class(&self) -> String {
        #[derive(Deserialize)]
        struct Named {
            architectures: Option<Vec<String>>,
        }
        let text = self.optional_text("config.json").ok().flatten();
        let named = text.and_then(|(text, _)| serde_json::from_str::<Named>(&text).ok());
        let first = named.and_then(|named| named.architectures?.into_iter().next());
        let is_name = |class: &String| {
            !class.is_empty() && class.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        first.filter(is_name).unwrap_or_else(|| "AutoModel".to_owned())
    }
}

/// The files that an index lists.
fn shards(index: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(index).map_err(TrainError::io(index))?;
    Ok(shards_of_index(&text, &index.display().to_string())?)
}

/// The SHA-256 of a weights file, or of the hashes of the files that an index lists.
///
/// # Errors
/// [`TrainError::Io`]; [`TrainError::Model`] for a broken index.
pub(crate) fn weights_sha256(path: &Path) -> Result<String> {
    let hash = |path: &Path| match digest::of_file(path) {
        Ok((_, sha256)) => Ok(sha256),
        Err(error) => Err(TrainError::io(path)(error)),
    };
    if path.file_name().is_none_or(|name| name != INDEX) {
        return hash(path);
    }
    let mut hashes = String::new();
    for shard in shards(path)? {
        hashes.push_str(&hash(&path.with_file_name(shard))?);
    }
    Ok(digest::of_bytes(hashes))
}

/// Whether an error says that a file is not there.
pub(crate) fn is_missing(error: &DataError) -> bool {
    matches!(error, DataError::MissingFile { .. } | DataError::Offline { .. })
}
