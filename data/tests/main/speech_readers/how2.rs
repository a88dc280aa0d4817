//! Tests of How2.

use std::fs;

use engram_data::speech::manifest::Clip;

use super::files::{Files, assert_refused, ids, read, skip_missing};
use crate::gzip;

/// Two clips of one video and two of another.
pub fn how2() -> Files {
    Files::new([
        ("train/text", "b_1 so this is\nv_2 the second\n\nv_1\n"),
        ("train/segments", "v_1 vid 0.0 1.5\nv_2 vid 1.5 3.25\nb_1 big 0 -1\nb_2 big 4 5\n"),
        ("train/utt2spk", "v_1 s1\r\nv_2 s2\r\n"),
        ("train/wav.scp", "vid ../audio/vid.wav\nbig /somewhere/big.flac\n"),
        ("audio/vid.wav", "x"),
        ("audio/more/big.mp3", "x"),
    ])
}

#[test]
fn how2_takes_times_and_speakers_from_their_files() {
    let files = how2();
    let data_set = read("how2", &files.with_audio("train")).unwrap();
    let clip = |id: &str, audio: &str, text: &str, line| Clip {
        id: id.to_owned(),
        audio: files.path(audio),
        text: Some(text.to_owned()),
        line,
        ..Clip::default()
    };
    let second = clip("v_2", "audio/vid.wav", "the second", 2);
    let speaker = Some("s2".to_owned());
    assert_eq!(
        data_set.clips,
        [
            clip("b_1", "audio/more/big.mp3", "so this is", 1),
            Clip { start: 1.5, end: Some(3.25), speaker, ..second },
        ]
    );
    // One utterance has no words in `text`, and one is only in `segments`.
    assert_eq!(data_set.without_text, 2);
}

#[test]
fn how2_takes_paths_from_wav_scp() {
    let files = how2();
    assert_refused("how2", &files.source("train"), &["1 of 2", "b_1 (line 1): /somewhere/big"]);
    let data_set = read("how2", &skip_missing(files.source("train"))).unwrap();
    assert_eq!(ids(&data_set), ["v_2"]);
    assert_eq!(data_set.clips[0].audio, files.path("train/../audio/vid.wav"));
    files.write("train/wav.scp", "vid ../audio/vid.wav\n");
    assert_refused("how2", &files.source("train"), &["a line for recording big in ", "wav.scp"]);
    files.write("train/wav.scp", "vid ../audio/vid.wav\nbig sox big.mp3 -t wav - |\n");
    assert_refused(
        "how2",
        &files.source("train"),
        &["wav.scp:2: ", "the output of a command; run"],
    );
    fs::remove_file(files.path("train/wav.scp")).unwrap();
    assert_refused("how2", &files.source("train"), &["has no wav.scp", "specify the folder"]);
}

#[test]
fn without_segments_each_recording_is_an_utterance() {
    let files = how2();
    fs::remove_file(files.path("train/segments")).unwrap();
    files.write("train/wav.scp", "v_1 ../audio/vid.wav\nv_2 ../audio/my vid.wav\nb_2 x.wav\n");
    files.write("audio/my vid.wav", "x");
    let unknown = ["b_1 (line 1): a line for recording b_1 in ", "wav.scp"];
    assert_refused("how2", &files.source("train"), &unknown);
    let data_set = read("how2", &skip_missing(files.source("train"))).unwrap();
    let [clip] = &data_set.clips[..] else { panic!("one clip") };
    assert_eq!((clip.id.as_str(), clip.start, clip.end), ("v_2", 0.0, None));
    assert_eq!(clip.audio, files.path("train/../audio/my vid.wav"));
    // One utterance has no words in `text`, and one is only in `wav.scp`.
    assert_eq!((data_set.without_text, clip.speaker.as_deref()), (2, Some("s2")));
    // Names of files in a folder of audio are names of utterances, too.
    files.write("train/text", "vid so\nbig this\n");
    assert_eq!(ids(&read("how2", &files.with_audio("train")).unwrap()), ["vid", "big"]);
}

#[test]
fn bad_how2_files_are_reported() {
    let files = how2();
    let source = files.with_audio("train");
    for (name, text, expected) in [
        ("text", "v_1 a\nv_2 b\nv_1 c\n", &["text:3: ", "given at"][..]),
        ("text", "v_1 a\nv_9 b\n", &["text:2: ", "v_9 is not in", "segments"]),
        ("text", "", &["text: the file is empty"]),
        ("segments", "v_1 vid 0 1\nv_2 vid 2 2\n", &["segments:2: ", "v_2: end 2 is not after"]),
        ("segments", "v_1 vid 0 1\nv_2 vid 2 1\n", &[":2: ", "end 1 is not after start 2"]),
        ("segments", "v_1 vid -1 1\n", &[":1: ", "start -1"]),
        ("segments", "v_1 vid nan 1\n", &[":1: ", "start NaN"]),
        ("segments", "v_1 vid 0 inf\n", &[":1: ", "end inf"]),
        ("segments", "v_1 vid 0 1s\n", &[":1: ", "\"1s\" is not a number"]),
        ("segments", "v_1 vid 0\n", &[":1: ", "2 fields"]),
        ("segments", "v_1 vid 0 1 0\n", &[":1: ", "4 fields", "channel"]),
        ("segments", "v_1 vid 0 1\nv_1 vid 1 2\n", &["segments:2: ", "given at"]),
        ("utt2spk", "v_1 a\nv_1 b\n", &["utt2spk:2: ", "given at"]),
    ] {
        let before = fs::read(files.path(&format!("train/{name}"))).unwrap();
        files.write(&format!("train/{name}"), text);
        assert_refused("how2", &source, expected);
        files.write(&format!("train/{name}"), gzip(text));
        if !text.is_empty() {
            assert_refused("how2", &source, expected);
        }
        files.write(&format!("train/{name}"), before);
    }
    files.write("audio/other/vid.wav", "x");
    assert_refused("how2", &source, &["vid.wav", "has the same name"]);
    files.write("audio/other/big.wav", "x");
    fs::remove_file(files.path("audio/vid.wav")).unwrap();
    let data_set = read("how2", &source).unwrap();
    assert_eq!(data_set.clips[0].audio, files.path("audio/other/big.wav"), "WAV is before MP3");
}
