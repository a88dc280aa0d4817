//! The REVEAL study on a small world: a run that is stopped with a refresh under way, phases, models
//! without memory or gate, evidence.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use engram_train::studies::reveal::evidence::{area, order};
use engram_train::studies::reveal::run::{RevealSummary, train_reveal};
use engram_train::{Recipe, RecipeOptions, RunOptions};

const RECIPE: &str = r#"
study = "reveal"
seed = 1

[data]
pictures = 40
vocabulary = 300
evaluated_questions = 20

[model]
d_model = 16
num_heads = 2
d_kv = 8
d_ff = 16
text_layers = 1
fusion_layers = 1
head_layers = 1
decoder_layers = 1
image_size = 16
patch_size = 8
image_width = 16
image_heads = 2
image_ff = 16
image_layers = 1
value_tokens = 2
key_dim = 8

[memory]
k = 4
reencoded = 0.5
refresh_every = 6
refresh_lag = 3

[batch]
examples = 8

[optimiser]
learning_rate = 1e-3

[evaluation]
every_epochs = 0
keep_best = false

[checkpoint]
every_steps = 4

[log]
every_steps = 1
tensorboard = false

[gradient_check]
allow = ["**"]

[[phase]]
name = "pictures"
steps = 1
feed = { examples = "pictures", contrastive = 1.0, batch = 4 }

[[phase]]
name = "warm-start"
steps = 2
feed = { examples = "entries", knowledge = "own", contrastive = 0.5 }

[[phase]]
name = "fine-tune"
steps = 12
feed = { examples = "questions", knowledge = "retrieved", contrastive = 0.2, own_knowledge = 0.2 }

[check]
files = ["model.safetensors"]
"#;

fn run(folder: &Path, set: &[&str], options: RunOptions) -> Option<RevealSummary> {
    let set = set.iter().map(|s| s.to_string()).collect();
    let options_of_recipe = RecipeOptions { tiny: false, set };
    let mut recipe = Recipe::parse(RECIPE, Path::new("test.toml"), &options_of_recipe).unwrap();
    let options = RunOptions { run: folder.to_path_buf(), quiet: true, ..options };
    train_reveal(&mut recipe, &options).unwrap()
}

#[test]
fn a_run_stopped_with_a_refresh_under_way_resumes_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, stopped) = (folder.path().join("whole"), folder.path().join("stopped"));
    let summary = run(&whole, &[], RunOptions::default()).unwrap();
    assert_eq!(summary.check_failures, Vec::<String>::new());
    // The fine-tuning's checkpoint of step 7 has the refresh that started before step 6 and is
    // adopted before step 9; step 11's has its successor's start behind it.
    for stop in [4, 5, 8, 12] {
        let _ = std::fs::remove_dir_all(&stopped);
        let options = RunOptions { stop_after_steps: Some(stop), ..RunOptions::default() };
        assert!(run(&stopped, &[], options).is_none());
        let resumed = run(&stopped, &[], RunOptions { resume: true, ..RunOptions::default() });
        let resumed = resumed.unwrap();
        for file in ["model.safetensors", "metrics.jsonl", "test.jsonl", "summary.json"] {
            let read = |run: &Path| std::fs::read(run.join(file)).unwrap();
            assert!(read(&whole) == read(&stopped), "{file} differs after a stop at {stop}");
        }
        assert_eq!(resumed.figures, summary.figures);
    }
}

#[test]
fn a_model_without_memory_and_one_without_gate_are_trained_as_well() {
    let folder = tempfile::tempdir().unwrap();
    for (name, set) in [
        ("no-memory", &["memory.k=0", "phase.fine-tune.feed.contrastive=0"][..]),
        ("no-gate", &["model.gate=false"]),
        ("frozen", &["memory.refresh_every=0", "memory.reencoded=0"]),
        ("one-source", &["data.without_sources=[\"kg\", \"pairs\", \"vqa\"]"]),
    ] {
        let summary = run(&folder.path().join(name), set, RunOptions::default()).unwrap();
        assert!(summary.exact_match("held_out").is_some(), "{name}");
        assert_eq!(summary.swap.is_some(), name != "no-memory", "{name}");
    }
}

#[test]
fn settings_that_no_run_can_work_with_are_refused_with_their_line() {
    let folder = tempfile::tempdir().unwrap();
    for (set, named) in [
        ("phase.fine-tune.feed.own_knowledge=1.5", "own_knowledge"),
        ("phase.fine-tune.feed.temperature=0", "temperature"),
        ("phase.pictures.feed.batch=1", "batch"),
        ("memory.reencoded=2", "reencoded"),
        ("memory.refresh_lag=6", "refresh_lag"),
        ("data.without_sources=[\"wikidata\"]", "kg, passages, pairs, vqa"),
        ("data.without_sources=[\"kg\", \"passages\", \"pairs\", \"vqa\"]", "memory.k"),
        ("data.pictures=7", "40 to 1881"),
        ("model.num_heads=0", "num_heads"),
        ("model.patch_size=5", "patch_size"),
        ("model.value_tokens=0", "value_tokens"),
    ] {
        let options = RecipeOptions { tiny: false, set: vec![set.to_owned()] };
        let mut recipe = Recipe::parse(RECIPE, Path::new("test.toml"), &options).unwrap();
        let run = folder.path().join("run");
        let options = RunOptions { run: run.clone(), quiet: true, ..RunOptions::default() };
        let error = train_reveal(&mut recipe, &options).unwrap_err();
        let mut told = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            told = format!("{told}: {error}");
            cause = error.source();
        }
        assert!(told.contains(named), "{set}: {told}");
        let _ = std::fs::remove_dir_all(&run);
    }
}

#[test]
fn credit_orders_entries_and_curves_have_areas() {
    let credit = [vec![0.1, -0.2], vec![1.0, 0.5], vec![0.0, 0.3]];
    assert_eq!(order(&credit), [1, 2, 0]);
    assert_eq!(area(&[0.0, -1.0, -3.0]), -1.25);
    assert_eq!(area(&[-2.0]), 0.0);
}
