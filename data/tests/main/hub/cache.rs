//! Tests of the cache's files: links, blobs, leftovers of a killed process.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::server::{COMMIT, ScriptedServer};
use super::test_cache::{BODY, TestCache, correct_hub, etag_of};
use crate::assert_has;

/// Folders of the cache may be links, but nothing is written through a link out of the cache.
#[test]
fn links_that_lead_out_of_the_cache_are_refused() {
    let server = ScriptedServer::start(correct_hub);
    let etag = etag_of(BODY);
    let snapshot = format!("models--owner--name/snapshots/{COMMIT}");
    for link in [
        "models--owner--name",
        "models--owner--name/blobs",
        "models--owner--name/snapshots",
        &snapshot,
        "models--owner--name/refs",
        "models--owner--name/incoming",
        ".locks",
        ".locks/models--owner--name",
    ] {
        for target in ["../outside", "../outside/missing"] {
            let cache = TestCache::new(&server.endpoint);
            let path = cache.settings.cache.join(link);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(cache.folder.path().join("cache").join(target), &path).unwrap();
            let error = cache.fetch().unwrap_err().to_string();
            assert_has(&error, &[path.to_str().unwrap(), "leads out of the", "remove the link"]);
        }
    }
    for link in [
        format!("models--owner--name/incoming/config.json.{etag}.part"),
        format!(".locks/models--owner--name/{etag}.lock"),
    ] {
        for target in ["victim", "missing"] {
            let cache = TestCache::new(&server.endpoint);
            let path = cache.settings.cache.join(&link);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(cache.outside().join(target), &path).unwrap();
            assert_has(&cache.fetch().unwrap_err().to_string(), &["leads out of the hub's cache"]);
        }
    }
}

/// Links in place of files are replaced, and their targets stay unchanged.
#[test]
fn links_in_place_of_files_are_replaced() {
    let server = ScriptedServer::start(correct_hub);
    let etag = etag_of(BODY);
    for (link, target) in [
        (format!("models--owner--name/snapshots/{COMMIT}/config.json"), "missing"),
        (format!("models--owner--name/blobs/{etag}"), "missing"),
        (format!("models--owner--name/blobs/{etag}"), "victim"),
        ("models--owner--name/refs/main".to_owned(), "missing"),
        ("models--owner--name/refs/main".to_owned(), "empty"),
    ] {
        let cache = TestCache::new(&server.endpoint);
        let path = cache.settings.cache.join(&link);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(cache.outside().join(target), &path).unwrap();
        assert_eq!(fs::read(cache.fetch().unwrap()).unwrap(), BODY, "{link}");
        let folder = fs::canonicalize(&cache.settings.cache).unwrap();
        assert!(fs::canonicalize(&path).unwrap().starts_with(folder));
    }
}

/// A blob with the right checksum is not downloaded again; another blob is replaced.
#[test]
fn only_correct_blobs_are_reused() {
    for (content, transfers) in [(BODY, 0), (&b"{\"hidden_size\": 9}\n"[..], 1)] {
        let server = ScriptedServer::start(correct_hub);
        let cache = TestCache::new(&server.endpoint);
        let blobs = cache.model_folder().join("blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join(etag_of(BODY)), content).unwrap();
        assert_eq!(fs::read(cache.fetch().unwrap()).unwrap(), BODY);
        let requests = server.requests();
        assert_eq!(
            requests.iter().filter(|request| !request.requests_metadata()).count(),
            transfers
        );
    }
}

/// Removes outdated partial downloads and links left by a killed process; other names stay.
#[test]
fn leftovers_of_killed_processes_are_removed() {
    let server = ScriptedServer::start(correct_hub);
    let cache = TestCache::new(&server.endpoint);
    let locks = cache.settings.cache.join(".locks/models--owner--name");
    let incoming = cache.model_folder().join("incoming");
    let snapshot = cache.model_folder().join("snapshots").join(COMMIT);
    for folder in [&locks, &incoming, &snapshot] {
        fs::create_dir_all(folder).unwrap();
    }
    let (old, busy) = ("1".repeat(40), "2".repeat(40));
    for etag in [&old, &busy] {
        fs::write(locks.join(format!("{etag}.lock")), "").unwrap();
        fs::write(incoming.join(format!("config.json.{etag}.part")), "part").unwrap();
    }
    let lock = fs::File::open(locks.join(format!("{busy}.lock"))).unwrap();
    lock.lock().unwrap();
    fs::write(incoming.join("config.json.mine.part"), "").unwrap();
    fs::write(incoming.join(format!("other.json.{old}.part")), "").unwrap();
    symlink("nowhere", snapshot.join(".config.json.engram-aB3dE6")).unwrap();
    fs::write(snapshot.join(".config.json.mine"), "").unwrap();
    cache.fetch().unwrap();
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let busy_part = format!("config.json.{busy}.part");
    let other_file = format!("other.json.{old}.part");
    assert_eq!(names(&incoming), [busy_part, "config.json.mine.part".to_owned(), other_file]);
    assert_eq!(names(&snapshot), [".config.json.mine", "config.json"]);
}

/// The cache folder may be a link, because the user chooses it.
#[test]
fn the_cache_folder_may_be_a_link() {
    let server = ScriptedServer::start(correct_hub);
    let mut cache = TestCache::new(&server.endpoint);
    let disk = tempfile::tempdir().unwrap();
    let link = cache.folder.path().join("link");
    symlink(disk.path(), &link).unwrap();
    cache.settings.cache = link;
    assert_eq!(fs::read(cache.fetch().unwrap()).unwrap(), BODY);
}
