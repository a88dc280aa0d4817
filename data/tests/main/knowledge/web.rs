//! Tests of web image-caption pairs, as in CC12M.

use engram_data::knowledge::web::WebOptions;
use engram_data::knowledge::{Entry, EntryLine, Reason, web};
use proptest::prelude::*;

use super::reading::{assert_refused, input, read, skip_counts};

#[test]
fn web_pairs_become_images_with_captions() {
    let file = "http://a/1.jpg\ta dog\r\nhttp://a/2.jpg\t\n\thttp\nhttp://a/3.jpg\té\"é\n\n";
    let web = |text, options: &WebOptions| {
        read(false, |collector| web::read(input(text), options, collector))
    };
    let (lines, counts) = web(file, &WebOptions::default()).unwrap();
    assert_eq!(
        lines,
        [
            r#"{"source":"cc12m","document":"http://a/1.jpg","image":"http://a/1.jpg","text":"a dog"}"#,
            r#"{"source":"cc12m","document":"http://a/3.jpg","image":"http://a/3.jpg","text":"é\"é"}"#,
        ]
    );
    assert_eq!(counts.skipped, skip_counts([(Reason::NoText, 1), (Reason::NoImage, 1)]));
    for (min, entries) in [(3, 2), (4, 1), (5, 1), (6, 0)] {
        let options = WebOptions { min_characters: min, ..WebOptions::default() };
        let (lines, counts) = web(file, &options).unwrap();
        assert_eq!(lines.len(), entries);
        assert_eq!(counts.skipped.get(&Reason::TooShort).copied().unwrap_or(0), 2 - entries as u64);
    }
    let options =
        WebOptions { caption_first: true, source: "cc3m".to_owned(), ..WebOptions::default() };
    let (lines, _) = web("a cat\thttp://a/4.jpg\n", &options).unwrap();
    assert!(lines[0].starts_with(r#"{"source":"cc3m","document":"http://a/4.jpg""#), "{lines:?}");
    assert_refused(
        web("x\ty\na cat\thttp://a\n", &WebOptions::default()),
        ":2: found a URL in place of",
    );
    assert_refused(
        web("http://a\tb\tc\n", &WebOptions::default()),
        ":1: expected 2 columns, found 3",
    );
}

#[test]
fn lines_that_are_not_utf8_are_reported_or_counted() {
    let file = b"http://a\tb\nhttp://c\t\xff\nhttp://d\te\n";
    let web =
        |skip| read(skip, |collector| web::read(input(file), &WebOptions::default(), collector));
    assert_refused(web(false), "data.file:2: is not UTF-8");
    let (lines, counts) = web(true).unwrap();
    assert_eq!((lines.len(), counts.records), (2, 3));
    assert_eq!(counts.skipped, skip_counts([(Reason::Malformed, 1)]));
}

proptest! {
    #[test]
    fn web_pairs_become_equal_entries(pairs in prop::collection::vec(("[a-z/.:%é]{1,20}", "[^\t\r\n\u{0}-\u{1f}]{0,40}"), 1..30)) {
        let file: String = pairs.iter().map(|(image, caption)| format!("{image}\tx{caption}x\n")).collect();
        let (lines, counts) = read(false, |collector| web::read(input(&file), &WebOptions::default(), collector)).unwrap();
        prop_assert_eq!(counts.records, pairs.len() as u64);
        let entries: Vec<EntryLine> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        for ((image, caption), entry) in pairs.into_iter().zip(entries) {
            let expected = Entry::image_text("cc12m", &image, format!("x{caption}x")).of_document(&image);
            prop_assert_eq!(entry, expected);
        }
    }
}
