//! Locates published weights: a local folder, or `hf://owner/name[@revision]`. Hub files are in the
//! cache that all Hugging Face tools share, and are downloaded when the machine is online.
//!
//! A file is looked up in the cache first: `models--owner--name/snapshots/<commit>/<file>`, with
//! the commit from `refs/<revision>`. A revision in the cache stays at its commit, so all files of
//! a model come from the same commit. Missing files are downloaded (module `download`) unless the
//! settings are offline.

mod cache;
mod checksum;
mod client;
mod download;
mod metadata;
mod names;
mod network;
mod reach;
mod settings;

use std::path::{Path, PathBuf};

use engram_textfile::refuse_lfs_pointer_at;

use crate::DataError;
use crate::messages::{note_once, without_secrets};
pub use cache::cached_models;
use cache::{CacheState, CachedModel};
use download::{Effort, download};
pub use metadata::FileMetadata;
use names::{is_plain_name, is_repository};
pub use reach::has_responded;
pub use settings::{HubSettings, stay_offline};

/// The location of a model's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WeightsLocation {
    /// A local folder.
    Folder(PathBuf),
    /// A model on the hub.
    Hub {
        /// `owner/name`, or the bare name of one of the oldest models.
        repository: String,
        /// A branch, a tag or a commit; `main` by default.
        revision: String,
    },
}

impl WeightsLocation {
    /// Parses `hf://owner/name[@revision]`; any text without `hf://` is a folder.
    ///
    /// # Errors
    /// `HubLocation` for an invalid address; `NoFolder` for `owner/name` without `hf://`
    /// if there is no such folder
    pub fn parse(text: &str) -> Result<Self, DataError> {
        let address = text.strip_prefix("hf://").unwrap_or(text);
        let (repository, revision) = address.split_once('@').unwrap_or((address, "main"));
        if address == text {
            let is_model = repository.contains('/') && is_repository(repository);
            return if is_model && !Path::new(text).exists() {
                Err(DataError::NoFolder { location: text.to_owned() })
            } else {
                Ok(Self::Folder(text.into()))
            };
        }
        let has_secret = without_secrets(text) != text;
        if has_secret || !is_repository(repository) || !revision.split('/').all(is_plain_name) {
            return Err(DataError::HubLocation { location: text.to_owned() });
        }
        Ok(Self::Hub { repository: repository.to_owned(), revision: revision.to_owned() })
    }

    /// Returns the local path of a file such as `config.json`, and downloads the file if necessary.
    ///
    /// # Errors
    /// `MissingFile` if neither the folder nor the hub has the file; `Offline`;
    /// `NoNetwork`, `Hub` and the other download errors; `Text` for a Git LFS pointer
    pub fn file(&self, name: &str, settings: &HubSettings) -> Result<PathBuf, DataError> {
        if !name.split('/').all(is_plain_name) {
            return Err(self.missing_file(name));
        }
        let model = match self {
            Self::Folder(folder) => {
                let path = folder.join(name);
                refuse_lfs_pointer_at(&path)?;
                return path.is_file().then_some(path).ok_or_else(|| self.missing_file(name));
            }
            Self::Hub { repository, revision } => CachedModel::new(repository, revision, settings),
        };
        match model.lookup(name) {
            CacheState::File(path) => Ok(path),
            CacheState::Absent => Err(self.missing_file(name)),
            CacheState::Unknown if settings.offline => Err(DataError::Offline {
                location: self.to_string(),
                file: name.to_owned(),
                cache_path: model.snapshot().join(name),
            }),
            CacheState::Unknown => download(self, &model, name, settings, Effort::Full),
        }
    }

    /// Like [`file`](Self::file), but returns `None` if the model has no such file.
    ///
    /// Without a network, a file that is not in the cache counts as absent; a note on standard
    /// error says so, unless the settings are offline. It is an error instead if no file of the
    /// model is cached, or if another cached file, such as `modules.json`, says that the model has
    /// the file.
    ///
    /// # Errors
    /// as [`file`](Self::file), except `MissingFile`
    pub fn optional_file(
        &self,
        name: &str,
        settings: &HubSettings,
    ) -> Result<Option<PathBuf>, DataError> {
        if let Self::Hub { repository, revision } = self
            && name.split('/').all(is_plain_name)
        {
            let model = CachedModel::new(repository, revision, settings);
            let is_unknown = matches!(model.lookup(name), CacheState::Unknown);
            if is_unknown && settings.offline && !model.has_files() {
                // The error is about a file that the model surely has.
                self.file("config.json", settings)?;
            }
            if is_unknown && model.has_files() && !model.mentions(name) {
                return self.download_optional(name, &model, settings);
            }
        }
        match self.file(name, settings) {
            Ok(path) => Ok(Some(path)),
            Err(DataError::MissingFile { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Downloads an optional file. Returns `None` if the hub has no such file, if the settings are
    /// offline, or, with a note, if the hub cannot be reached.
    fn download_optional(
        &self,
        name: &str,
        model: &CachedModel,
        settings: &HubSettings,
    ) -> Result<Option<PathBuf>, DataError> {
        if settings.offline {
            return Ok(None);
        }
        // If this program has reached the hub before, the network works, so retry.
        let effort = if has_responded(&settings.endpoint) { Effort::Full } else { Effort::Brief };
        let reason = match download(self, model, name, settings, effort) {
            Ok(path) => return Ok(Some(path)),
            Err(DataError::MissingFile { .. }) => return Ok(None),
            Err(DataError::NoNetwork { endpoint, reason, .. })
                if !has_responded(&settings.endpoint) =>
            {
                format!("{endpoint} cannot be reached ({reason})")
            }
            Err(error) => return Err(error),
        };
        let note = format!(
            "note: {self}: {reason}; the cached files are treated as the complete model ({name} is not among them)"
        );
        note_once(&note, self.to_string());
        Ok(None)
    }

    fn missing_file(&self, name: &str) -> DataError {
        DataError::MissingFile { location: self.to_string(), file: name.to_owned() }
    }
}

impl std::fmt::Display for WeightsLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "{}", folder.display()),
            Self::Hub { repository, revision } if revision == "main" => {
                write!(f, "hf://{repository}")
            }
            Self::Hub { repository, revision } => write!(f, "hf://{repository}@{revision}"),
        }
    }
}
