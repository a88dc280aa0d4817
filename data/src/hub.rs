//! Where published weights lie: a local folder, or `hf://owner/name[@revision]` in the cache
//! that all Hugging Face tools share, filled from the hub when the machine is online.
//!
//! A file is first looked up in the cache (`models--owner--name/snapshots/<commit>/<file>`, the
//! commit from `refs/<revision>`). A revision that the cache knows stays at its commit, so the
//! files of one model never come from two commits. What is missing is downloaded (module
//! `download`), unless the settings say offline.

mod download;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hf_hub::{Repo, RepoType};

use crate::DataError;

/// How to reach the hub and where its files are kept.
#[derive(Clone)]
pub struct HubSettings {
    /// The cache folder, which holds `models--owner--name` folders.
    pub cache: PathBuf,
    /// The address of the hub.
    pub endpoint: String,
    /// The access token, for private and gated models.
    pub token: Option<String>,
    /// Whether to use nothing but the cache.
    pub offline: bool,
    /// Whether to draw a progress bar while downloading.
    pub progress: bool,
    /// How often a broken download is taken up again before giving up.
    pub retries: usize,
    /// The pause before the first retry; it doubles with each.
    pub retry_pause: Duration,
    /// How long nothing may arrive before a download is given up.
    pub stall_limit: Duration,
}

/// Whether this program asks no hub, whatever the variables say.
static STAYS_OFFLINE: AtomicBool = AtomicBool::new(false);

/// From now on [`HubSettings::from_env`] is offline in this program, as with `HF_HUB_OFFLINE=1`.
pub fn stay_offline() {
    STAYS_OFFLINE.store(true, Ordering::Relaxed);
}

impl HubSettings {
    /// Settings for a cache folder; everything else as for a user without settings.
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        Self {
            cache: cache.into(),
            endpoint: "https://huggingface.co".to_owned(),
            token: None,
            offline: false,
            progress: true,
            retries: 4,
            retry_pause: Duration::from_millis(500),
            stall_limit: Duration::from_secs(60),
        }
    }

    /// Settings from the variables that Hugging Face's own tools obey: `HF_HUB_CACHE`,
    /// `HF_HOME`, `XDG_CACHE_HOME`, `HF_ENDPOINT`, `HF_TOKEN`, `HF_TOKEN_PATH`,
    /// `HF_HUB_OFFLINE`.
    pub fn from_env() -> Self {
        let settings = Self::from_variables(|name| std::env::var(name).ok());
        let offline = settings.offline || STAYS_OFFLINE.load(Ordering::Relaxed);
        Self { offline, ..settings }
    }

    /// As [`from_env`](Self::from_env), with the variables looked up by `variable`.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let home = set("HF_HOME").map_or_else(
            || {
                let user_cache = set("XDG_CACHE_HOME").map(PathBuf::from);
                user_cache
                    .or_else(|| std::env::home_dir().map(|home| home.join(".cache")))
                    .unwrap_or_else(|| PathBuf::from(".cache"))
                    .join("huggingface")
            },
            PathBuf::from,
        );
        let cache = set("HF_HUB_CACHE").map_or_else(|| home.join("hub"), PathBuf::from);
        let mut settings = Self::new(cache);
        if let Some(endpoint) = set("HF_ENDPOINT") {
            settings.endpoint = endpoint.trim().trim_end_matches('/').to_owned();
        }
        settings.token = set("HF_TOKEN")
            .or_else(|| {
                let file = set("HF_TOKEN_PATH").map_or_else(|| home.join("token"), PathBuf::from);
                std::fs::read_to_string(file).ok()
            })
            .map(|token| token.trim().to_owned())
            .filter(|token| !token.is_empty());
        settings.offline = set("HF_HUB_OFFLINE").is_some_and(|value| {
            matches!(value.trim().to_lowercase().as_str(), "1" | "true" | "yes" | "on")
        });
        settings
    }
}

impl std::fmt::Debug for HubSettings {
    /// Without the token: settings end up in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HubSettings")
            .field("cache", &self.cache)
            .field("endpoint", &self.endpoint)
            .field("has_token", &self.token.is_some())
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}

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
        let parts: Vec<&str> = repository.split('/').collect();
        let revision_parts = revision.split('/');
        if parts.len() > 2 || !parts.into_iter().chain(revision_parts).all(is_plain_name) {
            return Err(DataError::HubLocation { location: text.to_owned() });
        }
        Ok(Self::Hub { repository: repository.to_owned(), revision: revision.to_owned() })
    }

    /// The local path of a file such as `config.json`, downloaded first if need be.
    ///
    /// # Errors   `MissingFile` where neither the folder nor the hub has it; `Offline`;
    /// `NoNetwork`, `AccessRefused`, `DiskFull` and the other failures of a download
    pub fn file(&self, name: &str, settings: &HubSettings) -> Result<PathBuf, DataError> {
        let missing =
            || DataError::MissingFile { location: self.to_string(), file: name.to_owned() };
        if !name.split('/').all(is_plain_name) {
            return Err(missing());
        }
        match self {
            Self::Folder(folder) => {
                let path = folder.join(name);
                path.is_file().then_some(path).ok_or_else(missing)
            }
            Self::Hub { repository, revision } => {
                let model = CachedModel::new(repository, revision, settings);
                match model.lookup(name) {
                    Some(path) => Ok(path),
                    None if settings.offline => Err(DataError::Offline {
                        location: self.to_string(),
                        file: name.to_owned(),
                        put: model.snapshot().join(name),
                    }),
                    None => download::download(self, &model, name, settings),
                }
            }
        }
    }

    /// As [`file`](Self::file), but `None` where the model has no such file.
    ///
    /// Offline, a file that is not in the cache counts as one that the model does not have.
    ///
    /// # Errors   those of [`file`](Self::file) except `MissingFile` and `Offline`
    pub fn optional_file(
        &self,
        name: &str,
        settings: &HubSettings,
    ) -> Result<Option<PathBuf>, DataError> {
        match self.file(name, settings) {
            Ok(path) => Ok(Some(path)),
            Err(DataError::MissingFile { .. } | DataError::Offline { .. }) => Ok(None),
            Err(error) => Err(error),
        }
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

/// Whether a part of a path is safe to join to a folder.
fn is_plain_name(part: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | ' ');
    !part.is_empty() && part != "." && part != ".." && part.chars().all(plain)
}

/// One model in the shared cache.
struct CachedModel {
    repository: String,
    revision: String,
    folder: PathBuf,
}

impl CachedModel {
    fn new(repository: &str, revision: &str, settings: &HubSettings) -> Self {
        let repo = Repo::new(repository.to_owned(), RepoType::Model);
        Self {
            repository: repository.to_owned(),
            revision: revision.to_owned(),
            folder: settings.cache.join(repo.folder_name()),
        }
    }

    /// The commit that the cache has for the revision; the revision itself where there is none.
    fn commit(&self) -> String {
        let known = std::fs::read_to_string(self.reference()).ok();
        known
            .map(|commit| commit.trim().to_owned())
            .filter(|commit| is_plain_name(commit))
            .unwrap_or_else(|| self.revision.clone())
    }

    fn reference(&self) -> PathBuf {
        self.folder.join("refs").join(&self.revision)
    }

    fn snapshots(&self) -> PathBuf {
        self.folder.join("snapshots")
    }

    fn snapshot(&self) -> PathBuf {
        self.snapshots().join(self.commit())
    }

    fn lookup(&self, name: &str) -> Option<PathBuf> {
        let path = self.snapshot().join(name);
        path.is_file().then_some(path)
    }

    fn blobs(&self) -> PathBuf {
        self.folder.join("blobs")
    }

    /// Where downloads grow until they are complete: beside the cache, never in it.
    fn incoming(&self, name: &str) -> PathBuf {
        self.folder.join("incoming").join(name)
    }
}

/// A path without the parts that are relative to the current folder.
fn absolute(path: &Path) -> Result<PathBuf, DataError> {
    std::path::absolute(path).map_err(|source| DataError::Io { path: path.into(), source })
}
