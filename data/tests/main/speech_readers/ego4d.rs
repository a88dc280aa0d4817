//! Tests of Ego4D.

use engram_data::speech::manifest::Clip;

use super::files::{Files, assert_refused, ids, read};
use crate::gzip;

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
    let mut with_byte_order_mark = b"\xef\xbb\xbf".to_vec();
    with_byte_order_mark.extend(EGO4D.replace('\n', "\r\n").bytes());
    for bytes in [EGO4D.as_bytes().to_vec(), with_byte_order_mark, gzip(EGO4D)] {
        files.write("av.json", bytes);
        let data_set = read("ego4d", &files.with_audio("av.json")).unwrap();
        // The output of `"{}-{}_1_{}_{}".format(…)` in Python 3.11 for 12.50, 13, 0.0 and 1.25.
        assert_eq!(ids(&data_set), ["3-c-2_1_12.5_13", "X-c-2_1_0.0_1.25"]);
        let first = Clip {
            id: "3-c-2_1_12.5_13".to_owned(),
            audio: files.path("audio/c-2.wav"),
            start: 12.5,
            end: Some(13.0),
            text: Some("So what?".to_owned()),
            speaker: Some("3".to_owned()),
            ..Clip::default()
        };
        assert_eq!(data_set.clips[0], first);
        assert_eq!(data_set.clips[1].speaker.as_deref(), Some("X"));
        assert_eq!((data_set.without_text, data_set.zero_length), (1, 1));
    }
}

#[test]
fn bad_ego4d_files_are_reported() {
    let files = Files::new([("audio/c-2.wav", "x")]);
    let source = files.with_audio("av.json");
    let person = r#""person_id": """#;
    for (from, to, expected) in [
        ("1.25, \"person", "-2, \"person", &["entry `c-2`", "end -2 is not after"][..]),
        ("\"start_time_sec\": 0.0", "\"start_time_sec\": -1", &["entry `c-2`", "start -1"]),
        ("\"start_time_sec\": 0.0", "\"start_time_sec\": \"0\"", &[":7: ", "\"0\""]),
        ("c-1", "c-2", &["entry `c-2`", "clips 1 and 2"]),
        ("\"transcriptions\": []", "\"transcription\": []", &[":8: ", "`transcriptions`"]),
        ("{\"version\"", "[{\"version\"", &["av.json:1: "]),
    ] {
        assert!(EGO4D.contains(from), "{from}");
        files.write("av.json", EGO4D.replacen(from, to, 1));
        assert_refused("ego4d", &source, expected);
    }
    let duplicate = EGO4D.replace(person, r#""person_id": "3""#).replace(
        "\"start_time_sec\": 0.0, \"end_time_sec\": 1.25",
        "\"start_time_sec\": 12.5, \"end_time_sec\": 13",
    );
    files.write("av.json", duplicate);
    assert_refused(
        "ego4d",
        &source,
        &["entry `c-2`", "transcriptions 1 and 4 are both 3-c-2_1_12.5_13"],
    );
    files.write("av.json", &EGO4D[..EGO4D.len() / 2]);
    assert_refused("ego4d", &source, &["ends in the middle"]);
    files.write("av.json", "");
    assert_refused("ego4d", &source, &["empty"]);
    files.write("av.json", r#"{"videos": []}"#);
    assert_refused("ego4d", &source, &["has no clip with a transcript"]);
    files.write("av.json", EGO4D.replace("c-2", "c-3"));
    assert_refused(
        "ego4d",
        &source,
        &["2 of 2", "X-c-3_1_0.0_1.25 (entry `c-3`)", "audio/c-3.{wav"],
    );
}

/// A clip whose boxes exceed the item limit of the other readers.
#[test]
fn unused_fields_of_ego4d_may_be_long() {
    let boxes = format!("\"persons\": [{}0],", "{\"x\": 1, \"y\": 2},".repeat(1 << 20));
    assert!(boxes.len() > 17 << 20);
    let files = Files::new([("audio/c-2.wav", "x")]);
    files.write(
        "av.json",
        EGO4D.replacen("\"transcriptions\"", &format!("{boxes}\"transcriptions\""), 1),
    );
    assert_eq!(read("ego4d", &files.with_audio("av.json")).unwrap().clips.len(), 2);
}
