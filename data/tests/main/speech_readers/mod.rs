//! Tests of the readers of published speech data sets, on small files written by the tests: clips,
//! error messages, and the behaviour that all readers share.

mod ego4d;
mod files;
mod how2;
mod howto100m;
mod librispeech;
mod visspeech;

use std::fs;

use engram_data::speech::frames::Frame;
use engram_data::speech::manifest::{Clip, read_manifest, write_manifest};
use engram_data::speech::{SpeechFormat, SpeechSource};

use self::files::{Files, assert_refused, ids, read, skip_missing};
use self::how2::how2;

#[test]
fn images_belong_to_the_clip_or_its_recording() {
    let files = how2();
    for name in ["12.5.jpg", "2.5.JPG", "notes.txt", "100.jpeg", "frame_000010.jpg", "frame_9.jpg"]
    {
        files.write(&format!("frames/vid/{name}"), "x");
    }
    files.write("frames/b_1/z.jpg", "x");
    files.write("train/text", "b_1 a\nv_2 b\nv_1 c\n");
    let source = SpeechSource { frames: Some(files.path("frames")), ..files.with_audio("train") };
    let data_set = read("how2", &source).unwrap();
    let names = |clip: &Clip| -> Vec<String> {
        let name = |frame: &Frame| frame.image.file_name().unwrap().to_string_lossy().into_owned();
        clip.frames.iter().map(name).collect()
    };
    assert_eq!(names(&data_set.clips[0]), ["z.jpg"]);
    let images_of_video = ["2.5.JPG", "12.5.jpg", "100.jpeg", "frame_9.jpg", "frame_000010.jpg"];
    assert_eq!(names(&data_set.clips[1]), images_of_video);
    assert_eq!(names(&data_set.clips[2]), images_of_video);
    assert_eq!(data_set.clips[1].frames[0], files.path("frames/vid/2.5.JPG").into());
    let without_images = SpeechSource { frames: Some(files.path("audio")), ..source.clone() };
    assert_refused("how2", &without_images, &["audio: no clip has images here"]);
    // With a frame rate, a clip gets the images of its recording within its time, 1.5 to 3.25 s.
    let timed = read("how2", &SpeechSource { frame_rate: Some(4.0), ..source.clone() }).unwrap();
    assert_eq!(names(&timed.clips[0]), ["z.jpg"]);
    assert_eq!(names(&timed.clips[1]), ["12.5.jpg", "frame_9.jpg", "frame_000010.jpg"]);
    assert_eq!(timed.clips[1].frames[1].time, Some(2.25));
    assert_eq!(names(&timed.clips[2]), ["2.5.JPG"]);
    // If no image is within the clip's time, the nearest image is used, but only up to one image
    // interval away. The image is at 1.495 s, then at 1.25 s.
    for (frame_rate, expected) in [(66.9, &["100.jpeg"][..]), (80.0, &[])] {
        let sparse = SpeechSource { frame_rate: Some(frame_rate), ..source.clone() };
        assert_eq!(names(&read("how2", &sparse).unwrap().clips[1]), expected);
    }
    assert_eq!(timed.clips[1].frame_files(9.0).unwrap()[0], files.path("frames/vid/frame_9.jpg"));
}

/// An id must not lead out of the folder of images.
#[test]
fn ids_that_are_paths_find_no_images() {
    let files = how2();
    files.write("train/text", "../secret a\n/ b\nv_1 c\n");
    files.write("train/segments", "../secret vid 0 1\n/ vid 1 2\nv_1 vid 2 3\n");
    files.write("secret/1.jpg", "x");
    files.write("frames/v_1/1.jpg", "x");
    let source = SpeechSource { frames: Some(files.path("frames")), ..files.with_audio("train") };
    let data_set = read("how2", &source).unwrap();
    let counts: Vec<usize> = data_set.clips.iter().map(|clip| clip.frames.len()).collect();
    assert_eq!(counts, [0, 0, 1]);
}

#[test]
fn a_manifest_is_read_like_a_data_set() {
    let files = Files::new([
        (
            "m.jsonl",
            "{\"audio\": \"a.wav\"}\n\n{\"audio\": \"b.wav\", \"text\": \"\", \"speaker\": \"s\"}\n",
        ),
        ("b.wav", "x"),
        ("list.txt", "b.wav\n"),
    ]);
    assert_refused("manifest", &files.source("list.txt"), &["list.txt: is a text file, not audio"]);
    assert_refused("manifest", &files.source("m.jsonl"), &["1 of 2", "a (line 1)", "a.wav"]);
    let data_set = read("manifest", &skip_missing(files.source("m.jsonl"))).unwrap();
    assert_eq!((ids(&data_set), data_set.clips[0].line), (vec!["b"], 3));
    // An empty text means silence, and is valid.
    assert_eq!(data_set.clips[0].text.as_deref(), Some(""));
    assert_eq!(data_set.clips[0].speaker.as_deref(), Some("s"));
    assert_refused("manifest", &files.with_audio("m.jsonl"), &["gives the paths"]);
    assert_eq!(ids(&read("manifest", &files.source("")).unwrap()), ["b"]);
}

#[test]
fn format_names_are_parsed_and_serialized() {
    for format in SpeechFormat::ALL {
        assert_eq!(format.to_string().parse::<SpeechFormat>().unwrap(), format);
        assert_eq!(serde_json::to_string(&format).unwrap(), format!("\"{format}\""));
    }
    let error = "libri".parse::<SpeechFormat>().unwrap_err().to_string();
    assert!(error.contains("\"libri\"") && error.contains("use librispeech, how2"), "{error}");
}

#[test]
fn clips_are_written_as_a_manifest() {
    let files = how2();
    files.write("frames/v_2/1.jpg", "x");
    let source = SpeechSource { frames: Some(files.path("frames")), ..files.with_audio("train") };
    let data_set = read("how2", &source).unwrap();
    let path = files.path("audio/clips.jsonl");
    write_manifest(&path, &data_set.clips).unwrap();
    // Files beside the manifest have relative paths, others absolute paths.
    let frame = serde_json::to_string(&files.path("frames/v_2/1.jpg")).unwrap();
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        format!(
            "{{\"id\":\"b_1\",\"audio\":\"more/big.mp3\",\"text\":\"so this is\"}}\n\
             {{\"id\":\"v_2\",\"audio\":\"vid.wav\",\"start\":1.5,\"end\":3.25,\"text\":\"the second\",\
             \"speaker\":\"s2\",\"frames\":[{frame}]}}\n"
        )
    );
    assert_eq!(read_manifest(&path).unwrap(), data_set.clips);
}

#[test]
fn a_failed_manifest_leaves_the_previous_file() {
    let files = Files::new([("m.jsonl", "before")]);
    let path = files.path("m.jsonl");
    let valid = Clip { id: "a".to_owned(), audio: files.path("a.wav"), ..Clip::default() };
    for (invalid, reason) in [
        (valid.clone(), "not unique"),
        (Clip { id: String::new(), ..valid.clone() }, "the id is empty"),
        (Clip { id: "b\tc".to_owned(), ..valid.clone() }, "control character"),
        (Clip { id: "b".to_owned(), end: Some(0.0), ..valid.clone() }, "not after start"),
        (Clip { id: "b".to_owned(), start: f64::NAN, ..valid.clone() }, "not a time"),
    ] {
        let error = write_manifest(&path, &[valid.clone(), invalid]).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains("m.jsonl, clip \""), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
    }
    assert_eq!(fs::read_dir(files.0.path()).unwrap().count(), 1, "no other file remains");
    write_manifest(&path, &[valid]).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "{\"id\":\"a\",\"audio\":\"a.wav\"}\n");
    assert!(write_manifest(&files.path("no/m.jsonl"), &[]).is_err());
}

#[test]
fn lists_of_other_programs_are_read_by_their_names_of_columns() {
    let files = Files::new([
        ("a.wav", "x"),
        ("clips/b.mp3", "x"),
        (
            "nemo.json",
            "{\"audio_filepath\": \"a.wav\", \"offset\": 0.5, \"duration\": 1.5, \"text\": \"x\"}\n\
             {\"audio_filepath\": \"clips/b.mp3\", \"duration\": null, \"lang\": [1]}\n",
        ),
        ("cv.TSV", "client_id\tpath\tsentence\tage\nc\tb.mp3\t\"x\"\t\n"),
        ("metadata.csv", "\u{feff}file_name;transcription\r\nclips/b.mp3;\"x; y\"\r\n;\r\n"),
        ("metadata.JSONL", "{\"file_name\": \"a.wav\", \"text\": \"x\", \"id\": 7}\n"),
        ("own.csv", "audio,start,end,text,id\na.wav,0.5,1.5,x,u\n"),
        ("kaldi/wav.scp", "r1 ../a.wav\nr2 ../clips/b.mp3\n"),
        ("kaldi/text", "u2 two words\n"),
        ("kaldi/segments", "u1 r1 0 1.5\nu2 r2 2 -1\n"),
        ("plain/wav.scp", "r1 ../a.wav\n"),
    ]);
    for (list, taken, expected) in [
        (
            "nemo.json",
            "a NeMo manifest: audio from `audio_filepath`, text from `text`, start from `offset`, \
             duration from `duration`",
            "a.wav-0.5 a.wav 0.5 Some(2.0) Some(\"x\"); clips/b.mp3 clips/b.mp3 0 None None",
        ),
        (
            "cv.TSV",
            "a table of Common Voice: audio from `path` in clips/, text from `sentence`, speaker \
             from `client_id`",
            "b.mp3 clips/b.mp3 0 None Some(\"\\\"x\\\"\")",
        ),
        (
            "metadata.csv",
            "metadata of Hugging Face: audio from `file_name`, text from `transcription`",
            "clips/b.mp3 clips/b.mp3 0 None Some(\"x; y\")",
        ),
        (
            "metadata.JSONL",
            "metadata of Hugging Face: audio from `file_name`, text from `text`, id from `id`",
            "7 a.wav 0 None Some(\"x\")",
        ),
        (
            "own.csv",
            "a table of clips: audio from `audio`, text from `text`, id from `id`, start from \
             `start`, end from `end`",
            "u a.wav 0.5 Some(1.5) Some(\"x\")",
        ),
        (
            "kaldi/wav.scp",
            "Kaldi's wav.scp with segments, text",
            "u1 kaldi/../a.wav 0 Some(1.5) None; \
             u2 kaldi/../clips/b.mp3 2 None Some(\"two words\")",
        ),
        ("plain/wav.scp", "Kaldi's wav.scp", "r1 plain/../a.wav 0 None None"),
    ] {
        let data_set = read("manifest", &files.source(list)).unwrap();
        assert_eq!(data_set.taken_as.as_deref(), Some(taken));
        let clip = |clip: &Clip| {
            let audio = clip.audio.strip_prefix(files.path("")).unwrap().display();
            format!("{} {audio} {} {:?} {:?}", clip.id, clip.start, clip.end, clip.text)
        };
        let clips: Vec<String> = data_set.clips.iter().map(clip).collect();
        assert_eq!(clips.join("; "), expected, "{list}");
    }
    for (list, text, reason) in [
        ("nemo.json", "{\"audio_filepath\": \"\"}\n", "nemo.json:1: `audio_filepath` is empty"),
        ("nemo.json", "{\"audio_filepath\": \"a\", \"offset\": \"x\"}\n", ":1: offset \"x\" is no"),
        ("own.csv", "wav,text\na.wav,x\n", "own.csv:1: has no column of audio files; the header"),
        ("kaldi/segments", "u1 r9 0 1\n", "wav.scp: has no recording r9, which u1 of `segments`"),
        ("kaldi/wav.scp", "r1 sph2pipe a.sph |\n", "wav.scp:1: the audio of r1 is the output of"),
    ] {
        files.write(list, text);
        let list = list.replace("segments", "wav.scp");
        assert_refused("manifest", &files.source(&list), &[reason]);
    }
    files.write("metadata.csv", b"\xff\xfef\0i\0");
    let utf_16 = ["metadata.csv: is UTF-16 text; convert the file to UTF-8; in a spreadsheet"];
    assert_refused("manifest", &files.source("metadata.csv"), &utf_16);
}
