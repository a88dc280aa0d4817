//! Tests of compressed, truncated, changed and overlong files, for every reader.

use std::io::Write;

use engram_data::knowledge::coco::CocoOptions;
use engram_data::knowledge::{coco, web, wikidata};

use super::reading::{assert_refused, input, read, read_line};
use crate::gzip;

#[test]
fn gzip_files_are_decompressed_or_reported() {
    let text = "http://a\tb\n".repeat(1000);
    let web = |bytes: &[u8]| read_line(&web::DATA_SET, true, "data.file", &[("data.file", bytes)]);
    let compressed = gzip(text.as_bytes());
    assert_eq!(web(&compressed).unwrap().0.len(), 1000);
    let both = [gzip(b"http://a\tb\n"), compressed.clone()].concat();
    assert_eq!(web(&both).unwrap().0.len(), 1001);
    for length in 2..compressed.len() {
        assert_refused(
            web(&compressed[..length]),
            "data.file: is gzip-compressed but cannot be unpacked",
        );
    }
    assert_refused(web(&[&compressed[..], b"junk"].concat()), "cannot be unpacked");
    assert_refused(web(&gzip(&compressed)), "data.file: is gzip-compressed twice");
    assert_refused(web(b""), "data.file: the file is empty");
    assert_refused(web(b"\xff\xfea\0"), "data.file: is UTF-16 text");
}

#[test]
fn a_decompression_bomb_does_not_fill_the_memory() {
    // 300 MiB of small captions in a file of less than 3 MiB.
    let item = br#"{"image_id":1,"caption":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},"#;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(br#"{"annotations":["#).unwrap();
    let block = item.repeat(4096);
    for _ in 0..(300 << 20) / block.len() {
        encoder.write_all(&block).unwrap();
    }
    let compressed = encoder.finish().unwrap();
    assert!(compressed.len() < 3 << 20, "{}", compressed.len());
    let result =
        read(false, |collector| coco::read(input(&compressed), &CocoOptions::default(), collector));
    assert_refused(result, "data.file: unpacks to more than 256 MiB and 100 times its size");
    let overlong = format!("[\"{}\"]", "a".repeat(17 << 20));
    let files = [("data.file", overlong.as_bytes())];
    let result = read_line(&wikidata::DATA_SET, true, "data.file", &files);
    assert_refused(result, "data.file: an item of more than 16 MiB");
}
