//! `engram data clips` and `engram data speech` as a user runs them.

use std::fs;

use crate::running::{Folder, json, refused, succeeds};
use engram_data::speech::manifest::read_manifest;

#[test]
fn a_data_set_becomes_a_manifest() {
    let folder = &Folder::new();
    let chapter = folder.join("dev/12/34");
    fs::create_dir_all(&chapter).unwrap();
    let lines = "12-34-0000 HELLO THERE\n12-34-0001 AGAIN\n";
    fs::write(chapter.join("12-34.trans.txt"), lines).unwrap();
    fs::write(chapter.join("12-34-0000.flac"), "not opened").unwrap();
    let clips = "data clips librispeech dev --out dev.jsonl";
    refused(folder, clips, "12-34-0001");
    assert!(!folder.join("dev.jsonl").exists());
    let printed = succeeds(folder, &format!("{clips} --skip-missing"));
    assert!(printed.contains("1 clip; skipped 1 without audio"), "{printed}");
    let manifest = fs::read_to_string(folder.join("dev.jsonl")).unwrap();
    assert!(manifest.contains("\"text\":\"HELLO THERE\""), "{manifest}");
    let summary = json(folder, &format!("{clips} --skip-missing --force"));
    assert_eq!(summary["clips"], 1);
    assert_eq!(summary["missing"].as_array().unwrap().len(), 1);
    refused(folder, "data clips timit dev --out x.jsonl", "librispeech");
}

#[test]
fn sentences_of_held_out_voices_are_written_as_audio_files() {
    let folder = &Folder::new();
    succeeds(folder, "data speech --out a --count 3");
    succeeds(folder, "data speech --out b --count 3");
    succeeds(folder, "data speech --out c --count 3 --split validation");
    let read = |file: &str| fs::read(folder.join(file)).unwrap();
    for file in ["clips.jsonl", "ref.tsv", "en-gb-x-rp+f4-0002.wav"] {
        assert!(read(&format!("a/{file}")) == read(&format!("b/{file}")), "{file}");
    }
    assert!(folder.join("c/en-us-nyc+m7-0000.wav").is_file());
    assert!(read("a/ref.tsv") != read("c/ref.tsv"));
    let clips = read_manifest(&folder.join("a/clips.jsonl")).unwrap();
    assert_eq!(clips.len(), 3);
    for clip in &clips {
        let samples = clip.samples(16_000).unwrap();
        assert!(samples.len() > 8_000 && samples.iter().all(|sample| sample.is_finite()));
    }
    refused(folder, "data speech --out a", "already contains files");
    refused(folder, "data speech --out x --snr-db nan", "ratio");
}
