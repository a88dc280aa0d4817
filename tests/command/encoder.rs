//! Published sentence encoders in the commands: equal embeddings, prompts, and refused files.

use std::fs;
use std::path::{Path, PathBuf};

use crate::own_data::write_pairs;
use crate::running::{
    Folder, engram, engram_reading, errors, json, printed, refusal, refused, succeeds,
};
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

/// A folder with the fixture, this model in `model`, and the texts.
fn model_folder(name: &str) -> (Fixture, Folder) {
    let (fixture, folder) = (Fixture::read(), Folder::new());
    fixture.write(name, &folder.join("model"));
    write_inputs(&fixture, &folder);
    (fixture, folder)
}

/// Builds the memory `m` from the entries with the model.
#[track_caller]
fn build_memory(folder: &Path) {
    succeeds(folder, "memory build --entries entries.jsonl --model model --out m --quiet");
}

#[test]
fn every_command_gives_the_embeddings_of_the_reference() {
    let names = [
        "bert cls",
        "bert old flags cls",
        "bert dense tanh, normalize",
        "bert all modes",
        "bert prompts",
        "bert default prompt",
    ];
    for name in names {
        let (fixture, folder) = &model_folder(name);
        build_memory(folder);
        let search = ["memory", "search", "m", "--text", fixture.text(1), "-k", "4"];
        let report = json(folder, &search);
        for hit in report["queries"][0]["hits"].as_array().unwrap() {
            let id = hit["id"].as_u64().unwrap() as usize;
            let expected = fixture.cosine(name, (1, "query"), (id, "document"));
            let score = hit["score"].as_f64().unwrap();
            assert!((score - expected).abs() < 1e-4, "{name}: {score}, expected {expected}");
        }
        succeeds(folder, "score phrases.csv --model model --out p.csv --quiet");
        let scores = fs::read_to_string(folder.join("p.csv")).unwrap();
        let score: f64 = scores.lines().nth(1).unwrap().split(',').nth(1).unwrap().parse().unwrap();
        let expected = fixture.cosine(name, (0, "default"), (1, "default"));
        assert!((score - expected).abs() < 1e-4, "{name}: {score}, expected {expected}");
    }
}

#[test]
fn branches_of_a_modern_bert_are_trained() {
    let (_, folder) = &model_folder("modernbert cls, normalize");
    write_pairs(&folder.join("pairs.csv"));
    let low_rank = r#"low_rank=[{match="**.Wqkv", rank=4, alpha=16.0, dropout=0.1}]"#;
    let train = "train similarity --csv pairs.csv --columns left,right,rating --model model \
                 --set optimiser.learning_rate=1e-2";
    for (run, set) in [("all", "compute.recompute=\"block\""), ("branches", low_rank)] {
        let arguments: Vec<&str> =
            train.split_whitespace().chain(["--run", run, "--set", set]).collect();
        let comparison = &json(folder, &arguments)["comparison"];
        let [trained, untrained] = ["a", "b"].map(|it| comparison[it]["value"].as_f64().unwrap());
        assert!(trained > untrained + 0.05, "{run}: {trained}, untrained {untrained}");
        succeeds(folder, &format!("score pairs.csv --model {run} --out {run}.csv --quiet"));
    }
}

#[test]
fn queries_come_from_standard_input() {
    let (fixture, folder) = &model_folder("bert cls");
    build_memory(folder);
    let queries = format!("{}\n{}\n", fixture.text(2), fixture.text(3));
    let arguments = "memory search m --texts - -k 1 --json";
    let output = engram_reading(folder, arguments, queries);
    let report: Value = serde_json::from_str(&printed(&output, arguments)).unwrap();
    let best = |query: usize| report["queries"][query]["hits"][0]["id"].as_u64().unwrap();
    assert_eq!([best(0), best(1)], [2, 3]);
    let output = engram_reading(folder, arguments, "one\n\n");
    refusal(&output, arguments, "/dev/stdin:2: the line is empty");
}

#[test]
fn text_files_of_a_folder_are_entries() {
    let (fixture, folder) = &model_folder("bert cls");
    let notes = folder.join("notes");
    fs::create_dir(&notes).unwrap();
    fs::write(notes.join("table.csv"), "a,b").unwrap();
    let build = "memory build --texts notes --model model --out m";
    refused(folder, build, "notes: has no .txt or .md file");
    fs::write(notes.join("b.txt"), b"one\n\xff").unwrap();
    refused(folder, build, "notes/b.txt:2: is not UTF-8");
    fs::write(notes.join("a.md"), fixture.text(2)).unwrap();
    fs::write(notes.join("b.txt"), fixture.text(3)).unwrap();
    fs::write(notes.join("c.txt"), "\n").unwrap();
    let output = engram(folder, build);
    let log = errors(&output);
    assert!(output.status.success(), "{log}");
    assert!(log.contains("notes: skipped 0 hidden files and 1 other file"), "{log}");
    assert!(log.contains("notes: skipped 1 empty file"), "{log}");
    let report = json(folder, &["memory", "search", "m", "--text", fixture.text(3), "-k", "1"]);
    let hit = &report["queries"][0]["hits"][0];
    assert_eq!((&hit["document"], &hit["source"]), (&json!("b.txt"), &json!("notes")));
    succeeds(folder, "memory add m --texts notes --model model");
}

#[test]
fn prompts_are_selected_by_name_and_recorded() {
    let (fixture, folder) = &model_folder("bert prompts");
    let build = "memory build --entries entries.jsonl --model model";
    succeeds(folder, &format!("{build} --out m --prompt other --quiet"));
    assert!(succeeds(folder, "memory info m").contains("prompt \"wide \""));
    let unknown = format!("{build} --out n --prompt nobody");
    refused(folder, &unknown, &["nobody", "document, other, query"]);
    // Added entries get the same prompt.
    fs::write(folder.join("more.jsonl"), "{\"text\": \"a bolt\"}\n").unwrap();
    let add = "memory add m --entries more.jsonl --model model";
    refused(folder, add, &["\"wide \"", "\"pipe: \"", "--prompt"]);
    succeeds(folder, &format!("{add} --prompt other"));
    let search = ["memory", "search", "m", "--text", fixture.text(0), "-k", "1"];
    let score = |prompt: &[&str]| {
        let report = json(folder, &[&search[..], prompt].concat());
        report["queries"][0]["hits"][0]["score"].as_f64().unwrap()
    };
    assert!((score(&["--prompt", "other"]) - 1.0).abs() < 1e-5);
    assert!((score(&[]) - 1.0).abs() > 1e-4);
    assert!((score(&["--prompt", ""]) - score(&[])).abs() > 1e-4);
}

#[test]
fn a_memory_refuses_its_model_with_another_tokenizer() {
    let (_, folder) = &model_folder("bert prompts");
    build_memory(folder);
    let path = folder.join("model/tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    tokenizer["model"]["max_input_chars_per_word"] = 5.into();
    fs::write(&path, tokenizer.to_string()).unwrap();
    for command in ["search m --text bolt", "add m --entries entries.jsonl --model model"] {
        let parts = ["has the same weights", "tokenizer", "engram memory reencode"];
        refused(folder, &format!("memory {command}"), &parts);
    }
}

#[test]
fn errors_for_unconverted_weights_say_how_to_convert_them() {
    let fixture = Fixture::read();
    let folder = &Folder::new();
    fixture.write("deberta mean", &folder.join("deberta"));
    let rename = |from: &str, to: &str| {
        fs::rename(folder.join("deberta").join(from), folder.join("deberta").join(to)).unwrap()
    };
    rename("tokenizer.json", "spm.model");
    rename("model.safetensors", "pytorch_model.bin");
    write_inputs(&fixture, folder);
    succeeds(folder, "data phrases --out phrases");
    let commands = [
        "train patent --recipe patent/deberta-v3-large --set data.dir=phrases \
         --set model.weights=deberta --run r",
        "memory build --entries entries.jsonl --model deberta --out m",
        "score phrases.csv --model deberta --out p.csv",
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
