//! The study of phrases as a user runs it: results, resumed runs, and every kind of bad input;
//! shell completions and manual pages.

use std::fs;
use std::process::Stdio;

use crate::equal_runs::reproducible_files;
use crate::running::{
    Folder, Texts, command, engram, errors, folder_of, json, printed, refused, succeeds, until,
};

/// Trains on the phrases in the folder `data`, which is current.
const TRAIN: &str = "train patent --recipe patent/world --tiny --quiet --set data.dir=data";

/// A folder with the embedded phrases in `data`, for tests to damage.
fn phrase_files() -> Folder {
    let folder = Folder::new();
    succeeds(&folder, "data phrases --out data");
    folder
}

/// The arguments that train a run with settings, which may contain spaces.
fn train(run: &str, set: &[&str]) -> Vec<String> {
    let mut arguments: Vec<String> = TRAIN.words().into_iter().map(String::from).collect();
    arguments.extend(["--run".to_owned(), run.to_owned()]);
    arguments.extend(set.iter().flat_map(|set| ["--set".to_owned(), (*set).to_owned()]));
    arguments
}

/// Changes a file.
fn edit(folder: &Folder, name: &str, change: impl Fn(String) -> String) {
    let path = folder.join(name);
    fs::write(&path, change(fs::read_to_string(&path).unwrap())).unwrap();
}

/// Checks that training is refused after a change of `data/train.csv`; then restores the file.
#[track_caller]
fn refused_after_edit(folder: &Folder, change: impl Fn(String) -> String, parts: &[&str]) {
    let path = folder.join("data/train.csv");
    let original = fs::read(&path).unwrap();
    edit(folder, "data/train.csv", change);
    refused(folder, &train("refused", &[]), parts);
    fs::write(path, original).unwrap();
}

/// Replaces a field in the first row of a CSV.
fn with_field(text: String, index: usize, value: &str) -> String {
    let row = text.lines().nth(1).unwrap();
    let mut fields: Vec<&str> = row.split(',').collect();
    fields[index] = value;
    text.replacen(row, &fields.join(","), 1)
}

#[track_caller]
fn assert_equal_runs(folder: &Folder, run: &str, other: &str) {
    let files = |run: &str| reproducible_files(&folder.join(run), |_| true);
    assert_eq!(files(run), files(other));
}

#[test]
fn a_run_predicts_and_a_run_on_one_thread_has_the_same_bytes() {
    let folder = &phrase_files();
    let folds = ["data.folds=2", "check.metric_value=-1"];
    succeeds(folder, &train("first", &folds));
    let mut one_thread = train("second", &folds);
    one_thread.extend(["--threads", "1"].map(String::from));
    succeeds(folder, &one_thread);
    assert_equal_runs(folder, "first", "second");

    succeeds(folder, "score data/test.csv --model first --out predictions.csv --quiet");
    let lines = |path: &str| fs::read_to_string(folder.join(path)).unwrap().lines().count();
    assert_eq!(lines("predictions.csv"), lines("data/test.csv"));
    let report = json(folder, "eval phrase --ref data/test.csv --hyp predictions.csv");
    assert_eq!(report["metric"], "pearson");
    assert_eq!(report["n"], lines("data/test.csv") - 1);
    assert!(report["ci95"][0].as_f64() < report["value"].as_f64());
}

#[test]
fn a_killed_run_resumes_to_the_same_bytes() {
    let folder = &phrase_files();
    let variants = "variant=[{name=\"a\"}, {name=\"b\", seed=2}]";
    let long = ["phase.train.epochs=60", "data.folds=2", variants, "data.combine=stacked"];
    let mut command = command(folder, &train("killed", &long));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let checkpoints = folder.join("killed/fold-0-b/checkpoints/LATEST");
    until("a checkpoint is written", || checkpoints.exists());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!folder.join("killed/summary.json").exists(), "it was killed too late");
    let mut resumed = train("killed", &long);
    resumed.push("--resume".to_owned());
    succeeds(folder, &resumed);
    succeeds(folder, &train("uninterrupted", &long));
    assert_equal_runs(folder, "killed", "uninterrupted");
    let names = ["README.md", "recipe.toml", "held_out.csv", "validation.csv", "stacking.json"];
    for name in names {
        assert!(folder.join("uninterrupted").join(name).is_file(), "no {name}");
    }

    refused(folder, &train("uninterrupted", &long), &["uninterrupted", "--resume"]);
    edit(folder, "data/train.csv", |text| with_field(text, 2, "another target"));
    refused(folder, &resumed, &["training rows", "inputs.json"]);
}

#[test]
fn variants_are_trained_on_every_fold_then_weighted_and_stacked() {
    let folder = &phrase_files();
    let apart_settings = "model={group=\"context\", targets_apart=true, passes=1}";
    let variants = format!(
        "variant=[{{name=\"together\"}}, {{name=\"apart\", weight=3, seed=2, {apart_settings}}}]"
    );
    let set = ["data.folds=2", "check.metric_value=-1", &variants, "data.combine=stacked"];
    succeeds(folder, &train("run", &set));
    for fold in ["fold-0-together", "fold-0-apart", "fold-1-together", "fold-1-apart"] {
        assert!(folder.join("run").join(fold).join("model.safetensors").is_file(), "no {fold}");
    }
    let scores = |name: &str| -> Vec<f64> {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        let score = |line: &str| line.rsplit(',').next().unwrap().parse().unwrap();
        text.lines().skip(1).map(score).collect()
    };
    for name in ["held_out", "validation"] {
        let [together, apart, mean, combined] = ["-together", "-apart", "-mean", ""]
            .map(|kind| scores(&format!("run/{name}{kind}.csv")));
        assert_ne!(together, apart);
        assert_ne!(mean, combined);
        assert_eq!(mean.len(), together.len());
        for ((together, apart), mean) in together.iter().zip(&apart).zip(&mean) {
            assert!((0.25 * together + 0.75 * apart - mean).abs() < 1e-6);
        }
    }
    // Predictions equal the scores of the run.
    succeeds(folder, "score data/validation.csv --model run --out predictions.csv --quiet");
    for (found, expected) in scores("predictions.csv").iter().zip(scores("run/validation.csv")) {
        assert!((found - expected).abs() < 1e-6);
    }
    let refuse = |set: &str, parts: &[&str]| {
        refused(folder, &train("refused", &["data.folds=2", &variants, set]), parts);
    };
    refuse("variant.apart.data.folds=3", &["`variant.1.data`", "cannot differ"]);
    refuse("variant.apart.model.group=section", &["targets_apart", "group = \"context\""]);
    refuse("data.folds=0", &["`variant` needs `data.folds`"]);
    let without_folds = train("refused", &["data.folds=0", "data.combine=stacked"]);
    refused(folder, &without_folds, &["data.combine=stacked", "data.folds"]);
}

#[test]
fn every_layout_and_loss_trains_and_predicts() {
    let folder = &phrase_files();
    for (layout, loss, pooling) in [
        ("listwise", "bce", "attention"),
        ("listwise", "mse", "first"),
        ("pairs", "pearson", "attention"),
        ("pairs", "bce", "mean"),
        ("bi_encoder", "cosent", "mean"),
        ("bi_encoder", "cosine_mse", "first"),
        ("bi_encoder", "contrastive", "mean"),
    ] {
        let run = format!("{layout}-{loss}");
        let varied = format!(
            "--set model.layout={layout} --set model.loss={loss} --set model.pooling={pooling}"
        );
        let fixed = "--set model.other_targets=3 --set check.metric_value=-1";
        succeeds(folder, &format!("{TRAIN} --run {run} {varied} {fixed}"));
        succeeds(folder, &format!("score data/test.csv --model {run} --out {run}.csv --quiet"));
    }
}

#[test]
fn invalid_pairs_are_refused_with_file_and_line() {
    let folder = &phrase_files();
    let refused = |change: &dyn Fn(String) -> String, parts: &[&str]| {
        refused_after_edit(folder, change, parts);
    };
    refused(&|t| t.replacen(",target,", ",tarjet,", 1), &["train.csv", "target"]);
    refused(&|_| String::new(), &["train.csv", "empty"]);
    refused(&|t| with_field(t, 5, "1.5"), &["train.csv:2: ", "1.5"]);
    refused(&|t| with_field(t, 5, "high"), &["train.csv:2: ", "high"]);
    refused(&|t| format!("{t}{}\n", t.lines().nth(1).unwrap()), &["train.csv", "id"]);
    refused(&|t| t.replacen(",A61,", ",A62,", 1), &["train.csv", "A62", "A61"]);
}

#[test]
fn shared_anchors_of_training_and_validation_give_a_warning() {
    let folder = &phrase_files();
    let train_rows = fs::read_to_string(folder.join("data/train.csv")).unwrap();
    let row = train_rows.lines().nth(1).unwrap();
    let copy = format!("again{}\n", &row[row.find(',').unwrap()..]);
    edit(folder, "data/validation.csv", |text| text + &copy);
    let output = engram(folder, &format!("{TRAIN} --run run --json"));
    let summary: serde_json::Value = serde_json::from_str(&printed(&output, TRAIN)).unwrap();
    assert!(errors(&output).contains("1 anchors of the validation rows"), "{output:?}");
    let warnings = summary["warnings"].to_string();
    assert!(warnings.contains("anchors of the validation rows"), "{warnings}");
    assert_eq!(summary["held_out"]["metric"], "pearson");
}

#[test]
fn windows_line_ends_and_a_long_target_are_read() {
    let folder = &phrase_files();
    edit(folder, "data/train.csv", |text| text.replace('\n', "\r\n"));
    edit(folder, "data/test.csv", |text| with_field(text, 2, &"metal fastener ".repeat(1500)));
    succeeds(folder, &format!("{TRAIN} --run run"));
    succeeds(folder, "score data/test.csv --model run --out predictions.csv --quiet");
}

#[test]
fn bad_recipes_are_refused_with_line_and_remedy() {
    let folder = &phrase_files();
    let world = succeeds(folder, "recipe show patent/world");
    fs::write(folder.join("typo.toml"), world.replace("warmup_fraction", "warmup_fracton"))
        .unwrap();
    for (set, parts) in [
        ("optimiser.learning_rte=1", &["learning_rte", "learning_rate"][..]),
        ("model.layot=pairs", &["layot", "layout"]),
        ("model.loss=cosent", &["loss", "bi_encoder"]),
        ("model.hidden_dropout=1.5", &["hidden_dropout", "1.5"]),
        ("model.weights=/nowhere", &["/nowhere", "config.json"]),
        ("model.max_tokens=1000000000000", &["max_tokens", "65536"]),
        ("model.fresh.num_heads=0", &["fresh"]),
        ("data.folds=1", &["--set data.folds=1", "folds"]),
        ("data.members=3", &["--set data.members=3", "folds"]),
        ("data.folds=100000", &["--set data.folds=100000", "use at most"]),
        ("study=\"reveal\"", &["--set study", "patent"]),
    ] {
        refused(folder, &train("run", &[set]), parts);
    }
    let parts = ["typo.toml:", "warmup_fracton", "warmup_fraction"];
    refused(folder, "train patent --recipe typo.toml --run run", &parts);
    refused(folder, "train patent --recipe no.toml --run run", "no.toml");
}

#[test]
fn bad_weights_are_refused_with_name_and_shapes() {
    let folder = &phrase_files();
    succeeds(folder, &format!("{TRAIN} --run run"));
    // The run's own encoder files are used as published weights that do not fit.
    fs::create_dir(folder.join("weights")).unwrap();
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(folder.join("run").join(name), folder.join("weights").join(name)).unwrap();
    }
    let train = format!("{TRAIN} --set model.weights=weights --run");
    succeeds(folder, &format!("{train} again"));
    let train = format!("{train} refused");
    let replace = |from: &str, to: &str| {
        edit(folder, "weights/config.json", |text| text.replace(from, to));
    };
    replace("\"intermediate_size\": 256", "\"intermediate_size\": 128");
    refused(folder, &train, &["intermediate.dense.weight", "[128, 32]", "[256, 32]"]);
    replace("\"intermediate_size\": 128", "\"intermediate_size\": 256");
    replace("\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2");
    refused(folder, &train, &["encoder.layer.1", "missing"]);
    edit(folder, "weights/config.json", |text| {
        let size = text.find("\"vocab_size\": ").unwrap() + 14;
        let end = size + text[size..].find(',').unwrap();
        format!("{}7{}", &text[..size], &text[end..])
    });
    refused(folder, &train, &["tokenizer.json", "7"]);
    fs::copy(folder.join("run/config.json"), folder.join("weights/config.json")).unwrap();
    let weights = folder.join("weights/model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    fs::write(&weights, &bytes[..bytes.len() / 2]).unwrap();
    refused(folder, &train, &["model.safetensors", "it is truncated or damaged"]);
}

#[test]
fn a_used_run_folder_and_a_folder_without_a_run_are_refused() {
    let folder = &phrase_files();
    let train = format!("{TRAIN} --run run");
    succeeds(folder, &train);
    refused(folder, &train, "--resume");
    edit(folder, "data/test.csv", |text| text.replacen(",A61,", ",Z99,", 1));
    let score = "score data/test.csv --out p.csv --model";
    refused(folder, &format!("{score} run"), &["test.csv", "Z99"]);
    refused(folder, &format!("{score} data"), "engram train patent");
    // A model that cannot be opened is reported before the pairs are read.
    fs::write(folder.join("other.csv"), "left,right\na,b\n").unwrap();
    fs::write(folder.join("model.gguf"), "").unwrap();
    fs::create_dir(folder.join("lora")).unwrap();
    fs::write(folder.join("lora/adapter_config.json"), "{}").unwrap();
    for (model, part) in [
        ("none", "none: no file \"config.json\""),
        ("model.gguf", "model.gguf: is a file in the format GGUF"),
        ("lora", "lora/adapter_config.json: is a PEFT adapter"),
    ] {
        refused(folder, &format!("score other.csv --out p.csv --model {model}"), part);
    }
    assert!(!folder.join("p.csv").exists());
}

/// Pearson's r of the published sentence encoder's cosine, 0.5487 in the reference implementation
/// (`sentence-transformers`). Checks tokenizer, model and pooling together.
#[test]
#[ignore = "needs ENGRAM_DATA: patent; and all-MiniLM-L6-v2 in the cache"]
fn zero_shot_minilm_on_the_real_validation_pairs() {
    let folder = &Folder::new();
    let gold = folder_of("ENGRAM_DATA").join("patent/validation.csv").display().to_string();
    let encoder = "hf://sentence-transformers/all-MiniLM-L6-v2";
    succeeds(folder, &format!("score {gold} --model {encoder} --out p.csv"));
    let report = json(folder, &format!("eval phrase --ref {gold} --hyp p.csv"));
    let pearson = report["value"].as_f64().unwrap();
    assert!((pearson - 0.5487).abs() < 0.0005, "{pearson}");
}

#[test]
fn completions_and_manual_pages_have_all_commands() {
    let folder = &Folder::new();
    for (shell, word) in
        [("bash", "complete -F"), ("zsh", "#compdef engram"), ("fish", "complete -c engram")]
    {
        let script = succeeds(folder, &format!("completions {shell}"));
        assert!(script.contains(word) && script.contains("avformer"), "{shell}: {script}");
    }
    refused(folder, "completions tcsh", "For more information");
    let manual = folder.join("man1");
    succeeds(folder, "man --out man1");
    let page = |name: &str| fs::read_to_string(manual.join(name)).expect(name);
    assert!(page("engram.1").contains("engram\\-reproduce(1)"), "{}", page("engram.1"));
    for (name, word) in [
        ("engram-train.1", "\\-\\-recipe"),
        ("engram-eval-wer.1", "engram eval wer \\-\\-ref"),
        ("engram-memory-search.1", "queries.npy"),
    ] {
        assert!(page(name).contains(word), "{name}: {}", page(name));
    }
    assert!(!manual.join("engram-help.1").exists());
    refused(folder, "man --out man1/engram.1", &["man1/engram.1", "could not be created"]);
}

#[test]
fn the_markdown_page_has_the_help_of_all_commands() {
    let folder = &Folder::new();
    let page = succeeds(folder, "man --markdown");
    let manual = folder.join("man1");
    succeeds(folder, "man --out man1");
    for file in fs::read_dir(&manual).unwrap() {
        let file = file.unwrap().file_name().into_string().unwrap();
        let command = file.trim_end_matches(".1").replace('-', " ");
        assert!(page.contains(&format!("\n## {command}\n\n```text\n")), "{command}");
    }
    let wer = page.split("\n## engram eval wer\n").nth(1).unwrap();
    let wer = wer.split("\n## ").next().unwrap_or_default();
    assert!(wer.contains("Usage: engram eval wer") && wer.contains("--normalizer"), "{wer}");
    assert!(!wer.contains("--log-format"), "global options are only in the section of engram");
    assert_eq!(page.matches("--log-format").count(), 1);
}
