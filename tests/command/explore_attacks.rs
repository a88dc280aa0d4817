//! Hostile requests to `engram explore`: slow, large, malformed, and many at a time.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Child;
use std::time::Duration;

use base64::Engine;

use crate::explore::build_memory;
use crate::explorer::{Explorer, copy_reveal};
use crate::running::Folder;

/// Resident memory of a process, in bytes.
fn resident_bytes(program: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", program.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Many incomplete requests do not block others.
#[test]
fn slow_requests_do_not_block_others() {
    let folder = &Folder::new();
    build_memory(folder);
    let explorer = Explorer::open(folder, &["m"]);
    let incomplete_header = format!("GET /api/runs HTTP/1.1\r\nHost: {}\r\nX", explorer.address);
    let slow: Vec<TcpStream> = (0..400)
        .map(|_| {
            let mut stream = TcpStream::connect(&explorer.address).unwrap();
            let _ = stream.write_all(incomplete_header.as_bytes());
            stream
        })
        .collect();
    assert_eq!(explorer.get("/api/runs").status, 200);
    let last_connection = slow.last().unwrap();
    assert!(is_open(last_connection), "the request waited for the slow requests");
    let open = fs::read_dir(format!("/proc/{}/fd", explorer.program.id())).unwrap().count();
    assert!(open < 320, "{open} open files");
    assert_is_closed(last_connection);
}

/// Whether the server has not closed a connection.
fn is_open(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let is_open = stream.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    stream.set_nonblocking(false).unwrap();
    is_open
}

/// Waits until the server closes a connection. Returns what it sent.
#[track_caller]
fn assert_is_closed(mut stream: &TcpStream) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(45))).unwrap();
    let mut response = Vec::new();
    let result = stream.read_to_end(&mut response);
    assert!(result.is_ok() || !is_open(stream), "the connection has no timeout");
    String::from_utf8_lossy(&response).into_owned()
}

/// Incomplete bodies take little memory, and only for a short time.
#[test]
fn slow_bodies_take_little_memory() {
    let folder = &Folder::new();
    build_memory(folder);
    let explorer = Explorer::open(folder, &["m"]);
    let before = resident_bytes(&explorer.program);
    let header = |cookie: &str| {
        format!(
            "POST /api/memories/0/search HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             {cookie}Content-Length: {}\r\n\r\n",
            explorer.address,
            31 << 20
        )
    };
    let cookie = format!("{}\r\n", explorer.cookie());
    let slow: Vec<TcpStream> = (0..8)
        .map(|_| {
            let mut stream = TcpStream::connect(&explorer.address).unwrap();
            stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
            stream.write_all(header(&cookie).as_bytes()).unwrap();
            let _ = stream.write_all(&vec![b' '; (31 << 20) - 10]);
            stream
        })
        .collect();
    let growth_mib = resident_bytes(&explorer.program).saturating_sub(before) >> 20;
    assert!(growth_mib < 300, "{growth_mib} MiB for bodies that do not end");
    // Other requests are answered meanwhile.
    assert_eq!(explorer.search(r#"{"k": 1}"#).status, 200);
    assert!(slow.iter().any(is_open), "the search waited for the slow requests");
    let response = assert_is_closed(&slow[0]);
    assert!(response.contains("408"), "{response}");
    drop(slow);
    // Without the token, no body is read.
    let mut stream = TcpStream::connect(&explorer.address).unwrap();
    stream.write_all(header("").as_bytes()).unwrap();
    let mut start = [0; 12];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 403");
}

/// Oversized images are refused without decoding.
#[test]
fn large_images_are_refused_by_their_header() {
    let folder = &Folder::new();
    copy_reveal(&folder.join("reveal"));
    let explorer = Explorer::open(folder, &["reveal"]);
    let ask_about_image = |side: u32| {
        let mut png = std::io::Cursor::new(Vec::new());
        image::GrayImage::new(side, side).write_to(&mut png, image::ImageFormat::Png).unwrap();
        let base64 = base64::engine::general_purpose::STANDARD.encode(png.get_ref());
        let body = format!(r#"{{"question": "What is it?", "image": "{base64}"}}"#);
        explorer.post("/api/runs/0/answer", &body)
    };
    assert_eq!(ask_about_image(100).status, 200);
    let before = resident_bytes(&explorer.program);
    let response = ask_about_image(9_400);
    assert!(response.status == 422 && response.body.contains("9400 x 9400"), "{}", response.body);
    let growth_mib = resident_bytes(&explorer.program).saturating_sub(before) >> 20;
    assert!(growth_mib < 50, "{growth_mib} MiB");
    let long = explorer.search(&format!(r#"{{"text": "{}"}}"#, "a".repeat(33 << 20)));
    assert!(long.status == 413 && long.body.contains("larger than 32 MiB"), "{}", long.body);
}

/// Malformed requests and many requests at the same time leave the explorer able to answer.
#[test]
fn malformed_and_many_requests_are_answered() {
    let folder = &Folder::new();
    build_memory(folder);
    let explorer = &Explorer::open(folder, &["m"]);
    let send = |bytes: &[u8], milliseconds: u64| {
        let mut stream = TcpStream::connect(&explorer.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(milliseconds))).unwrap();
        // A refusal may arrive before all bytes are sent.
        let _ = stream.write_all(bytes);
        let _ = stream.read_to_end(&mut Vec::new());
    };
    let search = format!(
        "POST /api/memories/0/search?token={} HTTP/1.1\r\nHost: {}\r\nContent-Type: \
         application/json\r\nContent-Length: 7\r\nConnection: close\r\n\r\n{{\"k\":1}}",
        explorer.token, explorer.address
    );
    let mut state = 1u64;
    let mut below = |end: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % end
    };
    for _ in 0..100 {
        let mut bytes = search.clone().into_bytes();
        for _ in 0..1 + below(12) {
            let index = below(bytes.len());
            bytes[index] = below(256) as u8;
        }
        send(&bytes, 100);
    }
    let length = |text: &str| search.replace("Content-Length: 7", text).into_bytes();
    for bytes in [
        [&b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03"[..], &[0; 500]].concat(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        [b"GET / HTTP/1.1\r\n".to_vec(), b"A: b\r\n".repeat(100_000)].concat(),
        [b"GET /".to_vec(), vec![b'a'; 10_000_000]].concat(),
        vec![0; 100_000],
        length("Content-Length: -1"),
        length("Content-Length: 99999999999999999999"),
        length("Content-Length: 7\r\nTransfer-Encoding: chunked"),
    ] {
        send(&bytes, 1000);
    }
    explorer.search(&"[".repeat(200_000)).is_refused(422, "error");
    std::thread::scope(|scope| {
        for number in 0..200 {
            let path = ["/api/runs", "/api/memories", "/"][number % 3];
            scope.spawn(move || assert_eq!(explorer.get(path).status, 200, "{path}"));
        }
    });
    assert!(resident_bytes(&explorer.program) < 500 << 20);
}
