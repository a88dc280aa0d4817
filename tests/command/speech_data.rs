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

#[test]
fn own_pictures_and_voices_become_entries_and_manifests() {
    let (folder, root) = (&Folder::new(), env!("CARGO_MANIFEST_DIR"));
    fs::create_dir(folder.join("mine")).unwrap();
    for file in ["pictures/source.png", "audio/speech.ogg"] {
        let name = file.rsplit_once('/').unwrap().1;
        fs::copy(format!("{root}/data/tests/fixtures/{file}"), folder.join("mine").join(name))
            .unwrap();
    }
    let table =
        "file,name,fr,voice_fr\nsource.png,A test.,Un essai.,speech.ogg\nno.png,None.,Rien.,\n";
    fs::write(folder.join("mine/names.csv"), table).unwrap();
    let stamps = "data stamps mine --out o";
    refused(folder, stamps, &["--on-error skip skips 1 unusable file: ", "no.png: "]);
    assert!(!folder.join("o").exists());
    let printed = succeeds(folder, &format!("{stamps} --on-error skip"));
    assert_eq!(printed, "o: 1 picture of 1 thing; summary.json has more counts\n");
    fs::rename(folder.join("o"), folder.join("elsewhere")).unwrap();
    let clip = format!("--model {root}/train/bundled/clip --entries elsewhere/entries.jsonl");
    let built = succeeds(folder, &format!("memory build {clip} --out m --quiet"));
    assert!(built.contains("1 entry"), "{built}");
    let voices = "elsewhere/voices/fr-train.jsonl";
    let conformer = format!("--model {root}/train/bundled/conformer --quiet");
    succeeds(folder, &format!("transcribe {voices} {conformer} --out hyp.tsv"));
    succeeds(folder, &format!("eval wer --ref {voices} --hyp hyp.tsv"));
    let voices = "data voices elsewhere --backgrounds elsewhere --out v --languages";
    refused(folder, &format!("{voices} de"), &["no recordings in `de`, but in: fr"]);
    refused(folder, &format!("{voices} fr"), &["has 0 photographs"]);
    refused(folder, &format!("{voices} fr --sounds-db 0"), &["fewer than two sounds"]);
    refused(folder, &format!("{voices} fr --snr-db nan"), &["signal-to-noise ratio"]);
    fs::write(folder.join("left.txt"), "fr/source.png\nfr/other\n").unwrap();
    let left_out = format!("{voices} fr --leave-out left.txt");
    refused(folder, &left_out, &["left.txt, line 2: there is no recording `fr/other`"]);
    let container = format!("data gcompris {root}/data/tests/fixtures/pictures --out g");
    assert_eq!(json(folder, &container)["pictures"], 3);
}
