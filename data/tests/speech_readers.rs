//! The readers of published speech data sets: small files written here, faults, and the real list of VisSpeech where
//! `ENGRAM_DATA` is set.

#![allow(clippy::unwrap_used)] // In helpers too, not only in `#[test]` functions.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use engram_data::DataError;
use engram_data::speech::frames::Frame;
use engram_data::speech::manifest::{Clip, read_manifest, write_manifest};
use engram_data::speech::{self, MissingAudio, SpeechClips, SpeechFormat, SpeechSource};
use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::TempDir;

/// Files in a folder of their own; readers do not open the sound.
struct Files(TempDir);

impl Files {
    fn new<const N: usize>(files: [(&str, &str); N]) -> Self {
        let made = Self(TempDir::new().unwrap());
        files.into_iter().for_each(|(name, text)| made.write(name, text));
        made
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    fn source(&self, path: &str) -> SpeechSource {
        SpeechSource::new(self.path(path))
    }

    fn with_audio(&self, path: &str) -> SpeechSource {
        SpeechSource { audio: Some(self.path("audio")), ..self.source(path) }
    }
}

fn gzip(text: &str) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(text.as_bytes()).unwrap();
    packed.finish().unwrap()
}

fn read(format: &str, source: &SpeechSource) -> Result<SpeechClips, DataError> {
    speech::read(format.parse().unwrap(), source)
}

#[track_caller]
fn ids(read: &SpeechClips) -> Vec<&str> {
    read.clips.iter().map(|clip| clip.id.as_str()).collect()
}

#[track_caller]
fn refused(format: &str, source: &SpeechSource, wanted: &[&str]) {
    let error = read(format, source).unwrap_err().to_string();
    for wanted in wanted {
        assert!(error.contains(wanted), "{wanted:?} is not in: {error}");
    }
    assert!(error.contains(';') || error.contains('?'), "no remedy: {error}");
}

fn skipping(source: SpeechSource) -> SpeechSource {
    SpeechSource { skip_missing: true, ..source }
}

// LibriSpeech

const CHAPTER: &str = "LibriSpeech/dev-clean/84/121123/84-121123";

fn librispeech() -> Files {
    let files = Files::new([
        ("LibriSpeech/SPEAKERS.TXT", "; not read"),
        ("LibriSpeech/test-clean/1089/134686/1089-134686.trans.txt", "1089-134686-0000 LAST\n"),
        ("LibriSpeech/test-clean/1089/134686/1089-134686-0000.flac", "x"),
    ]);
    // Not in order, CRLF, a byte order mark and a blank line.
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
    let found = read("librispeech", &files.source("LibriSpeech")).unwrap();
    assert_eq!(ids(&found), ["84-121123-0000", "84-121123-0001", "1089-134686-0000"]);
    assert_eq!(
        found.clips[0],
        Clip {
            id: "84-121123-0000".to_owned(),
            audio: files.path(&format!("{CHAPTER}-0000.flac")),
            text: Some("GO ON".to_owned()),
            speaker: Some("84".to_owned()),
            line: 3,
            ..Clip::default()
        }
    );
    assert_eq!(found.clips[1].text.as_deref(), Some("BUT IT'S  HERE"));
    assert_eq!(found.clips[1].audio, files.path(&format!("{CHAPTER}-0001.wav")));
    assert_eq!((found.missing, found.without_text), (vec![], 0));
    for (folder, count) in [("dev-clean", 2), ("test-clean/1089", 1), ("dev-clean/84/121123", 2)] {
        let source = files.source(&format!("LibriSpeech/{folder}"));
        assert_eq!(read("librispeech", &source).unwrap().clips.len(), count, "{folder}");
    }
}

#[test]
fn librispeech_files_may_be_packed() {
    let files = librispeech();
    let plain = read("librispeech", &files.source("LibriSpeech")).unwrap();
    let list = format!("{CHAPTER}.trans.txt");
    files.write(&list, gzip(&fs::read_to_string(files.path(&list)).unwrap()));
    assert_eq!(read("librispeech", &files.source("LibriSpeech")).unwrap(), plain);
    let cut = gzip("84-121123-0000 GO ON\n");
    files.write(&list, &cut[..cut.len() - 5]);
    refused("librispeech", &files.source("LibriSpeech"), &["84-121123.trans.txt", "unpacked"]);
}

#[test]
fn faults_of_librispeech_are_named() {
    let files = librispeech();
    let list = format!("{CHAPTER}.trans.txt");
    let source = files.source("LibriSpeech");
    for (text, wanted) in [
        ("", &["84-121123.trans.txt", "the file is empty"][..]),
        ("\n \n", &["84-121123.trans.txt", "the file is empty"]),
        ("84-121123-0000 A\n84-121123-0001\n", &["line 2", "84-121123-0001 has no text"]),
        ("84-121123-0000 A\n84-9-0001 B\n", &["line 2", "\"84-9-0001\" is no id of this file"]),
        ("84-121123-../../a A\n", &["line 1", "is no id"]),
        (
            "84-121123-0000 A\n84-121123-0001 B\n84-121123-0000 C\n",
            &["line 3", "used on line 1", "\"84-121123-0000\""],
        ),
    ] {
        files.write(&list, text);
        refused("librispeech", &source, wanted);
    }
    files.write(&list, b"84-121123-0000 A\n84-121123-0001 \xff\n");
    refused("librispeech", &source, &["line 2", "not UTF-8"]);
    refused("librispeech", &files.source("nowhere"), &["nowhere"]);
    fs::create_dir(files.path("empty")).unwrap();
    refused("librispeech", &files.source("empty"), &["no file SPEAKER-CHAPTER.trans.txt"]);
    let audio = Some(files.path("empty"));
    refused("librispeech", &SpeechSource { audio, ..source.clone() }, &["says itself"]);
    files.write(&list, "84-121123-0000 A\n");
    files.write("LibriSpeech/other/84/84-121123.trans.txt", "84-121123-0000 A\n");
    refused("librispeech", &source, &["chapter 84-121123 is in", "dev-clean"]);
}

#[test]
fn missing_sound_ends_the_reading_or_is_listed() {
    let files = librispeech();
    fs::remove_file(files.path(&format!("{CHAPTER}-0001.wav"))).unwrap();
    let source = files.source("LibriSpeech");
    let wanted = files.path(&format!("{CHAPTER}-0001.flac")).display().to_string();
    let parts = ["1 of 3 clips have no sound", "84-121123-0001 (line 1)", &wanted];
    refused("librispeech", &source, &parts);
    let found = read("librispeech", &skipping(source.clone())).unwrap();
    assert_eq!(ids(&found), ["84-121123-0000", "1089-134686-0000"]);
    let place = "line 1".to_owned();
    let id = "84-121123-0001".to_owned();
    assert_eq!(found.missing, [MissingAudio { id, place, wanted, clips: 1 }]);
    // Where nothing is left, something else is wrong.
    for file in
        ["dev-clean/84/121123/84-121123-0000.flac", "dev-clean/84/121123/84-121123-0000.wav"]
    {
        fs::remove_file(files.path(&format!("LibriSpeech/{file}"))).unwrap();
    }
    let split = skipping(files.source("LibriSpeech/dev-clean"));
    refused("librispeech", &split, &["2 of 2 clips", "84-121123-0000", "84-121123-0001"]);
}

// How2

fn how2() -> Files {
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
    let found = read("how2", &files.with_audio("train")).unwrap();
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
        found.clips,
        [
            clip("b_1", "audio/more/big.mp3", "so this is", 1),
            Clip { start: 1.5, end: Some(3.25), speaker, ..second },
        ]
    );
    // One without its words in `text`, and one that only `segments` has.
    assert_eq!(found.without_text, 2);
}

#[test]
fn how2_takes_paths_from_wav_scp() {
    let files = how2();
    refused("how2", &files.source("train"), &["1 of 2", "b_1 (line 1): /somewhere/big.flac"]);
    let found = read("how2", &skipping(files.source("train"))).unwrap();
    assert_eq!(ids(&found), ["v_2"]);
    assert_eq!(found.clips[0].audio, files.path("train/../audio/vid.wav"));
    files.write("train/wav.scp", "vid ../audio/vid.wav\n");
    refused("how2", &files.source("train"), &["b_1 (line 1): a line big in ", "wav.scp"]);
    files.write("train/wav.scp", "vid ../audio/vid.wav\nbig sox big.mp3 -t wav - |\n");
    refused("how2", &files.source("train"), &["wav.scp, line 2", "output of a command"]);
    fs::remove_file(files.path("train/wav.scp")).unwrap();
    refused("how2", &files.source("train"), &["has no wav.scp", "give the folder"]);
}

#[test]
fn faults_of_how2_are_named() {
    let files = how2();
    let source = files.with_audio("train");
    for (name, text, wanted) in [
        ("text", "v_1 a\nv_2 b\nv_1 c\n", &["text, line 3", "used on line 1"][..]),
        ("text", "v_1 a\nv_9 b\n", &["text, line 2", "v_9 is not in", "segments"]),
        ("text", "", &["text: the file is empty"]),
        (
            "segments",
            "v_1 vid 0 1\nv_2 vid 2 2\n",
            &["segments, line 2", "v_2: end 2 is not after"],
        ),
        ("segments", "v_1 vid 0 1\nv_2 vid 2 1\n", &["line 2", "end 1 is not after start 2"]),
        ("segments", "v_1 vid -1 1\n", &["line 1", "start -1"]),
        ("segments", "v_1 vid nan 1\n", &["line 1", "start NaN"]),
        ("segments", "v_1 vid 0 inf\n", &["line 1", "end inf"]),
        ("segments", "v_1 vid 0 1s\n", &["line 1", "\"1s\" is no number"]),
        ("segments", "v_1 vid 0\n", &["line 1", "2 fields"]),
        ("segments", "v_1 vid 0 1\nv_1 vid 1 2\n", &["segments, line 2", "used on line 1"]),
        ("utt2spk", "v_1 a\nv_1 b\n", &["utt2spk, line 2", "used on line 1"]),
    ] {
        let before = fs::read(files.path(&format!("train/{name}"))).unwrap();
        files.write(&format!("train/{name}"), text);
        refused("how2", &source, wanted);
        files.write(&format!("train/{name}"), gzip(text));
        if !text.is_empty() {
            refused("how2", &source, wanted);
        }
        files.write(&format!("train/{name}"), before);
    }
    files.write("audio/other/vid.wav", "x");
    refused("how2", &source, &["vid.wav", "has the same name"]);
    files.write("audio/other/big.wav", "x");
    fs::remove_file(files.path("audio/vid.wav")).unwrap();
    let found = read("how2", &source).unwrap();
    assert_eq!(found.clips[0].audio, files.path("audio/other/big.wav"), "WAV is before MP3");
    fs::remove_file(files.path("train/segments")).unwrap();
    refused("how2", &source, &["segments"]);
}

// VisSpeech

const VISSPEECH: &str = "key,yt_id,start_time,end_time,annotation\r\n\
                         -a_B-250000-500000,-a_B,250000,500000,\"so, here\"\r\n\
                         cut-1-2,cut,1000000,2000000,tape the end\r\n";

#[test]
fn visspeech_has_videos_and_clips_that_are_cut() {
    let files = Files::new([("v.csv", VISSPEECH), ("audio/cut-1-2.flac", "x")]);
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: 16_000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut writer = hound::WavWriter::create(files.path("audio/-a_B.wav"), spec).unwrap();
    (0..16_000i16).for_each(|sample| writer.write_sample(sample).unwrap());
    writer.finalize().unwrap();
    // The clip that is cut counts, not the video.
    files.write("audio/cut.wav", "x");
    let found = read("visspeech", &files.with_audio("v.csv")).unwrap();
    let cut = Clip {
        id: "cut-1-2".to_owned(),
        audio: files.path("audio/cut-1-2.flac"),
        text: Some("tape the end".to_owned()),
        line: 3,
        ..Clip::default()
    };
    assert_eq!(found.clips[1], cut);
    let part = &found.clips[0];
    assert_eq!((part.start, part.end, part.line), (0.25, Some(0.5), 2));
    assert_eq!(part.text.as_deref(), Some("so, here"));
    let samples = part.samples(16_000).unwrap();
    assert_eq!((samples.len(), (samples[0] * 32_768.0) as i16), (4_000, 4_000));
}

#[test]
fn faults_of_visspeech_are_named() {
    let files = Files::new([("v.csv", VISSPEECH), ("audio/-a_B.wav", "x")]);
    let source = files.with_audio("v.csv");
    refused("visspeech", &source, &["1 of 2", "cut-1-2 (line 3)", "audio/cut.{wav,flac"]);
    assert_eq!(read("visspeech", &skipping(source.clone())).unwrap().clips.len(), 1);
    refused("visspeech", &files.source("v.csv"), &["v.csv", "give the folder of the sound files"]);
    let header = "key,yt_id,start_time,end_time,annotation\n";
    files.write("audio/cut-1-2.wav", "x");
    for (rows, wanted) in [
        ("a,-a_B,1,2,t\na,-a_B,3,4,t\n", &["line 3", "\"a\"", "used on line 2"][..]),
        ("a,-a_B,1,2,t\nb,-a_B,2,2,t\n", &["line 3", "end 0.000002 is not after"]),
        ("a,-a_B,1,2,t\nb,-a_B,3,2,t\n", &["line 3", "is not after"]),
        ("cut-1-2,-a_B,3,2,t\n", &["line 2", "is not after"]),
        ("a,-a_B,1.5,2,t\n", &["line 2", "\"1.5\" is no whole number"]),
        ("a,-a_B,-1,2,t\n", &["line 2", "\"-1\" is no whole number"]),
        ("a,-a_B,1,2,\n", &["line 2", "annotation is empty"]),
        ("a,,1,2,t\n", &["line 2", "yt_id is empty"]),
        ("a,-a_B,1,2\n", &["line 2", "4 fields"]),
        ("a,-a_B,1,2,\"t\n", &["line 2", "never closed"]),
        ("", &["no rows"]),
    ] {
        files.write("v.csv", format!("{header}{rows}"));
        refused("visspeech", &source, wanted);
    }
    files.write("v.csv", "key,yt_id,start,end_time,annotation\na,b,1,2,t\n");
    refused("visspeech", &source, &["start_time", "line 1"]);
    files.write("v.csv", "");
    refused("visspeech", &source, &["empty"]);
}

#[test]
fn the_real_list_of_visspeech() {
    let list = std::env::var_os("ENGRAM_DATA")
        .map(|root| PathBuf::from(root).join("visspeech/VisSpeech.csv"));
    let Some(list) = list.filter(|list| list.exists()) else {
        let text = b"SKIPPED: set ENGRAM_DATA to the folder that holds visspeech/VisSpeech.csv\n";
        std::io::stderr().write_all(text).unwrap();
        return;
    };
    let files = Files::new([]);
    fs::create_dir(files.path("audio")).unwrap();
    for video in fs::read_to_string(&list).unwrap().lines().skip(1) {
        files.write(&format!("audio/{}.m4a", video.split(',').nth(1).unwrap()), "x");
    }
    let source = SpeechSource { audio: Some(files.path("audio")), ..SpeechSource::new(&list) };
    // This copy went through a spreadsheet, which lost the ids of three of the 508 clips.
    refused("visspeech", &source, &["3 of 508", "#NAME? (line 112)", "(line 370)", "(line 466)"]);
    let found = read("visspeech", &skipping(source)).unwrap();
    assert_eq!((found.clips.len(), found.missing.len()), (505, 3));
    let videos: std::collections::HashSet<&Path> =
        found.clips.iter().map(|clip| clip.audio.as_path()).collect();
    let words = |clip: &Clip| clip.text.as_ref().unwrap().split_whitespace().count();
    assert_eq!((videos.len(), found.clips.iter().map(words).sum::<usize>()), (492, 6_165));
    let first = &found.clips[0];
    assert_eq!(first.id, "yzBokd4ckSA-111682000-118086000");
    assert_eq!((first.start, first.end, first.line), (111.682, Some(118.086), 2));
    assert_eq!(first.audio, files.path("audio/yzBokd4ckSA.m4a"));
    let written = files.path("clips.jsonl");
    write_manifest(&written, &found.clips).unwrap();
    let mut again = read_manifest(&written).unwrap();
    for (again, clip) in again.iter_mut().zip(&found.clips) {
        again.line = clip.line;
    }
    assert_eq!(again, found.clips);
}

// Ego4D

const EGO4D: &str = r#"{"version": "1", "videos": [
  {"video_uid": "v", "clips": [
    {"clip_uid": "c-2", "persons": [{"tracking_paths": [[1, 2], {"a": null}]}], "transcriptions": [
      {"transcription": " So what? ", "start_time_sec": 12.50, "end_time_sec": 13, "person_id": "3"},
      {"transcription": "  ", "start_time_sec": 13, "end_time_sec": 14, "person_id": "3"},
      {"transcription": "no time", "start_time_sec": 14, "end_time_sec": 14, "person_id": "3"},
      {"transcription": "yes", "start_time_sec": 0.0, "end_time_sec": 1.25, "person_id": ""}]},
    {"clip_uid": "c-1", "transcriptions": []}]},
  {"video_uid": "w", "clips": []}]}"#;

#[test]
fn ego4d_has_the_ids_of_the_official_script() {
    let files = Files::new([("audio/c-2.wav", "x")]);
    let mut with_mark = b"\xef\xbb\xbf".to_vec();
    with_mark.extend(EGO4D.replace('\n', "\r\n").bytes());
    for bytes in [EGO4D.as_bytes().to_vec(), with_mark, gzip(EGO4D)] {
        files.write("av.json", bytes);
        let found = read("ego4d", &files.with_audio("av.json")).unwrap();
        // As `"{}-{}_1_{}_{}".format(…)` of Python 3.11 writes 12.50, 13, 0.0 and 1.25.
        assert_eq!(ids(&found), ["3-c-2_1_12.5_13", "X-c-2_1_0.0_1.25"]);
        let first = Clip {
            id: "3-c-2_1_12.5_13".to_owned(),
            audio: files.path("audio/c-2.wav"),
            start: 12.5,
            end: Some(13.0),
            text: Some("So what?".to_owned()),
            speaker: Some("3".to_owned()),
            ..Clip::default()
        };
        assert_eq!(found.clips[0], first);
        assert_eq!(found.clips[1].speaker.as_deref(), Some("X"));
        assert_eq!((found.without_text, found.without_length), (1, 1));
    }
}

#[test]
fn faults_of_ego4d_are_named() {
    let files = Files::new([("audio/c-2.wav", "x")]);
    let source = files.with_audio("av.json");
    let person = r#""person_id": """#;
    for (from, to, wanted) in [
        ("1.25, \"person", "-2, \"person", &["entry `c-2`", "end -2 is not after"][..]),
        ("\"start_time_sec\": 0.0", "\"start_time_sec\": -1", &["entry `c-2`", "start -1"]),
        ("\"start_time_sec\": 0.0", "\"start_time_sec\": \"0\"", &["line 7", "\"0\""]),
        ("c-1", "c-2", &["entry `c-2`", "clips 1 and 2"]),
        ("\"transcriptions\": []", "\"transcription\": []", &["line 8", "`transcriptions`"]),
        ("{\"version\"", "[{\"version\"", &["line "]),
    ] {
        assert!(EGO4D.contains(from), "{from}");
        files.write("av.json", EGO4D.replacen(from, to, 1));
        refused("ego4d", &source, wanted);
    }
    let twice = EGO4D.replace(person, r#""person_id": "3""#).replace(
        "\"start_time_sec\": 0.0, \"end_time_sec\": 1.25",
        "\"start_time_sec\": 12.5, \"end_time_sec\": 13",
    );
    files.write("av.json", twice);
    refused("ego4d", &source, &["entry `c-2`", "transcriptions 1 and 4 are both 3-c-2_1_12.5_13"]);
    files.write("av.json", &EGO4D[..EGO4D.len() / 2]);
    refused("ego4d", &source, &["ends in the middle"]);
    files.write("av.json", "");
    refused("ego4d", &source, &["empty"]);
    files.write("av.json", r#"{"videos": []}"#);
    refused("ego4d", &source, &["has no clip with a text"]);
    files.write("av.json", EGO4D.replace("c-2", "c-3"));
    refused("ego4d", &source, &["2 of 2", "X-c-3_1_0.0_1.25 (entry `c-3`)", "audio/c-3.{wav"]);
}

/// A clip whose boxes are longer than any item that the other readers take.
#[test]
fn what_is_not_read_of_ego4d_may_be_long() {
    let boxes = format!("\"persons\": [{}0],", "{\"x\": 1, \"y\": 2},".repeat(1 << 20));
    assert!(boxes.len() > 17 << 20);
    let files = Files::new([("audio/c-2.wav", "x")]);
    files.write(
        "av.json",
        EGO4D.replacen("\"transcriptions\"", &format!("{boxes}\"transcriptions\""), 1),
    );
    assert_eq!(read("ego4d", &files.with_audio("av.json")).unwrap().clips.len(), 2);
}

// HowTo100M

const HOWTO100M: &str = r#"{"nnSSgljYARs": {"start": [9.52, 12, 15, 20.25], "end": [14.0, 15, 15, 21],
  "text": ["hey guys", " ", "of no length", "caf\u00e9 \"x\""]},
 "-gone": {"end": [1, 2], "start": [0, 1], "text": ["a", "b"]}}"#;

#[test]
fn howto100m_names_captions_by_their_place() {
    let files = Files::new([("audio/nnSSgljYARs.m4a", "x")]);
    for bytes in [HOWTO100M.as_bytes().to_vec(), gzip(&HOWTO100M.replace('\n', "\r\n"))] {
        files.write("caption.json", bytes);
        let source = skipping(files.with_audio("caption.json"));
        let found = read("howto100m", &source).unwrap();
        assert_eq!(ids(&found), ["nnSSgljYARs-0", "nnSSgljYARs-3"]);
        let last = Clip {
            id: "nnSSgljYARs-3".to_owned(),
            audio: files.path("audio/nnSSgljYARs.m4a"),
            start: 20.25,
            end: Some(21.0),
            text: Some("café \"x\"".to_owned()),
            ..Clip::default()
        };
        assert_eq!(found.clips[1], last);
        assert_eq!((found.without_text, found.without_length), (1, 1));
        let [missing] = found.missing.as_slice() else { panic!("{:?}", found.missing) };
        assert_eq!((missing.id.as_str(), missing.clips), ("-gone", 2));
        let source = SpeechSource { skip_missing: false, ..source };
        refused("howto100m", &source, &["2 of 4 clips", "-gone (entry `-gone`)"]);
    }
}

#[test]
fn faults_of_howto100m_are_named() {
    let files = Files::new([("audio/v.wav", "x")]);
    let source = files.with_audio("caption.json");
    let good = r#""u": {"start": [0], "end": [1], "text": ["a"]}"#;
    for (video, wanted) in [
        (r#"{"start": [0, 1], "end": [1], "text": ["a"]}"#, &["2 starts, 1 ends and 1 texts"][..]),
        (r#"{"start": [0], "end": [1], "text": ["a", "b"]}"#, &["1 ends and 2 texts"]),
        (
            r#"{"start": [0, 3], "end": [1, 2], "text": ["a", "b"]}"#,
            &["caption 1: end 2 is before"],
        ),
        (r#"{"start": [-1], "end": [2], "text": ["a"]}"#, &["start -1"]),
        (r#"{"start": [0], "end": [2]}"#, &["`text`"]),
        (r#"{"start": [0], "end": ["2"], "text": ["a"]}"#, &["\"2\""]),
        (r#"[[0], [2], ["a"]]"#, &["where an object is expected"]),
        (r#"{"start": [], "end": [], "text": []}, "v": {}"#, &["a second time"]),
    ] {
        // A fault counts whether or not the sound is there.
        for name in ["v", "gone"] {
            let video = video.replace("\"v\"", &format!("\"{name}\""));
            files.write("caption.json", format!("{{{good}, \"{name}\": {video}}}"));
            refused(
                "howto100m",
                &source,
                &[&[format!("entry `{name}`").as_str()], wanted].concat(),
            );
        }
    }
    for (text, wanted) in [
        ("", "empty"),
        ("{}", "has no clip with a text"),
        ("[]", "line 1"),
        ("{\"v\": {\"start\": [0", "ends in the middle"),
        (r#"{"v": {"start": [NaN], "end": [1], "text": ["a"]}}"#, "line 1, column "),
        (r#"{"v\t": {"start": [0], "end": [1], "text": ["a"]}}"#, "control character"),
    ] {
        files.write("caption.json", text);
        files.write("audio/v\t.wav", "x");
        refused("howto100m", &source, &["caption.json", wanted]);
    }
}

// All of them

#[test]
fn pictures_are_of_the_clip_or_of_its_recording() {
    let files = how2();
    for name in ["12.5.jpg", "2.5.JPG", "notes.txt", "100.jpeg", "frame_000010.jpg", "frame_9.jpg"]
    {
        files.write(&format!("frames/vid/{name}"), "x");
    }
    files.write("frames/b_1/z.jpg", "x");
    files.write("train/text", "b_1 a\nv_2 b\nv_1 c\n");
    let source = SpeechSource { frames: Some(files.path("frames")), ..files.with_audio("train") };
    let found = read("how2", &source).unwrap();
    let names = |clip: &Clip| -> Vec<String> {
        let name = |one: &Frame| one.image.file_name().unwrap().to_string_lossy().into_owned();
        clip.frames.iter().map(name).collect()
    };
    assert_eq!(names(&found.clips[0]), ["z.jpg"]);
    let of_video = ["2.5.JPG", "12.5.jpg", "100.jpeg", "frame_9.jpg", "frame_000010.jpg"];
    assert_eq!(names(&found.clips[1]), of_video);
    assert_eq!(names(&found.clips[2]), of_video);
    assert_eq!(found.clips[1].frames[0], files.path("frames/vid/2.5.JPG").into());
    let nothing = SpeechSource { frames: Some(files.path("audio")), ..source.clone() };
    refused("how2", &nothing, &["audio: no clip has pictures here"]);
    // Of a recording with a frame rate those that are seen while the clip lasts, 1.5 to 3.25 s.
    let timed = read("how2", &SpeechSource { frame_rate: Some(4.0), ..source.clone() }).unwrap();
    assert_eq!(names(&timed.clips[0]), ["z.jpg"]);
    assert_eq!(names(&timed.clips[1]), ["12.5.jpg", "frame_9.jpg", "frame_000010.jpg"]);
    assert_eq!(timed.clips[1].frames[1].time, Some(2.25));
    assert_eq!(names(&timed.clips[2]), ["2.5.JPG"]);
    // Where no picture is in the clip's time, the nearest is seen.
    let sparse = SpeechSource { frame_rate: Some(80.0), ..source };
    assert_eq!(names(&read("how2", &sparse).unwrap().clips[1]), ["100.jpeg"]);
    assert_eq!(timed.clips[1].pictures().unwrap()[0], files.path("frames/vid/frame_9.jpg"));
}

/// An id may not lead out of the folder of pictures.
#[test]
fn ids_that_are_paths_find_no_pictures() {
    let files = how2();
    files.write("train/text", "../secret a\n/ b\nv_1 c\n");
    files.write("train/segments", "../secret vid 0 1\n/ vid 1 2\nv_1 vid 2 3\n");
    files.write("secret/1.jpg", "x");
    files.write("frames/v_1/1.jpg", "x");
    let source = SpeechSource { frames: Some(files.path("frames")), ..files.with_audio("train") };
    let found = read("how2", &source).unwrap();
    let counts: Vec<usize> = found.clips.iter().map(|clip| clip.frames.len()).collect();
    assert_eq!(counts, [0, 0, 1]);
}

#[test]
fn a_manifest_is_a_format_too() {
    let files = Files::new([
        (
            "m.jsonl",
            "{\"audio\": \"a.wav\"}\n\n{\"audio\": \"b.wav\", \"text\": \"\", \"speaker\": \"s\"}\n",
        ),
        ("b.wav", "x"),
    ]);
    refused("manifest", &files.source("m.jsonl"), &["1 of 2", "a (line 1)", "a.wav"]);
    let found = read("manifest", &skipping(files.source("m.jsonl"))).unwrap();
    assert_eq!((ids(&found), found.clips[0].line), (vec!["b"], 3));
    // What is empty here is silence, and wanted.
    assert_eq!(found.clips[0].text.as_deref(), Some(""));
    assert_eq!(found.clips[0].speaker.as_deref(), Some("s"));
    refused("manifest", &files.with_audio("m.jsonl"), &["says itself"]);
    assert_eq!(ids(&read("manifest", &files.source("")).unwrap()), ["b"]);
}

#[test]
fn formats_have_names() {
    for format in SpeechFormat::ALL {
        assert_eq!(format.to_string().parse::<SpeechFormat>().unwrap(), format);
        assert_eq!(serde_json::to_string(&format).unwrap(), format!("\"{format}\""));
    }
    let error = "libri".parse::<SpeechFormat>().unwrap_err().to_string();
    assert!(error.contains("\"libri\"") && error.contains("give librispeech, how2"), "{error}");
}

#[test]
fn clips_are_written_as_a_manifest() {
    let files = how2();
    files.write("frames/v_2/1.jpg", "x");
    let source = SpeechSource { frames: Some(files.path("frames")), ..files.with_audio("train") };
    let found = read("how2", &source).unwrap();
    let path = files.path("audio/clips.jsonl");
    write_manifest(&path, &found.clips).unwrap();
    // Beside the manifest by name, others by their whole path.
    let frame = serde_json::to_string(&files.path("frames/v_2/1.jpg")).unwrap();
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        format!(
            "{{\"id\":\"b_1\",\"audio\":\"more/big.mp3\",\"text\":\"so this is\"}}\n\
             {{\"id\":\"v_2\",\"audio\":\"vid.wav\",\"start\":1.5,\"end\":3.25,\"text\":\"the second\",\
             \"speaker\":\"s2\",\"frames\":[{frame}]}}\n"
        )
    );
    assert_eq!(read_manifest(&path).unwrap(), found.clips);
}

#[test]
fn a_manifest_that_fails_leaves_the_one_before() {
    let files = Files::new([("m.jsonl", "before")]);
    let path = files.path("m.jsonl");
    let good = Clip { id: "a".to_owned(), audio: files.path("a.wav"), ..Clip::default() };
    for (bad, reason) in [
        (good.clone(), "each only once"),
        (Clip { id: String::new(), ..good.clone() }, "must be there"),
        (Clip { id: "b\tc".to_owned(), ..good.clone() }, "control character"),
        (Clip { id: "b".to_owned(), end: Some(0.0), ..good.clone() }, "not after start"),
        (Clip { id: "b".to_owned(), start: f64::NAN, ..good.clone() }, "no time"),
    ] {
        let error = write_manifest(&path, &[good.clone(), bad]).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains("m.jsonl, clip \""), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
    }
    assert_eq!(fs::read_dir(files.0.path()).unwrap().count(), 1, "nothing is left beside it");
    write_manifest(&path, &[good]).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "{\"id\":\"a\",\"audio\":\"a.wav\"}\n");
    assert!(write_manifest(&files.path("no/m.jsonl"), &[]).is_err());
}
