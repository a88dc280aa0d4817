//! Downloads that end as a whole file in the cache, or not in the cache at all.
//!
//! hf-hub 0.4.3 does the transfer: it asks for size and etag, continues a `.part` file with a
//! range request, and draws the bar. It does not compare what arrived with the announced size,
//! renames a short body into the cache, appends to a part even when the server ignores the
//! range, waits for ever on a silent server and panics on some answers. So each transfer runs
//! in a folder of its own (`models--owner--name/incoming`) on a thread of its own; the result is
//! checked by size, and by SHA-256 where the etag is one, before it is renamed into the cache.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use hf_hub::api::Progress;
use hf_hub::api::sync::{ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};

use super::{CachedModel, HubSettings, WeightsLocation, absolute, is_plain_name};
use crate::DataError;

/// Fetches one file into the cache and returns its path there.
pub(super) fn download(
    location: &WeightsLocation,
    model: &CachedModel,
    file: &str,
    settings: &HubSettings,
) -> Result<PathBuf, DataError> {
    let transfer =
        Transfer { location, model, file, settings, incoming: absolute(&model.incoming(file))? };
    // Who comes second waits here, and then finds the file in the cache.
    let _lock = transfer.lock()?;
    let mut pause = settings.retry_pause;
    for _ in 0..settings.retries {
        match transfer.attempt() {
            Err(Failure::Passing(_)) => thread::sleep(pause),
            Err(Failure::Final(error)) => return Err(error),
            Ok(path) => return Ok(path),
        }
        pause *= 2;
    }
    transfer.attempt().map_err(|failure| match failure {
        Failure::Passing(error) | Failure::Final(error) => error,
    })
}

/// Why an attempt failed: worth another one, or not.
enum Failure {
    Passing(DataError),
    Final(DataError),
}

struct Transfer<'a> {
    location: &'a WeightsLocation,
    model: &'a CachedModel,
    file: &'a str,
    settings: &'a HubSettings,
    incoming: PathBuf,
}

/// What the transfer thread reports.
enum Event {
    /// The announced size in bytes.
    Size(u64),
    /// Bytes that arrived.
    Bytes(u64),
}

struct Reporter(mpsc::Sender<Event>);

impl Progress for Reporter {
    fn init(&mut self, size: usize, _: &str) {
        // The receiver is gone only when the transfer was given up; nobody listens then.
        let _ = self.0.send(Event::Size(size as u64));
    }

    fn update(&mut self, size: usize) {
        let _ = self.0.send(Event::Bytes(size as u64));
    }

    fn finish(&mut self) {}
}

impl Transfer<'_> {
    /// Keeps other processes and threads from this file until it is dropped.
    fn lock(&self) -> Result<fs::File, DataError> {
        let mut path = self.incoming.clone().into_os_string();
        path.push(".lock");
        let path = PathBuf::from(path);
        let lock = || {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            let file = fs::File::create(&path)?;
            file.lock()?;
            Ok(file)
        };
        lock().map_err(|error| self.disk_error(error))
    }

    fn attempt(&self) -> Result<PathBuf, Failure> {
        // Another process may have been faster, while this one waited for the lock.
        if let Some(path) = self.model.lookup(self.file) {
            return Ok(path);
        }
        fs::create_dir_all(&self.incoming).map_err(|e| Failure::Final(self.disk_error(e)))?;
        let api = ApiBuilder::from_cache(Cache::new(self.incoming.clone()))
            .with_endpoint(self.settings.endpoint.clone())
            .with_token(self.settings.token.clone())
            .with_retries(0)
            .build()
            .map_err(|error| self.api_failure(error))?
            .repo(Repo::with_revision(
                self.model.repository.clone(),
                RepoType::Model,
                self.model.commit(),
            ));
        let (sender, events) = mpsc::channel();
        let name = self.file.to_owned();
        let worker = thread::spawn(move || api.download_with_progress(&name, Reporter(sender)));
        let announced = self.follow(&events)?;
        let arrived = match worker.join() {
            Ok(Ok(pointer)) => pointer,
            Ok(Err(error)) => return Err(self.api_failure(error)),
            Err(_) => {
                return Err(Failure::Final(self.refused("an answer that makes no sense")));
            }
        };
        self.adopt(&arrived, announced)
    }

    /// Draws the bar until the transfer ends; returns the announced size.
    fn follow(&self, events: &mpsc::Receiver<Event>) -> Result<u64, Failure> {
        let bar =
            if self.settings.progress { ProgressBar::no_length() } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template(
            "{msg} [{elapsed_precise}] [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} ({eta})",
        ) {
            bar.set_style(style);
        }
        bar.set_message(self.file.to_owned());
        let mut announced = 0;
        loop {
            match events.recv_timeout(self.settings.stall_limit) {
                Ok(Event::Size(size)) => {
                    announced = size;
                    bar.set_length(size);
                    bar.set_position(0);
                }
                Ok(Event::Bytes(bytes)) => bar.inc(bytes),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    bar.finish_and_clear();
                    return Ok(announced);
                }
                // The thread stays behind and holds the part's lock: no retry in this process.
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    bar.abandon();
                    let limit = self.settings.stall_limit.as_secs_f64();
                    return Err(Failure::Final(
                        self.no_network(format!("nothing arrived for {limit} s")),
                    ));
                }
            }
        }
    }

    /// Checks a finished transfer and moves it into the cache.
    fn adopt(&self, pointer: &Path, announced: u64) -> Result<PathBuf, Failure> {
        let disk = |error| Failure::Final(self.disk_error(error));
        let blob = fs::canonicalize(pointer).map_err(disk)?;
        let etag = name_of(&blob);
        let snapshots = pointer
            .ancestors()
            .find(|folder| folder.parent().is_some_and(|parent| parent.ends_with("snapshots")));
        let commit = snapshots.map(name_of).unwrap_or_default();
        if !is_plain_name(&etag) || !is_plain_name(&commit) {
            return Err(Failure::Final(self.refused("an unusable etag or commit")));
        }
        // Left dangling, the link would make hf-hub's next attempt fail.
        fs::remove_file(pointer).map_err(disk)?;

        let found = fs::metadata(&blob).map_err(disk)?.len();
        if found != announced {
            if found < announced {
                fs::rename(&blob, blob.with_extension("part")).map_err(disk)?;
            } else {
                fs::remove_file(&blob).map_err(disk)?;
            }
            return Err(Failure::Passing(DataError::WrongSize {
                location: self.location.to_string(),
                file: self.file.to_owned(),
                announced,
                found,
            }));
        }
        let is_sha256 = etag.len() == 64 && etag.bytes().all(|b| b.is_ascii_hexdigit());
        if is_sha256 && sha256(&blob).map_err(disk)? != etag.to_lowercase() {
            fs::remove_file(&blob).map_err(disk)?;
            return Err(Failure::Passing(DataError::WrongChecksum {
                location: self.location.to_string(),
                file: self.file.to_owned(),
            }));
        }
        self.publish(&blob, &etag, &commit).map_err(disk)
    }

    /// Blob first, then the snapshot's link, then the reference: whoever reads in between sees
    /// the file whole or not at all.
    fn publish(&self, blob: &Path, etag: &str, commit: &str) -> io::Result<PathBuf> {
        fs::File::open(blob)?.sync_all()?;
        let kept = self.model.blobs().join(etag);
        fs::create_dir_all(self.model.blobs())?;
        fs::rename(blob, &kept)?;

        let path = self.model.snapshots().join(commit).join(self.file);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        self.link(&kept, etag, &path)?;

        let reference = self.model.reference();
        if self.model.revision != commit && !reference.exists() {
            if let Some(folder) = reference.parent() {
                fs::create_dir_all(folder)?;
            }
            let unfinished = self.incoming.join("reference");
            fs::write(&unfinished, commit)?;
            fs::rename(&unfinished, &reference)?;
        }
        fs::remove_dir_all(&self.incoming)?;
        Ok(path)
    }

    #[cfg(unix)]
    fn link(&self, _blob: &Path, etag: &str, path: &Path) -> io::Result<()> {
        let up = "../".repeat(1 + self.file.split('/').count());
        let unfinished = self.incoming.join("link");
        std::os::unix::fs::symlink(format!("{up}blobs/{etag}"), &unfinished)?;
        fs::rename(&unfinished, path)
    }

    /// Where links need a privilege, the snapshot holds the file itself.
    #[cfg(not(unix))]
    fn link(&self, blob: &Path, _etag: &str, path: &Path) -> io::Result<()> {
        fs::rename(blob, path)
    }

    fn api_failure(&self, error: ApiError) -> Failure {
        match error {
            ApiError::RequestError(error) => {
                let reason = error.to_string();
                match error.into_response().map(|response| response.status()) {
                    None => Failure::Passing(self.no_network(reason)),
                    Some(404) => Failure::Final(DataError::MissingFile {
                        location: self.location.to_string(),
                        file: self.file.to_owned(),
                    }),
                    Some(status @ (401 | 403)) => Failure::Final(DataError::AccessRefused {
                        location: self.location.to_string(),
                        status,
                    }),
                    // The part does not fit the file: a complete or an outdated one.
                    Some(416) => self.start_afresh(reason),
                    Some(429 | 500..) => Failure::Passing(self.no_network(reason)),
                    Some(_) => Failure::Final(self.refused(&reason)),
                }
            }
            ApiError::IoError(error) if is_about_the_disk(&error) => {
                Failure::Final(self.disk_error(error))
            }
            ApiError::IoError(error) => Failure::Passing(self.no_network(error.to_string())),
            ApiError::InvalidResume => self.start_afresh("a part larger than the file".into()),
            ApiError::LockAcquisition(path) => Failure::Final(DataError::Locked { path }),
            other => Failure::Final(self.refused(&other.to_string())),
        }
    }

    fn start_afresh(&self, reason: String) -> Failure {
        match fs::remove_dir_all(&self.incoming) {
            Ok(()) => Failure::Passing(self.no_network(reason)),
            Err(error) => Failure::Final(self.disk_error(error)),
        }
    }

    fn disk_error(&self, source: io::Error) -> DataError {
        let path = self.settings.cache.clone();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                DataError::DiskFull { path }
            }
            _ => DataError::Io { path, source },
        }
    }

    fn no_network(&self, reason: String) -> DataError {
        DataError::NoNetwork {
            location: self.location.to_string(),
            file: self.file.to_owned(),
            endpoint: self.settings.endpoint.clone(),
            reason,
            put: self.model.snapshot().join(self.file),
        }
    }

    fn refused(&self, reason: &str) -> DataError {
        DataError::HubAnswer {
            location: self.location.to_string(),
            file: self.file.to_owned(),
            endpoint: self.settings.endpoint.clone(),
            reason: reason.to_owned(),
        }
    }
}

/// Errors of writing, among those that may as well come from the network.
fn is_about_the_disk(error: &io::Error) -> bool {
    use io::ErrorKind::{
        FileTooLarge, IsADirectory, NotADirectory, PermissionDenied, QuotaExceeded,
        ReadOnlyFilesystem, StorageFull,
    };
    matches!(
        error.kind(),
        StorageFull
            | QuotaExceeded
            | PermissionDenied
            | ReadOnlyFilesystem
            | FileTooLarge
            | NotADirectory
            | IsADirectory
    )
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn sha256(path: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    io::copy(&mut fs::File::open(path)?, &mut hasher)?;
    Ok(format!("{:x}", hasher.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neither can be had from a test server: errors of writing that hf-hub reports.
    #[test]
    fn errors_of_the_disk_are_not_taken_for_the_network() {
        let settings = HubSettings::new("/cache");
        let location = WeightsLocation::Folder("x".into());
        let model = CachedModel::new("owner/name", "main", &settings);
        let transfer = Transfer {
            location: &location,
            model: &model,
            file: "config.json",
            settings: &settings,
            incoming: PathBuf::new(),
        };
        let failure = |kind: io::ErrorKind| transfer.api_failure(ApiError::IoError(kind.into()));
        assert!(matches!(
            failure(io::ErrorKind::StorageFull),
            Failure::Final(DataError::DiskFull { .. })
        ));
        assert!(matches!(
            failure(io::ErrorKind::PermissionDenied),
            Failure::Final(DataError::Io { .. })
        ));
        assert!(matches!(
            failure(io::ErrorKind::ConnectionReset),
            Failure::Passing(DataError::NoNetwork { .. })
        ));
        assert!(matches!(
            transfer.api_failure(ApiError::LockAcquisition("l".into())),
            Failure::Final(DataError::Locked { .. })
        ));
    }
}
