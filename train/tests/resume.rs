//! Equal runs write equal bytes, even after kills and with any number of threads.

use std::fs;
use std::path::{Path, PathBuf};

use engram_train::TrainError;
use tempfile::{TempDir, tempdir};

use crate::runs::{assert_equal_runs, lasting_files};
use crate::toy::{Overrides, Toy, train};

const EMA_AND_AWP: [&str; 3] = ["ema.decay=0.9", "awp.start_epoch=1", "awp.epsilon=0.01"];

/// Trains a run without an interruption.
fn run_uninterrupted(run: &Path, set: &[&str]) {
    let summary = train(&mut Toy::default(), run, set, false).expect("an uninterrupted run");
    assert!(summary.check.passed());
    assert_eq!(summary.steps, 16);
}

/// A temporary folder with a run without an interruption, and the run.
fn reference(set: &[&str]) -> (TempDir, PathBuf) {
    let folder = tempdir().expect("a temporary folder");
    let reference = folder.path().join("reference");
    run_uninterrupted(&reference, set);
    (folder, reference)
}

/// Crashes after each of these numbers of steps, then trains to the end.
fn crash_and_resume(run: &Path, set: &[&str], crashes: &[usize]) {
    for (i, steps) in crashes.iter().enumerate() {
        train(&mut Toy::crashing(*steps), run, set, i > 0).expect_err("a crash");
    }
    train(&mut Toy::default(), run, set, true).expect("a resumed run");
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_does_not() {
    let folder = tempdir().expect("a temporary folder");
    let runs = ["a", "b", "c"].map(|name| folder.path().join(name));
    run_uninterrupted(&runs[0], &[]);
    run_uninterrupted(&runs[1], &[]);
    run_uninterrupted(&runs[2], &["seed=8"]);
    assert_equal_runs(&runs[0], &runs[1]);
    let metrics = |run: &Path| fs::read(run.join("metrics.jsonl")).expect("metrics");
    assert_ne!(metrics(&runs[0]), metrics(&runs[2]));
}

#[test]
fn a_crashed_run_resumes_to_the_same_bytes() {
    // 10 batches per epoch, 2 per step: steps 5 and 10 end epochs, and step 10 ends the first
    // phase.
    for set in [
        &[][..],
        &EMA_AND_AWP,
        &["optimiser.rule.kind=adafactor"],
        &["checkpoint.every_steps=0"],
        &["evaluation.keep_best=false"],
    ] {
        let (folder, reference) = reference(set);
        for steps in [1, 4, 5, 7, 9, 10, 11, 13, 15] {
            let run = folder.path().join(format!("crashed-{steps}"));
            crash_and_resume(&run, set, &[steps]);
            assert_equal_runs(&reference, &run);
        }
        let run = folder.path().join("crashed-often");
        crash_and_resume(&run, set, &[3, 6, 1, 5]);
        assert_equal_runs(&reference, &run);
    }
}

/// A kill between the rename of a checkpoint and the pointer update, with half-written files.
#[test]
fn wrong_pointers_and_half_written_files_of_a_killed_run_are_repaired() {
    let folder = tempdir().expect("a temporary folder");
    for keep_best in ["evaluation.keep_best=true", "evaluation.keep_best=false"] {
        let [reference, run] =
            ["reference", "killed"].map(|n| folder.path().join(keep_best).join(n));
        run_uninterrupted(&reference, &[keep_best]);
        run_uninterrupted(&run, &[keep_best]);
        fs::write(run.join("checkpoints/LATEST"), "step-00000001\n").expect("a file");
        for leftover in [".recipe.toml.engram-Ab12Cd", "checkpoints/.LATEST.engram-zZ9aaa"] {
            fs::write(run.join(leftover), "half").expect("a file");
        }
        let unfinished = run.join("checkpoints/.step-00000017.engram-Ab12Cd");
        fs::create_dir(&unfinished).expect("a folder");
        fs::write(unfinished.join("state.json"), "half").expect("a file");
        fs::remove_file(run.join("model.safetensors")).expect("a file");
        crash_and_resume(&run, &[keep_best], &[]);
        assert_equal_runs(&reference, &run);
    }
}

#[test]
fn a_folder_is_reused_after_a_kill_at_its_first_file() {
    let folder = tempdir().expect("a temporary folder");
    let run = folder.path().join("run");
    let half = ".inputs.json.engram-Ab12Cd";
    for (leftover, bytes, resume) in [(half, "half", true), ("inputs.json", "{}", false)] {
        fs::create_dir_all(&run).expect("a folder");
        fs::write(run.join(leftover), bytes).expect("a file");
        train(&mut Toy::default(), &run, &[], resume).expect("a new run");
        assert!(!run.join(half).exists());
        fs::remove_dir_all(&run).expect("a folder");
    }
    fs::create_dir_all(&run).expect("a folder");
    fs::write(run.join("thesis.tex"), "").expect("a file");
    for resume in [true, false] {
        let error = train(&mut Toy::default(), &run, &[], resume).expect_err("not a run");
        assert!(matches!(error, TrainError::NoRun { .. }), "{error}");
    }
}

#[test]
fn a_run_without_its_checkpoints_is_not_restarted() {
    let (_folder, run) = reference(&[]);
    let weights = fs::read(run.join("model.safetensors")).expect("weights");
    fs::remove_dir_all(run.join("checkpoints")).expect("checkpoints");
    for finished in [true, false] {
        if !finished {
            fs::remove_file(run.join("model.safetensors")).expect("weights");
        }
        let error = train(&mut Toy::default(), &run, &[], true).expect_err("none is left");
        assert!(matches!(error, TrainError::CheckpointsGone { .. }), "{error}");
        let error = train(&mut Toy::default(), &run, &[], false).expect_err("a run");
        assert!(matches!(error, TrainError::RunExists { .. }), "{error}");
        if finished {
            assert_eq!(fs::read(run.join("model.safetensors")).expect("weights"), weights);
        }
    }
}

#[test]
fn a_crash_between_micro_batches_resumes_to_the_same_bytes() {
    let (folder, reference) = reference(&[]);
    for crash in [0, 1, 9, 15, 22, 27] {
        let run = folder.path().join(format!("crash-{crash}"));
        let mut crashing =
            Toy::with_overrides(Overrides { crash_at_loss: Some(crash), ..Overrides::default() });
        let error = train(&mut crashing, &run, &[], false).expect_err("it crashes");
        assert!(error.to_string().contains("the power went off"), "{error}");
        crash_and_resume(&run, &[], &[]);
        assert_equal_runs(&reference, &run);
    }
}

#[test]
fn resuming_a_finished_run_changes_no_file() {
    let (_folder, run) = reference(&[]);
    let before = lasting_files(&run);
    let summary = train(&mut Toy::default(), &run, &[], true).expect("nothing to do");
    assert!(summary.last_loss.is_some() && summary.best.is_some());
    assert_eq!(before, lasting_files(&run));
}

#[test]
fn results_do_not_depend_on_the_thread_count() {
    let folder = tempdir().expect("a temporary folder");
    let runs = [1, 2].map(|threads| {
        let run = folder.path().join(threads.to_string());
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(|| run_uninterrupted(&run, &EMA_AND_AWP));
        run
    });
    assert_equal_runs(&runs[0], &runs[1]);
}

/// The folder of the newest checkpoint.
fn newest_checkpoint(run: &Path) -> PathBuf {
    let pointer = fs::read_to_string(run.join("checkpoints/LATEST")).expect("the pointer");
    run.join("checkpoints").join(pointer.trim())
}

#[test]
fn a_run_with_a_damaged_checkpoint_resumes_from_the_previous_one() {
    let (folder, reference) = reference(&[]);
    let damages = ["cut", "flip", "no manifest", "empty manifest", "lost file"];
    for (i, damage) in damages.into_iter().enumerate() {
        let run = folder.path().join(format!("damaged-{i}"));
        train(&mut Toy::crashing(9), &run, &[], false).expect_err("a crash");
        let checkpoint = newest_checkpoint(&run);
        let file = checkpoint.join("optimiser.safetensors");
        let bytes = fs::read(&file).expect("the optimiser's file");
        match damage {
            "cut" => fs::write(&file, &bytes[..bytes.len() - 3]),
            "flip" => {
                let mut bytes = bytes;
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
                fs::write(&file, bytes)
            }
            "empty manifest" => fs::write(checkpoint.join("manifest.json"), r#"{"files": {}}"#),
            "no manifest" => fs::remove_file(checkpoint.join("manifest.json")),
            _ => fs::remove_file(file),
        }
        .expect("the damage is done");
        crash_and_resume(&run, &[], &[]);
        assert_equal_runs(&reference, &run);
    }
}

#[test]
fn a_run_with_only_damaged_checkpoints_is_refused() {
    let folder = tempdir().expect("a temporary folder");
    let run = folder.path().join("run");
    train(&mut Toy::crashing(9), &run, &[], false).expect_err("a crash");
    for entry in fs::read_dir(run.join("checkpoints")).expect("checkpoints").flatten() {
        if entry.path().is_dir() {
            fs::remove_file(entry.path().join("manifest.json")).expect("the damage is done");
        }
    }
    let error = train(&mut Toy::default(), &run, &[], true).expect_err("all are damaged");
    assert!(matches!(error, TrainError::NoGoodCheckpoint { .. }), "{error}");
}

#[test]
fn old_checkpoints_are_removed_and_the_best_is_kept() {
    let folder = tempdir().expect("a temporary folder");
    let run = folder.path().join("run");
    // The first evaluation of each phase is the best one.
    let evaluation_values = vec![0.1, 0.5, 0.2, 0.6];
    let mut study = Toy::with_overrides(Overrides { evaluation_values, ..Overrides::default() });
    let set = ["checkpoint.keep=1", "checkpoint.every_steps=1"];
    let summary = train(&mut study, &run, &set, false).expect("an uninterrupted run");
    assert_eq!(summary.best, Some((0.2, 15)));
    let mut names: Vec<String> = fs::read_dir(run.join("checkpoints"))
        .expect("checkpoints")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["BEST", "LATEST", "step-00000015", "step-00000016"]);
    let best = run.join("checkpoints/step-00000015/parameters.safetensors");
    assert_eq!(fs::read(&summary.weights).expect("weights"), fs::read(best).expect("the best"));
}

/// All files and folders below a folder, with the bytes of files.
fn all_entries(folder: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let (mut entries, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            let path = entry.path();
            entries.push((path.clone(), fs::read(&path).ok()));
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    entries.sort();
    entries
}

#[test]
fn a_refused_folder_stays_unchanged() {
    let parent = tempdir().expect("a temporary folder");
    let whole_run = parent.path().join("whole");
    run_uninterrupted(&whole_run, &[]);
    let files: [&[(&str, &str)]; 8] = [
        &[(".env.sample", "precious"), (".bashrc.backup", "precious"), ("notes.txt", "precious")],
        &[(".lock", "mine")],
        &[("inputs.json", "[1, 2]")],
        &[("programs.json", "{}")],
        &[("recipe.toml", "study = \"toy\"\n"), (".git.bundle", "precious")],
        &[("recipe.toml", "bread = 1\n"), ("inputs.json", "{}"), ("memory/CURRENT", "gen-000001")],
        &[(".recipe.toml.Ab12Cd", "of another program")],
        &[("checkpoints/step-00000001/state.json", "{}")],
    ];
    for (number, files) in files.into_iter().enumerate() {
        let folder = parent.path().join(number.to_string());
        for (name, bytes) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, bytes).expect("written");
        }
        let before = all_entries(&folder);
        for resume in [false, true] {
            let error = train(&mut Toy::default(), &folder, &[], resume).expect_err("no run");
            assert!(matches!(error, TrainError::NoRun { .. }), "{files:?}: {error}");
            assert_eq!(all_entries(&folder), before);
        }
    }
    // A run that is refused is unchanged, including the bytes of its lock file.
    fs::write(whole_run.join(".lock"), "1\n").expect("written");
    let before = all_entries(&whole_run);
    train(&mut Toy::default(), &whole_run, &[], false).expect_err("a run is there");
    train(&mut Toy::default(), &whole_run, &["seed=8"], true).expect_err("another recipe");
    assert_eq!(all_entries(&whole_run), before);
}

#[test]
fn only_temporary_files_of_the_run_are_removed() {
    let parent = tempdir().expect("a temporary folder");
    let run = parent.path().join("run");
    train(&mut Toy::crashing(9), &run, &[], false).expect_err("a crash");
    let foreign = [
        ".env.sample",
        ".notes.txt.engram-Ab12Cd",
        "checkpoints/step-00000001.bak",
        "checkpoints/.unfinished-notes",
        "model.unfinished",
    ];
    let temporary = [".metrics.jsonl.engram-Ab12Cd", "checkpoints/.BEST.engram-Ab12Cd"];
    for name in foreign.iter().chain(&temporary) {
        fs::write(run.join(name), "precious").expect("written");
    }
    fs::create_dir(run.join("checkpoints/step-1")).expect("made");
    crash_and_resume(&run, &[], &[]);
    for name in foreign {
        assert_eq!(fs::read(run.join(name)).expect("there"), b"precious", "{name}");
    }
    assert!(run.join("checkpoints/step-1").is_dir());
    assert!(temporary.iter().all(|name| !run.join(name).exists()));
}

#[test]
fn a_stopped_run_resumes_to_the_same_bytes() {
    for set in [&[][..], &EMA_AND_AWP, &["checkpoint.every_steps=0"]] {
        let (folder, reference) = reference(set);
        // Stops during a step, and during the evaluation after a step.
        let at_loss = [0, 1, 6, 9, 12, 18, 27, 31].map(|loss| (Some(loss), None));
        let at_evaluation = [0, 1, 2, 3].map(|evaluation| (None, Some(evaluation)));
        for (number, (loss, evaluation)) in at_loss.into_iter().chain(at_evaluation).enumerate() {
            let run = folder.path().join(format!("stopped-{number}"));
            let overrides = Overrides {
                stop_at_loss: loss,
                stop_at_evaluation: evaluation,
                ..Overrides::default()
            };
            let error = train(&mut Toy::with_overrides(overrides), &run, set, false);
            let Err(TrainError::Stopped { step, .. }) = error else {
                panic!("{loss:?} {evaluation:?}: {error:?}")
            };
            let pointer = fs::read_to_string(run.join("checkpoints/LATEST")).expect("a pointer");
            assert!(pointer.trim().ends_with(&format!("{step:08}")), "{pointer} {step}");
            crash_and_resume(&run, set, &[]);
            assert_equal_runs(&reference, &run);
        }
    }
}

#[test]
fn a_phase_whose_metric_is_nan_ends_with_its_own_weights() {
    let folder = tempdir().expect("a temporary folder");
    let [unbroken, resumed] = ["unbroken", "resumed"].map(|name| folder.path().join(name));
    let set = ["evaluation.keep_best=true"];
    // Two evaluations in each phase. The best one of the first phase is infinite.
    let values = vec![f64::INFINITY, f64::NAN, f64::NAN, f64::NAN];
    let study = |crash_at_loss, evaluation_values| {
        let overrides = Overrides { crash_at_loss, evaluation_values, ..Overrides::default() };
        Toy::with_overrides(overrides)
    };
    let summary = train(&mut study(None, values.clone()), &unbroken, &set, false);
    assert_eq!(summary.expect("an unbroken run").best, None);
    // In the first phase after its best evaluation, and in the second one.
    for (crash, values) in [(8, values), (7, vec![f64::NAN; 4])] {
        let resume = resumed.exists();
        train(&mut study(Some(2 * crash), values), &resumed, &set, resume).expect_err("a crash");
    }
    train(&mut study(None, vec![f64::NAN; 4]), &resumed, &set, true).expect("a resumed run");
    assert_equal_runs(&unbroken, &resumed);
}

#[test]
fn a_resumed_run_changes_no_file_outside_and_notices_a_changed_log() {
    let folder = tempdir().expect("a temporary folder");
    let (run, backup) = (folder.path().join("run"), folder.path().join("backup"));
    train(&mut Toy::crashing(9), &run, &[], false).expect_err("a crash");
    // A backup of hard links, and a log that is moved away and linked.
    fs::create_dir(&backup).expect("a folder");
    let [metrics, timing] = ["metrics.jsonl", "timing.jsonl"].map(|name| run.join(name));
    fs::hard_link(&metrics, backup.join("metrics.jsonl")).expect("a hard link");
    fs::rename(&timing, backup.join("timing.jsonl")).expect("moved");
    std::os::unix::fs::symlink(backup.join("timing.jsonl"), &timing).expect("a link");
    // The lock of this process has another number than the lock of the process that crashed.
    fs::write(run.join(".lock"), "1").expect("a lock");
    fs::hard_link(run.join(".lock"), backup.join(".lock")).expect("a hard link");
    let names = [".lock", "metrics.jsonl", "timing.jsonl"];
    let backed_up = || names.map(|name| fs::read(backup.join(name)));
    let before = backed_up().map(|bytes| bytes.expect("a file"));

    let text = fs::read(&metrics).expect("a log");
    let mut changed = text.clone();
    changed[9] ^= 1;
    fs::remove_file(&metrics).expect("removed");
    fs::write(&metrics, changed).expect("written");
    let error = train(&mut Toy::default(), &run, &[], true).expect_err("a changed log");
    assert!(error.to_string().contains("metrics.jsonl"), "{error}");

    fs::remove_file(&metrics).expect("removed");
    fs::hard_link(backup.join("metrics.jsonl"), &metrics).expect("a hard link");
    // Folders of the run that are links, also to nothing, are refused before the first step.
    let (checkpoints, test) = (run.join("checkpoints"), run.join("test"));
    fs::rename(&checkpoints, backup.join("checkpoints")).expect("moved");
    for (link, target) in [(&checkpoints, "checkpoints"), (&test, "nothing")] {
        std::os::unix::fs::symlink(backup.join(target), link).expect("a link");
        let error = train(&mut Toy::default(), &run, &[], true).expect_err("a link").to_string();
        assert!(error.contains(&*link.to_string_lossy()), "{error}");
        fs::remove_file(link).expect("removed");
    }
    fs::rename(backup.join("checkpoints"), &checkpoints).expect("moved");
    train(&mut Toy::default(), &run, &[], true).expect("a resumed run");
    assert_eq!(backed_up().map(|bytes| bytes.expect("a file")), before);
}
