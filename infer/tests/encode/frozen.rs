//! Folders of frozen encoders, with tokenizer, preprocessing and modules, against the published
//! pipelines: the fixtures of `tests/reference/frozen.py`.

use std::fs;
use std::path::{Path, PathBuf};

use candle_core::Device;
use engram_infer::encode::{Encoder, EncoderFiles, Item, PromptChoice, to_unit_length};
use engram_models::compute::Compute;
use serde_json::{Value, json};

use crate::{compare, copied, edit_json, error_of, fixture_path};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../frozen/tests/fixtures").join(name)
}

/// Copies a fixture to a temporary folder.
fn folder(name: &str) -> tempfile::TempDir {
    let temporary = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap().map(Result::unwrap) {
        if entry.path().is_file() {
            fs::copy(entry.path(), temporary.path().join(entry.file_name())).unwrap();
        }
    }
    temporary
}

fn texts(name: &str) -> Vec<String> {
    serde_json::from_slice(&fs::read(fixture(name).join("texts.json")).unwrap()).unwrap()
}

/// The expected vectors, with unit length.
fn expected(name: &str, key: &str) -> Vec<Vec<f32>> {
    let path = fixture(name).join("expected.safetensors");
    let tensors = candle_core::safetensors::load(path, &Device::Cpu).unwrap();
    let mut rows = tensors[key].to_vec2::<f32>().unwrap();
    rows.iter_mut().for_each(|row| to_unit_length(row));
    rows
}

fn encode(encoder: &Encoder, items: &[Item]) -> Vec<f32> {
    let prepared: Vec<_> = items.iter().map(|item| encoder.prepare(*item).unwrap()).collect();
    encoder.encode(&prepared.iter().collect::<Vec<_>>()).unwrap()
}

fn open(name: &str, choice: &PromptChoice) -> Encoder {
    Encoder::with_prompt(fixture(name).to_str().unwrap(), choice, &Compute::cpu()).unwrap()
}

#[test]
fn frozen_encoders_equal_the_published_pipelines() {
    let image = fixture_path("image.png");
    let mut failures = Vec::new();
    for name in ["siglip", "dinov2"] {
        let encoder = open(name, &PromptChoice::Default);
        let vectors = encode(&encoder, &[Item { image: Some(&image), text: None }]);
        compare(name, &vectors, &expected(name, "image"), &mut failures);
    }
    for (name, key, choice) in [
        ("siglip", "texts", PromptChoice::Default),
        ("gte_sentences", "default", PromptChoice::Default),
        ("gte_sentences", "query", PromptChoice::Query),
    ] {
        let encoder = open(name, &choice);
        let texts = texts(name);
        let items: Vec<_> = texts.iter().map(|it| Item { text: Some(it), image: None }).collect();
        let vectors = encode(&encoder, &items);
        compare(key, &vectors, &expected(name, key), &mut failures);
        // Alone, a text has the same vector.
        assert_eq!(encode(&encoder, &items[..1]), vectors[..encoder.width()], "{key}");
    }
    assert!(failures.is_empty(), "{failures:?}");
}

#[test]
fn siglip_2_lowercases_texts_and_pads_them_on_the_side_of_its_settings() {
    let vector = |side: Option<&str>, text: &str| {
        let folder = folder("siglip");
        edit_json(folder.path(), "tokenizer_config.json", |config| {
            config["tokenizer_class"] = "GemmaTokenizer".into();
            config["padding_side"] = side.map_or(Value::Null, Value::from);
        });
        let path = folder.path().to_str().unwrap();
        let encoder = Encoder::open(path, &Compute::cpu()).unwrap();
        encode(&encoder, &[Item { text: Some(text), image: None }])
    };
    let right = vector(Some("right"), "a photo");
    assert_eq!(vector(Some("right"), "A PHOTO"), right);
    assert_ne!(vector(None, "a photo"), right);
    assert_eq!(vector(None, "a photo"), vector(Some("left"), "A photo"));
}

#[test]
fn frozen_encoders_are_not_trained_and_bad_folders_are_refused_with_a_remedy() {
    let training = EncoderFiles::find(fixture("gte_sentences").to_str().unwrap()).err().unwrap();
    let training = training.to_string();
    assert!(training.contains("only be used frozen") && training.contains("bert, "), "{training}");

    let siglip = folder("siglip");
    fs::remove_file(siglip.path().join("tokenizer.json")).unwrap();
    fs::write(siglip.path().join("spiece.model"), "").unwrap();
    let error = error_of(siglip.path());
    assert!(error.contains("T5Converter") && error.contains("spiece.model"), "{error}");

    for (name, file, field, value, expected) in [
        ("siglip", "tokenizer_config.json", "pad_token", Value::Null, "`pad_token`"),
        ("siglip", "tokenizer_config.json", "pad_token", json!("<none>"), "no padding token"),
        ("siglip", "tokenizer_config.json", "tokenizer_class", json!("T5Tokenizer"), "SigLIP's"),
        ("siglip", "preprocessor_config.json", "size", json!({"height": 9, "width": 9}), "12 x 12"),
        ("siglip", "config.json", "model_type", json!("siglip2"), "`siglip2` is not one of: bert"),
        ("siglip", "config.json", "auto_map", json!({"AutoModel": "m.M"}), "own code `m.M`"),
        ("dinov2", "config.json", "model_type", json!("siglip"), "224 x 224 pixels"),
        ("dinov2", "preprocessor_config.json", "do_center_crop", json!(false), "of one size"),
    ] {
        let folder = folder(name);
        edit_json(folder.path(), file, |config| config[field] = value.clone());
        let error = error_of(folder.path());
        assert!(error.contains(expected), "{field} = {value}: {error}");
    }
    let unknown = copied("bert mean");
    edit_json(unknown.path(), "config.json", |config| {
        config["model_type"] = "own".into();
        config["auto_map"] = json!({"AutoModel": "modeling.Own"});
    });
    let error = error_of(unknown.path());
    assert!(error.contains("`own` is not one of") && error.contains("`modeling.Own`"), "{error}");
}
