//! `engram train reveal` and `engram answer` on a small world.
#![allow(clippy::unwrap_used)]

mod running;

use std::fs;
use std::path::Path;

use running::{engram, refused, succeeds};
use serde_json::Value;

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_small_run_answers_with_evidence_and_refuses_invalid_inputs() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("train/recipes/reveal/laptop.toml");
    succeeds(at, "data world --out world --images 60");
    let train = format!("train reveal --recipe {} --tiny --run run --quiet", recipe.display());
    let printed = succeeds(at, &train);
    assert!(printed.contains("held_out") && printed.contains("facts changed"), "{printed}");

    // The number of threads does not change the results.
    let single = train.replace("--run run", "--run single --threads 1");
    assert_eq!(succeeds(at, &single), printed);
    for file in ["model.safetensors", "metrics.jsonl", "test.jsonl", "summary.json"] {
        let read = |run: &str| fs::read(at.join(run).join(file)).unwrap();
        assert!(read("single") == read("run"), "{file} differs with one thread");
    }

    let questions = fs::read_to_string(at.join("world/questions.jsonl")).unwrap();
    let few: String = questions.lines().take(5).map(|line| format!("{line}\n")).collect();
    fs::write(at.join("world/few.jsonl"), few).unwrap();
    let answer = "answer run --questions world/few.jsonl --quiet --out";
    let printed = succeeds(at, &format!("{answer} answers.jsonl --evidence --curves"));
    assert!(printed.contains("Spearman") && printed.contains("insertion"), "{printed}");
    let answers = lines(&at.join("answers.jsonl"));
    assert_eq!(answers.len(), 5);
    for answer in &answers {
        let evidence = answer["evidence"].as_array().unwrap();
        let priors: f64 = evidence.iter().map(|entry| entry["prior"].as_f64().unwrap()).sum();
        assert!((priors - evidence.len() as f64).abs() < 1e-3, "{priors}");
        let tokens = answer["tokens"].as_array().unwrap().len();
        for entry in evidence {
            assert_eq!(entry["credit"].as_array().unwrap().len(), tokens);
            assert_eq!(entry["gradient_credit"].as_array().unwrap().len(), tokens);
            assert!(entry["gate"].as_f64().unwrap() <= 1.0 && entry["text"].is_string());
        }
        // The deletion curve starts, and the insertion curve ends, with all entries.
        let curves = &answer["curves"][0];
        let ends = [&curves["deletion"][0], &curves["insertion"][evidence.len()]];
        let total = answer["log_probability"].as_f64().unwrap();
        for end in ends {
            assert!((end.as_f64().unwrap() - total).abs() < 1e-3, "{end} {total}");
        }
    }

    // The haystack tasks use their own entries and are scored.
    let reply = "answer run --haystack world/haystack.jsonl --quiet --out";
    succeeds(at, &format!("{reply} replies.jsonl"));
    let (tasks, replies) =
        (lines(&at.join("world/haystack.jsonl")), lines(&at.join("replies.jsonl")));
    assert_eq!(replies.len(), tasks.len());
    for (task, reply) in tasks.iter().zip(&replies) {
        assert_eq!(task["answer"], reply["answer"]);
        let among = task["haystack"].as_array().unwrap();
        for ids in reply["retrieved"].as_array().unwrap() {
            let ids = ids.as_array().unwrap();
            assert!(ids.len() == 10 && ids.iter().all(|id| among.contains(id)));
        }
    }
    let score = "eval haystack --hyp replies.jsonl --json";
    let report: Value = serde_json::from_str(&succeeds(at, score)).unwrap();
    assert_eq!(report["detail"]["compliance"], 1.0);
    assert_eq!(report["n"], tasks.len());
    // The run also replies to tasks without gold answers.
    let text = fs::read_to_string(at.join("world/haystack.jsonl")).unwrap();
    let unlabelled = text.replace("\"answer\":\"no\",", "").replace("\"answer\":\"yes\",", "");
    let unlabelled = unlabelled.replace("\"needles\"", "\"others\"");
    assert!(!unlabelled.contains("answer\":"), "{unlabelled}");
    fs::write(at.join("world/unlabelled.jsonl"), unlabelled).unwrap();
    succeeds(at, "answer run --haystack world/unlabelled.jsonl --quiet --out unlabelled.jsonl");
    // Replies that the input already has are replaced.
    fs::copy(at.join("unlabelled.jsonl"), at.join("world/again.jsonl")).unwrap();
    succeeds(at, "answer run --haystack world/again.jsonl --quiet --out again.jsonl");
    assert_eq!(
        fs::read(at.join("again.jsonl")).unwrap(),
        fs::read(at.join("unlabelled.jsonl")).unwrap()
    );
    for (reply, other) in replies.iter().zip(lines(&at.join("unlabelled.jsonl"))) {
        assert_eq!(
            (&reply["response"], &reply["answers"]),
            (&other["response"], &other["answers"])
        );
    }
    for (old, new, part) in [
        ("smell of", "taste of", "unlabelled.jsonl:1: the question is not"),
        ("\"view\":2", "\"view\":9", "image not found"),
        ("\"haystack\":[", "\"haystack\":[1000000,", "use a haystack of this memory"),
        (
            "\"haystack\":[",
            "\"haystack\":[1000000,",
            "unlabelled.jsonl:1: no entry has the id 1000000",
        ),
        ("\"haystack\":[", "\"haystack\":[],\"was\":[", ":1: has no entries in `haystack`"),
        ("\"haystack\":[", "\"haystack\":[7,7,", "unlabelled.jsonl:1: the entry 7 occurs twice"),
        ("\"seed\":1", "\"seed\":7", "unlabelled.jsonl:1: is about the world of seed 7"),
        (
            "\"1-in-10-1\"",
            "\"1-in-10-0\"",
            "unlabelled.jsonl:2: the id `1-in-10-0` is already used in line 1",
        ),
    ] {
        fs::write(at.join("world/unlabelled.jsonl"), text.replace(old, new)).unwrap();
        refused(at, "answer run --haystack world/unlabelled.jsonl --quiet --out x.jsonl", part);
    }

    // Without a memory no entry is retrieved.
    succeeds(at, &format!("{answer} alone.jsonl -k 0"));
    let alone = lines(&at.join("alone.jsonl"));
    assert!(alone.iter().all(|answer| answer["evidence"].as_array().unwrap().is_empty()));

    for (line, part) in [
        (r#"{"id": 1, "question": "What?"}"#, "image"),
        (r#"{"id": 1, "question": "What?", "image": "none.png"}"#, "none.png"),
        ("no json", "a line is"),
        (r#"{"id": 1, "Question": "What?", "image": "v.png"}"#, "did you mean `question`?"),
        (r#"{"id": 1, "question": " ", "image": "v.png"}"#, "has an empty question"),
        (r#"{"id": null, "question": "What?", "image": "v.png"}"#, "has no id"),
    ] {
        fs::write(at.join("bad.jsonl"), format!("\u{feff}{line}\n")).unwrap();
        let answer = "answer run --questions bad.jsonl --out x.jsonl";
        refused(at, answer, "bad.jsonl:1");
        refused(at, answer, part);
        assert!(!at.join("x.jsonl").exists());
    }
    fs::write(at.join("bad.jsonl"), "\n").unwrap();
    refused(at, "answer run --questions bad.jsonl --out x.jsonl", "bad.jsonl: has no questions");
    fs::write(at.join("bad.jsonl"), b"\n\xff\n").unwrap();
    refused(at, "answer run --questions bad.jsonl --out x.jsonl", "bad.jsonl:2: is not UTF-8");

    // Image paths in questions from standard input start from the current folder.
    let few = fs::read(at.join("world/few.jsonl")).unwrap();
    let piped = ["answer", "../run", "--questions", "-", "--quiet", "--out", "../piped.jsonl"];
    running::printed(&running::engram_reading(&at.join("world"), &piped, few), "answer");
    let piped = lines(&at.join("piped.jsonl"));
    assert_eq!(piped.len(), answers.len());
    assert!(piped.iter().zip(&answers).all(|(one, other)| one["answer"] == other["answer"]));

    // No input is overwritten.
    let few = fs::read(at.join("world/few.jsonl")).unwrap();
    for output in
        ["world/few.jsonl", "world/../world/few.jsonl", "run/model.safetensors", "run/new"]
    {
        let part = if output.starts_with("run") {
            "write into the run"
        } else {
            "would overwrite the input"
        };
        refused(at, &format!("{answer} {output}"), part);
    }
    refused(at, &format!("{answer} world"), "is a folder");
    assert_eq!(fs::read(at.join("world/few.jsonl")).unwrap(), few);
    refused(at, &format!("{answer} x.jsonl -k 0 --evidence"), "--evidence needs retrieved entries");

    // Truncated questions give a note.
    let line = few.split(|byte| *byte == b'\n').next().unwrap();
    let mut long: Value = serde_json::from_slice(line).unwrap();
    long["text"] = "what is it ".repeat(30).into();
    fs::write(at.join("world/long.jsonl"), long.to_string()).unwrap();
    let output = engram(at, "answer run --questions world/long.jsonl --out long.jsonl --quiet");
    assert!(String::from_utf8_lossy(&output.stderr).contains("1 question, the first"));

    // The run's memory is replaced by the memory of another model.
    let made_by = at.join("run/memory/made-by.json");
    let text = fs::read_to_string(&made_by).unwrap();
    let hash = text.split('"').find(|word| word.len() == 64).unwrap();
    fs::write(&made_by, text.replace(hash, &"0".repeat(64))).unwrap();
    refused(at, &format!("{answer} x.jsonl"), "was built with another");
    fs::write(&made_by, text).unwrap();
    succeeds(at, &format!("{answer} x.jsonl"));

    refused(at, &format!("{answer} y.jsonl --memory nowhere"), "nowhere: no such folder");

    // A run without its memory builds the memory again.
    fs::remove_dir_all(at.join("run/memory")).unwrap();
    let output = engram(at, &format!("{answer} anew.jsonl"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is built again"));
    assert_eq!(fs::read(at.join("anew.jsonl")).unwrap(), fs::read(at.join("x.jsonl")).unwrap());

    // Damaged weights are refused.
    let weights = at.join("run/model.safetensors");
    let original = fs::read(&weights).unwrap();
    let mut damaged = original.clone();
    let end = damaged.len();
    damaged[end - 4000..].fill(0xff);
    fs::write(&weights, damaged).unwrap();
    refused(at, &format!("{answer} y.jsonl"), "model.safetensors does not match its SHA-256");
    fs::write(&weights, original).unwrap();

    // Options without effect are refused; the error for an image that does not decode has the line.
    refused(at, &format!("{answer} y.jsonl -k 0 --curves"), "--curves needs retrieved entries");
    let text = fs::read_to_string(at.join("world/few.jsonl")).unwrap();
    let image = text.lines().nth(1).unwrap().split("views/").nth(1).unwrap();
    let image = at.join("world/views").join(image.split('"').next().unwrap());
    let original = fs::read(&image).unwrap();
    fs::write(&image, &original[..40]).unwrap();
    refused(at, &format!("{answer} y.jsonl"), "few.jsonl, line ");
    fs::write(&image, original).unwrap();
    // A memory without a record of its model is not replaced silently.
    fs::rename(&made_by, at.join("made-by.json")).unwrap();
    refused(at, &format!("{answer} y.jsonl"), "remove it to build it again");
    fs::rename(at.join("made-by.json"), &made_by).unwrap();

    // An unfinished run is refused.
    fs::create_dir(at.join("stopped")).unwrap();
    fs::copy(at.join("run/recipe.toml"), at.join("stopped/recipe.toml")).unwrap();
    let stopped = "answer stopped --questions world/few.jsonl --out z.jsonl";
    refused(at, stopped, "is an unfinished REVEAL run");

    // A memory with keys and values of other widths is refused.
    let world = "--keys world/keys.npy --values world/values.npy --entries world/entries.jsonl";
    succeeds(at, &format!("memory build {world} --out other"));
    refused(at, &format!("{answer} z.jsonl --memory other"), "use the memory of this run");
}

#[test]
fn a_grid_of_two_configurations_writes_its_reports() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let grid = Path::new(env!("CARGO_MANIFEST_DIR")).join("train/recipes/reveal/ablations.toml");
    let small = "--set data.max_images=60 --set data.vocabulary=600 --set model.d_model=32 \
                 --set model.d_kv=8 --set model.d_ff=64 --set model.image_width=32 \
                 --set phase.images.steps=2 --set phase.warm-start.steps=2 \
                 --set phase.questions.steps=2 --set phase.fine-tune.steps=2";
    let grid = format!("grid {}", grid.display());
    let run = format!("{grid} --configurations main-eval-k-0 {small} --out g --quiet --json");
    let printed = succeeds(at, &run);
    let report: Value = serde_json::from_str(&printed).unwrap();
    let names = report["configurations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["main", "main-eval-k-0"]);
    assert_eq!(report["claims"][0]["id"], "reveal.memory_over_none");
    assert_eq!(report["claims"].as_array().unwrap().len(), 1);
    assert_eq!(fs::read_to_string(at.join("g/grid.json")).unwrap(), printed.trim_end());
    assert!(fs::read_to_string(at.join("g/grid.html")).unwrap().contains("<svg"));
    assert!(fs::read_to_string(at.join("g/grid.md")).unwrap().contains("| main |"));
    // Finished runs are not trained again: a second call uses them.
    let trained = || fs::metadata(at.join("g/seed-1/main/model.safetensors")).unwrap().modified();
    let before = trained().unwrap();
    assert_eq!(succeeds(at, &run), printed);
    assert_eq!(trained().unwrap(), before, "the main configuration was trained again");
    let command = report["configurations"][1]["command"].as_str().unwrap();
    assert!(command.contains(" --configurations main-eval-k-0 --seeds 1 --out g --set data.max_"));
    let program = &report["configurations"][0]["runs"][0]["programs"][0];
    assert!(program["sha256"].as_str().unwrap().len() == 64 && *program == report["program"]);

    refused(
        at,
        &format!("{grid} --configurations nothing --out g"),
        "has no configuration `nothing`; it has main",
    );
    refused(at, &format!("{grid} --set memory.kk=3 --out g"), "unknown key `kk`");
    refused(at, &format!("{grid} --set seed=3 --out g"), "--seeds sets the seeds");
    fs::create_dir(at.join("notes")).unwrap();
    fs::write(at.join("notes/notes.txt"), "").unwrap();
    refused(at, &format!("{grid} --out notes"), "has other files than");
    refused(at, "grid nowhere.toml --out g", "nowhere.toml");
}
