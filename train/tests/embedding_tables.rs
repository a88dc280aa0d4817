//! Training with embedding tables that the ranks keep in parts: the same bytes as with whole
//! tables, for any placement and any number of ranks.

use std::fs;
use std::path::{Path, PathBuf};

use engram_train::studies::patent::run::train_patent;
use engram_train::{RunOptions, RunSummary, TrainError};
use tempfile::tempdir;

use crate::distributed;
use crate::runs::{
    self, assert_equal_files, crash_at_checkpoint, finished, lasting_files, recipe, resumed,
};
use crate::toy::{Overrides, Words};

/// Two phases with different learning rates; the first step of the second one starts from the
/// tables of the first. With layer-wise rates, averages and a low limit of the gradient norm.
const PHASES: &str = r#"
study = "patent"
seed = 4
data = { dir = "", folds = 0 }
model = { weights = "", fresh = { hidden_size = 32, num_layers = 1, num_heads = 2, intermediate_size = 48 } }
batch = { examples = 24, accumulate = 4 }
optimiser = { learning_rate = 2e-3, clip_norm = 0.5, layer_rate_decay = 0.9 }
ema = { decay = 0.8 }
evaluation = { every_epochs = 1 }
checkpoint = { every_steps = 3 }
log = { every_steps = 1, tensorboard = false }
group = [{ match = "**.token_type_embeddings.*", rate = 0.5 }]
check = { files = ["model.safetensors"] }

[[phase]]
name = "first"
steps = 5

[[phase]]
name = "second"
learning_rate = 1e-3
steps = 4
group = [{ match = "**.word_embeddings.*", rate = 0.7, rule = { kind = "sgd", momentum = 0.9 } }]
"#;

const ALL: &str = r#"embedding_tables.match=["**_embeddings.weight"]"#;

/// Trains on `size` ranks, and returns the result of rank 0, whose run folder is `run`.
fn train_on(size: usize, run: &Path, set: &[&str], options: &RunOptions) -> Result<(), TrainError> {
    let mut results = runs::train_on(size, run, |own| {
        let RunOptions { resume, stop, .. } = options.clone();
        let options = RunOptions { resume, stop, ..own };
        train_patent(&mut recipe(PHASES, set)?, &options).map(drop)
    });
    if results[0].is_err() {
        return results.swap_remove(0);
    }
    finished(results);
    Ok(())
}

/// Trains a new run to its end.
fn complete(size: usize, run: &Path, set: &[&str]) {
    train_on(size, run, set, &RunOptions::default()).expect("a run");
}

/// The checkpoints, weights, metrics and scores.
fn files(run: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    // These contain the recipe.
    let with_recipe = ["recipe.toml", "summary.json", "run.sha256"];
    let mut files = lasting_files(run);
    files.retain(|(name, _)| !with_recipe.iter().any(|other| name.ends_with(other)));
    files
}

#[track_caller]
fn assert_equal_runs(a: &Path, b: &Path) {
    let (a, b) = (files(a), files(b));
    for file in ["model.safetensors", "optimiser.safetensors"] {
        assert!(a.iter().any(|(name, _)| name.ends_with(file)), "{file}");
    }
    assert_equal_files(&a, &b);
}

#[test]
fn any_placement_on_any_number_of_ranks_gives_the_bytes_of_whole_tables() {
    let folder = tempdir().expect("a temporary folder");
    let whole = folder.path().join("whole");
    complete(1, &whole, &[]);
    let placements: [&[&str]; 5] = [
        &[],
        &["embedding_tables.row_threshold=0"],
        &["embedding_tables.column_threshold=20"],
        &["embedding_tables.strategy=memory_balanced", "embedding_tables.column_threshold=500"],
        &["embedding_tables.strategy=memory_optimised", "embedding_tables.row_threshold=10000"],
    ];
    for (number, placement) in placements.iter().enumerate() {
        for size in [1, 2, 4].iter().filter(|size| number > 0 || **size < 4) {
            let run = folder.path().join(format!("{number}-{size}"));
            complete(*size, &run, &[&[ALL], *placement].concat());
            assert_equal_runs(&whole, &run);
        }
    }
}

/// Other settings of the recipe, each with whole tables and in parts.
#[test]
fn other_settings_give_the_bytes_of_whole_tables() {
    let folder = tempdir().expect("a temporary folder");
    let low_rank = r#"low_rank=[{ match = "encoder.**.query", rank = 2, alpha = 4.0 }]"#;
    let trained = r#"group=[{ match = "**", rate = 1 }]"#;
    let cases: [&[&str]; 7] = [
        &["model.layout=bi_encoder"],
        &["compute.recompute=block"],
        &["data.folds=2"],
        &["batch.accumulate=3", "phase.0.steps=7"],
        &["evaluation.keep_best=true", "evaluation.early_stop=1", "evaluation.every_steps=1"],
        &[r#"optimiser.rule={ kind = "lion" }"#, "optimiser.layer_rate_decay=1.0"],
        &[low_rank, trained],
    ];
    for (number, case) in cases.into_iter().enumerate() {
        let runs = ["whole", "parts"].map(|name| folder.path().join(format!("{number}-{name}")));
        complete(1, &runs[0], case);
        let in_parts = [&[ALL, "embedding_tables.row_threshold=1000"], case].concat();
        complete(2, &runs[1], &in_parts);
        assert_equal_runs(&runs[0], &runs[1]);
    }
}

/// Both passes of a step look up rows.
#[test]
fn other_weights_can_be_perturbed() {
    let folder = tempdir().expect("a temporary folder");
    let awp = ["awp.start_epoch=0", "awp.epsilon=0.01", r#"awp.match=["encoder.**.weight"]"#];
    let runs = ["plain", "whole", "parts"].map(|name| folder.path().join(name));
    complete(1, &runs[0], &[]);
    complete(1, &runs[1], &awp);
    let in_parts = [&[ALL, "embedding_tables.row_threshold=0"], &awp[..]].concat();
    complete(2, &runs[2], &in_parts);
    assert_equal_runs(&runs[1], &runs[2]);
    let weights = runs.map(|run| fs::read(run.join("model.safetensors")).expect("weights"));
    assert!(weights[0] != weights[1], "the perturbation has no effect");
}

#[test]
fn a_crashed_run_continues_on_another_number_of_ranks() {
    let folder = tempdir().expect("a temporary folder");
    let whole = folder.path().join("whole");
    complete(1, &whole, &[]);
    let set = [ALL, "embedding_tables.row_threshold=2000"];
    // The runs continue at the checkpoints of steps 3, 5 (the end of the first phase) and 8.
    for (step, before, after) in [(5, 2, 3), (8, 3, 1), (9, 1, 4)] {
        let run = folder.path().join(step.to_string());
        crash_at_checkpoint(&run, step, |options| train_on(before, &run, &set, &options));
        train_on(after, &run, &set, &resumed()).expect("a run");
        assert_equal_runs(&whole, &run);
    }
}

#[test]
fn settings_that_do_not_fit_are_errors_with_their_line() {
    let folder = tempdir().expect("a temporary folder");
    let words =
        r#"group=[{ match = "**", rate = 0 }, { match = "**.word_embedings.*", rate = 1 }]"#;
    let low_rank = r#"low_rank=[{ match = "encoder.**.query", rank = 2, alpha = 4.0 }]"#;
    let cases: [(&[&str], &str); 11] = [
        (&[r#"embedding_tables.match=["**.words.weight"]"#], "`embeddings.word_embeddings.weight`"),
        (&["embedding_tables.match=[]"], "is empty"),
        (&[ALL, "awp.epsilon=0.01"], "cannot be perturbed"),
        (&[ALL, r#"optimiser.rule={ kind = "adafactor" }"#], "the whole table (phase `first`)"),
        (&[ALL, r#"phase.1.group.0.rule={ kind = "muon" }"#], "the whole table (phase `second`)"),
        (
            &[ALL, "phase.1.group.0.rate=0"],
            "is frozen, and only trained tables can be kept in parts (phase `second`)",
        ),
        (&[ALL, "group.0.rate=0"], "is frozen"),
        (&[ALL, words], "most similar name is `embeddings.word_embeddings.weight`"),
        (&[ALL, low_rank, r#"group=[{ match = "head.**", rate = 1 }]"#], "is frozen"),
        (&[ALL, "start.run=elsewhere"], "cannot be combined with [start]"),
        (&[ALL, "awp.match=[\"**.word_embeddings.weight\"]"], "cannot be perturbed"),
    ];
    for (number, (set, expected)) in cases.into_iter().enumerate() {
        let run = folder.path().join(number.to_string());
        let error =
            train_on(1, &run, set, &RunOptions::default()).expect_err("an error").to_string();
        let has_position = error.starts_with("test.toml:") || error.starts_with("--set ");
        assert!(has_position && error.contains(expected), "{error}");
        assert!(!run.join("model.safetensors").exists());
    }
}

const WORDS_BY_ROW: [&str; 2] =
    [r#"embedding_tables.match=["words.weight"]"#, "embedding_tables.row_threshold=0"];

/// The last step of an epoch has one micro-batch, so that other ranks have none.
const WORDS: [&str; 8] = [
    "batch.accumulate=3",
    "optimiser.clip_norm=0.4",
    "ema.decay=0.9",
    "evaluation.every_steps=2",
    "checkpoint.every_steps=2",
    "log.every_steps=1",
    "log.tensorboard=false",
    "phase.second.steps=0",
];

/// Trains the toy study with words on `size` ranks, each with its `overrides`. Returns the results
/// by rank. The run folder of rank 0 is `run`.
fn train_words(
    size: usize,
    run: &Path,
    set: &[&str],
    resume: bool,
    overrides: impl Fn(usize) -> Overrides + Sync,
) -> Vec<Result<RunSummary, TrainError>> {
    distributed::train_on(size, run, &[&WORDS, set].concat(), resume, overrides)
}

fn words(_: usize) -> Overrides {
    Overrides { words: Some(Words::Used), ..Overrides::default() }
}

#[test]
fn a_skipped_step_changes_no_table() {
    let folder = tempdir().expect("a temporary folder");
    let runs = ["whole", "parts"].map(|name| folder.path().join(name));
    let with_nan = |rank| Overrides { nan_steps: vec![2, 5], ..words(rank) };
    let whole = train_words(1, &runs[0], &[], false, with_nan);
    assert!(whole[0].is_ok(), "{:?}", whole[0]);
    // Only rank 1 has losses that are NaN.
    let parts = train_words(3, &runs[1], &WORDS_BY_ROW, false, |rank| match rank {
        1 => with_nan(rank),
        _ => words(rank),
    });
    assert!(parts[0].is_ok(), "{:?}", parts[0]);
    assert_equal_runs(&runs[0], &runs[1]);
    let metrics = fs::read_to_string(runs[1].join("metrics.jsonl")).expect("metrics");
    assert_eq!(metrics.matches(r#""skipped_steps":1"#).count(), 2, "{metrics}");
}

#[test]
fn a_stopped_run_continues_on_another_number_of_ranks() {
    let folder = tempdir().expect("a temporary folder");
    let whole = folder.path().join("whole");
    assert!(train_words(1, &whole, &[], false, words)[0].is_ok());
    let at_loss = [0, 2, 3].map(|loss| (Some(loss), None));
    let at_evaluation = [0, 2].map(|evaluation| (None, Some(evaluation)));
    for (number, (stop_at_loss, stop_at_evaluation)) in
        at_loss.into_iter().chain(at_evaluation).enumerate()
    {
        let run = folder.path().join(number.to_string());
        let stopped = train_words(2, &run, &WORDS_BY_ROW, false, |rank| match rank {
            0 => Overrides { stop_at_loss, stop_at_evaluation, ..words(rank) },
            // The other ranks ignore a request.
            _ => Overrides { stop_at_loss: Some(0), ..words(rank) },
        });
        for result in stopped {
            assert!(matches!(result, Err(TrainError::Stopped { .. })), "{result:?}");
        }
        assert!(train_words(3, &run, &WORDS_BY_ROW, true, words)[0].is_ok());
        assert_equal_runs(&whole, &run);
    }
}

#[test]
fn a_table_can_be_all_that_is_trained() {
    let folder = tempdir().expect("a temporary folder");
    let runs = ["whole", "parts"].map(|name| folder.path().join(name));
    let frozen =
        r#"phase.first.group=[{ match = "**", rate = 0 }, { match = "words.weight", rate = 1 }]"#;
    assert!(train_words(1, &runs[0], &[frozen], false, words)[0].is_ok());
    let parts = [&WORDS_BY_ROW[..], &[frozen]].concat();
    let trained = train_words(2, &runs[1], &parts, false, words);
    assert!(trained[0].is_ok(), "{:?}", trained[0]);
    assert_equal_runs(&runs[0], &runs[1]);
}

#[test]
fn a_missing_or_zero_gradient_is_an_error_unless_it_is_allowed() {
    let folder = tempdir().expect("a temporary folder");
    for (disturbed, name, fault) in
        [(Words::HeadIsZero, "zero", "zero"), (Words::Ignored, "missing", "no gradient reaches it")]
    {
        let study = |rank| Overrides { words: Some(disturbed), ..words(rank) };
        for result in train_words(2, &folder.path().join(name), &WORDS_BY_ROW, false, study) {
            let error = result.expect_err("an error").to_string();
            assert!(error.contains("`words.weight`") && error.contains(fault), "{error}");
        }
        let runs = ["whole", "parts"].map(|run| folder.path().join(format!("{name}-{run}")));
        let allowed = r#"gradient_check.allow=["words.*"]"#;
        assert!(train_words(1, &runs[0], &[allowed], false, study)[0].is_ok());
        let parts = [&WORDS_BY_ROW[..], &[allowed]].concat();
        assert!(train_words(2, &runs[1], &parts, false, study)[0].is_ok());
        assert_equal_runs(&runs[0], &runs[1]);
    }
}

#[test]
fn an_id_beyond_the_table_is_an_error_with_its_name() {
    let folder = tempdir().expect("a temporary folder");
    let unknown = |rank| Overrides { words: Some(Words::Unknown), ..words(rank) };
    for result in train_words(2, &folder.path().join("run"), &WORDS_BY_ROW, false, unknown) {
        let error = result.expect_err("an error").to_string();
        assert!(error.contains("`words.weight`: id 48 is beyond the last of 48 rows"), "{error}");
    }
}
