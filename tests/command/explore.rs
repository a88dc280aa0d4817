//! `engram explore` with requests from a local browser and from other sites' pages.

use std::fs;
use std::path::Path;

use crate::explorer::{Explorer, copy_reveal};
use crate::running::{Folder, copy, refused, succeeds, write_npy};

/// Three entries along the axes; one image inside the folder, one outside, one not an image.
pub fn build_memory(folder: &Path) {
    write_npy(folder, "keys.npy", &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.6, 0.8], 3);
    let entries = [
        r#"{"id": 5, "source": "kg", "document": "d", "text": "east", "image": "pictures/dot.png"}"#,
        r#"{"id": 6, "source": "wit", "text": "north", "image": "../secret.png"}"#,
        r#"{"id": 7, "source": "wit", "text": "up", "image": "entries.jsonl"}"#,
    ];
    fs::write(folder.join("entries.jsonl"), entries.join("\n")).unwrap();
    fs::create_dir_all(folder.join("pictures")).unwrap();
    image::RgbImage::new(2, 2).save(folder.join("pictures/dot.png")).unwrap();
    succeeds(folder, "memory build --keys keys.npy --entries entries.jsonl --out m --quiet");
}

#[test]
fn a_memory_is_searched() {
    let root = &Folder::new();
    let folder = root.join("there");
    fs::create_dir(&folder).unwrap();
    image::RgbImage::new(2, 2).save(root.join("secret.png")).unwrap();
    build_memory(&folder);
    let explorer = Explorer::open(&folder, &["m"]);

    let page = explorer.get("/");
    assert_eq!(page.status, 200);
    assert!(page.body.contains("<title>Engram</title>") && !page.body.contains("http"), "no links");
    for header in ["default-src 'none'", "nosniff", "no-referrer", "no-store"] {
        assert!(page.headers.contains(header), "{header}: {}", page.headers);
    }
    for file in ["explore.js", "page.js", "curves.js", "chart.js", "memory.js", "answers.js"] {
        let script = explorer.get(&format!("/{file}"));
        assert!(script.status == 200 && script.headers.contains("text/javascript"), "{file}");
    }
    assert_eq!(explorer.get("/api/runs").body, "[]");
    let described = explorer.get("/api/memories").body;
    assert!(described.contains(r#""entries":3"#) && described.contains(r#""run":null"#));

    let first = explorer.search(r#"{"k": 2}"#).body;
    assert!(first.contains("east") && first.contains("north") && !first.contains("up"), "{first}");
    let near = explorer.search(r#"{"k": 2, "near": 7}"#);
    let (hits, near) = (near.json(), near.body);
    let ids: Vec<i64> =
        hits["hits"].as_array().unwrap().iter().map(|hit| hit["id"].as_i64().unwrap()).collect();
    assert_eq!(ids, [7, 6], "the entry itself, then the nearest");
    let kg_hits = explorer.search(r#"{"k": 2, "near": 7, "sources": ["kg"]}"#).body;
    assert!(kg_hits.contains("east") && !kg_hits.contains("north"), "{kg_hits}");
    let containing =
        |words: &str| explorer.search(&format!(r#"{{"k": 2, "near": 7, {words}}}"#)).body;
    let north = containing(r#""containing": "NORTH""#);
    assert!(north.contains("north") && !north.contains("east"), "{north}");
    assert!(north.contains(r#""containing":1"#) && near.contains(r#""containing":null"#));
    let first = explorer.search(r#"{"k": 1, "containing": "TH nor"}"#).body;
    assert!(first.contains("north") && first.contains(r#""containing":1"#), "{first}");
    let both = containing(r#""containing": "north", "sources": ["kg"]"#);
    assert!(both.contains(r#""hits":[]"#) && both.contains(r#""containing":0"#), "{both}");
    let secret = containing(r#""containing": " secret  .png ""#);
    assert!(secret.contains("north") && !secret.contains("east"), "the image's name: {secret}");
    let unknown = "the model of this memory's keys is unknown";
    explorer.search(r#"{"text": "east"}"#).is_refused(422, unknown);
    // Errors of the web framework are JSON too.
    for request in [r#"{"k": -1}"#, "nonsense", r#"{"kk": 1}"#] {
        let response = explorer.search(request);
        let body: serde_json::Value = serde_json::from_str(&response.body).unwrap();
        assert!((400..500).contains(&response.status), "{}", response.body);
        assert!(body["error"].is_string(), "{}", response.body);
    }
    let long = explorer.search(&format!(r#"{{"text": "{}"}}"#, "a ".repeat(2_000)));
    assert!(long.status == 422 && long.body.contains("send 2000 at most"), "{}", long.body);
    for request in [r#"{"sources": ["x"]}"#, r#"{"near": 7, "sources": ["kg", "x"]}"#] {
        let response = explorer.search(request);
        let reason = "there is no source \\\"x\\\"; the sources are kg, wit";
        assert!(response.status == 422 && response.body.contains(reason), "{}", response.body);
    }
    explorer.search(r#"{"near": 70}"#).is_refused(422, "no entry 70");

    let image = explorer.get("/api/memories/0/images/5");
    assert!(image.status == 200 && image.headers.contains("image/png"));
    explorer.get("/api/memories/0/images/6").is_refused(422, "../secret.png is not in");
    explorer.get("/api/memories/0/images/7").is_refused(422, "is not an image");
}

/// The bundled models: changes while the page is open, and invalid requests.
#[test]
fn runs_are_opened_in_their_current_state() {
    let folder = &Folder::new();
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("train/bundled"), &folder.join("bundled"));
    copy_reveal(&folder.join("bundled/reveal"));
    let explorer = Explorer::open(folder, &["bundled"]);
    let runs = explorer.get("/api/runs").json();
    let index = |name: &str| runs.as_array().unwrap().iter().position(|run| run["name"] == name);
    let (reveal, avformer) = (index("reveal").unwrap(), index("avformer").unwrap());
    // Deleted entries are not found while the page is open.
    let spice = r#"{"text": "Which spice can be smelled near this?", "k": 3}"#;
    let before = explorer.search(spice).json();
    let id = before["hits"][0]["id"].as_i64().unwrap();
    succeeds(folder, &format!("memory delete bundled/reveal/memory --ids {id}"));
    let after = explorer.search(spice).json();
    assert_eq!(after["generation"], before["generation"].as_u64().unwrap() + 1);
    assert_eq!(after["hits"].as_array().unwrap().len(), 3);
    assert!(after["hits"].as_array().unwrap().iter().all(|hit| hit["id"] != id), "{after}");
    // Invalid signal-to-noise ratios are refused.
    for snr_db in ["NaN", "inf", "1e39", "-101"] {
        let clip = format!("/api/runs/{avformer}/audio?name=0&noise=bands&snr_db={snr_db}");
        explorer.get(&clip).is_refused(422, "snr_db is");
    }
    assert_eq!(explorer.get(&format!("/api/runs/{avformer}/names")).status, 200);
    assert_eq!(runs[avformer]["is_world"], true);
    explorer.get(&format!("/api/runs/{avformer}/questions")).is_refused(422, "has no answers");
    explorer.get(&format!("/api/runs/{reveal}/names")).is_refused(422, "has no speech");
    // A memory that was removed while the page is open is not rebuilt.
    fs::rename(folder.join("bundled/reveal/memory"), folder.join("memory")).unwrap();
    explorer.get(&format!("/api/runs/{reveal}/questions")).is_refused(422, "has no memory");
    assert!(!folder.join("bundled/reveal/memory").exists());
    assert_eq!(explorer.get("/api/runs").json()[reveal]["has_memory"], false);
    // Once the memory is back, the run has answers again.
    fs::rename(folder.join("memory"), folder.join("bundled/reveal/memory")).unwrap();
    assert_eq!(explorer.get(&format!("/api/runs/{reveal}/questions")).status, 200);
}

/// The model is unreadable, but the memory is readable.
#[test]
fn a_damaged_model_gives_one_error_and_its_memory_is_searched() {
    let folder = &Folder::new();
    copy_reveal(&folder.join("reveal"));
    let model = fs::OpenOptions::new().write(true).open(folder.join("reveal/model.safetensors"));
    model.unwrap().set_len(100_000).unwrap();
    let explorer = Explorer::open(folder, &["reveal"]);
    let response = explorer.get("/api/runs/0/questions");
    assert_eq!(
        (response.status, response.body.matches("does not match its SHA-256").count()),
        (422, 1),
        "{}",
        response.body
    );
    assert_eq!(explorer.search(r#"{"k": 1}"#).status, 200);
}

#[test]
fn requests_from_other_sites_are_refused() {
    let folder = &Folder::new();
    build_memory(folder);
    let explorer = Explorer::open(folder, &["m"]);
    let (_, port) = explorer.address.split_once(':').unwrap();
    for host in [
        "evil.example",
        "evil.com:PORT",
        "127.0.0.1:PORT.evil.com",
        "127.1:PORT",
        "evil@127.0.0.1:PORT",
        "0.0.0.0:PORT",
        "127.0.0.1.nip.io:PORT",
        " ",
        "evil.com\r\nHost: 127.0.0.1:PORT",
    ] {
        let host = format!("Host: {}", host.replace("PORT", port));
        let response = explorer.request("GET /api/memories", &[&host], "");
        assert!((400..500).contains(&response.status), "{host}: {}", response.status);
        assert!(!response.body.contains("entries"), "{host}: {}", response.body);
    }
    // Requests that a browser sends from another site's page without a preflight request.
    let simple = explorer.request(
        "POST /api/memories/0/search",
        &["Content-Type: text/plain"],
        r#"{"k": 1}"#,
    );
    assert_eq!(simple.status, 415);
    assert!(!explorer.get("/").headers.contains("access-control"));
    assert!(explorer.get("/").headers.contains("cross-origin-resource-policy: same-origin"));
    // Requests that a browser sends from another site's page, which cannot read their responses.
    let own_origin = format!("Origin: http://{}", explorer.address);
    for (path, header, status) in [
        ("/api/memories", "Origin: http://evil.example", 403),
        ("/api/memories", "Origin: null", 403),
        ("/api/memories", "Sec-Fetch-Site: cross-site", 403),
        ("/api/memories/0/images/5", "Sec-Fetch-Site: same-site", 403),
        ("/api/memories", own_origin.as_str(), 200),
        ("/api/memories", "Sec-Fetch-Site: same-origin", 200),
        ("/api/memories", "Sec-Fetch-Site: none", 200),
        // A link on another site opens the page.
        ("/", "Sec-Fetch-Site: cross-site", 200),
    ] {
        let response = explorer.request(&format!("GET {path}"), &[header], "");
        assert_eq!(response.status, status, "{path} {header}");
    }
    // A tunnel to this machine has another port; a page of another port is another site.
    for (host, origin, status) in [
        ("localhost:9999", "localhost:9999", 200),
        // The tunnel encrypts the connection.
        ("localhost:9999", "https://localhost:9999", 200),
        ("localhost:9999", "https://localhost:3000", 403),
        ("localhost:9999", "https://evil.example", 403),
        ("127.0.0.1:9", "127.0.0.1:9", 200),
        ("[::1]:9999", "[::1]:9999", 200),
        ("localhost", "localhost", 200),
        ("localhost:9999", "localhost:3000", 403),
        ("localhost:9999", "127.0.0.1:9999", 403),
        ("localhost:9999", "evil.example", 403),
        ("localhost.evil.example:9999", "localhost.evil.example:9999", 421),
        ("localhost:99999", "localhost:99999", 421),
    ] {
        let scheme = if origin.contains("://") { "" } else { "http://" };
        let headers = [format!("Host: {host}"), format!("Origin: {scheme}{origin}")];
        let headers = headers.each_ref().map(String::as_str);
        let response = explorer.request("GET /api/memories", &headers, "");
        assert_eq!(response.status, status, "{host} {origin}: {}", response.body);
    }
    for path in [
        "/x",
        "/m/CURRENT",
        "/../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2fetc/passwd",
        "//etc/passwd",
        "/page/../server.rs",
        "/api/memories/0/images/..%2f..%2fsecret",
        "/api/memories/18446744073709551615/images/1",
        "/api/runs/0/questions/..%2f..%2f..%2fetc%2fpasswd/image",
        "/api/runs/-1/curves",
        "/api/runs/99999999999999999999/curves",
    ] {
        let response = explorer.get(path);
        assert!((400..500).contains(&response.status), "{path}: {}", response.status);
        assert!(!response.body.contains("root:"), "{path}: {}", response.body);
    }
}

#[test]
fn folders_without_runs_are_refused() {
    let folder = &Folder::new();
    fs::create_dir(folder.join("empty")).unwrap();
    refused(folder, "explore none", "none: is not a folder");
    refused(folder, "explore empty --images none", "none: is not a folder; --images");
    refused(folder, "explore empty", "contains no run and no memory; give the folder of");
    build_memory(folder);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    refused(folder, &format!("explore m --port {port}"), "give another --port, or none");
    // A broken memory is skipped; a second memory is shown.
    succeeds(folder, "memory build --keys keys.npy --entries entries.jsonl --out n/broken --quiet");
    fs::write(folder.join("n/broken/CURRENT"), "nonsense").unwrap();
    refused(folder, "explore n", "no readable run or memory was found");
    let explorer = Explorer::open(folder, &["n", "m"]);
    let described = explorer.get("/api/memories").body;
    assert!(
        described.contains(r#""index":0"#) && !described.contains(r#""index":1"#),
        "{described}"
    );
    assert_eq!(explorer.search(r#"{"k": 1}"#).status, 200);
}

/// Other accounts on this machine have no access: each request needs the token.
#[test]
fn without_the_token_all_requests_are_refused() {
    let folder = &Folder::new();
    build_memory(folder);
    let [explorer, other] = [(); 2].map(|()| Explorer::open(folder, &["m"]));
    assert_ne!(explorer.token, other.token);
    let (_, port) = explorer.address.split_once(':').unwrap();
    let wrong = [
        String::new(),
        format!("Cookie: engram-{port}={}", other.token),
        format!("Cookie: engram-{port}={}", &explorer.token[1..]),
        format!("Cookie: engram-{port}={}0", explorer.token),
        format!("Cookie: token={}", explorer.token),
        format!("Cookie: engram-{port}="),
        "Authorization: token ".to_owned(),
    ];
    for header in &wrong {
        let headers: Vec<&str> = header.lines().collect();
        for request in [
            "GET /api/memories",
            "GET /api/runs",
            "GET /api/memories/0/images/5",
            "GET /api/nothing",
            "POST /api/memories/0/search",
            "GET /api/runs?token=",
            &format!("GET /api/runs?token={}", other.token),
        ] {
            let response = explorer.send(request, &headers, "");
            assert_eq!(response.status, 403, "{request} {header}");
            assert!(response.body.contains("printed in its terminal"), "{}", response.body);
            assert!(!response.headers.contains("set-cookie"));
        }
        let page = explorer.send("GET /", &headers, "");
        assert!(page.status == 403 && page.headers.contains("text/html"), "{}", page.headers);
        assert!(page.body.contains("engram explore") && !page.body.contains("explore.js"));
    }
    // The printed address opens the page and sets the cookie. Other programs may pass the token in
    // the address.
    let opened = explorer.send(&format!("GET /?token={}", explorer.token), &[], "");
    assert!(opened.status == 200 && opened.body.contains("<title>Engram</title>"));
    let cookie =
        format!("set-cookie: engram-{port}={}; path=/; httponly; samesite=strict", explorer.token);
    assert!(opened.headers.contains(&cookie), "{}", opened.headers);
    let response = explorer.send(&format!("GET /api/memories?token={}", explorer.token), &[], "");
    assert!(response.status == 200 && !response.headers.contains("set-cookie"));
    // The token does not open the page under another host name.
    let response = explorer.request("GET /", &["Host: evil.example"], "");
    assert_eq!(response.status, 421);
}
