//! Tests of HowTo100M.

use engram_data::speech::SpeechSource;
use engram_data::speech::manifest::Clip;

use super::files::{Files, assert_refused, ids, read, skip_missing};
use crate::gzip;

const HOWTO100M: &str = r#"{"nnSSgljYARs": {"start": [9.52, 12, 15, 20.25], "end": [14.0, 15, 15, 21],
  "text": ["hey guys", " ", "of no length", "caf\u00e9 \"x\""]},
 "-gone": {"end": [1, 2], "start": [0, 1], "text": ["a", "b"]}}"#;

#[test]
fn howto100m_names_captions_by_their_index() {
    let files = Files::new([("audio/nnSSgljYARs.m4a", "x")]);
    for bytes in [HOWTO100M.as_bytes().to_vec(), gzip(HOWTO100M.replace('\n', "\r\n"))] {
        files.write("caption.json", bytes);
        let source = skip_missing(files.with_audio("caption.json"));
        let data_set = read("howto100m", &source).unwrap();
        assert_eq!(ids(&data_set), ["nnSSgljYARs-0", "nnSSgljYARs-3"]);
        let last = Clip {
            id: "nnSSgljYARs-3".to_owned(),
            audio: files.path("audio/nnSSgljYARs.m4a"),
            start: 20.25,
            end: Some(21.0),
            text: Some("café \"x\"".to_owned()),
            ..Clip::default()
        };
        assert_eq!(data_set.clips[1], last);
        assert_eq!((data_set.without_text, data_set.zero_length), (1, 1));
        let [missing] = data_set.missing.as_slice() else { panic!("{:?}", data_set.missing) };
        assert_eq!((missing.id.as_str(), missing.clips), ("-gone", 2));
        let source = SpeechSource { skip_missing: false, ..source };
        assert_refused("howto100m", &source, &["2 of 4 clips", "-gone (entry `-gone`)"]);
    }
}

#[test]
fn bad_howto100m_files_are_reported() {
    let files = Files::new([("audio/v.wav", "x")]);
    let source = files.with_audio("caption.json");
    let valid_video = r#""u": {"start": [0], "end": [1], "text": ["a"]}"#;
    for (video, expected) in [
        (r#"{"start": [0, 1], "end": [1], "text": ["a"]}"#, &["2 starts, 1 ends and 1 texts"][..]),
        (r#"{"start": [0], "end": [1], "text": ["a", "b"]}"#, &["1 ends and 2 texts"]),
        (
            r#"{"start": [0, 3], "end": [1, 2], "text": ["a", "b"]}"#,
            &["caption 1: end 2 is before"],
        ),
        (r#"{"start": [-1], "end": [2], "text": ["a"]}"#, &["start -1"]),
        (r#"{"start": [0], "end": [2]}"#, &["`text`"]),
        (r#"{"start": [0], "end": ["2"], "text": ["a"]}"#, &["\"2\""]),
        (r#"[[0], [2], ["a"]]"#, &["expected an object"]),
        (r#"{"start": [], "end": [], "text": []}, "v": {}"#, &["appears twice"]),
    ] {
        // An error is reported whether or not the audio exists.
        for name in ["v", "gone"] {
            let video = video.replace("\"v\"", &format!("\"{name}\""));
            files.write("caption.json", format!("{{{valid_video}, \"{name}\": {video}}}"));
            assert_refused(
                "howto100m",
                &source,
                &[&[format!("entry `{name}`").as_str()], expected].concat(),
            );
        }
    }
    for (text, expected) in [
        ("", "empty"),
        ("{}", "has no clip with a transcript"),
        ("[]", ":1: "),
        ("{\"v\": {\"start\": [0", "ends in the middle"),
        (r#"{"v": {"start": [NaN], "end": [1], "text": ["a"]}}"#, ":1: "),
        (r#"{"v\t": {"start": [0], "end": [1], "text": ["a"]}}"#, "control character"),
    ] {
        files.write("caption.json", text);
        files.write("audio/v\t.wav", "x");
        assert_refused("howto100m", &source, &["caption.json", expected]);
    }
}
