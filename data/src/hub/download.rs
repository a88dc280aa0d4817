//! Downloads a file into the cache: the cache gets the complete file or nothing.
//!
//! 1. The hub is asked for a file's metadata (commit, etag, size). The metadata is validated before
//!    it becomes part of a path.
//! 2. The bytes go to a partial file, never more than the announced size. An interrupted download
//!    is resumed, in this run or the next.
//! 3. A partial file with the right size and checksum moves to the blobs, and is linked into its
//!    snapshot.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use engram_durable as durable;
use indicatif::{ProgressBar, ProgressStyle};

use super::cache::{CacheState, CachedModel, disk_error};
use super::client::{Client, Head, RequestError, Response};
use super::metadata::{FileMetadata, first_byte, total_size};
use super::settings::without_password;
use super::{HubSettings, WeightsLocation, checksum, names, reach};
use crate::DataError;
use crate::messages::{has_receiver, message};

/// A download below this speed for [`HubSettings::stall_timeout`] is aborted.
const MIN_BYTES_PER_SECOND: f64 = 1_000.0;
/// The time limit for a response when the cached files would suffice.
const SHORT_RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The number and the time limit of attempts to reach the hub.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// The retries and the time limit of the settings; no retries if the hub was unreachable a
    /// short time ago.
    Full,
    /// A single attempt with a short time limit, because the cached files would suffice.
    Brief,
}

/// Downloads a file into the cache and returns its path there.
pub(super) fn download(
    location: &WeightsLocation,
    model: &CachedModel,
    file: &str,
    settings: &HubSettings,
    effort: Effort,
) -> Result<PathBuf, DataError> {
    let transfer = Transfer { location, model, file, settings };
    let known_failure = reach::recent_failure(&settings.endpoint);
    let retries = if known_failure.is_some() { 0 } else { settings.retries };
    if let Some(reason) = known_failure.filter(|_| effort == Effort::Brief) {
        return Err(transfer.no_network(reason));
    }
    let response_timeout = match effort {
        Effort::Full => settings.response_timeout,
        Effort::Brief => settings.response_timeout.min(SHORT_RESPONSE_TIMEOUT),
    };
    let client = Client::new(settings, response_timeout)
        .map_err(|error| transfer.failure(error).into_error())?;
    if settings
        .token
        .as_ref()
        .is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic()))
    {
        return Err(transfer.hub_error(
            "the access token has characters that are not allowed in an HTTP header",
            "set HF_TOKEN to the token alone",
        ));
    }
    let mut pause = settings.retry_pause;
    for _ in 0..retries {
        match transfer.attempt(&client) {
            Err(Failure::Unreachable(_)) if effort == Effort::Full => {}
            Err(Failure::Temporary(_)) => {}
            result => return result.map_err(Failure::into_error),
        }
        thread::sleep(pause);
        pause *= 2;
    }
    transfer.attempt(&client).map_err(Failure::into_error)
}

/// The reason why an attempt failed.
enum Failure {
    /// No network, or no hub: worth another attempt if the file is needed.
    Unreachable(DataError),
    /// Worth another attempt.
    Temporary(DataError),
    /// Another attempt would not help.
    Final(DataError),
}

impl Failure {
    /// Makes `Unreachable` a temporary failure, because the hub has just responded.
    fn after_response(self) -> Self {
        match self {
            Self::Unreachable(error) => Self::Temporary(error),
            other => other,
        }
    }

    fn into_error(self) -> DataError {
        match self {
            Self::Unreachable(error) | Self::Temporary(error) | Self::Final(error) => error,
        }
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        Self::Final(error)
    }
}

/// A download of one file.
struct Transfer<'a> {
    location: &'a WeightsLocation,
    model: &'a CachedModel,
    file: &'a str,
    settings: &'a HubSettings,
}

impl Transfer<'_> {
    fn attempt(&self, client: &Client<'_>) -> Result<PathBuf, Failure> {
        let (metadata, size) = self.metadata(client)?;
        // The second of two processes waits here, and then finds the file in the cache.
        let _lock = self.model.lock(&metadata.etag, |lock| self.note_waiting(lock))?;
        if let CacheState::File(path) = self.model.lookup(self.file) {
            return Ok(path);
        }
        if let Some(blob) = self.model.find_blob(&metadata)
            && self.has_etag(&blob, &metadata.etag)?
        {
            return Ok(self.model.publish(self.file, &metadata)?);
        }
        let part = self.model.part(self.file, &metadata.etag)?;
        self.download_missing(client, &part, size).map_err(Failure::after_response)?;
        if !self.has_etag(&part, &metadata.etag)? {
            self.remove_part(&part)?;
            let (file, hash) = (self.file, checksum::hash_name(&metadata.etag));
            return Err(Failure::Temporary(self.hub_error(
                format!("the download of {file} does not match its checksum ({hash})"),
                "run again, over another network if the error persists",
            )));
        }
        self.model.store_blob(&part, &metadata.etag)?;
        self.model.remove_old_parts(self.file);
        Ok(self.model.publish(self.file, &metadata)?)
    }

    fn note_waiting(&self, lock: &Path) {
        message(&format!(
            "{}: waiting for another process that downloads {} and holds {}",
            self.location,
            self.file,
            lock.display()
        ));
    }

    /// Requests commit, etag and size. Large files are on another server; the metadata is in the
    /// hub's redirect.
    fn metadata(&self, client: &Client<'_>) -> Result<(FileMetadata, u64), Failure> {
        let requested = self.model.commit();
        let mut metadata: Option<FileMetadata> = None;
        let response = client.get(&self.address(&requested), "bytes=0-0", |head| {
            if metadata.is_none() && (head.status < 400 || head.status == 416) {
                metadata = FileMetadata::read(head.status, |name| head.header(name))?;
            }
            Ok(metadata.as_ref().is_some_and(|metadata| metadata.size.is_some()))
        });
        if metadata.is_some() {
            reach::note_response(&self.settings.endpoint);
        }
        let head = match response {
            Ok(response) => response.head,
            Err(error) => {
                if let RequestError::Unreachable(reason) | RequestError::Slow(reason) = &error {
                    reach::note_failure(&self.settings.endpoint, reason);
                }
                return Err(self.failure(error));
            }
        };
        let refused = |reason: &str| Failure::Final(self.refused(reason));
        let has_size = metadata.as_ref().is_some_and(|metadata| metadata.size.is_some());
        if !has_size && !matches!(head.status, 200 | 206) {
            return Err(self.status_failure(&head, &requested));
        }
        let metadata = metadata.ok_or_else(|| refused("no X-Repo-Commit header"))?;
        let total = total_size(head.status, |name| head.header(name)).map_err(|e| refused(&e))?;
        let size = metadata.size.or(total).ok_or_else(|| refused("no size"))?;
        if names::commit(&requested).is_some_and(|requested| requested != metadata.commit) {
            return Err(refused(&format!("commit {} instead of {requested}", metadata.commit)));
        }
        Ok((metadata, size))
    }

    /// Downloads the missing bytes of the partial file.
    fn download_missing(&self, client: &Client<'_>, part: &Path, size: u64) -> Result<(), Failure> {
        let disk_failure = |source| Failure::Final(disk_error(part, source));
        let mut file = durable::append_to(part).map_err(disk_failure)?;
        let mut length = file.metadata().map_err(disk_failure)?.len();
        if length > size {
            file.set_len(0).map_err(disk_failure)?;
            length = 0;
        }
        if length == size {
            return Ok(());
        }
        if let Some(free) = self.model.free_space().filter(|free| *free < size - length) {
            if length == 0 {
                self.remove_part(part)?;
            }
            let (file, path) = (self.file, self.model.cache().display());
            return Err(Failure::Final(self.hub_error(
                format!("{file} has {size} bytes on the hub, but {path} has {free} bytes free"),
                "free some space, or set HF_HUB_CACHE to a folder on a larger disk",
            )));
        }
        let requested = self.model.commit();
        let response = client
            .get(&self.address(&requested), &format!("bytes={length}-"), |_| Ok(false))
            .map_err(|error| self.failure(error))?;
        let head = &response.head;
        let range_start = first_byte(|name| head.header(name));
        match head.status {
            206 if range_start == Some(length) || range_start.is_none() && length == 0 => {}
            // This server ignores ranges.
            200 => {
                file.set_len(0).map_err(disk_failure)?;
                length = 0;
            }
            // The partial file does not match the file on the hub.
            206 | 416 => {
                self.remove_part(part)?;
                let reason = format!("bytes other than those from {length} on");
                return Err(Failure::Temporary(self.refused(&reason)));
            }
            _ => return Err(self.status_failure(head, &requested)),
        }
        let announced = head.header("content-length").and_then(|length| length.parse().ok());
        if announced.is_some_and(|announced: u64| announced > size - length) {
            return Err(self.too_long_response(part, size));
        }
        self.receive(&response, &mut file, part, length, size)
    }

    /// Writes a body to the partial file, never more than `size` bytes in all.
    fn receive(
        &self,
        response: &Response,
        file: &mut fs::File,
        part: &Path,
        start: u64,
        size: u64,
    ) -> Result<(), Failure> {
        let bar = self.progress_bar(start, size);
        let limit = self.settings.stall_timeout;
        let min_bytes = (MIN_BYTES_PER_SECOND * limit.as_secs_f64()) as u64;
        let mut length = start;
        let (mut window_start, mut bytes_before_window) = (Instant::now(), length);
        loop {
            let remaining = limit.saturating_sub(window_start.elapsed());
            let is_slow = match response.next(remaining) {
                Ok(None) => break,
                Ok(Some(bytes)) => {
                    length += bytes.len() as u64;
                    if length > size {
                        return Err(self.too_long_response(part, size));
                    }
                    file.write_all(&bytes)
                        .map_err(|source| Failure::Final(disk_error(part, source)))?;
                    bar.set_position(length);
                    window_start.elapsed() >= limit && length - bytes_before_window < min_bytes
                }
                Err(RequestError::Slow(_)) => length - bytes_before_window < min_bytes,
                Err(error) => return Err(self.failure(error)),
            };
            if is_slow {
                let (bytes, seconds) = (length - bytes_before_window, limit.as_secs_f64());
                let reason = match bytes {
                    0 => format!("nothing arrived for {seconds} s"),
                    _ => format!("only {bytes} bytes arrived in {seconds} s"),
                };
                let error = self.no_network(reason);
                let was_fast_before = bytes_before_window > start;
                return Err(if was_fast_before {
                    Failure::Temporary(error)
                } else {
                    Failure::Final(error)
                });
            }
            if window_start.elapsed() >= limit {
                (window_start, bytes_before_window) = (Instant::now(), length);
            }
        }
        bar.finish_and_clear();
        if length < size {
            let file = self.file;
            let reason = format!("{file} has {size} bytes on the hub, but {length} bytes arrived");
            return Err(Failure::Temporary(self.hub_error(reason, "run again")));
        }
        Ok(())
    }

    fn progress_bar(&self, start: u64, size: u64) -> ProgressBar {
        let bar = if self.settings.progress && !has_receiver() {
            ProgressBar::new(size)
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template(
            "{msg} [{elapsed_precise}] [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} ({eta})",
        ) {
            bar.set_style(style);
        }
        bar.set_message(self.file.to_owned());
        bar.set_position(start);
        bar
    }

    fn has_etag(&self, path: &Path, etag: &str) -> Result<bool, Failure> {
        checksum::matches(path, etag).map_err(|source| Failure::Final(disk_error(path, source)))
    }

    fn remove_part(&self, part: &Path) -> Result<(), Failure> {
        durable::remove_file(part).map_err(|source| Failure::Final(disk_error(part, source)))
    }

    /// Returns the path of the file on the hub, at a commit or a revision.
    fn address(&self, revision: &str) -> String {
        let revision = revision.replace('/', "%2F");
        format!("{}/resolve/{revision}/{}", self.model.repository, self.file)
    }

    fn failure(&self, error: RequestError) -> Failure {
        match error {
            RequestError::Unreachable(reason) => Failure::Unreachable(self.no_network(reason)),
            RequestError::Broken(reason) => Failure::Temporary(self.no_network(reason)),
            // The time limit has already passed once; do not retry.
            RequestError::Slow(reason) => Failure::Final(self.no_network(reason)),
            RequestError::Refused(reason) => Failure::Final(self.refused(&reason)),
        }
    }

    fn status_failure(&self, head: &Head, requested: &str) -> Failure {
        let reason = format!("status {}", head.status);
        if matches!(head.status, 429 | 500..=599) {
            reach::note_failure(&self.settings.endpoint, &reason);
            return Failure::Unreachable(self.no_network(reason));
        }
        if !head.is_endpoint {
            return Failure::Final(
                self.refused(&format!("{reason} from the server that it redirects to")),
            );
        }
        Failure::Final(match head.status {
            404 => {
                reach::note_response(&self.settings.endpoint);
                self.note_absence(head, requested);
                DataError::MissingFile {
                    location: self.location.to_string(),
                    file: self.file.to_owned(),
                }
            }
            status @ (401 | 403) => {
                reach::note_response(&self.settings.endpoint);
                self.hub_error(
                    format!("the hub refuses access (status {status})"),
                    "check the name; for a private or gated model, accept its terms and set \
                     HF_TOKEN",
                )
            }
            _ => self.refused(&reason),
        })
    }

    /// If the hub says that this commit has no such file, records this for later runs.
    fn note_absence(&self, head: &Head, requested: &str) {
        let is_file_missing =
            head.header("x-error-code").is_none_or(|code| code == "EntryNotFound");
        let commit = head.header("x-repo-commit").and_then(names::commit);
        let Some(commit) = commit.filter(|_| is_file_missing) else { return };
        if names::commit(requested).is_none_or(|requested| requested == commit) {
            // If the cache is not writable, the result is the same without this record.
            let _ = self.model.note_absence(self.file, &commit);
        }
    }

    fn too_long_response(&self, part: &Path, size: u64) -> Failure {
        match self.remove_part(part) {
            Ok(()) => {
                Failure::Final(self.refused(&format!("more than the {size} bytes announced")))
            }
            Err(failure) => failure,
        }
    }

    fn no_network(&self, reason: String) -> DataError {
        DataError::NoNetwork {
            location: self.location.to_string(),
            file: self.file.to_owned(),
            endpoint: without_password(&self.settings.endpoint),
            reason,
            cache_path: self.model.snapshot().join(self.file),
        }
    }

    fn refused(&self, reason: &str) -> DataError {
        let (file, endpoint) = (self.file, without_password(&self.settings.endpoint));
        self.hub_error(
            format!("{endpoint} responded to the request for {file} with {reason}"),
            "check HF_ENDPOINT",
        )
    }

    fn hub_error(&self, reason: impl Into<String>, remedy: &'static str) -> DataError {
        DataError::Hub { location: self.location.to_string(), reason: reason.into(), remedy }
    }
}
