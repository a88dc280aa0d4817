//! Tests of loading weights from a folder, from the cache and from a hub. A local server acts as
//! the hub. A test can make it interrupt transfers, send wrong sizes or not respond.

mod cache;
mod hostile;
mod offline;
mod server;
mod test_cache;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use self::server::{COMMIT, Fault, Server};
use crate::assert_has;
use engram_data::DataError;
use engram_data::hub::{HubSettings, WeightsLocation};
use tempfile::TempDir;

/// A cache folder, a server with three files, and settings that connect them.
struct Hub {
    server: Server,
    cache: TempDir,
    settings: HubSettings,
    weights: Vec<u8>,
}

impl Hub {
    fn start() -> Self {
        let weights: Vec<u8> = (0..200_000_u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        let server = Server::start(&[
            ("config.json", b"{}"),
            ("onnx/model.onnx", b"nested"),
            ("big.safetensors", &weights),
        ]);
        let cache = tempfile::tempdir().unwrap();
        let mut settings = HubSettings::new(cache.path());
        settings.endpoint.clone_from(&server.endpoint);
        settings.progress = false;
        settings.retry_pause = Duration::from_millis(1);
        Self { server, cache, settings, weights }
    }

    fn fetch(&self, file: &str) -> Result<PathBuf, DataError> {
        model().file(file, &self.settings)
    }

    fn model_folder(&self) -> PathBuf {
        self.cache.path().join("models--owner--name")
    }

    /// Whether the cache has no blobs and no snapshots.
    fn has_no_files(&self) -> bool {
        let is_empty = |folder: &str| {
            let folder = self.model_folder().join(folder);
            fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none())
        };
        is_empty("blobs") && is_empty("snapshots")
    }
}

fn model() -> WeightsLocation {
    WeightsLocation::parse("hf://owner/name").unwrap()
}

#[test]
fn downloaded_files_are_available_offline() {
    let mut hub = Hub::start();
    for (file, bytes) in [
        ("config.json", &b"{}"[..]),
        ("onnx/model.onnx", b"nested"),
        ("big.safetensors", &hub.weights),
    ] {
        let path = hub.fetch(file).unwrap();
        let snapshot = hub.model_folder().join("snapshots").join(COMMIT);
        assert_eq!(path, snapshot.join(file));
        assert_eq!(fs::read(path).unwrap(), bytes);
    }
    assert_eq!(fs::read_to_string(hub.model_folder().join("refs/main")).unwrap(), COMMIT);
    assert_eq!(fs::read_dir(hub.model_folder().join("blobs")).unwrap().count(), 3);
    let requests = hub.server.requests();
    assert_eq!(requests[0], "/owner/name/resolve/main/config.json 0-0 none");
    let pinned = format!("/owner/name/resolve/{COMMIT}/onnx/model.onnx 0-0 none");
    assert!(
        requests.contains(&pinned),
        "later files come from the first file's commit: {requests:?}"
    );

    hub.settings.offline = true;
    hub.fetch("big.safetensors").unwrap();
    assert!(hub.server.requests().is_empty());
    let message = hub.fetch("vocab.txt").unwrap_err().to_string();
    let cache_path = format!("snapshots/{COMMIT}/vocab.txt");
    assert_has(
        &message,
        &["hf://owner/name", "vocab.txt", "offline", "run once online", &cache_path],
    );
    assert_eq!(model().optional_file("vocab.txt", &hub.settings).unwrap(), None);
}

/// The crate `hf-hub` reads the cache that Engram writes.
#[test]
fn the_cache_is_shared_with_hf_hub() {
    let hub = Hub::start();
    let path = hub.fetch("config.json").unwrap();
    let hf_hub_model = hf_hub::Cache::new(hub.cache.path().into()).model("owner/name".into());
    assert_eq!(hf_hub_model.get("config.json"), Some(path));
}

#[test]
fn a_hand_filled_cache_needs_no_network() {
    let mut hub = Hub::start();
    hub.settings.offline = true;
    let empty = hub.fetch("config.json").unwrap_err();
    let DataError::Offline { cache_path, .. } = empty else { panic!("{empty}") };
    fs::create_dir_all(cache_path.parent().unwrap()).unwrap();
    fs::write(&cache_path, "{}").unwrap();
    assert_eq!(hub.fetch("config.json").unwrap(), cache_path);
}

#[test]
fn revisions_are_resolved() {
    let hub = Hub::start();
    let pinned = WeightsLocation::parse(&format!("hf://owner/name@{COMMIT}")).unwrap();
    let path = pinned.file("config.json", &hub.settings).unwrap();
    assert!(path.is_file());
    assert!(!hub.model_folder().join("refs").exists(), "a commit needs no reference");
    hub.server.requests();
    pinned.file("config.json", &hub.settings).unwrap();
    assert!(hub.server.requests().is_empty());
    let other = WeightsLocation::parse("hf://owner/name@v9").unwrap();
    let message = other.file("config.json", &hub.settings).unwrap_err().to_string();
    assert_has(&message, &["hf://owner/name@v9", "or no such model or revision"]);
}

#[test]
fn a_broken_connection_is_resumed_at_the_same_byte() {
    let hub = Hub::start();
    hub.server.inject(&[Fault::Break(50_000), Fault::Break(70_000)]);
    let path = hub.fetch("big.safetensors").unwrap();
    assert_eq!(fs::read(path).unwrap(), hub.weights);
    let cdn = |range: &str| format!("/cdn/owner/name/resolve/main/big.safetensors {range} none");
    let requests = hub.server.requests();
    for range in ["0-", "50000-", "120000-"] {
        assert!(requests.contains(&cdn(range)), "{range}: {requests:?}");
    }
    assert!(!hub.model_folder().join("incoming/big.safetensors").exists());
}

#[test]
fn the_next_run_resumes_a_broken_download() {
    let mut hub = Hub::start();
    hub.settings.retries = 0;
    hub.server.inject(&[Fault::Break(150_000)]);
    let message = hub.fetch("big.safetensors").unwrap_err().to_string();
    assert_has(&message, &["big.safetensors", &hub.server.endpoint, "run again when online"]);
    assert!(hub.has_no_files());
    hub.server.requests();
    let path = hub.fetch("big.safetensors").unwrap();
    assert_eq!(fs::read(path).unwrap(), hub.weights);
    let requests = hub.server.requests();
    assert!(requests.iter().any(|request| request.contains(" 150000- ")), "{requests:?}");
}

#[test]
fn a_short_file_never_reaches_the_cache() {
    let mut hub = Hub::start();
    hub.settings.retries = 1;
    hub.server.inject(&[Fault::Short(1_000), Fault::Short(2_000)]);
    let message = hub.fetch("big.safetensors").unwrap_err().to_string();
    assert_has(&message, &["200000 bytes on the hub", "3000 bytes arrived", "run again"]);
    assert!(hub.has_no_files());
    let path = hub.fetch("big.safetensors").unwrap();
    assert_eq!(fs::read(path).unwrap(), hub.weights);
}

#[test]
fn a_server_without_ranges_is_supported() {
    let hub = Hub::start();
    hub.server.inject(&[Fault::Break(60_000), Fault::IgnoreRange]);
    let path = hub.fetch("big.safetensors").unwrap();
    assert_eq!(fs::read(path).unwrap(), hub.weights);
}

#[test]
fn a_changed_byte_fails_the_checksum() {
    let mut hub = Hub::start();
    hub.settings.retries = 0;
    hub.server.inject(&[Fault::Flip]);
    let message = hub.fetch("big.safetensors").unwrap_err().to_string();
    assert_has(&message, &["big.safetensors", "SHA-256", "run again"]);
    assert!(hub.has_no_files());
    assert!(hub.fetch("big.safetensors").is_ok());
}

#[test]
fn simultaneous_fetches_download_once() {
    let hub = Hub::start();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let path = hub.fetch("big.safetensors").unwrap();
                assert_eq!(fs::read(path).unwrap(), hub.weights);
            });
        }
    });
    let requests = hub.server.requests();
    let transfers = requests.iter().filter(|request| request.contains(" 0- "));
    assert_eq!(transfers.count(), 2, "the redirection and the bytes: {requests:?}");
}

/// A partial file that is complete, or longer than the file, cannot be resumed and is dropped.
#[test]
fn a_mismatched_partial_file_is_dropped() {
    for length in [200_000, 200_001] {
        let mut hub = Hub::start();
        hub.settings.retries = 0;
        hub.server.inject(&[Fault::Break(10)]);
        hub.fetch("big.safetensors").unwrap_err();
        let part = find_part(&hub.model_folder().join("incoming")).unwrap();
        fs::write(part, vec![0; length]).unwrap();
        hub.settings.retries = 1;
        let path = hub.fetch("big.safetensors").unwrap();
        assert_eq!(fs::read(path).unwrap(), hub.weights);
    }
}

fn find_part(folder: &Path) -> Option<PathBuf> {
    fs::read_dir(folder).ok()?.flatten().find_map(|entry| {
        let path = entry.path();
        let is_part = path.extension().is_some_and(|extension| extension == "part");
        if is_part { Some(path) } else { find_part(&path) }
    })
}

#[test]
fn a_silent_server_times_out() {
    let mut hub = Hub::start();
    hub.settings.stall_timeout = Duration::from_millis(500);
    hub.server.inject(&[Fault::Silence]);
    let started = Instant::now();
    let message = hub.fetch("big.safetensors").unwrap_err().to_string();
    assert_has(&message, &["nothing arrived for 0.5 s", "run again"]);
    assert!(started.elapsed() < Duration::from_secs(10));
    assert!(hub.has_no_files());
}

#[test]
fn responses_with_error_status_are_reported() {
    let hub = Hub::start();
    let message = hub.fetch("vocab.txt").unwrap_err().to_string();
    assert_has(&message, &["hf://owner/name", "\"vocab.txt\"", "check the names"]);
    assert_eq!(model().optional_file("vocab.txt", &hub.settings).unwrap(), None);
    assert_eq!(hub.server.requests().len(), 1, "a missing file is not requested again");

    for (status, parts) in [
        (401, ["status 401", "HF_TOKEN"]),
        (403, ["status 403", "HF_TOKEN"]),
        (503, ["status 503", "run again when online"]),
        (418, ["status 418", "check HF_ENDPOINT"]),
        (302, ["a redirect without a URL", "check HF_ENDPOINT"]),
    ] {
        hub.server.respond_with(status);
        assert_has(&hub.fetch("config.json").unwrap_err().to_string(), &parts);
        let requests = hub.server.requests().len();
        assert_eq!(requests, if status == 503 { 5 } else { 1 }, "requests after {status}");
    }
    assert!(hub.has_no_files());
}

#[test]
fn a_missing_network_is_reported() {
    let cache = tempfile::tempdir().unwrap();
    let mut settings = HubSettings::new(cache.path());
    settings.endpoint = "http://127.0.0.1:1".to_owned();
    settings.retries = 1;
    settings.retry_pause = Duration::from_millis(1);
    let message = model().file("config.json", &settings).unwrap_err().to_string();
    let cache_path = "models--owner--name/snapshots/main/config.json";
    assert_has(&message, &["http://127.0.0.1:1", "run again when online", cache_path]);
}

#[test]
fn a_cache_that_cannot_be_written_is_an_error() {
    let mut hub = Hub::start();
    let file = hub.cache.path().join("file");
    fs::write(&file, "").unwrap();
    hub.settings.cache.clone_from(&file);
    let message = hub.fetch("config.json").unwrap_err().to_string();
    assert_has(&message, &[file.to_str().unwrap(), "check the path and its permissions"]);
}

#[test]
fn locations_are_parsed() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    let location = WeightsLocation::parse(folder.path().to_str().unwrap()).unwrap();
    let settings = HubSettings::new("/nowhere");
    assert!(location.file("config.json", &settings).unwrap().is_file());
    for missing in ["model.safetensors", "../config.json", "", "/etc/passwd"] {
        let message = location.file(missing, &settings).unwrap_err().to_string();
        assert_has(&message, &[folder.path().to_str().unwrap(), "use a folder that has the file"]);
    }
    let with_revision = WeightsLocation::parse("hf://owner/name@refs/pr/1").unwrap();
    assert_eq!(with_revision.to_string(), "hf://owner/name@refs/pr/1");
    assert_eq!(model().to_string(), "hf://owner/name");
    let message = WeightsLocation::parse("owner/name@v2").unwrap_err().to_string();
    assert_has(&message, &["no such folder", "write hf://owner/name@v2"]);
    for folder in ["name", "a/b/c", "./owner/name", "src/hub"] {
        assert!(
            matches!(WeightsLocation::parse(folder), Ok(WeightsLocation::Folder(_))),
            "{folder}"
        );
    }
    for invalid in ["hf://", "hf://a/b/c", "hf://a/", "hf://../x", "hf://a/b@", "hf://a/b@../c"] {
        let message = WeightsLocation::parse(invalid).unwrap_err().to_string();
        assert_has(&message, &[invalid, "write hf://owner/name"]);
    }
}
