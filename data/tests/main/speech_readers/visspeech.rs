//! Tests of VisSpeech: on files written by the tests, and on the real list.

use std::fs;
use std::path::Path;

use engram_data::speech::SpeechSource;
use engram_data::speech::manifest::{Clip, read_manifest, write_manifest};

use super::files::{Files, assert_refused, read, skip_missing};
use crate::real_data;

const VISSPEECH: &str = "key,yt_id,start_time,end_time,annotation\r\n\
                         -a_B-250000-500000,-a_B,250000,500000,\"so, here\"\r\n\
                         cut-1-2,cut,1000000,2000000,tape the end\r\n";

#[test]
fn a_file_of_the_clip_is_preferred_to_a_file_of_the_video() {
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
    // A file that contains only the clip is used instead of the video.
    files.write("audio/cut.wav", "x");
    let data_set = read("visspeech", &files.with_audio("v.csv")).unwrap();
    let clip = Clip {
        id: "cut-1-2".to_owned(),
        audio: files.path("audio/cut-1-2.flac"),
        text: Some("tape the end".to_owned()),
        line: 3,
        ..Clip::default()
    };
    assert_eq!(data_set.clips[1], clip);
    let segment = &data_set.clips[0];
    assert_eq!((segment.start, segment.end, segment.line), (0.25, Some(0.5), 2));
    assert_eq!(segment.text.as_deref(), Some("so, here"));
    let samples = segment.samples(16_000).unwrap();
    assert_eq!((samples.len(), (samples[0] * 32_768.0) as i16), (4_000, 4_000));
}

#[test]
fn bad_visspeech_files_are_reported() {
    let files = Files::new([("v.csv", VISSPEECH), ("audio/-a_B.wav", "x")]);
    let source = files.with_audio("v.csv");
    assert_refused("visspeech", &source, &["1 of 2", "cut-1-2 (line 3)", "audio/cut.{wav,flac"]);
    assert_eq!(read("visspeech", &skip_missing(source.clone())).unwrap().clips.len(), 1);
    assert_refused(
        "visspeech",
        &files.source("v.csv"),
        &["v.csv", "specify the folder of the audio files"],
    );
    let header = "key,yt_id,start_time,end_time,annotation\n";
    files.write("audio/cut-1-2.wav", "x");
    for (rows, expected) in [
        ("a,-a_B,1,2,t\na,-a_B,3,4,t\n", &[":3: ", "id `a`", "given at"][..]),
        ("a,-a_B,1,2,t\nb,-a_B,2,2,t\n", &[":3: ", "end 0.000002 is not after"]),
        ("a,-a_B,1,2,t\nb,-a_B,3,2,t\n", &[":3: ", "is not after"]),
        ("cut-1-2,-a_B,3,2,t\n", &[":2: ", "is not after"]),
        ("a,-a_B,1.5,2,t\n", &[":2: ", "\"1.5\" is not an integer number"]),
        ("a,-a_B,-1,2,t\n", &[":2: ", "\"-1\" is not an integer number"]),
        ("a,-a_B,1,2,\n", &[":2: ", "annotation is empty"]),
        ("a,,1,2,t\n", &[":2: ", "yt_id is empty"]),
        ("a,-a_B,1,2\n", &[":2: ", "4 fields"]),
        ("a,-a_B,1,2,\"t\n", &[":2: ", "never closed"]),
        ("", &["no rows"]),
    ] {
        files.write("v.csv", format!("{header}{rows}"));
        assert_refused("visspeech", &source, expected);
    }
    files.write("v.csv", "key,yt_id,start,end_time,annotation\na,b,1,2,t\n");
    assert_refused("visspeech", &source, &["start_time", ":1: "]);
    files.write("v.csv", "");
    assert_refused("visspeech", &source, &["empty"]);
}

#[test]
#[ignore = "needs ENGRAM_DATA: visspeech"]
fn the_real_list_of_visspeech_is_read() {
    let table = real_data("visspeech/VisSpeech.csv");
    let files = Files::new([]);
    fs::create_dir(files.path("audio")).unwrap();
    for video in fs::read_to_string(&table).unwrap().lines().skip(1) {
        files.write(&format!("audio/{}.m4a", video.split(',').nth(1).unwrap()), "x");
    }
    let source = SpeechSource { audio: Some(files.path("audio")), ..SpeechSource::new(&table) };
    // A spreadsheet replaced the ids of three of the 508 clips in this copy.
    assert_refused("visspeech", &source, &["3 of 508", "#NAME? (line", "(line 370)", "(line 466)"]);
    let data_set = read("visspeech", &skip_missing(source)).unwrap();
    assert_eq!((data_set.clips.len(), data_set.missing.len()), (505, 3));
    let videos: std::collections::HashSet<&Path> =
        data_set.clips.iter().map(|clip| clip.audio.as_path()).collect();
    let words = |clip: &Clip| clip.text.as_ref().unwrap().split_whitespace().count();
    assert_eq!((videos.len(), data_set.clips.iter().map(words).sum::<usize>()), (492, 6_165));
    let first = &data_set.clips[0];
    assert_eq!(first.id, "yzBokd4ckSA-111682000-118086000");
    assert_eq!((first.start, first.end, first.line), (111.682, Some(118.086), 2));
    assert_eq!(first.audio, files.path("audio/yzBokd4ckSA.m4a"));
    let written = files.path("clips.jsonl");
    write_manifest(&written, &data_set.clips).unwrap();
    let mut clips = read_manifest(&written).unwrap();
    for (read_back, clip) in clips.iter_mut().zip(&data_set.clips) {
        read_back.line = clip.line;
    }
    assert_eq!(clips, data_set.clips);
}
