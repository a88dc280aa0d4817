//! A model in the cache folder that all Hugging Face tools share, with huggingface_hub's layout.
//!
//! `refs/<revision>` holds a commit, and `snapshots/<commit>/<file>` links to `blobs/<etag>`. An
//! empty file `.no_exist/<commit>/<file>` means that the commit has no such file.
//! `trees/<commit>.json` lists all files of the commit.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use engram_durable as durable;
use serde_json::Value;

use super::metadata::FileMetadata;
use super::{HubSettings, WeightsLocation, names};
use crate::DataError;

/// Size limits in bytes of a reference, a `modules.json` and a file listing; real files are
/// smaller.
const MAX_REFERENCE_BYTES: u64 = 1_000;
const MAX_MODULES_BYTES: u64 = 1 << 20;
const MAX_LISTING_BYTES: u64 = 100 << 20;

/// The state of a file in the cache.
pub(super) enum CacheState {
    /// The file is in the cache, at this path.
    File(PathBuf),
    /// The model has no such file.
    Absent,
    /// The cache has no information about the file.
    Unknown,
}

/// Returns the name of a model's folder in the cache.
fn folder_name(repository: &str) -> String {
    format!("models--{}", repository.replace('/', "--"))
}

/// Lists the models in the cache that have a reference, such as `main`, each with the folder of its
/// files; sorted by name. A model that was copied by hand, without a reference, is listed with the
/// name of its snapshot.
pub fn cached_models(settings: &HubSettings) -> Vec<(WeightsLocation, PathBuf)> {
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.collect::<BTreeSet<String>>()
    };
    let mut models = Vec::new();
    for name in names(&settings.cache) {
        let Some(name) = name.strip_prefix("models--") else { continue };
        let repository = name.replacen("--", "/", 1);
        let folder = settings.cache.join(folder_name(&repository));
        let mut revisions = names(&folder.join("refs"));
        if revisions.is_empty() {
            revisions = names(&folder.join("snapshots"));
        }
        for revision in revisions {
            let snapshot = CachedModel::new(&repository, &revision, settings).snapshot();
            let repository = repository.clone();
            models.push((WeightsLocation::Hub { repository, revision }, snapshot));
        }
    }
    models
}

/// A model in the shared cache.
pub(super) struct CachedModel {
    /// `name` or `owner/name` on the hub.
    pub(super) repository: String,
    /// A branch, a tag or a commit.
    revision: String,
    /// The cache folder of all models.
    cache: PathBuf,
    /// The folder of this model.
    folder: PathBuf,
}

impl CachedModel {
    pub(super) fn new(repository: &str, revision: &str, settings: &HubSettings) -> Self {
        // Absolute paths make messages clearer.
        let cache = std::path::absolute(&settings.cache).unwrap_or_else(|_| settings.cache.clone());
        let folder = cache.join(folder_name(repository));
        Self { repository: repository.to_owned(), revision: revision.to_owned(), cache, folder }
    }

    /// Returns the cached commit of the revision; the revision itself if no commit is cached.
    pub(super) fn commit(&self) -> String {
        self.known_commit().unwrap_or_else(|| self.revision.clone())
    }

    /// Returns the cached commit of the revision; `None` if there is none.
    fn known_commit(&self) -> Option<String> {
        let text = read_short(&self.reference(), MAX_REFERENCE_BYTES)?;
        let commit = text.trim();
        names::is_plain_name(commit).then(|| commit.to_owned())
    }

    /// Returns the name of the snapshot folder for new files of a commit. If the user made a folder
    /// of the revision by hand, without a file in `refs/`, new files are added to that folder.
    fn snapshot_of(&self, commit: &str) -> String {
        let is_filled_by_hand = self.known_commit().is_none() && self.has_files();
        if is_filled_by_hand { self.revision.clone() } else { commit.to_owned() }
    }

    fn reference(&self) -> PathBuf {
        self.folder.join("refs").join(&self.revision)
    }

    /// Returns the folder of the revision's files.
    pub(super) fn snapshot(&self) -> PathBuf {
        self.folder.join("snapshots").join(self.commit())
    }

    fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    fn absence_marker(&self, commit: &str, file: &str) -> PathBuf {
        self.folder.join(".no_exist").join(commit).join(file)
    }

    pub(super) fn lookup(&self, file: &str) -> CacheState {
        let path = self.snapshot().join(file);
        if path.is_file() {
            return CacheState::File(path);
        }
        let is_absent = self.absence_marker(&self.commit(), file).is_file()
            || self.is_listed(file).is_some_and(|is_listed| !is_listed);
        if is_absent { CacheState::Absent } else { CacheState::Unknown }
    }

    /// Whether the cache has any file of this revision.
    pub(super) fn has_files(&self) -> bool {
        fs::read_dir(self.snapshot()).is_ok_and(|mut entries| entries.next().is_some())
    }

    /// Whether another cached file says that the model has this file: the commit's listing, or a
    /// sentence-transformers file.
    pub(super) fn mentions(&self, file: &str) -> bool {
        if self.is_listed(file) == Some(true) {
            return true;
        }
        let snapshot = self.snapshot();
        if file == "modules.json" {
            return snapshot.join("config_sentence_transformers.json").is_file();
        }
        let Some(folder) = file.strip_suffix("/config.json") else { return false };
        let modules = read_short(&snapshot.join("modules.json"), MAX_MODULES_BYTES);
        let modules: Option<Value> = modules.and_then(|text| serde_json::from_str(&text).ok());
        let field =
            |module: &Value, key| module.get(key).and_then(Value::as_str).map(str::to_owned);
        modules.as_ref().and_then(Value::as_array).is_some_and(|modules| {
            modules.iter().any(|module| {
                // The module `Normalize` has no configuration.
                field(module, "path").is_some_and(|path| path.trim_matches('/') == folder)
                    && field(module, "type").is_none_or(|kind| !kind.ends_with(".Normalize"))
            })
        })
    }

    /// Whether huggingface_hub's listing of the commit has the file. `None` without a listing.
    fn is_listed(&self, file: &str) -> Option<bool> {
        let path = self.folder.join("trees").join(format!("{}.json", self.commit()));
        let listing: Value = serde_json::from_str(&read_short(&path, MAX_LISTING_BYTES)?).ok()?;
        if listing.get("format_version").and_then(Value::as_u64) != Some(1) {
            return None;
        }
        Some(listing.get("files")?.as_object()?.contains_key(file))
    }

    /// Returns the path of a partial download, in the model's folder but outside of the folders
    /// that other tools read.
    pub(super) fn part(&self, file: &str, etag: &str) -> Result<PathBuf, DataError> {
        let folder = self.folder.join("incoming");
        self.make_folder(&folder)?;
        let part = folder.join(format!("{}.{etag}.part", file.replace('/', "--")));
        refuse_link(&part)?;
        Ok(part)
    }

    /// Removes partial downloads of outdated versions of a file. Files in use and unknown files
    /// stay.
    pub(super) fn remove_old_parts(&self, file: &str) {
        let prefix = format!("{}.", file.replace('/', "--"));
        let locks = self.cache.join(".locks").join(folder_name(&self.repository));
        for entry in fs::read_dir(self.folder.join("incoming")).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let etag = name
                .to_str()
                .and_then(|name| name.strip_prefix(&prefix)?.strip_suffix(".part"))
                .and_then(names::etag);
            let lock = etag.and_then(|etag| {
                engram_durable::open_file(locks.join(format!("{etag}.lock"))).ok()
            });
            if lock.is_some_and(|lock| lock.try_lock().is_ok()) {
                // A file that cannot be removed does no harm.
                let _ = durable::remove_file(&entry.path());
            }
        }
    }

    /// Locks this content against other processes until the lock is dropped. huggingface_hub takes
    /// the same lock. If another process holds it, `on_wait` is called once with the lock's path.
    pub(super) fn lock(
        &self,
        etag: &str,
        on_wait: impl FnOnce(&Path),
    ) -> Result<fs::File, DataError> {
        let folder = self.cache.join(".locks").join(folder_name(&self.repository));
        self.make_folder(&folder)?;
        let path = folder.join(format!("{etag}.lock"));
        refuse_link(&path)?;
        let lock = || {
            let file = durable::open_lock(&path)?;
            match file.try_lock() {
                Err(fs::TryLockError::WouldBlock) => {
                    on_wait(&path);
                    file.lock()?;
                }
                result => result?,
            }
            Ok(file)
        };
        lock().map_err(|source| disk_error(&path, source))
    }

    /// Returns the path of the blob with this content; `None` if it is not in the cache.
    pub(super) fn find_blob(&self, metadata: &FileMetadata) -> Option<PathBuf> {
        let path = self.blob(&metadata.etag);
        // A blob may be a link to a store elsewhere in the cache that several models share.
        let is_inside =
            fs::canonicalize(&path).ok()?.starts_with(fs::canonicalize(&self.cache).ok()?);
        let is_whole = fs::metadata(&path).is_ok_and(|blob| {
            blob.is_file() && metadata.size.is_none_or(|size| blob.len() == size)
        });
        (is_inside && is_whole).then_some(path)
    }

    /// Moves a complete, verified download to the blobs.
    pub(super) fn store_blob(&self, part: &Path, etag: &str) -> Result<(), DataError> {
        let blob = self.blob(etag);
        self.make_folder(&self.folder.join("blobs"))?;
        let store = || {
            durable::sync_file(part)?;
            durable::rename(part, &blob)
        };
        store().map_err(|source| disk_error(&blob, source))
    }

    /// Links a blob into its snapshot, then sets the revision's reference to the commit. Readers
    /// see the complete file or no file.
    pub(super) fn publish(
        &self,
        file: &str,
        metadata: &FileMetadata,
    ) -> Result<PathBuf, DataError> {
        let snapshot = self.snapshot_of(&metadata.commit);
        let path = self.folder.join("snapshots").join(&snapshot).join(file);
        if let (Some(folder), Some(name)) = (path.parent(), file.rsplit('/').next()) {
            self.make_folder(folder)?;
            // This process holds the lock of this content, so no other process writes the same
            // link.
            durable::remove_leftovers(folder, &[name])
                .map_err(|source| disk_error(folder, source))?;
        }
        let parents = "../".repeat(snapshot.split('/').count() + file.split('/').count());
        let target = PathBuf::from(format!("{parents}blobs/{}", metadata.etag));
        let result = match durable::write_link(&target, &path) {
            // Some disks do not support links; there, the snapshot holds the file itself.
            Err(error) if is_link_unsupported(&error) => {
                durable::rename(&self.blob(&metadata.etag), &path)
            }
            result => result,
        };
        result.map_err(|source| disk_error(&path, source))?;
        self.write_reference(&snapshot)?;
        Ok(path)
    }

    /// Records that a commit has no such file, for offline runs.
    pub(super) fn note_absence(&self, file: &str, commit: &str) -> Result<(), DataError> {
        let snapshot = self.snapshot_of(commit);
        let path = self.absence_marker(&snapshot, file);
        if let Some(folder) = path.parent() {
            self.make_folder(folder)?;
        }
        durable::write_file(&path, b"").map_err(|source| disk_error(&path, source))?;
        self.write_reference(&snapshot)
    }

    /// Records the commit of the revision, unless one is recorded or the revision is a commit.
    fn write_reference(&self, commit: &str) -> Result<(), DataError> {
        if self.revision == commit || self.known_commit().is_some() {
            return Ok(());
        }
        let reference = self.reference();
        if let Some(folder) = reference.parent() {
            self.make_folder(folder)?;
        }
        durable::write_file(&reference, commit.as_bytes())
            .map_err(|source| disk_error(&reference, source))
    }

    /// Makes a folder of the cache. Refuses a link that leads out of the cache, so that all writes
    /// stay in the cache.
    fn make_folder(&self, folder: &Path) -> Result<(), DataError> {
        let error = |source| disk_error(folder, source);
        durable::create_folder(&self.cache).map_err(error)?;
        let root = fs::canonicalize(&self.cache).map_err(error)?;
        let relative = folder.strip_prefix(&self.cache).unwrap_or(folder);
        let mut path = self.cache.clone();
        for component in relative.components() {
            path.push(component);
            let is_link = fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_symlink());
            if is_link && !fs::canonicalize(&path).is_ok_and(|target| target.starts_with(&root)) {
                return Err(link_error(&path));
            }
            durable::create_folder(&path).map_err(error)?;
        }
        Ok(())
    }

    /// Returns the free bytes on the cache's disk; `None` if they are unknown.
    pub(super) fn free_space(&self) -> Option<u64> {
        #[cfg(unix)]
        {
            let disk = rustix::fs::statvfs(&self.cache).ok()?;
            Some(disk.f_frsize * disk.f_bavail)
        }
        #[cfg(not(unix))]
        None
    }

    /// Returns the cache folder, for messages.
    pub(super) fn cache(&self) -> &Path {
        &self.cache
    }
}

/// Refuses to open a link for writing.
fn refuse_link(path: &Path) -> Result<(), DataError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() => Err(link_error(path)),
        _ => Ok(()),
    }
}

/// Reads a text file; returns `None` if it cannot be read or has more than `limit` bytes.
fn read_short(path: &Path, limit: u64) -> Option<String> {
    // Opening a pipe would wait for a writer.
    if !path.is_file() {
        return None;
    }
    let mut text = String::new();
    engram_durable::open_file(path).ok()?.take(limit + 1).read_to_string(&mut text).ok()?;
    (text.len() as u64 <= limit).then_some(text)
}

pub(super) fn disk_error(path: &Path, source: io::Error) -> DataError {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            let remedy = "free some space, or set HF_HOME to a folder on a larger disk";
            DataError::of_file(path, "no space left on the disk", remedy)
        }
        _ => DataError::Io { path: path.to_path_buf(), source },
    }
}

fn link_error(path: &Path) -> DataError {
    let reason = "this link leads out of the hub's cache, so Engram does not write through it";
    let remedy = "remove the link, or set HF_HUB_CACHE to another folder";
    DataError::of_file(path, reason, remedy)
}

fn is_link_unsupported(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported)
}
