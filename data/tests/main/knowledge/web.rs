//! Tests of web image-caption pairs, as in CC12M.

use engram_data::knowledge::{Counts, Entry, EntryLine, Reason, web};
use proptest::prelude::*;

use super::reading::{assert_refused, read_line, skip_counts};

fn web(file: &str, options: &str) -> Result<(Vec<String>, Counts), String> {
    read_line(&web::DATA_SET, false, &format!("f {options}"), &[("f", file.as_bytes())])
}

#[test]
fn web_pairs_become_images_with_captions() {
    let file = "http://a/1.jpg\ta dog\r\nhttp://a/2.jpg\t\n\thttp\nhttp://a/3.jpg\té\"é\n\n";
    let (lines, counts) = web(file, "").unwrap();
    assert_eq!(
        lines,
        [
            r#"{"source":"cc12m","document":"http://a/1.jpg","image":"http://a/1.jpg","text":"a dog"}"#,
            r#"{"source":"cc12m","document":"http://a/3.jpg","image":"http://a/3.jpg","text":"é\"é"}"#,
        ]
    );
    assert_eq!(counts.skipped, skip_counts([(Reason::NoText, 1), (Reason::NoImage, 1)]));
    for (min, entries) in [(3, 2), (4, 1), (5, 1), (6, 0)] {
        let (lines, counts) = web(file, &format!("--min-characters {min}")).unwrap();
        assert_eq!(lines.len(), entries);
        assert_eq!(counts.skipped.get(&Reason::TooShort).copied().unwrap_or(0), 2 - entries as u64);
    }
    let (lines, _) = web("a cat\thttp://a/4.jpg\n", "--caption-first").unwrap();
    assert!(lines[0].contains(r#""image":"http://a/4.jpg","text":"a cat""#), "{lines:?}");
    assert_refused(web("x\ty\na cat\thttp://a\n", ""), ":2: found a URL in place of");
    assert_refused(web("http://a\tb\tc\n", ""), ":1: expected 2 columns, found 3");
}

#[test]
fn lines_that_are_not_utf8_are_reported_or_counted() {
    let file = b"http://a\tb\nhttp://c\t\xff\nhttp://d\te\n";
    let web = |skip| read_line(&web::DATA_SET, skip, "data.file", &[("data.file", file)]);
    assert_refused(web(false), "data.file:2: is not UTF-8");
    let (lines, counts) = web(true).unwrap();
    assert_eq!((lines.len(), counts.records), (2, 3));
    assert_eq!(counts.skipped, skip_counts([(Reason::Malformed, 1)]));
}

proptest! {
    #[test]
    fn web_pairs_become_equal_entries(pairs in prop::collection::vec(("[a-z/.:%é]{1,20}", "[^\t\r\n\u{0}-\u{1f}]{0,40}"), 1..30)) {
        let file: String = pairs.iter().map(|(image, caption)| format!("{image}\tx{caption}x\n")).collect();
        let (lines, counts) = web(&file, "").unwrap();
        prop_assert_eq!(counts.records, pairs.len() as u64);
        let entries: Vec<EntryLine> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        for ((image, caption), entry) in pairs.into_iter().zip(entries) {
            let expected = Entry::image_text("cc12m", &image, format!("x{caption}x")).of_document(&image);
            prop_assert_eq!(entry, expected);
        }
    }
}
