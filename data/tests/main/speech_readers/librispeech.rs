//! Tests of LibriSpeech.

use std::fs;

use engram_data::speech::manifest::Clip;
use engram_data::speech::{MissingAudio, SpeechSource};

use super::files::{Files, assert_refused, ids, read, skip_missing};
use crate::gzip;

const CHAPTER: &str = "LibriSpeech/dev-clean/84/121123/84-121123";

fn librispeech() -> Files {
    let files = Files::new([
        ("LibriSpeech/SPEAKERS.TXT", "; not read"),
        ("LibriSpeech/test-clean/1089/134686/1089-134686.trans.txt", "1089-134686-0000 LAST\n"),
        ("LibriSpeech/test-clean/1089/134686/1089-134686-0000.flac", "x"),
    ]);
    // Unsorted, with CRLF, a byte order mark and a blank line.
    files.write(
        &format!("{CHAPTER}.trans.txt"),
        "\u{feff}84-121123-0001 BUT IT'S  HERE \r\n\r\n84-121123-0000 GO ON\r\n",
    );
    files.write(&format!("{CHAPTER}-0000.flac"), "x");
    files.write(&format!("{CHAPTER}-0000.wav"), "x");
    files.write(&format!("{CHAPTER}-0001.wav"), "x");
    files
}

#[test]
fn librispeech_is_read_from_any_of_its_folders() {
    let files = librispeech();
    let data_set = read("librispeech", &files.source("LibriSpeech")).unwrap();
    assert_eq!(ids(&data_set), ["84-121123-0000", "84-121123-0001", "1089-134686-0000"]);
    assert_eq!(
        data_set.clips[0],
        Clip {
            id: "84-121123-0000".to_owned(),
            audio: files.path(&format!("{CHAPTER}-0000.flac")),
            text: Some("GO ON".to_owned()),
            speaker: Some("84".to_owned()),
            line: 3,
            ..Clip::default()
        }
    );
    assert_eq!(data_set.clips[1].text.as_deref(), Some("BUT IT'S  HERE"));
    assert_eq!(data_set.clips[1].audio, files.path(&format!("{CHAPTER}-0001.wav")));
    assert_eq!((data_set.missing, data_set.without_text), (vec![], 0));
    for (folder, count) in [("dev-clean", 2), ("test-clean/1089", 1), ("dev-clean/84/121123", 2)] {
        let source = files.source(&format!("LibriSpeech/{folder}"));
        assert_eq!(read("librispeech", &source).unwrap().clips.len(), count, "{folder}");
    }
}

#[test]
fn transcripts_may_be_compressed() {
    let files = librispeech();
    let uncompressed = read("librispeech", &files.source("LibriSpeech")).unwrap();
    let transcript_file = format!("{CHAPTER}.trans.txt");
    files.write(&transcript_file, gzip(fs::read_to_string(files.path(&transcript_file)).unwrap()));
    assert_eq!(read("librispeech", &files.source("LibriSpeech")).unwrap(), uncompressed);
    let compressed = gzip("84-121123-0000 GO ON\n");
    files.write(&transcript_file, &compressed[..compressed.len() - 5]);
    assert_refused("librispeech", &files.source("LibriSpeech"), &["84-121123.trans.txt", "cannot"]);
}

#[test]
fn bad_librispeech_files_are_reported() {
    let files = librispeech();
    let transcript_file = format!("{CHAPTER}.trans.txt");
    let source = files.source("LibriSpeech");
    for (text, expected) in [
        ("", &["84-121123.trans.txt", "the file is empty"][..]),
        ("\n \n", &["84-121123.trans.txt", "the file is empty"]),
        ("84-121123-0000 A\n84-121123-0001\n", &[":2: ", "84-121123-0001 has no text"]),
        (
            "84-121123-0000 A\n84-9-0001 B\n",
            &[":2: ", "\"84-9-0001\" is not an id of this chapter"],
        ),
        ("84-121123-../../a A\n", &[":1: ", "is not an id"]),
        ("84-121123-0000 A\n84-121123-0001 B\n84-121123-0000 C\n", &[":3: ", "`84-121123-0000`"]),
    ] {
        files.write(&transcript_file, text);
        assert_refused("librispeech", &source, expected);
    }
    files.write(&transcript_file, b"84-121123-0000 A\n84-121123-0001 \xff\n");
    assert_refused("librispeech", &source, &[":2: ", "not UTF-8"]);
    assert_refused("librispeech", &files.source("nowhere"), &["nowhere"]);
    let file = files.source(&transcript_file);
    assert_refused("librispeech", &file, &[".trans.txt", "is a file", "use the folder"]);
    fs::create_dir(files.path("empty")).unwrap();
    assert_refused("librispeech", &files.source("empty"), &["no file SPEAKER-CHAPTER.trans.txt"]);
    let audio = Some(files.path("empty"));
    assert_refused("librispeech", &SpeechSource { audio, ..source.clone() }, &["gives the paths"]);
    files.write(&transcript_file, "84-121123-0000 A\n");
    files.write("LibriSpeech/other/84/84-121123.trans.txt", "84-121123-0000 A\n");
    assert_refused("librispeech", &source, &["chapter 84-121123 is also in", "dev-clean"]);
}

#[test]
fn missing_audio_is_an_error_or_is_listed() {
    let files = librispeech();
    fs::remove_file(files.path(&format!("{CHAPTER}-0001.wav"))).unwrap();
    let source = files.source("LibriSpeech");
    let expected_file = files.path(&format!("{CHAPTER}-0001.flac")).display().to_string();
    let parts = ["1 of 3 clips have no audio", "84-121123-0001 (line 1)", &expected_file];
    assert_refused("librispeech", &source, &parts);
    let data_set = read("librispeech", &skip_missing(source.clone())).unwrap();
    assert_eq!(ids(&data_set), ["84-121123-0000", "1089-134686-0000"]);
    let position = "line 1".to_owned();
    let id = "84-121123-0001".to_owned();
    assert_eq!(data_set.missing, [MissingAudio { id, position, expected_file, clips: 1 }]);
    // If no clip remains, skipping is also an error.
    for file in
        ["dev-clean/84/121123/84-121123-0000.flac", "dev-clean/84/121123/84-121123-0000.wav"]
    {
        fs::remove_file(files.path(&format!("LibriSpeech/{file}"))).unwrap();
    }
    let split = skip_missing(files.source("LibriSpeech/dev-clean"));
    assert_refused("librispeech", &split, &["2 of 2 clips", "84-121123-0000", "84-121123-0001"]);
}
