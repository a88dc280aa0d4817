//! `sentence_bert_config.json`: how the Transformer module processes texts.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{PromptChoice, parse_json};
use crate::config::{bad_field, require};
use crate::error::Result;

/// The settings of a Transformer module.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TransformerSettings {
    /// Maximum length of a text, in tokens including special tokens: the tokenizer's
    /// `model_max_length` if the file sets it, otherwise `max_seq_length`. `None` if the file sets
    /// neither.
    pub max_seq_length: Option<usize>,
    /// Maximum length of a query, in tokens. `None` applies `max_seq_length`.
    pub query_length: Option<usize>,
    /// Maximum length of a document (an entry of a memory), in tokens. `None` applies
    /// `max_seq_length`.
    pub document_length: Option<usize>,
    /// Whether texts are lower-cased before tokenization.
    pub do_lower_case: bool,
}

/// Settings of the Python loader that are ignored here.
const IGNORED_SETTINGS: &[&str] = &[
    "add_pooling_layer",
    "attn_implementation",
    "cache_dir",
    "device_map",
    "dtype",
    "fix_mistral_regex",
    "local_files_only",
    "low_cpu_mem_usage",
    "padding_side",
    "revision",
    "token",
    "torch_dtype",
    "trust_remote_code",
    "use_fast",
    "use_safetensors",
];

#[derive(Deserialize)]
struct ConfigFile {
    max_seq_length: Option<usize>,
    query_length: Option<usize>,
    document_length: Option<usize>,
    do_lower_case: Option<bool>,
    transformer_task: Option<String>,
    modality_config: Option<Map<String, Value>>,
    module_output_name: Option<String>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl TransformerSettings {
    /// Possible file names, in the order in which sentence-transformers looks for them.
    pub const FILES: [&'static str; 7] = [
        "sentence_bert_config.json",
        "sentence_roberta_config.json",
        "sentence_distilbert_config.json",
        "sentence_camembert_config.json",
        "sentence_albert_config.json",
        "sentence_xlm-roberta_config.json",
        "sentence_xlnet_config.json",
    ];

    /// Parses the file; `name` names it in errors. `is_clip` says whether the Transformer is CLIP.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig) if the text is not valid, a setting
    /// is not supported, or a length limit is 0.
    pub fn parse(text: &str, name: &str, is_clip: bool) -> Result<Self> {
        let expected = "the configuration of a Transformer module";
        let file: ConfigFile = parse_json(text, name, expected)?;
        let unsupported = |key: &str, value: &dyn std::fmt::Display| {
            bad_field(name, format!("`{key}` is {value}, which is not supported"))
        };
        if let Some(task) = file.transformer_task.filter(|task| task != "feature-extraction") {
            return Err(unsupported("transformer_task", &task));
        }
        let output = if is_clip { "sentence_embedding" } else { "token_embeddings" };
        if let Some(other) = file.module_output_name.filter(|name| name != output) {
            return Err(unsupported("module_output_name", &other));
        }
        for (modality, method_config) in file.modality_config.iter().flatten() {
            let method = method_config.get("method").and_then(Value::as_str).unwrap_or_default();
            let output_name = method_config.get("method_output_name").and_then(Value::as_str);
            let is_known = match (modality.as_str(), is_clip) {
                ("text", false) => method == "forward" && output_name == Some("last_hidden_state"),
                (modality @ ("text" | "image"), true) => {
                    method == format!("get_{modality}_features")
                        && matches!(output_name, None | Some("pooler_output"))
                }
                _ => false,
            };
            if !is_known {
                return Err(unsupported(&format!("modality_config.{modality}"), method_config));
            }
        }
        let mut max_seq_length = file.max_seq_length;
        for (key, value) in &file.others {
            match key.as_str() {
                "model_args" | "model_kwargs" | "config_args" | "config_kwargs" => {
                    check_ignored(key, value, &unsupported)?;
                }
                "tokenizer_args" | "processor_kwargs" => {
                    let mut other_settings = value.as_object().cloned().unwrap_or_default();
                    let model_max_length = other_settings.remove("model_max_length");
                    let model_max_length = model_max_length.as_ref().and_then(Value::as_u64);
                    max_seq_length =
                        model_max_length.and_then(|n| n.try_into().ok()).or(max_seq_length);
                    check_ignored(key, &Value::Object(other_settings), &unsupported)?;
                }
                "backend" if value.as_str() == Some("torch") => {}
                "query_expansion" | "processing_kwargs" | "backend" if !is_null_or_empty(value) => {
                    return Err(unsupported(key, value));
                }
                _ => {}
            }
        }
        let settings = Self {
            max_seq_length,
            query_length: file.query_length,
            document_length: file.document_length,
            do_lower_case: file.do_lower_case.unwrap_or(false),
        };
        let lengths = [settings.max_seq_length, settings.query_length, settings.document_length];
        require(
            !lengths.contains(&Some(0)),
            name,
            || "a length limit is 0; give at least 1 token",
        )?;
        Ok(settings)
    }
    /// Returns `query_length` or `document_length`; `None` for other choices, or if it is not set.
    pub fn task_length(&self, choice: &PromptChoice) -> Option<usize> {
        match choice {
            PromptChoice::Query => self.query_length,
            PromptChoice::Document => self.document_length,
            PromptChoice::Default | PromptChoice::Named(_) | PromptChoice::Text(_) => None,
        }
    }
}

fn is_null_or_empty(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(Map::is_empty)
}

/// Returns an error if the object `value` has a setting that cannot be ignored.
fn check_ignored(
    key: &str,
    value: &Value,
    unsupported: &dyn Fn(&str, &dyn std::fmt::Display) -> crate::error::ModelError,
) -> Result<()> {
    for (inner_key, value) in value.as_object().into_iter().flatten() {
        if !IGNORED_SETTINGS.contains(&inner_key.as_str()) && !value.is_null() {
            return Err(unsupported(&format!("{key}.{inner_key}"), value));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<TransformerSettings> {
        TransformerSettings::parse(text, "sentence_bert_config.json", false)
    }

    #[test]
    fn lengths_and_case_are_read_from_every_known_field() -> Result<()> {
        let old = read(r#"{"max_seq_length": 128, "do_lower_case": true}"#)?;
        assert_eq!((old.max_seq_length, old.do_lower_case), (Some(128), true));
        let inner = read(r#"{"processor_kwargs": {"model_max_length": 9}, "query_length": 5}"#)?;
        assert_eq!((inner.max_seq_length, inner.query_length), (Some(9), Some(5)));
        read(
            r#"{"model_args": {"torch_dtype": "float16"}, "backend": "torch", "query_expansion": null}"#,
        )?;
        Ok(())
    }

    #[test]
    fn errors_name_the_unsupported_setting() {
        for (text, expected) in [
            (r#"{"transformer_task": "fill-mask"}"#, "fill-mask"),
            (r#"{"query_expansion": {"length": 32}}"#, "query_expansion"),
            (r#"{"config_args": {"num_hidden_layers": 1}}"#, "num_hidden_layers"),
            (r#"{"modality_config": {"audio": {"method": "forward"}}}"#, "modality_config.audio"),
            (r#"{"module_output_name": "sentence_embedding"}"#, "sentence_embedding"),
            (r#"{"max_seq_length": 0}"#, "0"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
