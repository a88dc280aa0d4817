//! Compares sentence encoders with `sentence-transformers`: folders and embeddings of
//! `tests/reference/sentence_transformers.py`.
#![allow(clippy::unwrap_used)]

#[path = "encode/frozen.rs"]
mod frozen;

use candle_core::{DType, Device, Tensor};
use engram_models::compute::Compute;
use engram_models::weights::{ADAPTER_CONFIG, ADAPTER_WEIGHTS, Weights, save};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use engram_infer::encode::{Encoder, Item, PromptChoice};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Fixture {
    texts: Vec<String>,
    folders: Vec<Folder>,
}

#[derive(Clone, Deserialize)]
struct Folder {
    name: String,
    files: BTreeMap<String, File>,
    /// Unit vectors by role.
    expected: BTreeMap<String, Vec<Vec<f32>>>,
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum File {
    Text(String),
    Blob { blob: String },
}

fn fixture_path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/sentence_transformers").join(file)
}

fn fixture() -> Fixture {
    serde_json::from_slice(&fs::read(fixture_path("folders.json")).unwrap()).unwrap()
}

impl Folder {
    /// Writes the files to a folder.
    fn write(&self, folder: &Path) {
        for (path, file) in &self.files {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match file {
                File::Text(text) => fs::write(path, text).unwrap(),
                File::Blob { blob } => {
                    fs::copy(fixture_path("blobs").join(blob), path).unwrap();
                }
            }
        }
    }
}

/// Copies a folder of the fixture to a temporary folder.
fn copied(name: &str) -> tempfile::TempDir {
    let temporary = tempfile::tempdir().unwrap();
    let folders = fixture().folders;
    folders.iter().find(|folder| folder.name == name).unwrap().write(temporary.path());
    temporary
}

fn edit_json(folder: &Path, file: &str, edit: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(folder.join(file)).unwrap()).unwrap();
    edit(&mut value);
    fs::write(folder.join(file), value.to_string()).unwrap();
}

fn error_of(folder: &Path) -> String {
    Encoder::open(folder.to_str().unwrap(), &Compute::cpu()).err().expect("an error").to_string()
}

#[test]
fn embeddings_of_every_folder_equal_those_of_sentence_transformers() {
    let Fixture { texts, folders } = fixture();
    assert!(folders.len() >= 40, "{} folders", folders.len());
    let mut failures = Vec::new();
    for folder in folders {
        let temporary = tempfile::tempdir().unwrap();
        folder.write(temporary.path());
        let location = temporary.path().to_str().unwrap();
        let default = &folder.expected["default"];
        let roles = [
            ("default", PromptChoice::Default),
            ("query", PromptChoice::Query),
            ("document", PromptChoice::Document),
        ];
        let named = folder.expected.keys().filter_map(|key| key.strip_prefix("prompt "));
        let named = named.map(|name| (name, PromptChoice::Named(name.to_owned())));
        for (role, choice) in roles.into_iter().chain(named) {
            let key = match choice {
                PromptChoice::Named(_) => format!("prompt {role}"),
                _ => role.to_owned(),
            };
            let expected = folder.expected.get(&key).unwrap_or(default);
            let encoder = match Encoder::with_prompt(location, &choice, &Compute::cpu()) {
                Ok(encoder) => encoder,
                Err(error) => {
                    failures.push(format!("{}, {key}: {error}", folder.name));
                    continue;
                }
            };
            let prepare =
                |text: &String| encoder.prepare(Item { text: Some(text), image: None }).unwrap();
            let items: Vec<_> = texts.iter().map(prepare).collect();
            let embeddings = encoder.encode(&items.iter().collect::<Vec<_>>()).unwrap();
            compare(&format!("{}, {key}", folder.name), &embeddings, expected, &mut failures);
        }
        if let Some(expected) = folder.expected.get("image") {
            let encoder = Encoder::open(location, &Compute::cpu()).unwrap();
            let item = Item { text: None, image: Some(&fixture_path("image.png")) };
            let embeddings = encoder.encode(&[&encoder.prepare(item).unwrap()]).unwrap();
            compare(&format!("{}, image", folder.name), &embeddings, expected, &mut failures);
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Adds a failure if embeddings differ from the expected embeddings.
fn compare(name: &str, values: &[f32], expected: &[Vec<f32>], failures: &mut Vec<String>) {
    let expected = expected.concat();
    let max_error = if values.len() == expected.len() {
        values.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    } else {
        f32::INFINITY
    };
    if max_error.is_nan() || max_error > 1e-4 {
        let (num_values, num_expected) = (values.len(), expected.len());
        failures.push(format!(
            "{name}: differs by {max_error} ({num_values} values, {num_expected} expected)"
        ));
    }
}

#[test]
fn errors_for_unsupported_features_contain_the_file_and_the_feature() {
    let (pooling, settings) = ("1_Pooling/config.json", "sentence_bert_config.json");
    let (modules, prompts) = ("modules.json", "config_sentence_transformers.json");
    let (config, dense) = ("config.json", "2_Dense/config.json");
    let unknown = "`funnel` is not one of: bert, roberta, xlm-roberta";
    for (name, file, key, value, part) in [
        ("bert cls", pooling, "pooling_mode", json!("attention"), "`attention`"),
        ("bert cls", pooling, "pooling_mode", json!(["cls", "x"]), "`x`"),
        ("bert cls", modules, "type", json!("sentence_transformers.models.CNN"), "CNN"),
        ("bert cls", modules, "type", json!("custom.Pooling"), "custom.Pooling"),
        ("bert cls", modules, "path", json!("../p"), "../p"),
        ("bert cls", config, "model_type", json!("funnel"), unknown),
        ("bert cls", config, "is_decoder", json!(true), "is_decoder"),
        ("bert cls", settings, "transformer_task", json!("fill-mask"), "fill-mask"),
        ("bert cls", prompts, "model_type", json!("SparseEncoder"), "SparseEncoder"),
        ("bert cls", prompts, "default_prompt_name", json!("z"), "\"z\""),
        ("bert dense GELU", dense, "activation_function", json!("torch.nn.PReLU"), "PReLU"),
        ("bert dense GELU", dense, "in_features", json!(31), "31"),
    ] {
        let folder = copied(name);
        edit_json(folder.path(), file, |json| match json.is_array() {
            true => json[1][key] = value,
            false => json[key] = value,
        });
        let error = error_of(folder.path());
        let file_name = file.split('/').next_back().unwrap();
        assert!(error.contains(part) && error.contains(file_name), "{error}");
    }
}

#[test]
fn a_file_named_in_modules_json_must_exist() {
    for (name, file) in [
        ("bert cls", "1_Pooling/config.json"),
        ("bert dense GELU", "2_Dense/config.json"),
        ("bert dense GELU", "2_Dense/model.safetensors"),
        ("bert in shards", "model-00002-of-00002.safetensors"),
    ] {
        let folder = copied(name);
        fs::remove_file(folder.path().join(file)).unwrap();
        assert!(error_of(folder.path()).contains(file), "{}", error_of(folder.path()));
    }
    // Without modules.json, sentence-transformers would use mean pooling.
    let folder = copied("bert cls");
    fs::remove_file(folder.path().join("modules.json")).unwrap();
    let error = error_of(folder.path());
    assert!(error.contains("modules.json: is missing") && error.contains("1_Pooling"), "{error}");
}

#[test]
fn models_in_other_formats_are_refused_with_the_commands_that_convert_them() {
    let folder = copied("bert cls");
    let rename = |from: &str, to: &str| {
        fs::rename(folder.path().join(from), folder.path().join(to)).unwrap();
    };
    rename("model.safetensors", "pytorch_model.bin");
    let (model, tokenizer) = ("BertModel.from_pretrained", "AutoTokenizer.from_pretrained");
    let check = |part: &str, has_model: bool, has_tokenizer: bool| {
        let error = error_of(folder.path());
        assert!(error.contains(part), "{error}");
        assert_eq!(error.contains(model), has_model, "{error}");
        assert_eq!(error.contains(tokenizer), has_tokenizer, "{error}");
    };
    check("pytorch_model.bin", true, false);
    rename("tokenizer.json", "vocab.txt");
    check("vocab.txt", true, true);
    rename("pytorch_model.bin", "model.safetensors");
    rename("vocab.txt", "spm.model");
    check("spm.model", false, true);
}

#[test]
fn files_and_folders_of_other_formats_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for (file, kind) in [
        ("model.gguf", "format GGUF"),
        ("pytorch_lora_weights.safetensors", "adapter of an image generator"),
    ] {
        let path = folder.path().join(file);
        fs::write(&path, "").unwrap();
        let error = error_of(folder.path());
        let has = |part: &str| error.contains(part);
        assert!(has(file) && has(kind) && has("and model.safetensors"), "{error}");
        let error = error_of(&path);
        assert!(error.contains(file) && error.contains("is a file"), "{error}");
        fs::remove_file(path).unwrap();
    }
}

/// An adapter with the product of ones, 3 / 1 × 1, for one weight.
#[test]
fn a_model_with_its_adapter_equals_the_merged_model() {
    let (base, merged, adapter) =
        (copied("bert cls"), copied("bert cls"), tempfile::tempdir().unwrap());
    let file = |folder: &Path| folder.join("model.safetensors");
    let mut tensors = Weights::open(&file(base.path())).unwrap().read_all().unwrap();
    let is_query = |name: &&String| name.ends_with("layer.0.attention.self.query.weight");
    let name = tensors.keys().find(is_query).unwrap().clone();
    let (rows, columns) = tensors[&name].dims2().unwrap();
    let layer = format!("base_model.model.{}", name.trim_end_matches(".weight"));
    let ones = |rows, columns| Tensor::ones((rows, columns), DType::F32, &Device::Cpu).unwrap();
    let matrices = [
        (format!("{layer}.lora_A.weight"), ones(1, columns)),
        (format!("{layer}.lora_B.weight"), ones(rows, 1)),
    ];
    let named = matrices.iter().map(|(name, tensor)| (name.as_str(), tensor));
    save(&adapter.path().join(ADAPTER_WEIGHTS), named).unwrap();
    let config = json!({"peft_type": "LORA", "lora_alpha": 3,
                        "base_model_name_or_path": base.path().to_str()});
    fs::write(adapter.path().join(ADAPTER_CONFIG), config.to_string()).unwrap();
    let change = (&tensors[&name] + (ones(rows, columns) * 3.0).unwrap()).unwrap();
    tensors.insert(name, change);
    let named = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
    save(&file(merged.path()), named).unwrap();

    let [base, merged, adapter] = [&base, &merged, &adapter].map(|f| f.path().to_str().unwrap());
    let with_adapter = format!("{base}?adapter={adapter}");
    let vector = |location: &str| {
        let encoder = Encoder::open(location, &Compute::cpu()).unwrap();
        let item = Item { text: Some("metal fastener"), image: None };
        let vector = encoder.encode(&[&encoder.prepare(item).unwrap()]).unwrap();
        (vector, encoder.name().to_owned(), encoder.sha256().to_owned())
    };
    let ((plain, _, plain_sha256), (expected, ..)) = (vector(base), vector(merged));
    let (changed, name, sha256) = vector(&with_adapter);
    assert_eq!(changed, expected);
    assert!(changed != plain && sha256 != plain_sha256);
    // The name opens the same model, from any folder.
    assert_eq!(vector(&name).2, sha256);
    let error = error_of(Path::new(adapter));
    assert!(error.contains(&format!("'{with_adapter}'; give that name")), "{error}");
    let error = error_of(Path::new(&format!("{base}?adapter={merged}")));
    assert!(error.contains(ADAPTER_CONFIG), "{error}");
    let error = error_of(Path::new(&format!("{with_adapter}?adapter={adapter}")));
    assert!(error.contains("two adapters"), "{error}");
}

#[test]
fn every_input_file_changes_the_inputs_hash() {
    let folder = copied("bert prompts");
    let hashes = || {
        let encoder = Encoder::open(folder.path().to_str().unwrap(), &Compute::cpu()).unwrap();
        (encoder.sha256().to_owned(), encoder.inputs_sha256().to_owned())
    };
    let (weights, original) = hashes();
    // Memories store this hash. If it changed, they would refuse the model that built them.
    assert_eq!(original, "af886646f6ba18bf13ff5b19dda19e7e5479bd5650c701a4792f071f23e17c6c");
    let mut seen = vec![original.clone()];
    let mut check_edit = |file: &str, edit: fn(&mut Value)| {
        let path = folder.path().join(file);
        let bytes = fs::read(&path).unwrap();
        edit_json(folder.path(), file, edit);
        let (edited_weights, edited) = hashes();
        assert_eq!(edited_weights, weights);
        assert!(!seen.contains(&edited), "{file}");
        seen.push(edited);
        fs::write(path, bytes).unwrap();
    };
    check_edit("tokenizer.json", |json| json["model"]["max_input_chars_per_word"] = 5.into());
    check_edit("config.json", |json| json["layer_norm_eps"] = 1e-3.into());
    check_edit("sentence_bert_config.json", |json| json["max_seq_length"] = 7.into());
    check_edit("config_sentence_transformers.json", |json| json["prompts"]["query"] = "?".into());
    // Other keys, and the choice of a prompt, change nothing.
    edit_json(folder.path(), "config.json", |json| json["transformers_version"] = "9".into());
    assert_eq!(hashes().1, original);
    let location = folder.path().to_str().unwrap();
    let query = Encoder::with_prompt(location, &PromptChoice::Query, &Compute::cpu()).unwrap();
    assert_eq!(query.inputs_sha256(), original);
}

#[test]
fn modules_change_the_hash_of_a_model() {
    let sha256 = |name: &str| {
        let folder = copied(name);
        Encoder::open(folder.path().to_str().unwrap(), &Compute::cpu()).unwrap().sha256().to_owned()
    };
    // With mean pooling, the hash equals the hash of the weights file. Another pooling changes it.
    assert_eq!(sha256("bert mean"), sha256("bert old flags mean"));
    assert_ne!(sha256("bert mean"), sha256("bert cls"));
    assert_ne!(sha256("bert dense GELU"), sha256("bert dense ReLU"));
}
