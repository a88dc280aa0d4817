//! Tests of offline runs, and of huggingface_hub's rules for its cache and environment variables.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use engram_data::DataError;
use engram_data::hub::HubSettings;
use tempfile::TempDir;

use super::server::COMMIT;
use super::{Hub, model};
use crate::assert_has;

/// Returns a cache with these files of `owner/name`, and its settings.
fn cache_with(files: &[(&str, &str)]) -> (TempDir, HubSettings) {
    let cache = tempfile::tempdir().unwrap();
    let folder = cache.path().join("models--owner--name");
    fs::create_dir_all(folder.join("refs")).unwrap();
    fs::write(folder.join("refs/main"), COMMIT).unwrap();
    for (file, text) in files {
        let path = folder.join("snapshots").join(COMMIT).join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let mut settings = HubSettings::new(cache.path());
    settings.progress = false;
    (cache, settings)
}

/// Returns an address without a server. Each test needs its own address, because unreachable hubs
/// are remembered.
fn unreachable_endpoint(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

const MODULES: &str = r#"[
    {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
]"#;

#[test]
fn a_file_named_in_a_cached_file_is_not_treated_as_absent() {
    let (_cache, mut settings) = cache_with(&[("config.json", "{}"), ("modules.json", MODULES)]);
    let pooling = |settings: &HubSettings| model().optional_file("1_Pooling/config.json", settings);
    settings.offline = true;
    let error = pooling(&settings).unwrap_err().to_string();
    assert_has(&error, &["1_Pooling/config.json is not in the cache", "run once online"]);
    assert_eq!(model().optional_file("2_Normalize/config.json", &settings).unwrap(), None);
    assert_eq!(model().optional_file("tokenizer_config.json", &settings).unwrap(), None);

    settings.offline = false;
    settings.endpoint = unreachable_endpoint(2);
    settings.retry_pause = Duration::from_millis(1);
    let error = pooling(&settings).unwrap_err().to_string();
    assert_has(&error, &["cannot download 1_Pooling/config.json", "run again when online"]);

    let (_cache, mut settings) = cache_with(&[("config_sentence_transformers.json", "{}")]);
    settings.offline = true;
    assert!(model().optional_file("modules.json", &settings).is_err());
}

#[test]
fn without_a_network_the_cached_files_are_used_at_once() {
    let (_cache, mut settings) = cache_with(&[("config.json", "{}"), ("model.safetensors", "")]);
    settings.endpoint = unreachable_endpoint(3);
    let started = Instant::now();
    for optional in ["modules.json", "sentence_bert_config.json", "1_Pooling/config.json"] {
        assert_eq!(model().optional_file(optional, &settings).unwrap(), None);
    }
    assert!(model().file("config.json", &settings).is_ok());
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    let error = model().file("tokenizer.json", &settings).unwrap_err();
    assert!(matches!(error, DataError::NoNetwork { .. }), "{error}");
}

#[test]
fn a_model_without_cached_files_is_an_error() {
    let cache = tempfile::tempdir().unwrap();
    let mut settings = HubSettings::new(cache.path());
    settings.endpoint = unreachable_endpoint(4);
    settings.retries = 0;
    let error = model().optional_file("modules.json", &settings).unwrap_err();
    assert!(matches!(error, DataError::NoNetwork { .. }), "{error}");
    settings.offline = true;
    let error = model().optional_file("modules.json", &settings).unwrap_err();
    assert!(matches!(&error, DataError::Offline { file, .. } if file == "config.json"), "{error}");
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0, "nothing is written");
}

#[test]
fn a_hub_that_fails_after_a_response_is_an_error() {
    let mut hub = Hub::start();
    hub.settings.retries = 1;
    hub.fetch("config.json").unwrap();
    hub.server.respond_with(503);
    let error = model().optional_file("modules.json", &hub.settings).unwrap_err();
    assert!(matches!(error, DataError::NoNetwork { .. }), "{error}");
}

#[test]
fn a_hub_that_is_down_counts_as_no_network() {
    let hub = Hub::start();
    let (_cache, mut settings) = cache_with(&[("config.json", "{}")]);
    settings.endpoint.clone_from(&hub.server.endpoint);
    hub.server.respond_with(503);
    assert_eq!(model().optional_file("modules.json", &settings).unwrap(), None);
    assert_eq!(model().optional_file("vocab.txt", &settings).unwrap(), None);
    assert_eq!(hub.server.requests().len(), 1, "one attempt is enough");
}

#[test]
fn absent_files_are_recorded() {
    let mut hub = Hub::start();
    hub.fetch("config.json").unwrap();
    assert_eq!(model().optional_file("1_Pooling/config.json", &hub.settings).unwrap(), None);
    let marker = hub.model_folder().join(".no_exist").join(COMMIT).join("1_Pooling/config.json");
    assert_eq!(fs::read(&marker).unwrap(), b"");
    hub.server.requests();
    hub.settings.offline = true;
    let error = hub.fetch("1_Pooling/config.json").unwrap_err();
    assert!(matches!(error, DataError::MissingFile { .. }), "{error}");

    // A marker that an earlier commit lacks a file does not apply to this commit.
    let (cache, mut settings) = cache_with(&[("modules.json", MODULES)]);
    settings.offline = true;
    let markers = cache.path().join("models--owner--name/.no_exist");
    let optional = || model().optional_file("1_Pooling/config.json", &settings);
    for (commit, applies) in [("f".repeat(40), false), (COMMIT.to_owned(), true)] {
        let marker = markers.join(commit).join("1_Pooling/config.json");
        fs::create_dir_all(marker.parent().unwrap()).unwrap();
        fs::write(marker, "").unwrap();
        assert_eq!(optional().is_ok(), applies);
    }
}

#[test]
fn the_listing_of_huggingface_hub_is_read() {
    let (cache, mut settings) = cache_with(&[("config.json", "{}")]);
    settings.offline = true;
    let trees = cache.path().join("models--owner--name/trees");
    fs::create_dir_all(&trees).unwrap();
    let entry = r#"{"size": 1, "blob_id": "x"}"#;
    let listing = |version: u32| {
        format!(
            r#"{{"format_version": {version}, "files": {{"config.json": {entry}, "modules.json": {entry}}}}}"#
        )
    };
    fs::write(trees.join(format!("{COMMIT}.json")), listing(1)).unwrap();
    let error = model().optional_file("modules.json", &settings).unwrap_err();
    assert!(matches!(error, DataError::Offline { .. }), "the model has it: {error}");
    let error = model().file("vocab.txt", &settings).unwrap_err();
    assert!(matches!(error, DataError::MissingFile { .. }), "the model does not have it: {error}");
    for unreadable in [listing(2), "{".to_owned(), "[]".to_owned()] {
        fs::write(trees.join(format!("{COMMIT}.json")), unreadable).unwrap();
        assert_eq!(model().optional_file("modules.json", &settings).unwrap(), None);
    }
}

/// If a user copied a model into the cache by hand, new hub files are added to the same folder.
#[test]
fn a_folder_filled_by_hand_stays_in_use() {
    let hub = Hub::start();
    let folder = hub.model_folder().join("snapshots/main");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("big.safetensors"), "by hand").unwrap();
    assert_eq!(model().optional_file("vocab.txt", &hub.settings).unwrap(), None);
    assert_eq!(model().optional_file("vocab.txt", &hub.settings).unwrap(), None);
    assert_eq!(hub.server.requests().len(), 1, "an absent file is requested once");
    let nested = hub.fetch("onnx/model.onnx").unwrap();
    assert_eq!(nested, folder.join("onnx/model.onnx"));
    assert_eq!(fs::read(nested).unwrap(), b"nested");
    assert_eq!(fs::read(hub.fetch("big.safetensors").unwrap()).unwrap(), b"by hand");
}

#[test]
fn a_broken_reference_is_rewritten() {
    for broken in ["", "../../..", "a/b", "\0", "/etc"] {
        let hub = Hub::start();
        let reference = hub.model_folder().join("refs/main");
        fs::create_dir_all(reference.parent().unwrap()).unwrap();
        fs::write(&reference, broken).unwrap();
        let path = hub.fetch("config.json").unwrap();
        assert!(path.starts_with(hub.model_folder().join("snapshots").join(COMMIT)));
        assert_eq!(fs::read_to_string(&reference).unwrap(), COMMIT, "{broken:?}");
    }
}

fn settings_from(variables: &[(&str, &str)]) -> HubSettings {
    HubSettings::from_variables(|name| {
        let variable = variables.iter().find(|(key, _)| *key == name);
        variable.map(|(_, value)| (*value).to_owned())
    })
    .unwrap()
}

#[test]
fn the_home_of_another_user_is_refused() {
    for name in ["HF_HOME", "HF_HUB_CACHE", "HF_TOKEN_PATH", "XDG_CACHE_HOME"] {
        let settings = HubSettings::from_variables(|other| {
            (other == name).then(|| "~someone/models".to_owned())
        });
        let error = settings.unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("~someone/models"), "{error}");
    }
}

/// The values are from huggingface_hub 2.4.0.
#[test]
fn the_cache_folder_is_found_as_in_huggingface_hub() {
    let default_cache = "/home/u/.cache/huggingface/hub";
    for (name, value, expected) in [
        ("HF_HOME", "~/.hfx", "/home/u/.hfx/hub"),
        ("HF_HOME", "~", "/home/u/hub"),
        ("HF_HOME", "$BASE/x", "/base/x/hub"),
        ("HF_HOME", "${BASE}/x/$NOPE", "/base/x/$NOPE/hub"),
        ("HF_HOME", "${BASE}y", "/basey/hub"),
        ("HF_HOME", "$BASEy/z", "$BASEy/z/hub"),
        ("HF_HOME", "/a$", "/a$/hub"),
        ("HF_HOME", "/a${BASE", "/a${BASE/hub"),
        ("HF_HOME", "/a${}b$$c", "/a${}b$$c/hub"),
        ("HF_HOME", "/a/~", "/a/~/hub"),
        ("HUGGINGFACE_HUB_CACHE", "~/old", "/home/u/old"),
        ("HF_HUB_CACHE", "$BASE/c/", "/base/c/"),
        ("XDG_CACHE_HOME", "/x", "/x/huggingface/hub"),
        ("XDG_CACHE_HOME", "~/x", "/home/u/x/huggingface/hub"),
        ("OTHER", "", default_cache),
    ] {
        let settings = settings_from(&[("HOME", "/home/u"), ("BASE", "/base"), (name, value)]);
        assert_eq!(settings.cache, Path::new(expected), "{name}={value}");
    }
    let both = settings_from(&[("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HUB_CACHE", "/new")]);
    assert_eq!(both.cache, Path::new("/new"));
}

/// The values are from huggingface_hub 2.4.0.
#[test]
fn offline_variables_are_read_as_in_huggingface_hub() {
    for (hub, transformers, expected) in [
        ("1", "", true),
        ("on", "", true),
        ("Yes", "", true),
        ("true", "", true),
        ("0", "1", false),
        ("", "1", true),
        ("", "ON", true),
        ("2", "", false),
        ("y", "", false),
        ("", "", false),
    ] {
        let settings =
            settings_from(&[("HF_HUB_OFFLINE", hub), ("TRANSFORMERS_OFFLINE", transformers)]);
        assert_eq!(settings.offline, expected, "{hub:?}, {transformers:?}");
    }
}

#[test]
fn tokens_are_read_from_variables_and_files() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("token"), "stored\n").unwrap();
    fs::write(home.path().join("other"), "other").unwrap();
    let home = home.path().to_str().unwrap();
    let token = |variables: &[(&str, &str)]| {
        let variables = [&[("HF_HOME", home), ("HOME", home)], variables].concat();
        settings_from(&variables).token
    };
    assert_eq!(token(&[("HF_TOKEN", "")]).as_deref(), Some("stored"));
    assert_eq!(token(&[("HF_TOKEN", " t\r\n")]).as_deref(), Some("t"));
    assert_eq!(token(&[("HUGGING_FACE_HUB_TOKEN", "old")]).as_deref(), Some("old"));
    let both = token(&[("HUGGING_FACE_HUB_TOKEN", "old"), ("HF_TOKEN", "new")]);
    assert_eq!(both.as_deref(), Some("new"));
    assert_eq!(token(&[("HF_TOKEN_PATH", "~/other")]).as_deref(), Some("other"));
    assert_eq!(token(&[("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"), ("HF_TOKEN", "t")]), None);
}

#[test]
fn the_endpoint_and_the_limits_are_read_from_variables() {
    assert_eq!(settings_from(&[]).endpoint, "https://huggingface.co");
    let settings = settings_from(&[
        ("HF_ENDPOINT", "http://mirror/"),
        ("HF_HUB_ETAG_TIMEOUT", "3"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "0"),
        ("HF_HUB_DISABLE_PROGRESS_BARS", "1"),
    ]);
    assert_eq!(settings.endpoint, "http://mirror");
    assert_eq!(settings.response_timeout, Duration::from_secs(3));
    assert_eq!(settings.stall_timeout, HubSettings::new("").stall_timeout);
    assert!(!settings.progress);
}
