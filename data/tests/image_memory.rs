//! The memory that decoding an image needs. It is measured per process, so this test has its own.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // Helper functions use `unwrap` too.

use std::fs;
use std::io::Write;

use engram_data::image::DecodedImage;
use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};

/// Returns a PNG of one pixel whose colour profile decompresses to `bytes` bytes.
fn png_with_profile(bytes: usize) -> Vec<u8> {
    let zlib = |bytes: &[u8]| {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    let profile = [b"p\0\0", zlib(&vec![0; bytes]).as_slice()].concat();
    let header = [0, 0, 0, 1, 0, 0, 0, 1, 8, 2, 0, 0, 0];
    for (chunk_name, content) in [
        (b"IHDR", header.to_vec()),
        (b"iCCP", profile),
        (b"IDAT", zlib(&[0, 7, 8, 9])),
        (b"IEND", Vec::new()),
    ] {
        png.extend((content.len() as u32).to_be_bytes());
        let mut crc = Crc::new();
        crc.update(chunk_name);
        crc.update(&content);
        png.extend([chunk_name.as_slice(), &content].concat());
        png.extend(crc.sum().to_be_bytes());
    }
    png
}

#[test]
fn a_colour_profile_does_not_fill_the_memory() {
    let peak_mib = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profile.png");
    fs::write(&path, png_with_profile(400 << 20)).unwrap();
    let before = peak_mib();
    assert_eq!(DecodedImage::open(&path).unwrap().pixels(), [7, 8, 9]);
    assert!(peak_mib() < before + 200, "{before} MiB, then {}", peak_mib());
}
