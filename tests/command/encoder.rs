//! Published sentence encoders in the commands: equal embeddings, prompts, and refused files.

use std::fs;
use std::path::{Path, PathBuf};

use engram::memory::vectors::VectorFile;
use serde_json::{Value, json};

use crate::own_data::write_pairs;
use crate::running::{
    Folder, command, copy, engram, engram_reading, errors, hits, json, printed, refusal, refused,
    succeeds,
};
use crate::tiny_models::{clip_folder, mixed_entries};

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
        let arguments = "encode entries.jsonl --model model --normalize --out e.npy --quiet";
        succeeds(folder, arguments);
        let expected = fixture.folder(name)["expected"]["default"].as_array().unwrap().iter();
        let expected: Vec<f64> =
            expected.flat_map(|row| row.as_array().unwrap()).map(|x| x.as_f64().unwrap()).collect();
        let (shape, vectors) = vectors(&folder.join("e.npy"));
        assert_eq!((shape[0], vectors.len()), (4, expected.len()), "{name}");
        for (found, expected) in vectors.iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-5, "{name}: {found} {expected}");
        }
    }
}

/// The shape and the numbers of a file of vectors.
fn vectors(path: &Path) -> (Vec<usize>, Vec<f32>) {
    let mut file = VectorFile::open(path, "embeddings").unwrap();
    let shape = file.shape().to_vec();
    let numbers = file.read_rows(shape[0]).unwrap();
    (shape, numbers)
}

#[test]
fn texts_of_each_format_have_the_same_vectors() {
    let (fixture, folder) = &model_folder("bert prompts");
    let texts = [fixture.text(0), fixture.text(1), "", fixture.text(3)];
    fs::write(folder.join("t.txt"), texts.map(|text| format!("{text}\n")).concat()).unwrap();
    let row = |(id, text): (usize, &str)| format!("\"{text}\",id {id}\n");
    let rows: String = texts.into_iter().enumerate().map(|(id, text)| row((id, text))).collect();
    fs::write(folder.join("t.csv"), format!("body,ID\n{rows}")).unwrap();
    let encode = |arguments: &str| {
        let output = engram(folder, &format!("encode {arguments} --model model --force"));
        assert!(output.status.success(), "{arguments}: {}", errors(&output));
        errors(&output)
    };
    let log = encode("t.txt --out a.npy --ids a.txt");
    assert!(log.contains("t.txt: has 1 empty text") && !log.contains("cut"), "{log}");
    assert_eq!(fs::read_to_string(folder.join("a.txt")).unwrap(), "1\n2\n3\n4\n");
    let (shape, first) = vectors(&folder.join("a.npy"));
    assert_eq!(shape, [4, 32]);
    encode("t.csv --column body --out b.safetensors --ids b.txt --threads 1");
    assert_eq!(fs::read_to_string(folder.join("b.txt")).unwrap(), "id 0\nid 1\nid 2\nid 3\n");
    assert_eq!(vectors(&folder.join("b.safetensors")), (shape, first.clone()));
    fs::copy(folder.join("t.csv"), folder.join("t.CSV.gz")).unwrap();
    encode("t.CSV.gz --column body --out b.npy");
    assert_eq!(vectors(&folder.join("b.npy")).1, first);
    let arguments = "encode - --model model --out -";
    let output = engram_reading(folder, arguments, fs::read(folder.join("t.txt")).unwrap());
    assert_eq!(output.stdout, fs::read(folder.join("a.npy")).unwrap());
    // Fewer components are the first components; --normalize scales those that are kept.
    encode("t.txt --dimensions 5 --normalize --out c.npy");
    let (shape, cut) = vectors(&folder.join("c.npy"));
    assert_eq!(shape, [4, 5]);
    for (row, all) in cut.chunks(5).zip(first.chunks(32)) {
        let norm = all[..5].iter().map(|x| x * x).sum::<f32>().sqrt();
        assert!(row.iter().zip(all).all(|(a, b)| (a * norm - b).abs() < 1e-6), "{row:?}");
    }
    // A prompt by its text is that by its name.
    encode("t.txt --prompt other --out d.npy");
    let output =
        ["encode", "t.txt", "--model", "model", "--out", "e.npy", "--prompt-text", "wide "];
    let report = json(folder, &output);
    assert_eq!((&report["rows"], &report["prompt"]), (&json!(4), &json!("wide ")));
    let bytes = |name: &str| fs::read(folder.join(name)).unwrap();
    assert!(bytes("d.npy") == bytes("e.npy") && bytes("d.npy") != bytes("a.npy"));
    // The ending before .gz tells the format.
    fs::copy(folder.join("entries.jsonl"), folder.join("copy.ndjson.gz")).unwrap();
    for (input, out) in [("copy.ndjson.gz", "h.npy"), ("entries.jsonl", "i.npy")] {
        encode(&format!("{input} --out {out}"));
    }
    assert!(bytes("h.npy") == bytes("i.npy"));
    let log = encode("t.txt --max-length 8 --out f.npy");
    assert!(log.contains("cut 1 text to 8 tokens"), "{log}");
    for (arguments, part) in [
        ("t.txt --out g.csv", "g.csv: name a .npy or .safetensors file"),
        ("t.txt --column body --out g.npy", "--column needs a .csv, .tsv or .jsonl file"),
        ("t.csv --out g.npy", "body, ID; rename or add the column, or name another"),
        ("entries.jsonl --column body --out g.npy", "entries.jsonl:1: has no text `body`"),
        ("model --out g.npy", "model: has no texts and no images"),
        ("t.txt --images --out g.npy", "t.txt: has images, which model does not encode"),
        ("t.txt --dimensions 33 --out g.npy", "is 33, but model has vectors of width 32"),
        ("t.txt --max-length 9999 --out g.npy", "tokens, not 9999"),
        ("t.txt --prompt nobody --out g.npy", "available prompts: document, other, query"),
        ("t.txt --out g.npy --ids g.npy", "both write there"),
    ] {
        refused(folder, &format!("encode {arguments} --model model"), part);
    }
    assert!(!folder.join("g.npy").exists());
}

#[test]
fn images_of_a_folder_and_of_a_list_have_the_same_vectors() {
    let folder = &Folder::new();
    let model = clip_folder(folder);
    mixed_entries(folder);
    fs::write(folder.join("pictures/list.txt"), "green.bmp\nred.png\n").unwrap();
    succeeds(folder, "encode pictures --model clip --out a.npy --ids a.txt --normalize");
    succeeds(folder, "encode pictures/list.txt --images --model clip --out b.npy --normalize");
    assert_eq!(fs::read_to_string(folder.join("a.txt")).unwrap(), "green.bmp\nred.png\n");
    assert_eq!(vectors(&folder.join("a.npy")), vectors(&folder.join("b.npy")));
    succeeds(folder, "memory build --keys a.npy --out m");
    let hit = &hits(folder, "m --image pictures/red.png -k 1 --model clip")[0][0];
    assert!(hit.0 == 1 && (hit.1 - 1.0).abs() < 1e-6, "{hit:?}");
    fs::remove_file(model.join("tokenizer.json")).unwrap();
    fs::write(folder.join("pictures/a.png"), "no image").unwrap();
    refused(folder, "encode pictures --model clip --out c.npy", "tokenizer.json");

    // The class token of a ViT.
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tests/fixtures/vit");
    copy(&fixtures, &folder.join("vit"));
    let processor = fs::read(folder.join("clip/preprocessor_config.json")).unwrap();
    fs::write(folder.join("vit/preprocessor_config.json"), processor).unwrap();
    succeeds(folder, "encode pictures/red.png --model vit --out v.npy");
    assert_eq!(vectors(&folder.join("v.npy")).0, [1, 16]);
    refused(folder, "encode pictures --model vit --out c.npy", "a.png: is not a known image");
}

#[test]
fn models_are_explained() {
    let (_, folder) = &model_folder("bert prompts");
    let report = json(folder, "models model");
    assert_eq!(report["family"]["name"], "BERT");
    let facts = &report["facts"];
    assert_eq!((&facts["width"], &facts["vector_width"]), (&json!(32), &json!(32)));
    assert_eq!(facts["prompts"]["other"], "wide ");
    assert!(facts["modules"].as_str().unwrap().starts_with("Transformer, Pooling"), "{facts}");
    let hub = folder.join("cache/models--me--mine");
    fs::create_dir_all(hub.join("refs")).unwrap();
    fs::write(hub.join("refs/main"), "abc").unwrap();
    copy(&folder.join("model"), &hub.join("snapshots/abc"));
    let jina = folder.join("cache/models--me--jina/snapshots/main");
    copy(&folder.join("model"), &jina);
    let config = fs::read_to_string(jina.join("config.json")).unwrap();
    let alibi = config.replacen('{', "{\"position_embedding_type\": \"alibi\",", 1);
    fs::write(jina.join("config.json"), alibi).unwrap();
    let other = folder.join("cache/models--me--other/snapshots/main");
    fs::create_dir_all(&other).unwrap();
    fs::write(other.join("config.json"), "{\"model_type\": \"llama\"}").unwrap();
    let mut list = command(folder, "models --json");
    let output = list.env("HF_HUB_CACHE", folder.join("cache")).output();
    let list: Value = serde_json::from_str(&printed(&output.unwrap(), "models")).unwrap();
    let cached = list["cached"].as_array().unwrap();
    let families = [("hf://me/jina", "jina-embeddings-v2"), ("hf://me/mine", "BERT")];
    for (found, (model, family)) in cached.iter().zip(families) {
        assert_eq!((&found["model"], &found["family"]), (&json!(model), &json!(family)));
    }
    let error = cached[2]["error"].as_str().unwrap();
    assert!(error.contains("model_type `llama` is not one of: bert, roberta, "), "{error}");
    assert!(succeeds(folder, "models --markdown").contains("| T5 v1.1 | `t5` |"));
    // A model that does not load is a failed check.
    fs::write(folder.join("model/tokenizer.json"), "{}").unwrap();
    let output = engram(folder, "models model");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && text.contains("does not load: "), "{text}");
}

#[test]
fn every_family_of_text_encoders_is_trained() {
    for (family, layer) in [
        ("modernbert", "Wqkv"),
        ("roberta", "query"),
        ("xlm_roberta", "query"),
        ("distilbert", "q_lin"),
        ("mpnet", "q"),
    ] {
        let (_, folder) = &model_folder(&format!("{family} cls, normalize"));
        write_pairs(&folder.join("pairs.csv"));
        let low_rank =
            format!("low_rank=[{{match=\"**.{layer}\", rank=4, alpha=16.0, dropout=0.1}}]");
        let train = "train similarity --csv pairs.csv --columns left,right,rating --model model \
                     --set optimiser.learning_rate=1e-2";
        for (run, set) in [("all", "compute.recompute=\"block\""), ("branches", &low_rank)] {
            let arguments: Vec<&str> =
                train.split_whitespace().chain(["--run", run, "--set", set]).collect();
            let comparison = &json(folder, &arguments)["comparison"];
            let [trained, untrained] =
                ["a", "b"].map(|it| comparison[it]["value"].as_f64().unwrap());
            // Four directions of one kind of layer cannot make every random model better.
            let gain = trained - untrained;
            let is_trained = if run == "all" { gain > 0.05 } else { gain.abs() > 0.01 };
            assert!(is_trained, "{family}, {run}: {trained}, untrained {untrained}");
            succeeds(folder, &format!("score pairs.csv --model {run} --out {run}.csv --quiet"));
        }
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
