//! `engram train reveal` and `engram predict` on a small world.
#![allow(clippy::unwrap_used)]

mod running;

use std::fs;
use std::path::Path;

use running::{done, refused};
use serde_json::Value;

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_small_run_answers_with_evidence_and_refuses_what_does_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("train/recipes/reveal/laptop.toml");
    done(at, "data world world --pictures 60");
    let train = format!("train reveal --recipe {} --tiny --run run --quiet", recipe.display());
    let told = done(at, &train);
    assert!(told.contains("held_out") && told.contains("facts swapped"), "{told}");

    let questions = fs::read_to_string(at.join("world/questions.jsonl")).unwrap();
    let few: String = questions.lines().take(5).map(|line| format!("{line}\n")).collect();
    fs::write(at.join("world/few.jsonl"), few).unwrap();
    let predict = "predict run --input world/few.jsonl --quiet --output";
    let told = done(at, &format!("{predict} answers.jsonl --evidence --curves"));
    assert!(told.contains("Spearman") && told.contains("insertion"), "{told}");
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
        // All entries stand at the start of the deletion and at the end of the insertion.
        let curves = &answer["curves"][0];
        let ends = [&curves["deletion"][0], &curves["insertion"][evidence.len()]];
        let total = answer["log_probability"].as_f64().unwrap();
        for end in ends {
            assert!((end.as_f64().unwrap() - total).abs() < 1e-3, "{end} {total}");
        }
    }

    // Without a memory nothing is read.
    done(at, &format!("{predict} alone.jsonl -k 0"));
    let alone = lines(&at.join("alone.jsonl"));
    assert!(alone.iter().all(|answer| answer["evidence"].as_array().unwrap().is_empty()));

    for (line, named) in [
        (r#"{"id": 1, "question": "What?"}"#, "image"),
        (r#"{"id": 1, "question": "What?", "image": "none.png"}"#, "none.png"),
        ("no json", "a line is"),
    ] {
        fs::write(at.join("bad.jsonl"), format!("{line}\n")).unwrap();
        let predict = "predict run --input bad.jsonl --output x.jsonl";
        refused(at, predict, "bad.jsonl, line 1");
        refused(at, predict, named);
        assert!(!at.join("x.jsonl").exists());
    }
    // A memory of other widths.
    let world = "--keys world/keys.npy --values world/values.npy --entries world/entries.jsonl";
    done(at, &format!("memory build {world} --out other"));
    refused(at, &format!("{predict} x.jsonl --memory other"), "give the memory of this run");
}
