//! Tests of a hostile hub: it cannot write outside the cache, get the token for another host, or
//! make a download endless.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use engram_data::DataError;
use engram_data::hub::WeightsLocation;

use super::model;
use super::server::{COMMIT, ScriptedServer};
use super::test_cache::{
    BODY, TestCache, correct_hub, etag_of, hub_with_body, hub_with_metadata, redirect, reply,
};
use crate::{assert_has, gzip};

/// Returns the total size of the files in a folder, in bytes; 0 if there is no folder.
fn total_bytes(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let size = |path: PathBuf| {
        if path.is_dir() { total_bytes(&path) } else { path.metadata().unwrap().len() }
    };
    entries.map(|entry| size(entry.unwrap().path())).sum()
}

#[test]
fn unsafe_names_in_headers_are_refused() {
    let victim = TestCache::new("").outside().join("victim");
    let victim = victim.to_str().unwrap();
    let relative = format!("{}{victim}", "../".repeat(12));
    let sha1 = "0".repeat(40);
    for invalid in [
        victim,
        &relative,
        "..",
        ".",
        "",
        "abc",
        "main",
        "a/b",
        "a\\b",
        "C:\\x",
        "a\tb",
        &sha1[1..],
        &format!("{sha1}0"),
        &format!("../{}", &sha1[3..]),
        &format!("{}/..", &sha1[3..]),
        &format!("{}é", &sha1[2..]),
    ] {
        for is_etag in [true, false] {
            let (etag, size) = (etag_of(BODY), BODY.len().to_string());
            let (commit, etag) = if is_etag { (COMMIT, invalid) } else { (invalid, &*etag) };
            let server = hub_with_metadata(commit, etag, &size);
            let cache = TestCache::new(&server.endpoint);
            cache.assert_refused(&["check HF_ENDPOINT"]);
            assert!(
                !cache.settings.cache.exists(),
                "{invalid:?} is refused before any path is made"
            );
        }
    }
}

#[test]
fn unsafe_names_from_the_user_are_refused() {
    for invalid in [
        "hf://../x",
        "hf:///etc/passwd",
        "hf://a\\b",
        "hf://a/b@../../x",
        "hf://a/b@/x",
        "hf://a--b/c",
        "hf://a/b\0",
    ] {
        assert!(WeightsLocation::parse(invalid).is_err(), "{invalid:?}");
    }
    let server = ScriptedServer::start(correct_hub);
    let cache = TestCache::new(&server.endpoint);
    for invalid in
        ["../../../outside/victim", "/etc/passwd", "a/../../x", "a\\b", "a\0b", "", "a//b", "."]
    {
        let error = model().file(invalid, &cache.settings).unwrap_err();
        assert!(matches!(error, DataError::MissingFile { .. }), "{invalid:?}: {error}");
        assert_eq!(model().optional_file(invalid, &cache.settings).unwrap(), None);
    }
    assert!(server.requests().is_empty());
}

/// The token is sent only to the endpoint: not to another port, name or scheme, and not after a
/// detour.
#[test]
fn the_token_is_sent_only_to_the_endpoint() {
    let other = ScriptedServer::start(correct_hub);
    let same_host = other.endpoint.replace("127.0.0.1", "localhost");
    let disguised = same_host.replace("http://", "http://127.0.0.1@");
    for target in [&other.endpoint, &same_host, &disguised] {
        let target = target.clone();
        let hub =
            ScriptedServer::start(move |_, out| redirect(out, &format!("{target}/elsewhere")));
        let mut cache = TestCache::new(&hub.endpoint);
        cache.settings.token = Some("hf_secret".to_owned());
        assert_eq!(fs::read(cache.fetch().unwrap()).unwrap(), BODY);
        assert!(hub.requests().iter().all(|request| request.authorization == "Bearer hf_secret"));
        let requests = other.requests();
        assert_eq!(requests.len(), 2);
        for request in &requests {
            assert!(request.authorization == "none" && request.path == "/elsewhere");
        }
    }
}

/// The hub of the test is on this machine. So it may redirect to other servers of local networks, but
/// not to the metadata service of a cloud.
#[test]
fn a_redirect_to_a_metadata_service_is_not_followed() {
    for host in ["169.254.169.254", "[::ffff:169.254.169.254]", "2852039166", "[fe80::1]"] {
        let hub =
            ScriptedServer::start(move |_, out| redirect(out, &format!("http://{host}/latest")));
        TestCache::new(&hub.endpoint).assert_refused(&["a redirect to", "in a local network"]);
    }
}

#[test]
fn the_token_follows_redirects_within_the_hub_but_not_a_detour() {
    let hub = ScriptedServer::start(|request, out| match request.path.as_str() {
        "/new/resolve/main/config.json" => correct_hub(request, out),
        _ => reply(out, 307, &[("Location", "/new/resolve/main/config.json")], b""),
    });
    let mut cache = TestCache::new(&hub.endpoint);
    cache.settings.token = Some("hf_secret".to_owned());
    cache.fetch().unwrap();
    assert!(hub.requests().iter().all(|request| request.authorization == "Bearer hf_secret"));

    let hub_endpoint = hub.endpoint.clone();
    let other = ScriptedServer::start(move |_, out| {
        redirect(out, &format!("{hub_endpoint}/new/resolve/main/config.json"))
    });
    let other_endpoint = other.endpoint.clone();
    let hub =
        ScriptedServer::start(move |_, out| reply(out, 302, &[("Location", &other_endpoint)], b""));
    let mut cache = TestCache::new(&hub.endpoint);
    cache.settings.token = Some("hf_secret".to_owned());
    cache.fetch().unwrap();
    assert!(other.requests().iter().all(|request| request.authorization == "none"));
}

/// A redirect within the hub has an etag of its own; only a redirect to another host has the etag
/// of the file.
#[test]
fn metadata_comes_from_the_last_response_of_the_hub() {
    let hub = ScriptedServer::start(|request, out| match request.path.as_str() {
        "/cached/config.json" => correct_hub(request, out),
        _ => {
            let headers = [
                ("Location", "/cached/config.json"),
                ("ETag", "W/\"7d-x\""),
                ("X-Repo-Commit", COMMIT),
                ("X-Linked-Size", "125"),
            ];
            reply(out, 307, &headers, b"")
        }
    });
    assert_eq!(fs::read(TestCache::new(&hub.endpoint).fetch().unwrap()).unwrap(), BODY);
}

#[test]
fn neither_token_nor_password_is_printed() {
    let mut cache = TestCache::new("http://user:pa55word@127.0.0.1:9");
    cache.settings.token = Some("hf_se cret\u{7f}".to_owned());
    let error = cache.fetch().unwrap_err();
    assert_has(&error.to_string(), &["the access token", "set HF_TOKEN"]);
    cache.settings.token = Some("hf_secret".to_owned());
    let printed = format!("{error:?} {} {:?}", cache.fetch().unwrap_err(), cache.settings);
    assert!(printed.contains("http://127.0.0.1:9"), "{printed}");
    assert!(!printed.contains("pa55word") && !printed.contains("cret"), "{printed}");
}

#[test]
fn endless_and_unsafe_redirects_are_refused() {
    for location in ["", "?", "/owner/name/resolve/main/config.json", "#x"] {
        let server =
            ScriptedServer::start(move |_, out| reply(out, 302, &[("Location", location)], b""));
        TestCache::new(&server.endpoint).assert_refused(&["more than 10 redirects"]);
        assert_eq!(server.requests().len(), 11);
    }
    for location in ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x", "http://", "http://[::"]
    {
        let server = ScriptedServer::start(move |_, out| redirect(out, location));
        TestCache::new(&server.endpoint)
            .assert_refused(&["a redirect that is not to an http or https URL"]);
    }
    let server = ScriptedServer::start(|_, out| reply(out, 302, &[], b""));
    TestCache::new(&server.endpoint).assert_refused(&["a redirect without a URL"]);
}

#[test]
fn impossible_sizes_are_refused() {
    for (size, expected) in [
        ("1000000000000000", "free some space"),
        ("18446744073709551615", "free some space"),
        ("18446744073709551616", "not a number of bytes"),
        ("-5", "not a number of bytes"),
        ("*", "no size"),
        ("x", "not a number of bytes"),
    ] {
        let server = hub_with_metadata(COMMIT, &etag_of(BODY), size);
        let cache = TestCache::new(&server.endpoint);
        cache.assert_refused(&[expected]);
        assert_eq!(total_bytes(&cache.model_folder()), 0);
    }
}

#[test]
fn too_long_bodies_are_refused() {
    let longer = [BODY, b"more"].concat();
    let length = longer.len().to_string();
    let with_length =
        hub_with_body(move |_, out| reply(out, 200, &[("Content-Length", &length)], &longer));
    let endless = hub_with_body(|_, out| {
        reply(out, 200, &[], b"")?;
        loop {
            out.write_all(&[b'z'; 1 << 16])?;
        }
    });
    let chunked = hub_with_body(|_, out| {
        reply(out, 200, &[("Transfer-Encoding", "chunked")], b"")?;
        loop {
            write!(out, "1000\r\n{}\r\n", "z".repeat(4096))?;
        }
    });
    let bomb = gzip(vec![0u8; 100 << 20]);
    let gzip = hub_with_body(move |_, out| reply(out, 200, &[("Content-Encoding", "gzip")], &bomb));
    for server in [&with_length, &endless, &chunked, &gzip] {
        let cache = TestCache::new(&server.endpoint);
        cache.assert_refused(&["more than the 19 bytes announced"]);
        assert_eq!(total_bytes(&cache.model_folder()), 0);
    }
    assert!(gzip.requests().iter().all(|request| request.encoding == "identity"));
}

/// Some servers compress despite `identity`. The announced size is the uncompressed size.
#[test]
fn a_compressed_body_is_decompressed() {
    let compressed = gzip(BODY);
    let server =
        hub_with_body(move |_, out| reply(out, 200, &[("Content-Encoding", "gzip")], &compressed));
    assert_eq!(fs::read(TestCache::new(&server.endpoint).fetch().unwrap()).unwrap(), BODY);
}

#[test]
fn slow_bodies_are_aborted_and_resumed() {
    let slow_hub = hub_with_body(|_, out| {
        reply(out, 200, &[], b"")?;
        for byte in BODY {
            thread::sleep(Duration::from_millis(80));
            out.write_all(&[*byte])?;
        }
        Ok(())
    });
    let mut cache = TestCache::new(&slow_hub.endpoint);
    cache.settings.stall_timeout = Duration::from_millis(500);
    let error = cache.fetch().unwrap_err().to_string();
    assert_has(&error, &["only ", " bytes arrived in 0.5 s", "run again"]);
    // The next run resumes the download.
    cache.settings.stall_timeout = Duration::from_secs(5);
    let correct_hub = hub_with_body(|request, out| {
        let start: usize = request.range.trim_end_matches('-').parse().unwrap();
        assert!(start > 0, "the download starts again");
        let range = format!("bytes {start}-18/19");
        reply(out, 206, &[("Content-Range", &range)], &BODY[start..])
    });
    cache.settings.endpoint.clone_from(&correct_hub.endpoint);
    assert_eq!(fs::read(cache.fetch().unwrap()).unwrap(), BODY);
}

#[test]
fn missing_responses_time_out() {
    let silent = ScriptedServer::start(|_, _| {
        thread::sleep(Duration::from_secs(20));
        Ok(())
    });
    let endless_headers = ScriptedServer::start(|_, out| {
        write!(out, "HTTP/1.1 200 -\r\n")?;
        loop {
            thread::sleep(Duration::from_millis(50));
            write!(out, "X-A: b\r\n")?;
        }
    });
    let endless_header = ScriptedServer::start(|_, out| {
        write!(out, "HTTP/1.1 200 -\r\nX-A: ")?;
        loop {
            thread::sleep(Duration::from_millis(50));
            out.write_all(b"b")?;
        }
    });
    for server in [&silent, &endless_headers, &endless_header] {
        let mut cache = TestCache::new(&server.endpoint);
        cache.settings.response_timeout = Duration::from_millis(500);
        let started = Instant::now();
        cache.assert_refused(&["nothing arrived for 0.5 s"]);
        assert!(started.elapsed() < Duration::from_secs(5));
    }
}

/// A range other than the requested range is not appended to a partial file.
#[test]
fn a_wrong_range_is_not_appended() {
    let server = hub_with_body(|request, out| match request.range.as_str() {
        // Interrupts the transfer.
        "0-" => reply(out, 206, &[("Content-Range", "bytes 0-18/19")], &BODY[..5]),
        _ => reply(out, 206, &[("Content-Range", "bytes 2-18/19")], &BODY[2..]),
    });
    let mut cache = TestCache::new(&server.endpoint);
    cache.settings.retries = 3;
    cache.assert_refused(&["bytes other than those from 5 on"]);
}

#[test]
fn checksums_are_verified() {
    for (etag, is_correct) in [
        (GIT_SHA1.to_owned(), true),
        (GIT_SHA1.to_uppercase(), true),
        ("0".repeat(40), false),
        ("0".repeat(64), false),
    ] {
        let server = hub_with_metadata(COMMIT, &etag, &BODY.len().to_string());
        let cache = TestCache::new(&server.endpoint);
        if is_correct {
            cache.fetch().unwrap();
        } else {
            cache.assert_refused(&["does not match its checksum"]);
        }
    }
}

/// The output of `printf '{"hidden_size": 8}\n' | git hash-object --stdin`.
const GIT_SHA1: &str = "bc77bf8f7cdcf1bc3b843a77809edf1d1367b78e";

#[test]
fn a_different_commit_is_refused() {
    let server = hub_with_metadata(&"f".repeat(40), &etag_of(BODY), &BODY.len().to_string());
    let cache = TestCache::new(&server.endpoint);
    let pinned = WeightsLocation::parse(&format!("hf://owner/name@{COMMIT}")).unwrap();
    let error = pinned.file("config.json", &cache.settings).unwrap_err().to_string();
    assert_has(&error, &["commit ffff", COMMIT]);
}

#[test]
fn meaningless_responses_are_refused() {
    for status in [199, 204, 300, 304, 400, 405, 410, 451, 999] {
        let server = ScriptedServer::start(move |_, out| {
            reply(out, status, &[("Content-Length", "0")], b"")
        });
        TestCache::new(&server.endpoint)
            .assert_refused(&[&format!("status {status}"), "check HF_ENDPOINT"]);
    }
    let page =
        ScriptedServer::start(|_, out| reply(out, 200, &[("Content-Length", "5")], b"<html"));
    TestCache::new(&page.endpoint)
        .assert_refused(&["no X-Repo-Commit header", "check HF_ENDPOINT"]);
    let not_http = ScriptedServer::start(|_, out| out.write_all(&[0xff; 300]));
    TestCache::new(&not_http.endpoint).assert_refused(&["run again when online"]);
    for endpoint in ["", "hub", "ftp://127.0.0.1", "file:///etc", "http://"] {
        TestCache::new(endpoint).assert_refused(&["not an http or https URL", "check HF_ENDPOINT"]);
    }
}
