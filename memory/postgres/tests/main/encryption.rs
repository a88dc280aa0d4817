//! Tests of encrypted connections and logins. The test server has no TLS, so a proxy adds it.

use std::process::Command;

use crate::server::front::{CERTIFICATES, Front, encrypted};
use crate::server::{FORMAT, TestServer, delete, rows};
use crate::support::*;
use engram_memory_postgres::{Connect, PostgresStore};

/// The name of a variable with the address that a child process opens.
const URL: &str = "ENGRAM_TEST_URL";

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn connections_over_a_network_are_encrypted_and_check_the_certificate() {
    let server = TestServer::start();
    server.create("encrypted", FORMAT, &rows(1..4));
    let [pem, other_pem] = ["own", "other"].map(|name| format!("{CERTIFICATES}/{name}.pem"));
    let url = |front: &Front, host: &str, pem: &str| {
        format!("{}&sslrootcert={pem}", front.url(host, "encrypted"))
    };
    let secure = Connect::default();

    let valid = Front::start(server.socket(), Some(encrypted("valid")));
    let store = PostgresStore::open(&url(&valid, "localhost", &pem), secure).unwrap();
    assert_eq!(store.snapshot().description().entries, 3);
    assert_eq!(delete(&store, &[1]).description().entries, 2);

    let refused = [
        (url(&valid, "localhost", &other_pem), "of an unknown authority", "sslrootcert=FILE"),
        (valid.url("localhost", "encrypted"), "of an unknown authority", "sslrootcert=FILE"),
        (url(&valid, "127.0.0.1", &pem), "is for another host", "the host name"),
        (url(&valid, "localhost", "/none.pem"), "/none.pem has no usable", "a PEM file"),
    ];
    for (url, reason, remedy) in refused {
        assert_refused(PostgresStore::open(&url, secure), [reason, remedy]);
    }
    let expired = Front::start(server.socket(), Some(encrypted("expired")));
    let start = std::time::Instant::now();
    let opened = PostgresStore::open(&url(&expired, "localhost", &pem), secure);
    assert_refused(opened, ["has expired", "renew it", "@localhost:"]);
    // It is not tried again.
    assert!(start.elapsed() < secure.patience / 2);

    let plain = Front::start(server.socket(), None);
    let address = plain.url("localhost", "encrypted");
    assert_refused(PostgresStore::open(&address, secure), ["does not support TLS", "turn on"]);
    let insecure = Connect { insecure: true, ..secure };
    PostgresStore::open(&address, insecure).unwrap();
    let opened = PostgresStore::open(&format!("{address}&sslmode=require"), insecure);
    assert_refused(opened, ["does not support TLS"]);
}

/// Opens the address in `URL`, in a process of its own because of `PGPASSWORD`.
#[test]
fn child_opens_an_address() {
    if let Ok(url) = std::env::var(URL) {
        match PostgresStore::open(&url, Connect::default()) {
            Ok(_) => println!("OPENED"),
            Err(error) => println!("ERROR {error}"),
        }
    }
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn a_wrong_password_is_an_error_without_the_password() {
    let server = TestServer::start();
    server.create("guarded", FORMAT, &rows(1..2));
    server.require_password("app", "right secret");
    let open = |password: Option<&str>| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "encryption::child_opens_an_address", "--nocapture"]);
        child.env(URL, server.url("guarded")).env_remove("PGPASSWORD").env("HOME", "/nowhere");
        child.envs(password.map(|password| ("PGPASSWORD", password)));
        String::from_utf8(child.output().unwrap().stdout).unwrap()
    };
    assert!(open(Some("right secret")).contains("OPENED"));
    for password in [Some("wrong secret"), None] {
        let output = open(password);
        assert!(output.contains(&format!("ERROR {}", server.url("guarded"))), "{output}");
        assert!(output.contains("PGPASSWORD or ~/.pgpass"), "{output}");
        assert!(!output.contains("secret"), "{output}");
    }
}
