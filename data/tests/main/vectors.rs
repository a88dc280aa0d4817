//! Tests of word vectors in both text formats, and the error message of every bad line.

use std::collections::HashSet;

use engram_data::DataError;
use engram_data::vectors::{WordVectors, cosine};

use crate::{assert_has, for_each_damage};

fn read(content: impl AsRef<[u8]>) -> Result<WordVectors, DataError> {
    read_words(content, None)
}

fn read_words(
    content: impl AsRef<[u8]>,
    requested: Option<&HashSet<String>>,
) -> Result<WordVectors, DataError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vectors.txt");
    std::fs::write(&path, content).unwrap();
    WordVectors::read(&path, requested)
}

#[track_caller]
fn assert_fails(content: impl AsRef<[u8]>, parts: &[&str]) {
    assert_has(&read(content).unwrap_err().to_string(), &[&["vectors.txt", "; "], parts].concat());
}

#[test]
fn both_formats_are_read() {
    for text in [
        "metal 1 0 -0.5\nbolt 0 2e-1 0\n",
        "2 3\nmetal 1 0 -0.5\nbolt 0 2e-1 0\n",
        "\u{feff}2 3\r\nmetal 1 0 -0.5 \r\nbolt\t0 2e-1 0",
    ] {
        let vectors = read(text).unwrap();
        assert_eq!((vectors.width(), vectors.len()), (3, 2), "{text:?}");
        assert_eq!(vectors.word("metal"), Some(&[1.0, 0.0, -0.5][..]));
        assert_eq!(vectors.word("Bolt"), Some(&[0.0, 0.2, 0.0][..]));
        assert_eq!(vectors.word("nut"), None);
    }
}

#[test]
fn words_with_spaces_or_invalid_utf8_are_read() {
    let vectors = read("2 2\n. . . 1 2\nno\u{a0}break 3 4\n").unwrap();
    assert_eq!(vectors.word(". . ."), Some(&[1.0, 2.0][..]));
    assert_eq!(vectors.word("no\u{a0}break"), Some(&[3.0, 4.0][..]));
    let vectors = read(b"a 1 2\ncaf\xe9 3 4\na 5 6\n").unwrap();
    assert_eq!(vectors.word("caf\u{fffd}"), Some(&[3.0, 4.0][..]));
    assert_eq!(vectors.word("a"), Some(&[1.0, 2.0][..]), "the first of two");
    assert_eq!(vectors.len(), 2);
}

#[test]
fn only_requested_words_are_loaded() {
    let requested = HashSet::from(["b".to_owned(), "x".to_owned()]);
    let vectors = read_words("a 1 2\nb 3 4\nc 5 6\n", Some(&requested)).unwrap();
    assert_eq!(vectors.len(), 1);
    assert_eq!(vectors.word("b"), Some(&[3.0, 4.0][..]));
}

#[test]
fn bad_lines_are_reported() {
    assert_fails("", &["empty"]);
    assert_fails("\n\n", &["empty"]);
    assert_fails("3 2\n", &["empty"]);
    assert_fails("a 1 2\nb 3\n", &[":2: ", "a word and 2 values"]);
    assert_fails("2 3\na 1 2 3\nb 1 2\n", &[":3: ", "a word and 3 values"]);
    assert_fails("a 1 2\nb 3 x\n", &[":2: ", "\"x\" is not a finite number"]);
    assert_fails("a 1 2\nb NaN 3\n", &[":2: ", "\"NaN\" is not a finite number"]);
    assert_fails("a 1 2\nb inf 3\n", &[":2: ", "\"inf\" is not a finite number"]);
    assert_fails("word\n", &[":1: ", "a word and its values"]);
    assert_fails("3 2\na 1 2\nb 3 4\n", &[":3: ", "after 2 words, but line 1 announces 3"]);
}

#[test]
fn damaged_files_do_not_panic() {
    let whole = b"2 3\nmetal 1 0 -0.5\nbolt 0 2e-1 0\n";
    for_each_damage(whole, |bytes| drop(read(bytes)));
}

#[test]
fn phrases_have_mean_vectors_and_cosines() {
    let vectors = read("metal 1 0\nbolt 0 1\nscrew 0 3\n").unwrap();
    assert!((vectors.similarity("bolt", "screw") - 1.0).abs() < 1e-6);
    assert!((vectors.similarity("Metal  bolt unknown", "bolt") - 0.5_f32.sqrt()).abs() < 1e-6);
    assert_eq!(vectors.similarity("metal", "unknown"), 0.0);
    assert!((cosine(&[3.0, 4.0], &[4.0, 3.0]) - 0.96).abs() < 1e-6);
}
