//! A study from outside the crate can be trained and has grids. It is one file ([`median`]) and one
//! line in a table of studies.

mod median;

use std::path::Path;

use engram_train::grid::{Grid, Verdict, measure_finished, run_grid};
use engram_train::recipe::reference::{listing, markdown};
use engram_train::registry::{self, Studies};
use engram_train::{Recipe, RecipeOptions, RunOptions, TrainError};

use crate::runs::quiet_grid;

/// The table of studies, with one line for the new study.
const STUDIES: Studies = &[&median::MEDIAN];

const RECIPE: &str = r#"
study = "median"

[optimiser]
learning_rate = 0.1

[[phase]]
name = "first"
epochs = 20

[check]
files = ["metrics.jsonl"]
"#;

const GRID: &str = r#"
recipe = "median.toml"
main = "main"

[[configuration]]
name = "main"

[[configuration]]
name = "far"
set = ["model.start=500"]

[[claim]]
id = "median.start"
claim = "a near start helps"
better = "main"
worse = "far"

[[claim]]
id = "median.half"
claim = "a near start helps for the first half"
better = "main"
worse = "far"
numbers = "half"
"#;

#[test]
fn a_new_study_is_trained_by_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = RecipeOptions { tiny: false, set: vec!["model.start=3.9".to_owned()] };
    let mut recipe = Recipe::parse(RECIPE, Path::new("median.toml"), &options).expect("a recipe");
    let study = registry::find(STUDIES, &recipe.study).expect("the study");
    let run = folder.path().join("run");
    let options = RunOptions { run: run.clone(), quiet: true, ..RunOptions::default() };
    let report = (study.train)(&mut recipe, &options).expect("a finished run");
    assert!(report.check_failures.is_empty());
    assert!(report.summary["errors"][3].as_f64().expect("a number") < 1.0);
    assert!(run.join("summary.json").is_file() && run.join("README.md").is_file());

    let schema = (study.recipe_schema)();
    assert!(markdown(std::slice::from_ref(&schema)).contains("| `numbers` | list of floats |"));
    assert_eq!(
        listing(&schema),
        "  data.numbers=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 80.0]  The numbers whose median is learnt\n  \
         model.start=0.0  The first guess"
    );
    let invalid = RecipeOptions { tiny: false, set: vec!["data.number=[1]".to_owned()] };
    let mut invalid = Recipe::parse(RECIPE, Path::new("median.toml"), &invalid).expect("a recipe");
    let error = (study.complete)(&mut invalid).expect_err("an unknown key").to_string();
    assert!(error.contains("data.number") && error.contains("numbers"), "{error}");
}

#[test]
fn a_new_study_has_grids() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, recipe) = (Path::new("grid.toml"), Path::new("median.toml"));
    let grid = |text: &str, studies| Grid::parse(text, file, RECIPE, recipe, studies);
    let options = quiet_grid(folder.path(), 2);
    let grid_of_median = grid(GRID, STUDIES).expect("a grid");
    let report = run_grid(&grid_of_median, &options, &mut |_| {}).expect("a report");
    assert_eq!(report.claims[0].test.verdict, Verdict::Holds);
    // The four differences of the first half are equal, and nothing bounds this metric: four equal
    // differences decide nothing.
    assert_eq!(report.claims[1].test.verdict, Verdict::NotDecided);
    assert_eq!(report.claims[1].comparison, "main compared with far: error of half");

    // After a stop request no run starts. The report has the finished runs with these settings.
    options.stop.request();
    let error = run_grid(&grid_of_median, &options, &mut |_| {}).expect_err("stopped");
    assert!(matches!(error, TrainError::Stopped { step: 0, .. }), "{error}");
    let measure = |grid: &Grid| measure_finished(grid, &options).expect("results");
    let whole = measure(&grid_of_median).expect("the main configuration is finished");
    assert!(whole.unfinished.is_empty() && whole.claims.len() == 2);
    let other = grid(&GRID.replace("start=500", "start=400"), STUDIES).expect("a grid");
    let partial = measure(&other).expect("the main configuration is finished");
    assert!(partial.unfinished == ["far"] && partial.claims.is_empty());
    let other = other.with_settings(&["optimiser.learning_rate=0.2".to_owned()]).expect("a grid");
    assert!(measure(&other).is_none());

    let error = |text: &str, studies| grid(text, studies).expect_err("refused").to_string();
    assert!(error(GRID, engram_train::studies::ALL).contains("is unknown; choose from patent"));
    for (old, new, expected) in [
        ("\"half\"", "\"last\"", "grid.toml:18: `numbers`: `last` is unknown; choose from all"),
        ("numbers =", "part =", "grid.toml:18: unknown key `part`; the keys are"),
        ("\"far\"\nset", "\"far\"\nrun_of = \"main\"\n#", "cannot evaluate a finished run again"),
        ("model.start=500", "seed=3", "grid.toml:8: configuration `far`: `seed=3` has no effect"),
        ("worse = \"far\"", "worse = \"far:x\"", "`CONFIGURATION:SYSTEM`: `x` is unknown"),
    ] {
        assert!(GRID.contains(old), "{old}");
        let error = error(&GRID.replacen(old, new, 1), STUDIES);
        assert!(error.contains(expected), "{error}");
    }
}
