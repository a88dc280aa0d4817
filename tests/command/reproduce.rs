//! `engram reproduce` and `engram grid`: errors in the options are reported before training; grids
//! over the keys of any study.

use std::fs::{self, File};

use crate::running::{Folder, refused, succeeds};

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
    // Files with real data are read before anything is trained.
    for (options, part) in [
        ("--data data", "validation.csv"),
        ("--data photographs --scale laptop --study reveal", "captions_val2017.json"),
    ] {
        refused(root, &format!("reproduce --out real {options}"), part);
        assert!(!root.join("real/patent").exists() && !root.join("real/reveal-laptop").exists());
    }
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

#[test]
fn a_grid_over_any_key_of_any_study_has_verdicts() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let grid = |recipe: &str, study: &str, set: &str, metric: &str| {
        format!(
            "recipe = \"{recipe}\"\nmain = \"main\"\nset = [{set}]\n\n[[configuration]]\nname = \"main\"\n\n\
             [[configuration]]\nname = \"slow\"\nset = [\"optimiser.learning_rate=1e-7\"]\n\n[[claim]]\n\
             id = \"{study}.rate\"\nclaim = \"a slow rate is no better\"\nbetter = \"main\"\n\
             worse = \"slow\"\n{metric}"
        )
    };
    for (study, recipe, set, metric) in [
        ("patent", "patent/world", "\"model.fresh.hidden_size=32\", \"phase.train.epochs=2\"", ""),
        (
            "clip",
            "clip/tiny",
            "\"data.images=8\", \"batch.examples=4\", \"model.text_encoder=\", \"phase.clip.epochs=1\"",
            "metric = \"accuracy\"\n",
        ),
    ] {
        let file = format!("{study}.toml");
        fs::write(root.join(&file), grid(recipe, study, set, metric)).unwrap();
        let report = succeeds(root, &format!("grid {file} --out {study} --json --quiet"));
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        let claim = &report["claims"][0];
        assert_eq!(
            claim["comparison"].as_str().unwrap().split(':').next(),
            Some("main compared with slow")
        );
        assert!(
            claim["n"].as_u64().unwrap() > 7 && claim["compared"].as_array().unwrap().len() == 2
        );
        let command =
            format!("engram grid {file} --configurations main,slow --seeds 1 --out {study}");
        assert_eq!(claim["command"], command);
        assert_eq!(report["grid"]["configurations"].as_array().unwrap().len(), 2);
        let page = fs::read_to_string(root.join(study).join("grid.html")).unwrap();
        assert!(page.contains("Difference from the main configuration") && page.contains("<svg"));
    }
}

#[test]
fn bundled_models_are_written_and_can_be_used_outside_the_clone() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    succeeds(root, "data bundled --out bundled");
    fs::write(root.join("pairs.csv"), "id,anchor,target,context\n1,red car,car,A47\n").unwrap();
    succeeds(root, "score pairs.csv --model bundled/patent --out scores.csv");
    refused(root, "data bundled --out bundled", "already contains files");
}

#[test]
fn the_study_on_photographs_needs_both_packages() {
    let root = &Folder::new();
    refused(root, "reproduce --study stamps --stamps none --out runs", "none");
    fs::create_dir(root.join("empty")).unwrap();
    refused(root, "reproduce --study stamps --stamps empty --out runs", "empty");
    assert!(!root.join("runs/stamps-smoke").exists(), "nothing was evaluated");
}
