//! What the fuzzer and the replay of its corpus both run: any bytes in, no panic, and an error that names the file.

use engram_models::ModelError;
use engram_models::similarity::sentence_transformer::{
    DenseConfig, PoolingConfig, PromptChoice, Prompts, SentenceModule, TransformerSettings, modules,
};
use engram_models::weights::shards_of_index;

/// The name that every message must give.
const FILE: &str = "input.file";

/// A function and its name, which is that of its corpus too.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 1] = [("sentence_transformers", sentence_transformers)];

/// Runs the target of a name.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|(known, _)| *known == name);
    target.expect("a known target").1(bytes);
}

/// What was read; `None` for a refusal, which names the file.
fn check<T>(read: Result<T, ModelError>) -> Option<T> {
    let refused = |error: ModelError| {
        assert!(error.to_string().starts_with(FILE), "{error} names no file");
        None
    };
    read.map_or_else(refused, Some)
}

/// Each configuration file of sentence-transformers, and the index of weights in several files.
fn sentence_transformers(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for module in check(modules::parse(text, FILE)).into_iter().flatten() {
        assert!(!module.file("x").starts_with('/') && !module.path.contains(".."));
    }
    if let Some(pooling) = check(PoolingConfig::parse(text, FILE)) {
        assert!((1..=6).contains(&pooling.modes.len()));
    }
    if let Some(prompts) = check(Prompts::parse(text, FILE)) {
        for choice in [PromptChoice::Default, PromptChoice::Query, PromptChoice::Document] {
            assert!(prompts.text(&choice, FILE).is_ok());
        }
    }
    for is_clip in [false, true] {
        if let Some(settings) = check(TransformerSettings::parse(text, FILE, is_clip)) {
            assert_ne!(settings.max_seq_length, Some(0));
        }
    }
    check(DenseConfig::parse(text, FILE));
    check(SentenceModule::normalize(Some(text), FILE));
    for file in check(shards_of_index(text, FILE)).into_iter().flatten() {
        assert!(!file.contains('/'));
    }
}
