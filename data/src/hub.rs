//! Where published weights lie: a local folder, or `hf://owner/name[@revision]` in the cache
//! that all Hugging Face tools share, filled from the hub when the machine is online.
//!
//! A file is first looked up in the cache (`models--owner--name/snapshots/<commit>/<file>`, the
//! commit from `refs/<revision>`). A revision that the cache knows stays at its commit, so the
//! files of one model never come from two commits. What is missing is downloaded (module
//! `download`), unless the settings say offline.

mod cache;
mod checksum;
mod client;
mod download;
mod facts;
mod names;
mod reach;
mod settings;

use std::collections::HashSet;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::DataError;
use cache::{Cached, CachedModel};
use download::{Effort, download};
pub use facts::Facts;
use names::{is_plain_name, is_repository};
pub use settings::{HubSettings, stay_offline};

/// Where the files of a model are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WeightsLocation {
    /// A local folder.
    Folder(PathBuf),
    /// A model on the hub.
    Hub {
        /// `owner/name`, or the bare name of one of the oldest models.
        repository: String,
        /// A branch, a tag or a commit; `main` where none is given.
        revision: String,
    },
}

impl WeightsLocation {
    /// Reads `hf://owner/name[@revision]`; anything without `hf://` is a folder.
    ///
    /// # Errors   `HubLocation` for an address that names no model
    pub fn parse(text: &str) -> Result<Self, DataError> {
        let Some(address) = text.strip_prefix("hf://") else {
            return Ok(Self::Folder(text.into()));
        };
        let (repository, revision) = address.split_once('@').unwrap_or((address, "main"));
        if !is_repository(repository) || !revision.split('/').all(is_plain_name) {
            return Err(DataError::HubLocation { location: text.to_owned() });
        }
        Ok(Self::Hub { repository: repository.to_owned(), revision: revision.to_owned() })
    }

    /// The local path of a file such as `config.json`, downloaded first if need be.
    ///
    /// # Errors   `MissingFile` where neither the folder nor the hub has it; `Offline`;
    /// `NoNetwork`, `AccessRefused`, `DiskFull` and the other failures of a download
    pub fn file(&self, name: &str, settings: &HubSettings) -> Result<PathBuf, DataError> {
        if !name.split('/').all(is_plain_name) {
            return Err(self.missing(name));
        }
        let model = match self {
            Self::Folder(folder) => {
                let path = folder.join(name);
                return path.is_file().then_some(path).ok_or_else(|| self.missing(name));
            }
            Self::Hub { repository, revision } => CachedModel::new(repository, revision, settings),
        };
        match model.lookup(name) {
            Cached::File(path) => Ok(path),
            Cached::Absent => Err(self.missing(name)),
            Cached::Unknown if settings.offline => Err(DataError::Offline {
                location: self.to_string(),
                file: name.to_owned(),
                put: model.snapshot().join(name),
            }),
            Cached::Unknown => download(self, &model, name, settings, Effort::Full),
        }
    }

    /// As [`file`](Self::file), but `None` where the model has no such file.
    ///
    /// Without a network, the cached files count as all that the model has, and a note on standard error says so. It is
    /// an error where nothing of the model is cached, or where a cached file says that the model has this file.
    ///
    /// # Errors   those of [`file`](Self::file) except `MissingFile`
    pub fn optional_file(
        &self,
        name: &str,
        settings: &HubSettings,
    ) -> Result<Option<PathBuf>, DataError> {
        if let Self::Hub { repository, revision } = self
            && name.split('/').all(is_plain_name)
        {
            let model = CachedModel::new(repository, revision, settings);
            let is_unknown = matches!(model.lookup(name), Cached::Unknown);
            if is_unknown && model.has_files() && !model.is_named(name) {
                return self.unless_unreachable(name, &model, settings);
            }
        }
        match self.file(name, settings) {
            Ok(path) => Ok(Some(path)),
            Err(DataError::MissingFile { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Downloads an optional file. `None` where the hub has no such file, and with a note where it cannot be asked.
    fn unless_unreachable(
        &self,
        name: &str,
        model: &CachedModel,
        settings: &HubSettings,
    ) -> Result<Option<PathBuf>, DataError> {
        let reason = if settings.offline {
            "this run is offline".to_owned()
        } else {
            // Where the hub has answered this program, there is a network: a failure is worth more attempts.
            let has_answered = reach::has_answered(&settings.endpoint);
            let effort = if has_answered { Effort::Full } else { Effort::Brief };
            match download(self, model, name, settings, effort) {
                Ok(path) => return Ok(Some(path)),
                Err(DataError::MissingFile { .. }) => return Ok(None),
                Err(DataError::NoNetwork { endpoint, reason, .. })
                    if !reach::has_answered(&settings.endpoint) =>
                {
                    format!("{endpoint} cannot be reached ({reason})")
                }
                Err(error) => return Err(error),
            }
        };
        let note = format!(
            "note: {self}: {reason}; the cached files count as all that the model has ({name} is not among them)\n"
        );
        note_once(&note, self.to_string());
        Ok(None)
    }

    fn missing(&self, name: &str) -> DataError {
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

/// Prints a note on standard error, once for each model.
fn note_once(note: &str, model: String) {
    static NOTED: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);
    if NOTED.lock().unwrap_or_else(PoisonError::into_inner).insert(model) {
        // Nobody may read standard error; the answer is the same.
        let _ = std::io::stderr().write_all(note.as_bytes());
    }
}
