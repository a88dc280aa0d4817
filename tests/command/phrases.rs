//! The whole command as a user runs it: results, resumed runs, and every kind of bad input.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A recipe that trains on the embedded phrases.
const WORLD_RECIPE: &str = "train/recipes/patent/world.toml";

fn engram(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_engram"))
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("the binary runs")
}

/// Runs a command that must succeed. Returns its standard output.
fn succeeds(arguments: &[&str]) -> String {
    let output = engram(arguments);
    let (out, err) = output_texts(&output);
    assert!(output.status.success(), "{arguments:?}\n{out}\n{err}");
    out
}

/// Runs a command that must fail. Its message must be one line that contains all of `parts`.
fn refused(arguments: &[&str], parts: &[&str]) {
    let output = engram(arguments);
    let (out, err) = output_texts(&output);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}\n{out}\n{err}");
    let message = err.lines().last().unwrap_or_default();
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
    assert!(!err.contains("panicked"), "{err}");
}

fn output_texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// A folder with the embedded phrases as files, for tests to damage.
struct PhraseFiles {
    folder: tempfile::TempDir,
}

impl PhraseFiles {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        succeeds(&[
            "data",
            "phrases",
            "--out",
            folder.path().join("data").to_str().expect("a name"),
        ]);
        Self { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Runs `engram train patent --tiny` on these files, with further arguments.
    fn train_arguments<'a>(&self, run: &'a str, data: &'a str, extra: &[&'a str]) -> Vec<&'a str> {
        let mut arguments = vec!["train", "patent", "--recipe", WORLD_RECIPE, "--tiny", "--quiet"];
        arguments.extend(["--set", data, "--run", run]);
        arguments.extend(extra);
        arguments
    }

    fn edit(&self, name: &str, change: impl Fn(String) -> String) {
        let path = self.path(name);
        let text = std::fs::read_to_string(&path).expect("a file");
        std::fs::write(&path, change(text)).expect("a file");
    }

    /// Checks that training is refused after a change of a file; then restores the file.
    fn refused_after_edit(&self, name: &str, change: impl Fn(String) -> String, parts: &[&str]) {
        let original = std::fs::read(self.path(name)).expect("a file");
        self.edit(name, change);
        let (run, data) = (self.path("refused"), format!("data.dir={}", self.path("data")));
        refused(&self.train_arguments(&run, &data, &[]), parts);
        std::fs::write(self.path(name), original).expect("a file");
    }
}

/// All files in a folder with their contents, except files that record times.
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(subfolder) = folders.pop() {
        for entry in std::fs::read_dir(subfolder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let varying = ["timing", "events", ".lock", "README"];
            if path.is_dir() {
                folders.push(path);
            } else if !varying.iter().any(|varying| name.starts_with(varying)) {
                let content = std::fs::read(&path).expect("a file");
                files.push((path.strip_prefix(folder).expect("inside").to_path_buf(), content));
            }
        }
    }
    files.sort();
    files
}

#[test]
fn a_run_predicts_and_a_run_on_one_thread_has_the_same_bytes() {
    let files = PhraseFiles::new();
    let data = format!("data.dir={}", files.path("data"));
    let (first, second) = (files.path("first"), files.path("second"));
    let folds = ["--set", "data.folds=2", "--set", "check.metric_value=-1"];
    succeeds(&files.train_arguments(&first, &data, &folds));
    let mut one_thread = files.train_arguments(&second, &data, &folds);
    one_thread.extend(["--threads", "1"]);
    succeeds(&one_thread);
    assert_eq!(contents(Path::new(&first)), contents(Path::new(&second)));

    let (input, output) = (files.path("data/test.csv"), files.path("predictions.csv"));
    succeeds(&["score", &input, "--model", &first, "--out", &output, "--quiet"]);
    let lines = |path: &str| std::fs::read_to_string(path).expect("a file").lines().count();
    assert_eq!(lines(&output), lines(&input));
    let report = succeeds(&["eval", "phrase", "--ref", &input, "--hyp", &output, "--json"]);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["metric"], "pearson");
    assert_eq!(report["n"], lines(&input) - 1);
    assert!(report["ci95"][0].as_f64() < report["value"].as_f64());
}

#[test]
fn a_killed_run_resumes_to_the_same_bytes() {
    let files = PhraseFiles::new();
    let (uninterrupted, killed) = (files.path("uninterrupted"), files.path("killed"));
    let variants = "variant=[{name=\"a\"}, {name=\"b\", seed=2}]";
    let long = ["--set", "phase.train.epochs=60", "--set", "data.folds=2", "--set", variants];
    let long = [&long[..], &["--set", "data.combine=stacked"]].concat();
    let data = format!("data.dir={}", files.path("data"));
    let child = Command::new(env!("CARGO_BIN_EXE_engram"))
        .args(files.train_arguments(&killed, &data, &long))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn();
    let mut child = child.expect("the binary runs");
    let checkpoints = Path::new(&killed).join("fold-0-b/checkpoints/LATEST");
    while !checkpoints.exists() && child.try_wait().expect("a child").is_none() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child.kill().expect("a child");
    child.wait().expect("a child");
    assert!(!Path::new(&killed).join("summary.json").exists(), "it was killed too late");
    let mut resumed = files.train_arguments(&killed, &data, &long);
    resumed.push("--resume");
    succeeds(&resumed);
    succeeds(&files.train_arguments(&uninterrupted, &data, &long));
    assert_eq!(contents(Path::new(&killed)), contents(Path::new(&uninterrupted)));
    let files_of_a_run = [
        "README.md",
        "recipe.toml",
        "held_out.csv",
        "validation.csv",
        "summary.json",
        "stacking.json",
    ];
    for name in files_of_a_run {
        assert!(Path::new(&uninterrupted).join(name).is_file(), "no {name}");
    }

    refused(&files.train_arguments(&uninterrupted, &data, &long), &[&uninterrupted, "--resume"]);
    files.edit("data/train.csv", |text| {
        let row = text.lines().nth(1).expect("a row");
        let mut fields: Vec<&str> = row.split(',').collect();
        fields[2] = "another target";
        text.replacen(row, &fields.join(","), 1)
    });
    refused(&resumed, &["training rows", "inputs.json"]);
}

#[test]
fn variants_are_trained_on_every_fold_then_weighted_and_stacked() {
    let files = PhraseFiles::new();
    let (run, data) = (files.path("run"), format!("data.dir={}", files.path("data")));
    let apart_settings = "model={group='context', targets_apart=true, passes=1}";
    let apart_settings = apart_settings.replace('\'', "\"");
    let variants = format!(
        "variant=[{{name=\"together\"}}, {{name=\"apart\", weight=3, seed=2, {apart_settings}}}]"
    );
    let extra = ["--set", "data.folds=2", "--set", "check.metric_value=-1", "--set", &variants];
    let extra = [&extra[..], &["--set", "data.combine=stacked"]].concat();
    succeeds(&files.train_arguments(&run, &data, &extra));
    for fold in ["fold-0-together", "fold-0-apart", "fold-1-together", "fold-1-apart"] {
        assert!(Path::new(&run).join(fold).join("model.safetensors").is_file(), "no {fold}");
    }
    let scores = |name: &str| -> Vec<f64> {
        let text = std::fs::read_to_string(name).expect("a file");
        let score = |line: &str| line.rsplit(',').next().and_then(|score| score.parse().ok());
        text.lines().skip(1).map(|line| score(line).expect("a score")).collect()
    };
    let run_scores = |name: &str| scores(&format!("{run}/{name}"));
    let weighted = |together: &[f64], apart: &[f64], found: &[f64]| {
        assert_eq!(found.len(), together.len());
        for ((together, apart), found) in together.iter().zip(apart).zip(found) {
            assert!((0.25 * together + 0.75 * apart - found).abs() < 1e-6);
        }
    };
    for name in ["held_out", "validation"] {
        let [together, apart, mean, combined] = ["-together", "-apart", "-mean", ""]
            .map(|kind| run_scores(&format!("{name}{kind}.csv")));
        assert_ne!(together, apart);
        weighted(&together, &apart, &mean);
        assert_ne!(mean, combined);
    }
    // Predictions equal the scores of the run.
    let (input, output) = (files.path("data/validation.csv"), files.path("predictions.csv"));
    succeeds(&["score", &input, "--model", &run, "--out", &output, "--quiet"]);
    for (found, expected) in scores(&output).iter().zip(run_scores("validation.csv")) {
        assert!((found - expected).abs() < 1e-6);
    }
    let refuse = |set: &str, parts: &[&str]| {
        let extra = ["--set", "data.folds=2", "--set", &variants, "--set", set];
        refused(&files.train_arguments(&files.path("refused"), &data, &extra), parts);
    };
    refuse("variant.apart.data.folds=3", &["`variant.1.data`", "cannot differ"]);
    refuse("variant.apart.model.group=section", &["targets_apart", "group = \"context\""]);
    refuse("data.folds=0", &["`variant` needs `data.folds`"]);
    let without_folds = ["--set", "data.folds=0", "--set", "data.combine=stacked"];
    let run = files.path("refused");
    refused(
        &files.train_arguments(&run, &data, &without_folds),
        &["data.combine=stacked", "data.folds"],
    );
}

#[test]
fn every_layout_and_loss_trains_and_predicts() {
    let files = PhraseFiles::new();
    for (layout, loss, pooling) in [
        ("listwise", "bce", "attention"),
        ("listwise", "mse", "first"),
        ("pairs", "pearson", "attention"),
        ("pairs", "bce", "mean"),
        ("bi_encoder", "cosent", "mean"),
        ("bi_encoder", "cosine_mse", "first"),
        ("bi_encoder", "contrastive", "mean"),
    ] {
        let run = files.path(&format!("{layout}-{loss}"));
        let data = format!("data.dir={}", files.path("data"));
        let (layout, loss) = (format!("model.layout={layout}"), format!("model.loss={loss}"));
        let pooling = format!("model.pooling={pooling}");
        let varied = ["--set", &layout, "--set", &loss, "--set", &pooling];
        let fixed = ["--set", "model.other_targets=3", "--set", "check.metric_value=-1"];
        succeeds(&files.train_arguments(&run, &data, &[&varied[..], &fixed].concat()));
        let (input, output) = (files.path("data/test.csv"), files.path("predictions.csv"));
        succeeds(&["score", &input, "--model", &run, "--out", &output, "--force", "--quiet"]);
    }
}

#[test]
fn invalid_pairs_are_refused_with_file_and_line() {
    let files = PhraseFiles::new();
    let train = "data/train.csv";
    files.refused_after_edit(
        train,
        |t| t.replacen(",target,", ",tarjet,", 1),
        &["train.csv", "target"],
    );
    files.refused_after_edit(train, |_| String::new(), &["train.csv", "empty"]);
    let second = |text: &str| text.lines().nth(1).expect("a row").to_string();
    let with_score = |text: String, score: &str| {
        let row = second(&text);
        let last_comma = row.rfind(',').expect("a score");
        text.replacen(&row, &format!("{},{score}", &row[..last_comma]), 1)
    };
    files.refused_after_edit(train, |t| with_score(t, "1.5"), &["train.csv:2: ", "1.5"]);
    files.refused_after_edit(train, |t| with_score(t, "high"), &["train.csv:2: ", "high"]);
    files.refused_after_edit(train, |t| format!("{t}{}\n", second(&t)), &["train.csv", "id"]);
    let unknown = |t: String| t.replacen(",A61,", ",A62,", 1);
    files.refused_after_edit(train, unknown, &["train.csv", "A62", "A61"]);
}

#[test]
fn shared_anchors_of_training_and_validation_give_a_warning() {
    let files = PhraseFiles::new();
    let lines = |name: &str| std::fs::read_to_string(files.path(name)).expect("a file");
    let (train, validation) = (lines("data/train.csv"), lines("data/validation.csv"));
    let row = train.lines().nth(1).expect("a row");
    let copy = format!("again{}", &row[row.find(',').expect("an id")..]);
    std::fs::write(files.path("data/validation.csv"), format!("{validation}{copy}\n"))
        .expect("a file");
    let (run, data) = (files.path("run"), format!("data.dir={}", files.path("data")));
    let output = engram(&files.train_arguments(&run, &data, &["--json"]));
    let (out, err) = output_texts(&output);
    assert!(output.status.success() && err.contains("1 anchors of the validation rows"), "{err}");
    let summary: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let warnings = summary["warnings"].to_string();
    assert!(warnings.contains("anchors of the validation rows"), "{warnings}");
    assert_eq!(summary["held_out"]["metric"], "pearson");
}

#[test]
fn windows_line_ends_and_a_long_target_are_read() {
    let files = PhraseFiles::new();
    files.edit("data/train.csv", |text| text.replace('\n', "\r\n"));
    files.edit("data/test.csv", |text| {
        let row = text.lines().nth(1).expect("a row");
        let mut fields: Vec<String> = row.split(',').map(String::from).collect();
        fields[2] = "metal fastener ".repeat(1500);
        text.replacen(row, &fields.join(","), 1)
    });
    let (run, data) = (files.path("run"), format!("data.dir={}", files.path("data")));
    succeeds(&files.train_arguments(&run, &data, &[]));
    let (input, output) = (files.path("data/test.csv"), files.path("predictions.csv"));
    succeeds(&["score", &input, "--model", &run, "--out", &output, "--quiet"]);
}

#[test]
fn bad_recipes_are_refused_with_line_and_remedy() {
    let files = PhraseFiles::new();
    let (run, data) = (files.path("run"), "data.dir=");
    let with_setting = |set: &'static str| files.train_arguments(&run, data, &["--set", set]);
    refused(&with_setting("optimiser.learning_rte=1"), &["learning_rte", "learning_rate"]);
    refused(&with_setting("model.layot=pairs"), &["layot", "layout"]);
    refused(&with_setting("model.loss=cosent"), &["loss", "bi_encoder"]);
    refused(&with_setting("model.hidden_dropout=1.5"), &["hidden_dropout", "1.5"]);
    refused(&with_setting("model.weights=/nowhere"), &["/nowhere", "config.json"]);
    refused(&with_setting("model.max_tokens=1000000000000"), &["max_tokens", "65536"]);
    refused(&with_setting("model.fresh.num_heads=0"), &["fresh"]);
    refused(&with_setting("data.folds=1"), &["--set data.folds=1", "folds"]);
    refused(&with_setting("data.members=3"), &["--set data.members=3", "folds"]);
    refused(&with_setting("data.folds=100000"), &["--set data.folds=100000", "use at most"]);
    refused(&with_setting("study=\"reveal\""), &["--set study", "patent"]);
    let recipe = files.path("typo.toml");
    let text = std::fs::read_to_string(WORLD_RECIPE).expect("the recipe");
    std::fs::write(&recipe, text.replace("warmup_fraction", "warmup_fracton")).expect("a file");
    refused(
        &["train", "patent", "--recipe", &recipe, "--run", &run],
        &["typo.toml:", "warmup_fracton", "warmup_fraction"],
    );
    refused(&["train", "patent", "--recipe", "no.toml", "--run", &run], &["no.toml"]);
}

#[test]
fn bad_weights_are_refused_with_name_and_shapes() {
    let files = PhraseFiles::new();
    let (run, data) = (files.path("run"), "data.dir=".to_string());
    succeeds(&files.train_arguments(&run, &data, &[]));
    // The run's own encoder files are used as published weights that do not fit.
    let weights = files.path("weights");
    std::fs::create_dir(&weights).expect("a folder");
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        std::fs::copy(Path::new(&run).join(name), Path::new(&weights).join(name)).expect("a copy");
    }
    let use_weights = format!("model.weights={weights}");
    let again = files.path("again");
    let arguments = files.train_arguments(&again, &data, &["--set", &use_weights]);
    succeeds(&arguments);
    let refused_run = files.path("refused");
    let arguments = files.train_arguments(&refused_run, &data, &["--set", &use_weights]);
    files.edit("weights/config.json", |text| {
        text.replace("\"intermediate_size\": 256", "\"intermediate_size\": 128")
    });
    refused(&arguments, &["intermediate.dense.weight", "[128, 32]", "[256, 32]"]);
    files.edit("weights/config.json", |text| {
        text.replace("\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2")
            .replace("\"intermediate_size\": 128", "\"intermediate_size\": 256")
    });
    refused(&arguments, &["encoder.layer.1", "missing"]);
    files.edit("weights/config.json", |text| {
        let size = text.find("\"vocab_size\": ").expect("a size") + 14;
        let end = size + text[size..].find(',').expect("an end");
        format!("{}7{}", &text[..size], &text[end..])
    });
    refused(&arguments, &["tokenizer.json", "7"]);
    let bytes = std::fs::read(Path::new(&weights).join("model.safetensors")).expect("a file");
    std::fs::copy(Path::new(&run).join("config.json"), files.path("weights/config.json"))
        .expect("a copy");
    std::fs::write(files.path("weights/model.safetensors"), &bytes[..bytes.len() / 2])
        .expect("a file");
    refused(&arguments, &["model.safetensors", "it is truncated or damaged"]);
}

#[test]
fn a_used_run_folder_and_a_folder_without_a_run_are_refused() {
    let files = PhraseFiles::new();
    let (run, data) = (files.path("run"), "data.dir=".to_string());
    succeeds(&files.train_arguments(&run, &data, &[]));
    refused(&files.train_arguments(&run, &data, &[]), &["--resume"]);
    let (input, output) = (files.path("data/test.csv"), files.path("p.csv"));
    let no_run = files.path("data");
    files.edit("data/test.csv", |text| text.replacen(",A61,", ",Z99,", 1));
    refused(&["score", &input, "--model", &run, "--out", &output], &["test.csv", "Z99"]);
    refused(&["score", &input, "--model", &no_run, "--out", &output], &["engram train patent"]);
    assert!(!Path::new(&output).exists());
}

/// Real data and real weights: Pearson's r of the published sentence encoder's cosine, 0.5487 in
/// the reference implementation (`sentence-transformers`). Checks tokenizer, model and pooling
/// together.
#[test]
fn zero_shot_minilm_on_the_real_validation_pairs() {
    let Some(data) = std::env::var_os("ENGRAM_DATA") else {
        eprintln!("SKIPPED: set ENGRAM_DATA to the folder of the real data to run this check");
        return;
    };
    let gold = Path::new(&data).join("patent/validation.csv").display().to_string();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = folder.path().join("p.csv").display().to_string();
    let encoder = "hf://sentence-transformers/all-MiniLM-L6-v2";
    succeeds(&["score", &gold, "--model", encoder, "--out", &output]);
    let report = succeeds(&["eval", "phrase", "--ref", &gold, "--hyp", &output, "--json"]);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let pearson = report["value"].as_f64().expect("a number");
    assert!((pearson - 0.5487).abs() < 0.0005, "{pearson}");
}

#[test]
fn completions_and_manual_pages_have_all_commands() {
    for (shell, word) in
        [("bash", "complete -F"), ("zsh", "#compdef engram"), ("fish", "complete -c engram")]
    {
        let script = succeeds(&["completions", shell]);
        assert!(script.contains(word) && script.contains("avformer"), "{shell}: {script}");
    }
    refused(&["completions", "tcsh"], &["For more information"]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let manual = folder.path().join("man1");
    succeeds(&["man", "--out", &manual.display().to_string()]);
    let page = |name: &str| std::fs::read_to_string(manual.join(name)).expect(name);
    assert!(page("engram.1").contains("engram\\-reproduce(1)"), "{}", page("engram.1"));
    for (name, word) in [
        ("engram-train.1", "\\-\\-recipe"),
        ("engram-eval-wer.1", "engram eval wer \\-\\-ref"),
        ("engram-memory-search.1", "queries.npy"),
    ] {
        assert!(page(name).contains(word), "{name}: {}", page(name));
    }
    assert!(!manual.join("engram-help.1").exists());
    let file = manual.join("engram.1").display().to_string();
    refused(&["man", "--out", &file], &[&file, "could not be created"]);
}

#[test]
fn the_markdown_page_has_the_help_of_all_commands() {
    let page = succeeds(&["man", "--markdown"]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let manual = folder.path().join("man1");
    succeeds(&["man", "--out", &manual.display().to_string()]);
    for file in std::fs::read_dir(&manual).expect("the manual pages") {
        let file = file.expect("a manual page").file_name().into_string().expect("a name");
        let command = file.trim_end_matches(".1").replace('-', " ");
        assert!(page.contains(&format!("\n## {command}\n\n```text\n")), "{command}");
    }
    let wer = page.split("\n## engram eval wer\n").nth(1).expect("the section of eval wer");
    let wer = wer.split("\n## ").next().unwrap_or_default();
    assert!(wer.contains("Usage: engram eval wer") && wer.contains("--normalizer"), "{wer}");
    assert!(!wer.contains("--log-format"), "global options are only in the section of engram");
    assert_eq!(page.matches("--log-format").count(), 1);
}
