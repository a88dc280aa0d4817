//! `tokenizer_config.json`: its changes to a text encoder's tokenizer, and the maximum text length.

use std::sync::Arc;

use engram_data::tokenizer::{SegmentTokenizer, TextForm};
use engram_models::similarity::sentence_transformer::{PromptChoice, TransformerSettings};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::{InferError, Result};
use crate::pretrained::PretrainedFolder;

/// The fields of `tokenizer_config.json` that affect the encoder.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct TokenizerConfig {
    tokenizer_class: Option<String>,
    model_max_length: Option<f64>,
    max_len: Option<f64>,
    truncation_side: Option<String>,
    do_lower_case: Option<bool>,
    strip_accents: Option<bool>,
    tokenize_chinese_chars: Option<bool>,
}

impl TokenizerConfig {
    /// Reads the file; `None` if the model does not have it.
    ///
    /// # Errors
    /// [`InferError::Encoder`] for invalid content.
    pub(super) fn read(folder: &PretrainedFolder) -> Result<Option<Self>> {
        let Some((text, name)) = folder.optional_text("tokenizer_config.json")? else {
            return Ok(None);
        };
        let config = serde_json::from_str(&text).map_err(|error| InferError::Encoder {
            name,
            reason: format!("is not a tokenizer configuration: {error}; download the file again"),
        });
        config.map(Some)
    }

    fn has_class(&self, prefix: &str) -> bool {
        self.tokenizer_class.as_ref().is_some_and(|class| class.starts_with(prefix))
    }

    /// The maximum number of tokens; `None` for no limit.
    fn max_length(&self) -> Option<usize> {
        let length = self.model_max_length.or(self.max_len)?;
        // transformers writes 1e30 if there is no limit.
        (1.0..1e9).contains(&length).then_some(length as usize)
    }
}

/// The classes whose normalizer and pre-tokenizer are BERT's.
const LIKE_BERT: [&str; 3] = ["BertTokenizer", "DistilBertTokenizer", "MPNetTokenizer"];

/// Returns the content of `tokenizer.json` with the changes that transformers makes. For the
/// classes of [`LIKE_BERT`], the settings in `tokenizer_config.json` determine the normalizer and
/// pre-tokenizer. With `do_lower_case` of sentence-transformers, or of a `DebertaV2Tokenizer`,
/// texts are lower-cased first.
pub(super) fn adapt_tokenizer_json(
    json: Vec<u8>,
    config: Option<&TokenizerConfig>,
    do_lower_case: bool,
) -> Vec<u8> {
    let is_bert =
        config.is_some_and(|config| LIKE_BERT.iter().any(|class| config.has_class(class)));
    let is_deberta = config.is_some_and(|config| config.has_class("DebertaV2Tokenizer"));
    // `SegmentTokenizer::from_bytes` reports invalid JSON later.
    let Ok(mut tokenizer) = serde_json::from_slice::<Value>(&json) else { return json };
    if !tokenizer.is_object() {
        return json;
    }
    let mut changed = false;
    let mut set = |tokenizer: &mut Value, key: &str, value: Value| {
        changed |= tokenizer[key] != value;
        tokenizer[key] = value;
    };
    let config_lowercases = config.and_then(|config| config.do_lower_case);
    if let Some(config) = config.filter(|_| is_bert && tokenizer["model"]["type"] == "WordPiece") {
        let normalizer = json!({
            "type": "BertNormalizer",
            "clean_text": true,
            "handle_chinese_chars": config.tokenize_chinese_chars.unwrap_or(true),
            "strip_accents": config.strip_accents,
            "lowercase": config_lowercases.unwrap_or(true),
        });
        set(&mut tokenizer, "normalizer", normalizer);
        set(&mut tokenizer, "pre_tokenizer", json!({"type": "BertPreTokenizer"}));
    }
    let lowercases = do_lower_case || (is_deberta && config_lowercases == Some(true));
    if lowercases && !has_lowercase(&tokenizer["normalizer"]) {
        let lowercase = json!({"type": "Lowercase"});
        let normalizer = match tokenizer["normalizer"].take() {
            Value::Null => lowercase,
            Value::Object(mut sequence)
                if sequence.get("type").is_some_and(|kind| kind == "Sequence") =>
            {
                if let Some(Value::Array(normalizers)) = sequence.get_mut("normalizers") {
                    normalizers.insert(0, lowercase);
                }
                Value::Object(sequence)
            }
            single => json!({"type": "Sequence", "normalizers": [lowercase, single]}),
        };
        set(&mut tokenizer, "normalizer", normalizer);
    }
    if changed { tokenizer.to_string().into_bytes() } else { json }
}

/// Whether a normalizer is `Lowercase`, or a sequence that contains it.
fn has_lowercase(normalizer: &Value) -> bool {
    let is_lowercase = |normalizer: &Value| normalizer["type"] == "Lowercase";
    is_lowercase(normalizer)
        || normalizer["normalizers"]
            .as_array()
            .is_some_and(|sequence| sequence.iter().any(is_lowercase))
}

/// A tokenizer with the length limits of queries and documents.
pub(super) struct TextTokens {
    pub(super) tokenizer: Arc<SegmentTokenizer>,
    pub(super) settings: TransformerSettings,
    pub(super) config: Option<TokenizerConfig>,
    /// The maximum text length in `config.json`, in tokens.
    pub(super) default_limit: usize,
    /// The number of position embeddings; `None` for a model without a position table.
    pub(super) positions: Option<usize>,
}

impl TextTokens {
    /// The settings for tokenizing the texts of a role.
    pub(super) fn form(&self, role: &PromptChoice) -> TextForm {
        let (task_length, config) = (self.settings.task_length(role), self.config.as_ref());
        text_form(&self.settings, task_length, config, self.default_limit, self.positions)
    }

    /// The settings of each role: neither, query, document.
    pub(super) fn forms(&self) -> [TextForm; 3] {
        PromptChoice::ROLES.map(|role| self.form(&role))
    }

    /// Tokenizes a text with its special tokens, such as `[CLS] text [SEP]`. Also returns whether
    /// the text was truncated.
    pub(super) fn tokens(&self, text: &str, form: &TextForm) -> Result<(Vec<u32>, bool)> {
        let (mut ids, is_truncated) = self.tokenizer.encode_text(text, form)?;
        // A tokenizer without special tokens returns no tokens for an empty text.
        if ids.is_empty() {
            ids.push(self.tokenizer.special().pad);
        }
        Ok((ids, is_truncated))
    }
}

/// Returns the settings for tokenizing texts. `task_length` is a limit for queries or documents;
/// `None` if the model has none. If sentence-transformers sets no limit, the smaller of
/// `model_max_length` and `default_limit` applies. The number of position embeddings, `positions`,
/// limits every length; `None` without a position table.
pub(super) fn text_form(
    settings: &TransformerSettings,
    task_length: Option<usize>,
    config: Option<&TokenizerConfig>,
    default_limit: usize,
    positions: Option<usize>,
) -> TextForm {
    let tokenizer_limit = config.and_then(TokenizerConfig::max_length).unwrap_or(usize::MAX);
    let max_length =
        task_length.or(settings.max_seq_length).unwrap_or(tokenizer_limit.min(default_limit));
    let side = config.and_then(|config| config.truncation_side.as_deref());
    TextForm {
        // At least 3: one token between two special tokens.
        max_length: max_length.min(positions.unwrap_or(usize::MAX)).max(3),
        truncate_left: side == Some("left"),
        // These classes add special tokens with the post-processor in `tokenizer.json`. Other
        // classes add their own special tokens.
        use_post_processor: config.is_some_and(|config| {
            config.has_class("PreTrainedTokenizerFast") || config.has_class("TokenizersBackend")
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> TokenizerConfig {
        serde_json::from_str(text).expect("a configuration")
    }

    #[test]
    fn tokenizer_config_sets_the_normalizer_of_a_bert_tokenizer() {
        let json = json!({"normalizer": null, "pre_tokenizer": {"type": "BertPreTokenizer"},
                          "model": {"type": "WordPiece"}});
        let bytes = json.to_string().into_bytes();
        assert_eq!(adapt_tokenizer_json(bytes.clone(), None, false), bytes);
        let cased = config(r#"{"tokenizer_class": "BertTokenizerFast", "do_lower_case": false}"#);
        let unchanged_case: Value =
            serde_json::from_slice(&adapt_tokenizer_json(bytes.clone(), Some(&cased), false))
                .expect("JSON");
        assert_eq!(unchanged_case["normalizer"]["lowercase"], false);
        let lowercased: Value =
            serde_json::from_slice(&adapt_tokenizer_json(bytes, Some(&cased), true)).expect("JSON");
        assert_eq!(lowercased["normalizer"]["normalizers"][0]["type"], "Lowercase");
        assert_eq!(lowercased["normalizer"]["normalizers"][1]["lowercase"], false);
        assert_eq!(adapt_tokenizer_json(b"[".to_vec(), Some(&cased), true), b"[");
    }

    #[test]
    fn the_most_specific_length_limit_applies() {
        let limit = |max_seq_length: Option<usize>, task, tokenizer_config: &str, positions| {
            let settings = TransformerSettings { max_seq_length, ..Default::default() };
            text_form(&settings, task, Some(&config(tokenizer_config)), 512, positions).max_length
        };
        assert_eq!(limit(None, None, "{}", Some(512)), 512);
        assert_eq!(limit(None, None, r#"{"model_max_length": 1e30}"#, None), 512);
        assert_eq!(limit(None, None, r#"{"model_max_length": 128}"#, Some(512)), 128);
        assert_eq!(limit(None, None, r#"{"max_len": 128}"#, Some(512)), 128);
        assert_eq!(limit(Some(256), None, r#"{"model_max_length": 128}"#, Some(512)), 256);
        assert_eq!(limit(Some(900), None, "{}", Some(512)), 512);
        assert_eq!(limit(Some(900), None, "{}", None), 900);
        assert_eq!(limit(Some(256), Some(32), "{}", Some(512)), 32);
    }
}
