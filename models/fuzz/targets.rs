//! The targets of the fuzzer and of the replay of its corpus. A target must not panic for any
//! bytes, and its errors must name the file.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device};
use engram_models::ModelError;
use engram_models::clip::{ClipConfig, ClipVisionConfig};
use engram_models::conformer::ConformerAsrConfig;
use engram_models::ctranslate2::PublishedWhisper;
use engram_models::similarity::sentence_transformer::{
    DenseConfig, PoolingConfig, PromptChoice, Prompts, SentenceModule, TransformerSettings, modules,
};
use engram_models::t5::T5Config;
use engram_models::text_encoder::TextEncoderConfig;
use engram_models::vit::ViTConfig;
use engram_models::weights::{Weights, shards_of_index, to_f16};
use engram_models::whisper::WhisperConfig;

/// The name in errors for a text that is not in a file.
const FILE: &str = "input.file";

/// A target function and its name, which is also the name of its corpus.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 4] = [
    ("configs", configs),
    ("ctranslate2", ctranslate2),
    ("safetensors", safetensors),
    ("sentence_transformers", sentence_transformers),
];

/// Runs the target with this name.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|(known, _)| *known == name);
    target.expect("a known target").1(bytes);
}

/// Checks that an error names the file.
fn check<T>(file: &Path, result: engram_models::Result<T>) -> Option<T> {
    let error = match result {
        Ok(value) => return Some(value),
        Err(error) => error.to_string(),
    };
    let name = file.file_name().expect("a file").to_string_lossy();
    assert!(error.contains(&*name), "{error:?} does not name {name}");
    None
}

/// Creates a temporary folder, in main memory if possible, with a file of these bytes.
fn file(name: &str, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let folder = folder.expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).expect("a file");
    (folder, path)
}

fn safetensors(bytes: &[u8]) {
    let (_folder, path) = file("model.safetensors", bytes);
    if let Some(weights) = check(&path, Weights::open(&path)) {
        for (name, shape) in [("a", &[2, 3][..]), ("b", &[4]), ("c", &[])] {
            check(&path, weights.get(name, shape, DType::F32, &Device::Cpu));
        }
        weights.with_optional_prefix("a.");
    }
    check(&path, to_f16(&path, ""));
}

fn ctranslate2(bytes: &[u8]) {
    let (folder, path) = file("model.bin", bytes);
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("a file");
    };
    write("config.json", "{}");
    write(
        "tokenizer.json",
        r#"{"added_tokens": [{"id": 2, "content": "<|startoftranscript|>"},
                             {"id": 1, "content": "<|endoftext|>"}]}"#,
    );
    // candle rejects tensors whose shapes do not match, without the file's name.
    let _ = PublishedWhisper::read_ctranslate2(folder.path());
    drop(path);
}

fn configs(bytes: &[u8]) {
    let (_folder, path) = file("config.json", bytes);
    check(&path, ClipConfig::read(&path));
    check(&path, ClipVisionConfig::read(&path));
    check(&path, ConformerAsrConfig::read(&path));
    check(&path, T5Config::read(&path));
    check(&path, TextEncoderConfig::read(&path));
    check(&path, ViTConfig::read(&path));
    check(&path, WhisperConfig::read(&path));
}

/// Returns the parsed value, or `None` for an error. The error must name the file.
fn check_text<T>(read: Result<T, ModelError>) -> Option<T> {
    let refused = |error: ModelError| {
        assert!(error.to_string().starts_with(FILE), "{error} names no file");
        None
    };
    read.map_or_else(refused, Some)
}

/// All configuration files of sentence-transformers, and the index of sharded weights.
fn sentence_transformers(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for module in check_text(modules::parse(text, FILE)).into_iter().flatten() {
        let leaves_the_folder = module.path.split('/').any(|part| part == "..");
        assert!(!module.file("x").starts_with('/') && !leaves_the_folder);
    }
    if let Some(pooling) = check_text(PoolingConfig::parse(text, FILE)) {
        assert!((1..=6).contains(&pooling.modes.len()));
    }
    if let Some(prompts) = check_text(Prompts::parse(text, FILE)) {
        for choice in [PromptChoice::Default, PromptChoice::Query, PromptChoice::Document] {
            assert!(prompts.text(&choice, FILE).is_ok());
        }
    }
    for is_clip in [false, true] {
        if let Some(settings) = check_text(TransformerSettings::parse(text, FILE, is_clip)) {
            assert_ne!(settings.max_seq_length, Some(0));
        }
    }
    check_text(DenseConfig::parse(text, FILE));
    check_text(SentenceModule::normalize(Some(text), FILE));
    for file in check_text(shards_of_index(text, FILE)).into_iter().flatten() {
        assert!(!file.contains('/'));
    }
}
