//! Training with embedding tables that the ranks keep in parts: the same bytes as with whole tables,
//! for any placement and any number of ranks.

mod crash;
#[path = "../../tests/equal_runs/mod.rs"]
mod equal_runs;
mod threads;

use std::fs;
use std::path::{Path, PathBuf};

use crash::crash_at_checkpoint;
use engram_train::distributed::Ranks;
use engram_train::studies::clip::run::train_clip;
use engram_train::studies::patent::run::train_patent;
use engram_train::{Recipe, RecipeOptions, RunOptions, TrainError};
use equal_runs::reproducible_files;
use tempfile::tempdir;

/// Two phases with other learning rates; the first step of the second one starts from the tables of
/// the first. With layer-wise rates, averages and a low limit of the gradient norm.
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

fn recipe(text: &str, set: &[&str]) -> Result<Recipe, TrainError> {
    let set = set.iter().map(|assignment| (*assignment).to_owned()).collect();
    Recipe::parse(text, Path::new("recipe.toml"), &RecipeOptions { tiny: false, set })
}

/// Trains on `size` ranks, and returns the result of rank 0, whose run folder is `run`.
fn train_on(size: usize, run: &Path, set: &[&str], resume: bool) -> Result<(), TrainError> {
    let scratch = tempdir().expect("a temporary folder");
    let results = threads::on_ranks(size, |rank| {
        let ranks = Ranks::new(rank);
        let own = scratch.path().join(ranks.rank().to_string());
        let run = if ranks.rank() == 0 { run.to_path_buf() } else { own };
        let options = RunOptions { run, resume, quiet: true, ranks, ..RunOptions::default() };
        train_patent(&mut recipe(PHASES, set)?, &options).map(drop)
    });
    let mut results = results.into_iter();
    let first = results.next().expect("rank 0");
    if first.is_ok() {
        assert!(results.all(|other| matches!(other, Err(TrainError::OtherRank { .. }))));
    }
    first
}

/// The checkpoints, weights, metrics and scores.
fn files(run: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    // These contain the recipe.
    let with_recipe = ["recipe.toml", "summary.json", "run.sha256"].map(Path::new);
    let mut files = reproducible_files(run, |_| true);
    files.retain(|(name, _)| !with_recipe.contains(&name.as_path()));
    files
}

#[track_caller]
fn assert_equal_runs(a: &Path, b: &Path) {
    let (a, b) = (files(a), files(b));
    let names = |files: &[(PathBuf, Vec<u8>)]| -> Vec<PathBuf> {
        files.iter().map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(names(&a), names(&b));
    for file in ["model.safetensors", "metrics.jsonl", "checkpoints/step-00000009/ema.safetensors"]
    {
        assert!(names(&a).contains(&file.into()), "{file}");
    }
    for ((name, a), (_, b)) in a.iter().zip(&b) {
        assert!(a == b, "{} differs", name.display());
    }
}

#[test]
fn any_placement_on_any_number_of_ranks_gives_the_bytes_of_whole_tables() {
    let folder = tempdir().expect("a temporary folder");
    let whole = folder.path().join("whole");
    train_on(1, &whole, &[], false).expect("a run");
    let placements: [&[&str]; 4] = [
        &[],
        &["embedding_tables.row_threshold=0"],
        &["embedding_tables.strategy=memory_balanced", "embedding_tables.column_threshold=500"],
        &["embedding_tables.strategy=memory_optimised", "embedding_tables.row_threshold=10000"],
    ];
    for (number, placement) in placements.iter().enumerate() {
        for size in [1, 2, 4].iter().filter(|size| number > 0 || **size < 4) {
            let run = folder.path().join(format!("{number}-{size}"));
            train_on(*size, &run, &[&[ALL], *placement].concat(), false).expect("a run");
            assert_equal_runs(&whole, &run);
        }
    }
}

#[test]
fn a_crashed_run_continues_on_another_number_of_ranks() {
    let folder = tempdir().expect("a temporary folder");
    let whole = folder.path().join("whole");
    train_on(1, &whole, &[], false).expect("a run");
    let set = [ALL, "embedding_tables.row_threshold=2000"];
    // The runs continue at the checkpoints of steps 3, 5 (the end of the first phase) and 8.
    for (step, before, after) in [(5, 2, 3), (8, 3, 1), (9, 1, 4)] {
        let run = folder.path().join(step.to_string());
        crash_at_checkpoint(&run, step, |options| {
            let scratch = tempdir().expect("a temporary folder");
            let results = threads::on_ranks(before, |rank| {
                let ranks = Ranks::new(rank);
                let own = scratch.path().join(ranks.rank().to_string());
                let run = if ranks.rank() == 0 { run.clone() } else { own };
                let options = RunOptions { run, quiet: true, ranks, ..options.clone() };
                train_patent(&mut recipe(PHASES, &set)?, &options)
            });
            results.into_iter().next().expect("rank 0")
        });
        train_on(after, &run, &set, true).expect("a run");
        assert_equal_runs(&whole, &run);
    }
}

#[test]
fn settings_that_do_not_fit_are_errors_with_their_line() {
    let folder = tempdir().expect("a temporary folder");
    let cases: [(&[&str], &str); 6] = [
        (&[r#"embedding_tables.match=["**.words.weight"]"#], "`embeddings.word_embeddings.weight`"),
        (&["embedding_tables.match=[]"], "is empty"),
        (&[ALL, "awp.epsilon=0.01"], "cannot perturb"),
        (&[ALL, r#"optimiser.rule={ kind = "adafactor" }"#], "needs whole tables"),
        (&[ALL, "phase.1.group.0.rate=0"], "is frozen in phase `second`"),
        (&[ALL, "group.0.rate=0"], "is frozen"),
    ];
    for (number, (set, expected)) in cases.into_iter().enumerate() {
        let run = folder.path().join(number.to_string());
        let error = train_on(1, &run, set, false).expect_err("an error").to_string();
        let has_position = error.starts_with("recipe.toml:") || error.starts_with("--set ");
        assert!(has_position && error.contains(expected), "{error}");
        assert!(!run.join("model.safetensors").exists());
    }
}

/// A study without support says so before it trains.
#[test]
fn other_studies_refuse_the_section() {
    let folder = tempdir().expect("a temporary folder");
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/recipes/clip/tiny.toml"));
    let mut recipe = recipe(&text.expect("a recipe"), &[ALL]).expect("a recipe");
    let options =
        RunOptions { run: folder.path().join("run"), quiet: true, ..RunOptions::default() };
    let error = train_clip(&mut recipe, &options).expect_err("an error").to_string();
    assert!(error.contains("embedding_tables"), "{error}");
}
