//! Reads Whisper models written by CTranslate2. `tests/reference/whisper.py` creates the fixtures.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Tensor};
use engram_models::Result;
use engram_models::ctranslate2::PublishedWhisper;
use engram_models::whisper::{Whisper, WhisperConfig};

use super::reference::{builder, fixture, largest, largest_difference, tensors, values};

/// Creates a folder with this `model.bin`.
fn folder(model: &[u8]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.path().join(name), bytes).expect("a file");
    };
    write("model.bin", model);
    write("config.json", br#"{"suppress_ids": [5], "suppress_ids_begin": [6], "lang_ids": []}"#);
    let added = r#"{"added_tokens": [{"id": 2, "content": "<|startoftranscript|>"},
                                     {"id": 1, "content": "<|endoftext|>"}]}"#;
    write("tokenizer.json", added.as_bytes());
    folder
}

/// Returns the fixture's `model.bin` with this quantisation.
fn bytes(quantisation: &str) -> Vec<u8> {
    let path = fixture("whisper", &format!("model_{quantisation}.bin"));
    std::fs::read(path).expect("a fixture")
}

/// Returns the error for this `model.bin`.
fn error_of(model: &[u8]) -> String {
    let folder = folder(model);
    PublishedWhisper::read_ctranslate2(folder.path()).err().expect("an error").to_string()
}

#[test]
fn weights_equal_the_published_weights() -> Result<()> {
    let published = tensors("whisper", "model.safetensors")?;
    // The tolerance is half a quantisation step of a row's largest weight. int16 has one scale for
    // stacked layers. Float weights are exact.
    for (quantisation, step) in [("float16", 0.0), ("int8", 0.5 / 127.0), ("int16", 1.0 / 1024.0)] {
        let folder = folder(&bytes(quantisation));
        let converted = PublishedWhisper::read_ctranslate2(folder.path())?;
        let tensors: HashMap<&str, &Tensor> =
            converted.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let mut names: Vec<&str> = tensors.keys().copied().collect();
        let mut expected: Vec<&str> = published.keys().map(String::as_str).collect();
        names.sort_unstable();
        expected.sort_unstable();
        assert_eq!(names, expected, "{quantisation}");
        for (name, expected_tensor) in &published {
            let scale = largest(values(expected_tensor)?.into_iter());
            let difference = largest_difference(tensors[name.as_str()], expected_tensor)?;
            assert!(
                difference <= step * scale + 1e-7,
                "{quantisation} {name}: {difference}, {scale}"
            );
        }
    }
    Ok(())
}

#[test]
fn a_saved_model_loads_as_a_published_model() -> Result<()> {
    let folder = folder(&bytes("float16"));
    let converted = PublishedWhisper::read_ctranslate2(folder.path())?;
    let saved = tempfile::tempdir().expect("a folder");
    converted.save(saved.path())?;
    let config = WhisperConfig::read(&saved.path().join("config.json"))?;
    assert_eq!(config, converted.config);
    // Values that the shapes do not determine equal the original.
    let original = WhisperConfig::read(&fixture("whisper", "config.json"))?;
    assert_eq!(config, original);
    Whisper::load(saved.path(), &builder(0, DType::F32))?;
    let generation = std::fs::read_to_string(saved.path().join("generation_config.json"));
    let generation: serde_json::Value =
        serde_json::from_str(&generation.expect("a file")).expect("JSON");
    assert_eq!(generation["suppress_tokens"], serde_json::json!([5]));
    assert_eq!(generation["begin_suppress_tokens"], serde_json::json!([6]));
    Ok(())
}

#[test]
fn damaged_files_are_errors_with_the_reason() {
    let complete = bytes("int8");
    for end in [0, 3, 20, 1_000, complete.len() - 1] {
        let error = error_of(&complete[..end]);
        assert!(error.contains("model.bin") && error.contains("is truncated"), "{end}: {error}");
    }
    let longer = [&complete[..], b"x"].concat();
    assert!(error_of(&longer).contains("1 bytes after the end"));
    let other_version = [&5u32.to_le_bytes(), &complete[4..]].concat();
    assert!(error_of(&other_version).contains("version 5"), "{}", error_of(&other_version));
    let mut other_model = complete.clone();
    other_model[6..10].copy_from_slice(b"Vosk");
    assert!(error_of(&other_model).contains("WhisperSpec"), "{}", error_of(&other_model));
    // Changing any byte of the header gives an error or a model, never a panic.
    for index in 4..600 {
        for value in [0, 0xff] {
            let mut changed = complete.clone();
            changed[index] = value;
            let folder = folder(&changed);
            let _ = PublishedWhisper::read_ctranslate2(folder.path());
        }
    }
}

#[test]
fn the_configuration_and_tokenizer_are_required() {
    for missing in ["config.json", "tokenizer.json"] {
        let folder = folder(&bytes("float16"));
        std::fs::remove_file(folder.path().join(missing)).expect("a file");
        let error = PublishedWhisper::read_ctranslate2(folder.path()).err().expect("an error");
        assert!(error.to_string().contains(missing), "{error}");
    }
    assert!(PublishedWhisper::read_ctranslate2(Path::new("/nowhere")).is_err());
}
