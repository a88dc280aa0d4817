//! Published sentence encoders in the commands: equal embeddings, prompts, and refused files.
#![allow(clippy::unwrap_used)]

mod running;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};

/// The model folders in the fixture of `infer/tests/sentence_transformers.rs`.
struct Fixture(Value);

impl Fixture {
    fn read() -> Self {
        let text = fs::read(Self::path("folders.json")).unwrap();
        Self(serde_json::from_slice(&text).unwrap())
    }

    fn path(file: &str) -> PathBuf {
        let fixtures = "infer/tests/fixtures/sentence_transformers";
        Path::new(env!("CARGO_MANIFEST_DIR")).join(fixtures).join(file)
    }

    fn folder(&self, name: &str) -> &Value {
        let folders = self.0["folders"].as_array().unwrap();
        folders.iter().find(|folder| folder["name"] == name).unwrap()
    }

    /// Writes a model folder to `target`.
    fn write(&self, name: &str, target: &Path) {
        for (path, file) in self.folder(name)["files"].as_object().unwrap() {
            let path = target.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match file.as_str() {
                Some(text) => fs::write(path, text).unwrap(),
                None => {
                    let blob = Self::path("blobs").join(file["blob"].as_str().unwrap());
                    fs::copy(blob, path).unwrap();
                }
            }
        }
    }

    fn text(&self, index: usize) -> &str {
        self.0["texts"][index].as_str().unwrap()
    }

    /// The expected cosine of two texts in two roles.
    fn cosine(&self, name: &str, (a, role_a): (usize, &str), (b, role_b): (usize, &str)) -> f64 {
        let expected = &self.folder(name)["expected"];
        let vector = |index: usize, role: &str| -> Vec<f64> {
            let role_vectors = expected.get(role).unwrap_or(&expected["default"]);
            role_vectors[index].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
        };
        vector(a, role_a).iter().zip(vector(b, role_b)).map(|(x, y)| x * y).sum()
    }
}

fn engram(folder: &Path, arguments: &[&str]) -> Output {
    running::engram_with(folder, arguments)
}

#[track_caller]
fn succeeds(folder: &Path, arguments: &[&str]) -> String {
    running::printed(&engram(folder, arguments), &arguments.join(" "))
}

#[track_caller]
fn refused(folder: &Path, arguments: &[&str], parts: &[&str]) {
    running::refusal(&engram(folder, arguments), &arguments.join(" "), parts);
}

/// Writes the fixture's texts as entries and as a phrase pair.
fn write_inputs(fixture: &Fixture, folder: &Path) {
    let entry = |id: usize| json!({"id": id, "text": fixture.text(id)}).to_string();
    let entries: Vec<String> = (0..4).map(entry).collect();
    fs::write(folder.join("entries.jsonl"), entries.join("\n")).unwrap();
    let pair = format!(
        "id,anchor,target,context\n1,\"{}\",\"{}\",A01\n",
        fixture.text(0),
        fixture.text(1)
    );
    fs::write(folder.join("phrases.csv"), pair).unwrap();
}

/// Builds the memory `m` from the entries with the model.
#[track_caller]
fn build_memory(folder: &Path) {
    let arguments = "memory build --entries entries.jsonl --model model --out m --quiet";
    succeeds(folder, &arguments.split(' ').collect::<Vec<_>>());
}

#[test]
fn every_command_gives_the_embeddings_of_the_reference() {
    let fixture = Fixture::read();
    let names = [
        "bert cls",
        "bert old flags cls",
        "bert dense tanh, normalize",
        "bert all modes",
        "bert prompts",
        "bert default prompt",
    ];
    for name in names {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path();
        fixture.write(name, &folder.join("model"));
        write_inputs(&fixture, folder);
        build_memory(folder);
        let report = succeeds(
            folder,
            &["memory", "search", "m", "--text", fixture.text(1), "-k", "4", "--json"],
        );
        let report: Value = serde_json::from_str(&report).unwrap();
        for hit in report["queries"][0]["hits"].as_array().unwrap() {
            let id = hit["id"].as_u64().unwrap() as usize;
            let expected = fixture.cosine(name, (1, "query"), (id, "document"));
            let score = hit["score"].as_f64().unwrap();
            assert!((score - expected).abs() < 1e-4, "{name}: {score}, expected {expected}");
        }
        succeeds(
            folder,
            &["score", "phrases.csv", "--model", "model", "--out", "p.csv", "--quiet"],
        );
        let scores = fs::read_to_string(folder.join("p.csv")).unwrap();
        let score: f64 = scores.lines().nth(1).unwrap().split(',').nth(1).unwrap().parse().unwrap();
        let expected = fixture.cosine(name, (0, "default"), (1, "default"));
        assert!((score - expected).abs() < 1e-4, "{name}: {score}, expected {expected}");
    }
}

#[test]
fn queries_come_from_standard_input() {
    let fixture = Fixture::read();
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    fixture.write("bert cls", &folder.join("model"));
    write_inputs(&fixture, folder);
    build_memory(folder);
    let queries = format!("{}\n{}\n", fixture.text(2), fixture.text(3));
    let arguments = ["memory", "search", "m", "--texts", "-", "-k", "1", "--json"];
    let output = running::engram_reading(folder, &arguments, queries);
    let report: Value = serde_json::from_str(&running::printed(&output, "memory search")).unwrap();
    let best = |query: usize| report["queries"][query]["hits"][0]["id"].as_u64().unwrap();
    assert_eq!([best(0), best(1)], [2, 3]);
    let output = running::engram_reading(folder, &arguments, "one\n\n");
    running::refusal(&output, "memory search", &["/dev/stdin:2: the line is empty"]);
}

#[test]
fn text_files_of_a_folder_are_entries() {
    let fixture = Fixture::read();
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    fixture.write("bert cls", &folder.join("model"));
    let notes = folder.join("notes");
    fs::create_dir(&notes).unwrap();
    fs::write(notes.join("table.csv"), "a,b").unwrap();
    let build = ["memory", "build", "--texts", "notes", "--model", "model", "--out", "m"];
    refused(folder, &build, &["notes: has no .txt or .md file"]);
    fs::write(notes.join("b.txt"), b"one\n\xff").unwrap();
    refused(folder, &build, &["notes/b.txt:2: is not UTF-8"]);
    fs::write(notes.join("a.md"), fixture.text(2)).unwrap();
    fs::write(notes.join("b.txt"), fixture.text(3)).unwrap();
    fs::write(notes.join("c.txt"), "\n").unwrap();
    let output = engram(folder, &build);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    assert!(log.contains("notes: skipped 0 hidden files and 1 other file"), "{log}");
    assert!(log.contains("notes: skipped 1 empty file"), "{log}");
    let search = ["memory", "search", "m", "--text", fixture.text(3), "-k", "1", "--json"];
    let report: Value = serde_json::from_str(&succeeds(folder, &search)).unwrap();
    let hit = &report["queries"][0]["hits"][0];
    assert_eq!((&hit["document"], &hit["source"]), (&json!("b.txt"), &json!("notes")));
    succeeds(folder, &["memory", "add", "m", "--texts", "notes", "--model", "model"]);
}

#[test]
fn prompts_are_selected_by_name_and_recorded() {
    let fixture = Fixture::read();
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    fixture.write("bert prompts", &folder.join("model"));
    write_inputs(&fixture, folder);
    let build = ["memory", "build", "--entries", "entries.jsonl", "--model", "model"];
    succeeds(folder, &[&build[..], &["--out", "m", "--prompt", "other", "--quiet"]].concat());
    assert!(succeeds(folder, &["memory", "info", "m"]).contains("prompt \"wide \""));
    refused(
        folder,
        &[&build[..], &["--out", "n", "--prompt", "nobody"]].concat(),
        &["nobody", "document, other, query"],
    );
    // Added entries get the same prompt.
    fs::write(folder.join("more.jsonl"), "{\"text\": \"a bolt\"}\n").unwrap();
    let add = ["memory", "add", "m", "--entries", "more.jsonl", "--model", "model"];
    refused(folder, &add, &["\"wide \"", "\"pipe: \"", "--prompt"]);
    succeeds(folder, &[&add[..], &["--prompt", "other"]].concat());
    let search = ["memory", "search", "m", "--text", fixture.text(0), "-k", "1", "--json"];
    let score = |prompt: &[&str]| {
        let report: Value =
            serde_json::from_str(&succeeds(folder, &[&search[..], prompt].concat())).unwrap();
        report["queries"][0]["hits"][0]["score"].as_f64().unwrap()
    };
    assert!((score(&["--prompt", "other"]) - 1.0).abs() < 1e-5);
    assert!((score(&[]) - 1.0).abs() > 1e-4);
    assert!((score(&["--prompt", ""]) - score(&[])).abs() > 1e-4);
}

#[test]
fn a_memory_refuses_its_model_with_another_tokenizer() {
    let fixture = Fixture::read();
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    fixture.write("bert prompts", &folder.join("model"));
    write_inputs(&fixture, folder);
    build_memory(folder);
    let path = folder.join("model/tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    tokenizer["model"]["max_input_chars_per_word"] = 5.into();
    fs::write(&path, tokenizer.to_string()).unwrap();
    let search = ["memory", "search", "m", "--text", "a bolt"];
    refused(folder, &search, &["has the same weights", "tokenizer", "engram memory reencode"]);
    let add = ["memory", "add", "m", "--entries", "entries.jsonl", "--model", "model"];
    refused(folder, &add, &["has the same weights", "tokenizer", "engram memory reencode"]);
}

#[test]
fn a_panic_in_the_tokenizers_library_is_an_error_that_names_the_file() {
    let fixture = Fixture::read();
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    fixture.write("bert without modules", &folder.join("model"));
    write_inputs(&fixture, folder);
    build_memory(folder);
    succeeds(folder, &["data", "phrases", "--out", "phrases"]);
    // Without its configuration the tokenizer comes from the file only.
    fs::remove_file(folder.join("model/tokenizer_config.json")).unwrap();
    let path = folder.join("model/tokenizer.json");
    let original: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let broken = [
        ("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": ""})),
        ("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8="})),
        ("pre_tokenizer", json!({"type": "FixedLength", "length": 0})),
    ];
    for (part, value) in broken {
        let mut tokenizer = original.clone();
        tokenizer[part] = value;
        fs::write(&path, tokenizer.to_string()).unwrap();
        let recipe = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("train/recipes/patent/deberta-v3-large.toml");
        let recipe = recipe.to_str().unwrap();
        let search = ["memory", "search", "m", "--text", "a pipe"];
        // The tokenizer cannot be opened, or differs from the tokenizer of the memory.
        refused(folder, &search, &["tokenizer"]);
        let commands: [&[&str]; 3] = [
            &["memory", "build", "--entries", "entries.jsonl", "--model", "model", "--out", "n"],
            &["score", "phrases.csv", "--model", "model", "--out", "p.csv"],
            &[
                "train",
                "patent",
                "--recipe",
                recipe,
                "--tiny",
                "--set",
                "data.dir=phrases",
                "--set",
                "model.weights=model",
                "--set",
                "model.max_tokens=60",
                "--run",
                "r",
            ],
        ];
        for command in commands {
            let output = engram(folder, command);
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!error.contains("panicked at"), "{command:?}: {error}");
            running::refusal(
                &output,
                &command.join(" "),
                &["tokenizer.json", "the tokenizers library panicked"],
            );
        }
    }
    assert!(!folder.join("n").exists());
}

#[test]
fn errors_for_unconverted_weights_say_how_to_convert_them() {
    let fixture = Fixture::read();
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    fixture.write("deberta mean", &folder.join("deberta"));
    let rename = |from: &str, to: &str| {
        fs::rename(folder.join("deberta").join(from), folder.join("deberta").join(to)).unwrap()
    };
    rename("tokenizer.json", "spm.model");
    rename("model.safetensors", "pytorch_model.bin");
    write_inputs(&fixture, folder);
    succeeds(folder, &["data", "phrases", "--out", "phrases"]);
    let recipe =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("train/recipes/patent/deberta-v3-large.toml");
    let commands: [&[&str]; 3] = [
        &[
            "train",
            "patent",
            "--recipe",
            recipe.to_str().unwrap(),
            "--set",
            "data.dir=phrases",
            "--set",
            "model.weights=deberta",
            "--run",
            "r",
        ],
        &["memory", "build", "--entries", "entries.jsonl", "--model", "deberta", "--out", "m"],
        &["score", "phrases.csv", "--model", "deberta", "--out", "p.csv"],
    ];
    for command in commands {
        refused(
            folder,
            command,
            &[
                "spm.model",
                "pytorch_model.bin",
                "AutoTokenizer.from_pretrained(\"deberta\")",
                "DebertaV2Model.from_pretrained(\"deberta\")",
            ],
        );
    }
}
