//! `engram reproduce`: what is wrong is told before anything is trained.
#![allow(clippy::unwrap_used)]

mod running;

use std::fs::{self, File};

use running::refused;

#[test]
fn what_is_given_is_looked_at_first() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::create_dir_all(root.join("data/patent")).unwrap();
    fs::write(root.join("data/patent/validation.csv"), "id,anchor,target,context,score\nx\n")
        .unwrap();
    fs::create_dir_all(root.join("mine/clip")).unwrap();
    fs::write(root.join("mine/clip/notes.txt"), "mine").unwrap();
    for (options, told) in [
        ("--data none", "none: is no folder; give another --data"),
        ("--data data", "validation.csv"),
        ("--encoder none", "none: has no model.safetensors; give another --encoder"),
        ("--whisper none", "none"),
        ("--keep mine", "mine: holds something else than kept models"),
        ("--out mine", "mine: holds something else than `engram reproduce` wrote"),
    ] {
        let out = if options.starts_with("--out") { "" } else { "--out runs " };
        refused(root, &format!("reproduce {out}{options}"), told);
    }
    assert_eq!(fs::read_to_string(root.join("mine/clip/notes.txt")).unwrap(), "mine");
    // One at a time in a folder.
    let marker = File::options().append(true).open(root.join("runs/.engram-reproduce")).unwrap();
    marker.try_lock().unwrap();
    refused(root, "reproduce --out runs", "another `engram reproduce` is at it");
    let names = fs::read_dir(root.join("runs")).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), [".engram-reproduce"], "nothing was trained");
}
