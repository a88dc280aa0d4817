//! `engram reproduce`: errors in the options are reported before training.

use std::fs::{self, File};

use crate::running::{Folder, refused};

#[test]
fn inputs_are_validated_before_training() {
    let root = &Folder::new();
    fs::create_dir_all(root.join("data/patent")).unwrap();
    fs::write(root.join("data/patent/validation.csv"), "id,anchor,target,context,score\nx\n")
        .unwrap();
    fs::create_dir_all(root.join("photographs/coco-captions")).unwrap();
    for file in ["captions_val2017.json", "captions_train2017_mini.json"] {
        fs::write(root.join("photographs/coco-captions").join(file), "{").unwrap();
    }
    fs::write(root.join("file"), "").unwrap();
    let conformer = format!("--whisper {}/train/bundled/conformer", env!("CARGO_MANIFEST_DIR"));
    fs::create_dir_all(root.join("mine/clip")).unwrap();
    fs::write(root.join("mine/clip/notes.txt"), "mine").unwrap();
    for (options, part) in [
        ("--data none", "none: is not a folder; give another --data"),
        ("--data data", "validation.csv"),
        ("--data photographs --scale laptop", "captions_val2017.json"),
        ("--encoder none", "none: has no model.safetensors; give another --encoder"),
        ("--whisper none", "none"),
        (&conformer, "is not a Whisper model; give another --whisper"),
        ("--export-bundled mine", "mine: contains files other than bundled models"),
        ("--export-bundled file", "file: cannot store bundled models; give another --export"),
        ("--out file", "file: could not be created; give another --out"),
        ("--claim reveal.x", "--claim reveal.x: scale smoke has no such claim"),
        ("--claim avformer.tokens_help", "scale smoke has no such claim"),
        ("--claim avformer.real_whisper", "no such claim with these options"),
        ("--claim reveal.needle --study reveal", "--study"),
        ("--quick --claim reveal.needle", "--claim"),
        ("--quick --scale laptop", "--scale"),
        ("--out mine", "mine: contains files that `engram reproduce` did not write"),
    ] {
        let out = if options.starts_with("--out") { "" } else { "--out runs " };
        refused(root, &format!("reproduce {out}{options}"), part);
    }
    assert!(!root.join("runs").exists());
    assert_eq!(fs::read_to_string(root.join("mine/clip/notes.txt")).unwrap(), "mine");
    // A folder is locked by one process at a time.
    fs::create_dir(root.join("runs")).unwrap();
    let marker = File::options()
        .append(true)
        .create(true)
        .open(root.join("runs/.engram-reproduce"))
        .unwrap();
    marker.try_lock().unwrap();
    refused(root, "reproduce --out runs", "another `engram reproduce` is using this folder");
    let names = fs::read_dir(root.join("runs")).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), [".engram-reproduce"], "nothing was trained");
}
