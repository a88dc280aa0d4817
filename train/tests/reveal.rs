//! The REVEAL study on a small world: a run that crashes during a refresh, phases, models without
//! memory or gate, evidence.

use std::path::Path;

use engram_infer::reveal::evidence::{area, order};
use engram_memory::Memory;
use engram_train::grid::{Grid, GridOptions, GridReport, Verdict, measure_finished, run_grid};
use engram_train::studies::ALL;
use engram_train::studies::reveal::evaluation::FinishedRun;
use engram_train::studies::reveal::run::{RevealSummary, TestAnswer, train_reveal};
use engram_train::{Program, RunOptions, TrainError};

use crate::runs::{
    assert_same_bytes, crash_at_checkpoint, quiet_grid, recipe, resumed, with_causes,
};

pub const RECIPE: &str = r#"
study = "reveal"
seed = 1

[data]
max_images = 40
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
reencoded_fraction = 0.5
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
name = "images"
steps = 1
feed = { examples = "images", contrastive = 1.0, batch = 4 }

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

fn run(folder: &Path, set: &[&str], options: RunOptions) -> RevealSummary {
    try_run(folder, set, options).unwrap()
}

fn try_run(folder: &Path, set: &[&str], options: RunOptions) -> Result<RevealSummary, TrainError> {
    let options = RunOptions { run: folder.to_path_buf(), quiet: true, ..options };
    train_reveal(&mut recipe(RECIPE, set)?, &options)
}

#[test]
fn a_run_that_crashes_during_a_refresh_resumes_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, crashed) = (folder.path().join("whole"), folder.path().join("crashed"));
    let summary = run(&whole, &[], RunOptions::default());
    assert_eq!(summary.check_failures, Vec::<String>::new());
    // Built before step 4, refreshed from steps 6 and 12; each refresh is adopted three steps
    // later.
    let metrics = std::fs::read_to_string(whole.join("metrics.jsonl")).unwrap();
    let metrics =
        metrics.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let staleness: Vec<f64> = metrics
        .filter_map(|line| {
            line.as_object()?.iter().find(|(key, _)| key.ends_with("memory_staleness"))?.1.as_f64()
        })
        .collect();
    assert_eq!(staleness, [0.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 3.0]);
    // Resumed from the end of the warm start, from step 7 and from step 11. Step 7 is within the
    // refresh that starts before step 6 and is adopted before step 9. Step 11 is before the next
    // refresh.
    for step in [7, 11, 15] {
        let _ = std::fs::remove_dir_all(&crashed);
        crash_at_checkpoint(&crashed, step, |options| try_run(&crashed, &[], options));
        let resumed = run(&crashed, &[], resumed());
        let files = ["model.safetensors", "metrics.jsonl", "test.jsonl", "summary.json"];
        assert_same_bytes(&whole, &crashed, &files);
        // Compared as text: recall@10 of four entries is NaN.
        let metrics = [&resumed, &summary].map(|run| serde_json::to_string(&run.metrics).unwrap());
        assert_eq!(metrics[0], metrics[1]);
    }
}

/// Checks that training searched codes of the keys, which are not normalised.
fn check_codes(run: &Path) {
    let generation = Memory::open(run.join("memory")).unwrap().generation();
    let manifest = generation.manifest();
    assert!(!manifest.normalised);
    let segment = manifest.segments.iter().max_by_key(|segment| segment.rows).unwrap();
    assert!(segment.rows >= 256 && segment.columns.contains_key("codes"), "{segment:?}");
}

#[test]
fn models_without_memory_or_gate_are_trained() {
    let folder = tempfile::tempdir().unwrap();
    for (name, set) in [
        ("no-memory", &["memory.k=0", "phase.fine-tune.feed.contrastive=0"][..]),
        ("no-gate", &["model.gate=false"]),
        ("frozen", &["memory.refresh_every=0", "memory.reencoded_fraction=0"]),
        ("int4-values", &["memory.value_type=int4"]),
        ("one-source", &["data.without_sources=[\"kg\", \"pairs\", \"vqa\"]"]),
    ] {
        let summary = run(&folder.path().join(name), set, RunOptions::default());
        assert!(summary.exact_match("held_out").is_some(), "{name}");
        assert_eq!(summary.swap.is_some(), name != "no-memory", "{name}");
        if matches!(name, "no-gate" | "frozen" | "int4-values") {
            check_codes(&folder.path().join(name));
        }
    }
}

#[test]
fn invalid_settings_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for (set, expected) in [
        ("phase.fine-tune.feed.own_knowledge=1.5", "own_knowledge"),
        ("phase.fine-tune.feed.temperature=0", "temperature"),
        ("phase.images.feed.batch=1", "batch"),
        ("memory.reencoded_fraction=2", "reencoded_fraction"),
        ("memory.refresh_lag=6", "refresh_lag"),
        ("memory.value_type=int2", "int2"),
        ("data.without_sources=[\"wikidata\"]", "kg, passages, pairs, vqa"),
        ("data.without_sources=[\"kg\", \"passages\", \"pairs\", \"vqa\"]", "memory.k"),
        ("data.max_images=7", "40 to 1881"),
        ("model.num_heads=0", "num_heads"),
        ("model.patch_size=5", "patch_size"),
        ("model.value_tokens=0", "value_tokens"),
    ] {
        let run = folder.path().join("run");
        let message = with_causes(&try_run(&run, &[set], RunOptions::default()).unwrap_err());
        assert!(message.contains(expected), "{set}: {message}");
        let _ = std::fs::remove_dir_all(&run);
    }
}

#[test]
fn entries_are_ordered_by_attribution_and_curves_have_areas() {
    let attribution = [vec![0.1, -0.2], vec![1.0, 0.5], vec![0.0, 0.3]];
    assert_eq!(order(&attribution), [1, 2, 0]);
    assert_eq!(area(&[0.0, -1.0, -3.0]), -1.25);
    assert_eq!(area(&[-2.0]), 0.0);
}

#[test]
fn a_run_starts_from_the_weights_of_another_run() {
    let folder = tempfile::tempdir().unwrap();
    let before = folder.path().join("before");
    run(&before, &["phase.fine-tune.steps=0"], RunOptions::default());
    let start = format!("start.run={}", before.display());
    let later_phases = [start.as_str(), "phase.images.steps=0", "phase.warm-start.steps=0"];
    let after = folder.path().join("after");
    let summary = run(&after, &later_phases, RunOptions::default());
    assert_eq!(summary.steps, 12);
    let recipe = std::fs::read_to_string(after.join("recipe.toml")).unwrap();
    assert!(recipe.contains("sha256 = \"") && !recipe.contains("warm-start"), "{recipe}");
    // With a negligible step, the weights stay equal.
    let negligible_step = [
        later_phases.as_slice(),
        &["optimiser.learning_rate=1e-30", "optimiser.rule.weight_decay=0"],
    ];
    let unchanged_run = folder.path().join("unchanged");
    run(&unchanged_run, &negligible_step.concat(), RunOptions::default());
    let weights = |run: &Path| std::fs::read(run.join("model.safetensors")).unwrap();
    assert!(weights(&unchanged_run) == weights(&before) && weights(&after) != weights(&before));

    // The tokenizer comes from the run in `[start]`, also with other data.
    let other_data = folder.path().join("other-data");
    let few_images = [later_phases.as_slice(), &["data.max_images=60"]].concat();
    run(&other_data, &few_images, RunOptions::default());
    let tokenizer = |run: &Path| std::fs::read(run.join("tokenizer.json")).unwrap();
    assert!(tokenizer(&other_data) == tokenizer(&before));
    assert!(!FinishedRun::open(&other_data).unwrap().evaluate(None, &[], None).unwrap().is_empty());

    // A run in `[start]` may be moved before the run is resumed.
    let moved = folder.path().join("moved");
    std::fs::rename(&before, &moved).unwrap();
    let moved_start = format!("start.run={}", folder.path().join("./moved").display());
    let moved_set = [&[moved_start.as_str()], &later_phases[1..]].concat();
    let resumed = run(&after, &moved_set, resumed());
    assert_eq!(resumed.recipe_hash, summary.recipe_hash);
    std::fs::rename(&moved, &before).unwrap();

    let cut = folder.path().join("cut");
    std::fs::create_dir(&cut).unwrap();
    std::fs::write(cut.join("model.safetensors"), &weights(&before)[..5_000]).unwrap();
    let cut = format!("start.run={}", cut.display());
    for (set, expected) in [
        (cut.as_str(), "cut/model.safetensors"),
        ("start.sha256=abc", "does not match"),
        ("start.run=nowhere", "nowhere/model.safetensors"),
        ("model.value_tokens=3", "value_perceiver"),
        ("start.steps=3", "unknown key `steps`"),
    ] {
        let run = folder.path().join("refused");
        let settings = [later_phases.as_slice(), &[set]].concat();
        let message = with_causes(&try_run(&run, &settings, RunOptions::default()).unwrap_err());
        assert!(message.contains(expected), "{message}");
        // Faults of the file itself are found before the run folder is created.
        assert!(!set.starts_with("start.") || !run.exists(), "{set}");
        let _ = std::fs::remove_dir_all(&run);
    }
    // A summary of another version is refused.
    std::fs::write(before.join("summary.json"), "{\"seed\": 1}").unwrap();
    let error = RevealSummary::read(&before).unwrap_err().to_string();
    assert!(error.contains("before/summary.json") && error.contains("train it again"), "{error}");
}

const GRID: &str = r#"
recipe = "test.toml"
main = "main"
shared = ["images", "warm-start"]
set = ["phase.fine-tune.steps=7", "memory.refresh_every=0", "memory.k=10"]

[[configuration]]
name = "main"
description = "no changes"

[[configuration]]
name = "eval-k-0"
run_of = "main"
k = 0

[[configuration]]
name = "only-pairs"
run_of = "main"
without_sources = ["kg", "passages", "vqa"]

[[configuration]]
name = "k-2"
set = ["memory.k=2"]

[[configuration]]
name = "no-gate"
set = ["model.gate=false"]

[[configuration]]
name = "cold-start"
set = ["phase.images.steps=0", "phase.warm-start.steps=0"]

[[claim]]
id = "test.same"
claim = "a configuration is as good as itself"
better = "main"
worse = "main"
within = 0.1

[[claim]]
id = "test.vqa"
claim = "the source vqa is needed to retrieve its entries"
better = "main"
worse = "only-pairs"
metric = "recall_at_10"
source = "vqa"
"#;

#[test]
fn a_grid_shares_phases_trains_nothing_twice_and_refuses_invalid_files() {
    let folder = tempfile::tempdir().unwrap();
    let grid =
        |text: &str| Grid::parse(text, Path::new("grid.toml"), RECIPE, Path::new("test.toml"), ALL);
    let options = quiet_grid(folder.path(), 2);
    let mut started = Vec::new();
    let whole = grid(GRID).unwrap();
    let report: GridReport =
        run_grid(&whole, &options, &mut |progress| started.push(progress.clone())).unwrap();
    // Six runs per seed: two runs of shared phases (one for the configuration without a gate), and
    // four configurations.
    assert_eq!(started.len(), 12);
    assert_eq!((started[0].runs_left, started[11].runs_left), (12, 1));
    let test_answers =
        |name: &str| TestAnswer::read(&folder.path().join("seed-1").join(name).join("test.jsonl"));
    let (main, without_memory) = (test_answers("main").unwrap(), test_answers("eval-k-0").unwrap());
    assert!(
        main.iter().all(|answer| answer.retrieved.len() == 10)
            && without_memory.len() == main.len()
    );
    assert!(without_memory.iter().all(|answer| answer.retrieved.is_empty()));
    let source_of = |id: &i64| {
        let question = main.iter().find(|question| question.entry == Some(*id));
        question.and_then(|question| question.source.as_deref())
    };
    let only_pairs = test_answers("only-pairs").unwrap();
    assert!(only_pairs.iter().all(|answer| answer.retrieved.len() == 10));
    let sources: Vec<&str> =
        only_pairs.iter().flat_map(|answer| &answer.retrieved).filter_map(source_of).collect();
    assert!(!sources.is_empty() && sources.iter().all(|source| *source == "pairs"));
    let mut sources = main.iter().flat_map(|answer| &answer.retrieved).filter_map(source_of);
    assert!(sources.any(|source| source != "pairs"));
    assert!(test_answers("k-2").unwrap().iter().all(|answer| answer.retrieved.len() == 2));

    // Runs with other seeds get the same tasks.
    let needles = |seed: u64| {
        let run = folder.path().join(format!("seed-{seed}/main"));
        RevealSummary::read(&run).unwrap().needles.remove(0)
    };
    let needles = [needles(1), needles(2)];
    for metrics in &needles {
        let num_correct = metrics.tasks.iter().filter(|task| task.correct).count();
        assert_eq!(metrics.accuracy.value, num_correct as f64 / metrics.accuracy.n as f64);
    }
    let tasks = needles.map(|metrics| {
        metrics.tasks.into_iter().map(|task| (task.id, task.needles)).collect::<Vec<_>>()
    });
    assert!(tasks[0].len() == 100 && tasks[0] == tasks[1]);

    let same = report.claim("test.same").unwrap();
    // Two images allow no verdict, even for equal answers.
    assert_eq!(same.test.measure.value, 0.0);
    assert_eq!(same.test.verdict, Verdict::NotDecided, "{same:?}");
    let vqa = report.claim("test.vqa").unwrap();
    let [worse, better] = [&vqa.compared[0].measure, &vqa.compared[1].measure];
    assert!(better.value > 0.0 && worse.value == 0.0, "{vqa:?}");
    assert_eq!(vqa.test.measure.value, better.value);
    let k_2 = report
        .configurations
        .iter()
        .find(|configuration| configuration.settings.name == "k-2")
        .unwrap();
    assert!(
        k_2.metric("recall_at_10").unwrap().value.is_nan()
            && k_2.metric("recall_at_1").unwrap().value.is_finite()
    );
    assert_eq!(k_2.settings.settings_text(), "`memory.k=2`");

    // Nothing runs twice, and the results are the same.
    started.clear();
    let repeated =
        run_grid(&whole, &options, &mut |progress| started.push(progress.clone())).unwrap();
    let json = |report: &GridReport| serde_json::to_value(report).unwrap();
    assert!(started.is_empty() && json(&repeated) == json(&report));
    assert!(json(&repeated)["configurations"][3]["metrics"][2]["value"].is_null());
    // The same holds for another spelling of the folder.
    let spelled = GridOptions { out: folder.path().join("seed-1/.."), ..options.clone() };
    run_grid(&whole, &spelled, &mut |progress| panic!("{progress:?}")).unwrap();

    // Runs of another program are reused only on request.
    let k_2 = &json(&report)["configurations"][3]["runs"];
    assert_eq!(k_2[0]["programs"][0]["sha256"], Program::running().unwrap().sha256);
    assert!(k_2[0]["recipe_hash"] != k_2[1]["recipe_hash"]);
    let programs = folder.path().join("seed-2/k-2/programs.json");
    let original = std::fs::read_to_string(&programs).unwrap();
    std::fs::write(&programs, original.replace("\"sha256\": \"", "\"sha256\": \"0")).unwrap();
    let error = run_grid(&whole, &options, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("seed-2/k-2: was trained by") && error.contains("accept"), "{error}");
    let reuse = GridOptions { reuse: true, ..options.clone() };
    let reused = run_grid(&whole, &reuse, &mut |progress| panic!("{progress:?}")).unwrap();
    assert_eq!(reused.reused, ["seed 2, k-2"]);
    assert_eq!(reused.notes()[0], "Runs trained by a different program: seed 2, k-2.");

    // A grid that was stopped has a report on the configurations that are finished.
    let partial = measure_finished(&whole, &reuse).unwrap().unwrap();
    assert!(partial.unfinished.is_empty() && partial.claims == reused.claims);
    let summary = folder.path().join("seed-2/k-2/summary.json");
    let finished = std::fs::read(&summary).unwrap();
    std::fs::remove_file(&summary).unwrap();
    let partial = measure_finished(&whole, &reuse).unwrap().unwrap();
    assert_eq!(partial.unfinished, ["k-2"]);
    assert_eq!(partial.configurations.len() + 1, reused.configurations.len());
    assert!(partial.notes()[0].contains("Stopped before these configurations finished: k-2"));
    std::fs::write(&summary, finished).unwrap();
    std::fs::remove_file(&programs).unwrap();
    let error = run_grid(&whole, &options, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("does not record which program"), "{error}");
    std::fs::write(&programs, original).unwrap();

    let other = whole.clone().with_settings(&["batch.examples=4".to_owned()]).unwrap();
    let other = other.select(&["cold-start"]);
    assert_eq!(other.configurations.len(), 2);
    let cold_start = grid(&GRID.replace("main = \"main\"", "main = \"cold-start\"")).unwrap();
    let cold_start =
        cold_start.with_settings(&["batch.examples=4".to_owned()]).unwrap().select(&["cold-start"]);
    let error = run_grid(&cold_start, &options, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("cold-start: has a finished run with other settings"), "{error}");

    for (old, new, expected) in [
        ("k = 0", "kk = 0", "grid.toml:11: unknown key `kk`"),
        ("run_of = \"main\"\nk", "run_of = \"k-2\"\nk", "grid.toml:11: `run_of` names `k-2`"),
        ("run_of = \"main\"\nk", "k", "grid.toml:11: `k` needs `run_of`"),
        ("\"k-2\"", "\"main\"", "grid.toml:21: `main` is the name of another configuration"),
        ("\"k-2\"", "\"../k-2\"", "it becomes a folder name"),
        ("worse = \"main\"", "worse = \"mian\"", "grid.toml:33: there is no configuration `mian`"),
        ("main = \"main\"", "main = \"mian\"", "`main` names `mian`"),
        ("\"warm-start\"]", "\"warm\"]", "`warm` is not a phase of test.toml; the phases are"),
        ("memory.k=2", "memory.l=2", "configuration `k-2`: --set memory.l=2: unknown key `l`"),
        ("within = 0.1", "within = 0", "grid.toml:33: `within`"),
        (
            "\"recall_at_10\"",
            "\"swapped_answer\"",
            "claim `test.vqa`: `swapped_answer` needs `CONFIGURATION:SYSTEM`",
        ),
        (
            "worse = \"main\"",
            "worse = \"main:new_after\"",
            "claim `test.same`: `exact_match` has no systems; remove `:new_after`",
        ),
        (
            "set = [\"memory.k=2\"]",
            "run_of = \"only-pairs\"",
            "grid.toml:21: `run_of` names `only-pairs`, which is not trained; use `main`",
        ),
        (
            "\"passages\", \"vqa\"",
            "\"wiki\"",
            "grid.toml:16: configuration `only-pairs`: `without_sources` names",
        ),
        ("\"vqa\"]", "\"vqa\", \"pairs\"]", "grid.toml:16: configuration `only-pairs`"),
        ("test.vqa", "test.same", "grid.toml:40: `test.same` is the id of another claim"),
        ("source = \"vqa\"", "source = \"wiki\"", "grid.toml:40: `source`: `wiki` is unknown"),
        ("source = \"vqa\"", "part = \"all\"", "grid.toml:40: `part`: `all` is unknown"),
        (
            "worse = \"only-pairs\"",
            "worse = \"k-2\"",
            "grid.toml:40: claim `test.vqa`: configuration `k-2` retrieves 2",
        ),
        ("memory.k=2", "data.entries=['x']", "grid.toml:21: configuration `k-2`: test.toml"),
    ] {
        assert!(GRID.contains(old), "{old}");
        let error = grid(&GRID.replacen(old, new, 1)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_configuration_is_evaluated_after_its_memory_was_removed() {
    let folder = tempfile::tempdir().unwrap();
    let grid =
        |text: &str| Grid::parse(text, Path::new("grid.toml"), RECIPE, Path::new("test.toml"), ALL);
    let options = quiet_grid(folder.path(), 1);
    run_grid(&grid(GRID).unwrap().select(&["k-2"]), &options, &mut |_| {}).unwrap();
    let seed = folder.path().join("seed-1");
    assert!(seed.join("main/memory").is_dir() && !seed.join("k-2/memory").exists());
    let weights = std::fs::read(seed.join("k-2/model.safetensors")).unwrap();
    // An added configuration evaluates a run that finished earlier.
    let added = "[[configuration]]\nname = \"k-2-again\"\nrun_of = \"k-2\"\nk = 2\n\n[[claim]]";
    let extended_grid = grid(&GRID.replacen("[[claim]]", added, 1)).unwrap().select(&["k-2-again"]);
    assert_eq!(extended_grid.configurations.len(), 3);
    run_grid(&extended_grid, &options, &mut |progress| panic!("{progress:?}")).unwrap();
    let read = |name: &str| std::fs::read(seed.join(name).join("test.jsonl")).unwrap();
    assert!(read("k-2-again") == read("k-2"), "the re-encoded memory gives other answers");
    assert!(weights == std::fs::read(seed.join("k-2/model.safetensors")).unwrap());
}
